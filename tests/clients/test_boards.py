"""The boards and the alerts, each expression asked of a real Prometheus that has scraped a gateway."""

import contextlib
import json
import math
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import uuid
from types import SimpleNamespace

import openai
import pytest
import yaml
from processes import REPO, Process, free_port, get_json, until
from stack import ask
from talk import embed, film, speak

GRAFANA, RULES, CASES = (
    REPO / "packaging" / part for part in ("grafana", "prometheus/tollgate.rules.yml", "prometheus/tollgate.test.yml")
)
BOARDS = {path.stem: json.loads(path.read_text()) for path in sorted(GRAFANA.glob("*.json"))}
GROUPS = yaml.safe_load(RULES.read_text())["groups"]
ALERTS = [rule for group in GROUPS for rule in group["rules"] if "alert" in rule]
RECORDS = {rule["record"]: rule for group in GROUPS for rule in group["rules"] if "record" in rule}
RUNBOOK = "https://github.com/tollgate/tollgate/blob/main/docs/operate/runbook.md#"

# The metrics that a gateway exposes.
OURS = r"\b(?:tollgate|gen_ai_client|gen_ai_server|process)_\w+"
# What a panel shows while there is nothing to count; the traffic makes all but these count something.
QUIET = " or on() vector(0)"
STAYS_QUIET = {"Answers 503", "Dropped to make room", "Routes down", "Traces", "Webhooks: tries"}
# As Grafana would put them in: everything is chosen, and the board shows five minutes.
VARIABLES = {"$__rate_interval": "1m", "$__range": "5m"} | dict.fromkeys(("$job", "$instance", "$vendor", "$model"), ".*")

# One model whose cost is known, and one plan that refuses.
COSTLY = '"text-embedding-3-small" = { input = 0.02'
PLAN = "[plan.one]\nrequests_per_minute = 1\n"
WISHES = {
    "vendor_a": "prompt=272001;completion=10",  # nobody asked it so much
    "vendor_c": "garbage",
    "vendor_e": ["status=503", ""],
    "timeouts": {"head_ms": 3_000, "ledger_ms": 5_000},
}


class Prometheus:
    """A Prometheus of our own, which scrapes each second and stays small."""

    def __init__(self, target, folder):
        scrape = {"job_name": "tollgate", "static_configs": [{"targets": [target]}]}
        pace = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        conf = folder / "prometheus.yml"
        conf.write_text(json.dumps({"global": pace, "rule_files": [str(RULES)], "scrape_configs": [scrape]}))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        options = [f"--web.listen-address=127.0.0.1:{port}", f"--storage.tsdb.path={folder}/tsdb"]
        bounds = ["--storage.tsdb.retention.size=64MB", "--query.timeout=10s", "--query.max-concurrency=4"]
        command = ["prometheus", f"--config.file={conf}", *options, *bounds]
        self.process = Process("prometheus", command, folder, GOMAXPROCS="2", GOMEMLIMIT="256MiB")
        self.stop = self.process.stop
        self.process.said("(Server is ready to receive web requests)")

    def ask(self, path, **words):
        self.process.check_alive()
        reply = get_json(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(words)}")
        assert reply["status"] == "success" and not reply.get("warnings"), reply
        return reply["data"]

    def values(self, expression):
        """The numbers that the series of an expression have now."""
        values = [float(series["value"][1]) for series in self.ask("query", query=expression)["result"]]
        return [value for value in values if math.isfinite(value)]


@pytest.fixture
def prometheus(tmp_path):
    with contextlib.ExitStack() as ends:

        def start(gateway):
            prometheus = Prometheus(gateway.admin, tmp_path)
            ends.callback(prometheus.stop)
            return prometheus

        yield start


def rules_with_cost(folder):
    rules = shutil.copytree(REPO / "lua-free-rules", folder / "lua-free-rules")
    (rules / "plans.toml").write_text(PLAN)
    vendor = rules / "vendor_b.toml"
    text = vendor.read_text()
    assert COSTLY in text
    vendor.write_text(text.replace(COSTLY, f"{COSTLY}, cost = {{ input = 0.01 }}"))
    return {"dir": str(rules)}


def traffic(gateway):
    """Calls of every kind: whole, streamed, of other endpoints, refused, failed, and one that came again."""
    alice, poor, slow = gateway.account(), gateway.account(credit="0.0000001"), gateway.account()
    gateway.cli("account", "set", slow.name, "--plan", "one")
    client = alice.client()

    def chat(model, client=client, **more):
        return client.chat.completions.create(model=model, messages=ask("hello"), **more)

    for _ in range(2):
        chat("lmb-5.5")
        list(chat("lmb-5.5", stream=True))
    chat("lma-sonnet-4-6")
    chat("orgA/famA-V3.2")
    again = {"extra_headers": {"idempotency-key": str(uuid.uuid4())}}
    assert chat("lmb-5.5", **again).id == chat("lmb-5.5", **again).id
    embed(client)
    speak(client).read()
    film(client, seconds=1)
    refused = [
        (chat, ("no-such-model",), 404),
        (chat, ("lmc-3.5-flash",), 502),
        (chat, ("lmb-5.5", poor.client()), 402),
    ]
    for call, words, status in refused:
        with pytest.raises(openai.APIStatusError) as fault:
            call(*words)
        assert fault.value.status_code == status
    chat("lmb-5.5", slow.client())
    with pytest.raises(openai.RateLimitError):
        chat("lmb-5.5", slow.client())


def panels():
    """Every expression of every panel as Grafana would ask it."""
    for name, board in BOARDS.items():
        for panel in board["panels"]:
            for target in panel["targets"]:
                expression = target["expr"]
                for variable, value in VARIABLES.items():
                    expression = expression.replace(variable, value)
                assert "$" not in expression, expression
                if panel["title"] not in STAYS_QUIET:
                    expression = expression.replace(QUIET, "")
                yield SimpleNamespace(name=f"{name}: {panel['title']}", expression=expression)


@pytest.mark.vendors("sim")
def test_every_panel_and_every_rule_has_data_of_a_gateway(gateway, prometheus, tmp_path):
    gw = gateway(**WISHES, rules=rules_with_cost(tmp_path))
    server = prometheus(gw)
    host, port = gw.root.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as silent:
        traffic(gw)
        assert silent.recv(1) == b"", "who says nothing is turned away"
    # What counts for the first time has nothing that it grew from.
    seen = time.time()
    until(lambda: server.values(f"min(timestamp(up)) > {seen + 1}"), "all that was counted is scraped")
    with socket.create_connection((host, int(port))) as silent:
        traffic(gw)
        assert silent.recv(1) == b""

    asked = list(panels())
    asked += [SimpleNamespace(name=name, expression=name) for name in RECORDS]
    assert len(asked) > 60

    def empty():
        return [f"{panel.name}: {panel.expression}" for panel in asked if not server.values(panel.expression)]

    deadline = time.monotonic() + 15
    while (missing := empty()) and time.monotonic() < deadline:
        time.sleep(1)
    assert not missing, "no data:\n" + "\n".join(missing)

    def rules():
        return [rule for group in server.ask("rules")["groups"] for rule in group["rules"]]

    def alerted():
        return {rule["name"] for rule in rules() if rule.get("alerts")}

    until(lambda: "TollgateUsageRejected" in alerted(), "an alert for usage that nobody had")
    assert "TollgateDown" not in alerted()
    evaluated = rules()
    assert len(evaluated) == len(ALERTS) + len(RECORDS)
    assert [rule for rule in evaluated if rule["health"] != "ok"] == []


def promtool(*words):
    done = subprocess.run(["promtool", *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_rules_and_their_cases():
    promtool("check", "rules", RULES)
    promtool("test", "rules", CASES)


def test_each_alert_has_a_case_that_fires_and_one_that_stays_silent():
    expected = {}
    for case in yaml.safe_load(CASES.read_text())["tests"]:
        (of,) = case["alert_rule_test"]
        fires = bool(of["exp_alerts"])
        assert case["name"].startswith(f"{of['alertname']} {'fires' if fires else 'stays silent: '}")
        assert case["input_series"]
        expected.setdefault(of["alertname"], []).append(fires)
    assert expected == {rule["alert"]: [True, False] for rule in ALERTS}


def test_each_alert_tells_what_to_do():
    runbook = (REPO / "docs/operate/runbook.md").read_text()
    entries = re.findall(r"^### (Tollgate\w+)$", runbook, re.M)
    assert sorted(entries) == sorted(rule["alert"] for rule in ALERTS)
    for rule in ALERTS:
        notes = rule["annotations"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert notes["summary"] and notes["description"]
        assert notes["runbook_url"] == RUNBOOK + rule["alert"].lower()


def metrics_of_page():
    """The metrics that docs/operate/metrics.md lists, and their labels."""
    page = (REPO / "docs/operate/metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([CGH]) \| ([^|]*)\|", page, re.M)
    found = {}
    for name, kind, labels in rows:
        names = set(re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", labels)))
        for end in ("_bucket", "_sum", "_count") if kind == "H" else ("",):
            full = name if name.startswith(("gen_ai_", "process_")) else f"tollgate_{name}"
            found[f"{full}{end}"] = names | ({"le"} if end == "_bucket" else set())
    assert len(found) > 40
    return found


def faults_of(expression, known):
    """Metrics of ours that nobody has, and labels that they have not."""
    used = re.findall(rf"(?<![:\w])({OURS})(?:\{{([^}}]*)\}})?", expression)
    everywhere, allowed = {"instance", "job"}, set()
    for name, matchers in used:
        if name not in known:
            yield name
            continue
        allowed |= known[name] | everywhere
        yield from set(re.findall(r"(\w+)\s*[=!]", re.sub(r'"[^"]*"', "", matchers))) - known[name] - everywhere
    if used:
        grouped = re.findall(r"by \(([^)]*)\)", expression)
        yield from {label.strip() for labels in grouped for label in labels.split(",")} - allowed


def test_every_expression_names_metrics_and_labels_that_there_are():
    known = metrics_of_page()
    expressions = [panel.expression for panel in panels()]
    expressions += [rule["expr"] for rule in [*ALERTS, *RECORDS.values()]]
    faults = {expression: wrong for expression in expressions if (wrong := list(faults_of(expression, known)))}
    assert faults == {}
    for name in re.findall(r"[a-z_]+:tollgate\w*:\w+|tollgate:\w+:\w+", " ".join(expressions)):
        assert name in RECORDS
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(OURS, " ".join(expressions))}
    assert shown >= {re.sub(r"_(bucket|sum|count)$", "", name) for name in known}


def test_the_boards_are_those_of_their_source():
    done = subprocess.run([sys.executable, GRAFANA / "boards.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(BOARDS) == {"money", "calls", "fleet"}


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_can_be_loaded_anywhere_and_explains_itself(name):
    board = BOARDS[name]
    variables = {variable["name"] for variable in board["templating"]["list"]}
    assert "datasource" in variables and board["uid"] == f"tollgate-{name}"
    assert set(re.findall(r'"uid": "([^"]*)"', json.dumps(board["panels"]))) == {"${datasource}"}
    shown = board["panels"]
    for parts in ([panel["id"] for panel in shown], [panel["title"] for panel in shown]):
        assert len(set(parts)) == len(parts)
    for panel in shown:
        assert panel["description"] and panel["fieldConfig"]["defaults"]["unit"] and panel["targets"]
        for target in panel["targets"]:
            assert target["legendFormat"]
            used = set(re.findall(r"\$(?!__)(\w+)", target["expr"]))
            assert used <= variables, (panel["title"], used)
