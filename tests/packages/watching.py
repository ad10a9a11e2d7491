"""Watching what is installed: its boards and its alerts, by a Prometheus of this machine."""

import contextlib
import json
import re
import shutil
import tempfile
import urllib.parse
from pathlib import Path

from debian import VAR
from processes import Process, free_port, get_json, until
from selling import CHARGE

# What a board's variables stand for: everything, and the last minutes.
VARIABLES = {"$__rate_interval": "1m", "$__range": "5m"} | dict.fromkeys(("$job", "$instance", "$vendor", "$model"), ".*")
# The alert waits for a minute; the gateway and Prometheus have to notice, too.
ALERT, PATIENCE = "TollgateVendorDown", 150


class Watch:
    """A Prometheus with the rules in `share`, which scrapes a gateway each second."""

    def __init__(self, seller, share):
        self.seller, self.share = seller, share
        self.folder = Path(tempfile.mkdtemp(prefix="watch-", dir=VAR))
        scrape = {"job_name": "tollgate", "static_configs": [{"targets": [f"127.0.0.1:{seller.admin_port}"]}]}
        conf = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(share / "prometheus/tollgate.rules.yml")],
            "scrape_configs": [scrape],
        }
        file = self.folder / "prometheus.yml"
        file.write_text(json.dumps(conf))
        self.url = f"http://127.0.0.1:{free_port()}"
        address = self.url.removeprefix("http://")
        words = [f"--config.file={file}", f"--web.listen-address={address}", f"--storage.tsdb.path={self.folder}/tsdb"]
        self.process = Process("prometheus", ["prometheus", *words], self.folder, GOMEMLIMIT="256MiB")
        self.process.said("(Server is ready to receive web requests)")

    def stop(self):
        self.process.stop()
        shutil.rmtree(self.folder)

    def ask(self, path, **words):
        reply = get_json(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(words)}")
        assert reply["status"] == "success", reply
        return reply["data"]

    def panel(self, board, title):
        """What the first expression of a panel gives, one number for each series."""
        panels = json.loads((self.share / f"grafana/{board}.json").read_text())["panels"]
        (expression,) = [panel["targets"][0]["expr"] for panel in panels if panel["title"] == title]
        for name, value in VARIABLES.items():
            expression = re.sub(re.escape(name) + r"\b", value, expression)
        return [float(series["value"][1]) for series in self.ask("query", query=expression)["result"]]

    def firing(self):
        return [alert["labels"] for alert in self.ask("alerts")["alerts"] if alert["state"] == "firing"]


def watch(seller, share, sim):
    """Sells, and sees it on the boards; cuts the vendor, and is told by an alert."""
    with contextlib.ExitStack() as ends:
        prometheus = Watch(seller, share)
        ends.callback(prometheus.stop)

        def is_shown():
            # A counter that begins with its first value has not grown yet.
            assert seller.call().status == 200
            charged = prometheus.panel("money", "Charged in the time shown")
            answers = prometheus.panel("calls", "Answers per second")
            return charged and answers and charged[0] * 1e9 >= CHARGE and answers[0] > 0

        until(is_shown, "the boards show what is sold", seconds=60)
        assert prometheus.panel("fleet", "Gateways that answer") == [1.0]
        assert prometheus.panel("fleet", "Routes down") == [0.0]
        assert prometheus.firing() == []
        sim.stop()

        def is_told():
            assert seller.call().status >= 500
            return [labels["vendor"] for labels in prometheus.firing() if labels["alertname"] == ALERT]

        assert until(is_told, f"{ALERT} fires", seconds=PATIENCE) == ["vendor_b"]
        assert prometheus.panel("fleet", "Routes down") == [1.0]
