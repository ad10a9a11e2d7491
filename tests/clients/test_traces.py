"""Traces, as a collector of OpenTelemetry that we have not written reads them."""

import re
import sysconfig
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import openai
import pytest
from processes import Process, free_port, until
from stack import ask
from talk import film

AGENT = Path(sysconfig.get_paths()["purelib"]) / "rotel/rotel-agent"
QUESTION = "canary-question"
SPAN_FIELDS = ("Trace ID", "Parent ID", "ID", "Name", "Kind", "Status code")


class Collector:
    """A rotel, which prints the spans that it is sent and forgets them."""

    def __init__(self, folder):
        port, other = free_port(), free_port()
        self.url = f"http://127.0.0.1:{port}"
        listen = ["--otlp-http-endpoint", f"127.0.0.1:{port}", "--otlp-grpc-endpoint", f"127.0.0.1:{other}"]
        shown = ["--exporter", "blackhole", "--debug-log", "traces", "--debug-log-verbosity", "detailed"]
        self.process = Process("rotel", [AGENT, "start", *listen, *shown], folder)
        self.stop = self.process.stop
        until(self.is_there, "rotel listens", seconds=15)

    def is_there(self):
        self.process.check_alive()
        try:
            urllib.request.urlopen(self.url, timeout=2)
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    def text(self):
        return self.process.log.read_text(errors="replace")

    def spans(self):
        return [span_of(part) for part in re.split(r"^Span #\d+$", self.text(), flags=re.M)[1:]]

    def has(self, count):
        """Waits for so many spans, and sees that no more come."""
        until(lambda: len(self.spans()) >= count, f"{count} spans", seconds=20)
        time.sleep(0.3)
        spans = self.spans()
        assert len(spans) == count, spans
        return spans


def span_of(text):
    """A span as rotel has printed it."""
    found = {name: re.search(rf"^ +{name} +: (.*)$", text, flags=re.M) for name in SPAN_FIELDS}
    # One without a status prints none.
    fields = {name: field[1].strip() if field else "" for name, field in found.items()}
    own = text.split("Links:")[0]
    pairs = re.findall(r"^ +-> ([a-z_.]+): (?:Str|Int|Bool|Double)\((.*)\)$", own, flags=re.M)
    return SimpleNamespace(
        trace=fields["Trace ID"],
        parent=fields["Parent ID"],
        id=fields["ID"],
        name=fields["Name"],
        kind=fields["Kind"].removeprefix("SPAN_KIND_"),
        failed=fields["Status code"] == "STATUS_CODE_ERROR",
        attributes=dict(pairs),
        links=re.findall(r"-> Trace ID: (\w+)\n +-> ID: (\w+)", text),
    )


@pytest.fixture
def collector(tmp_path):
    collector = Collector(tmp_path)
    yield collector
    collector.stop()


def traces(collector, **more):
    return {"endpoint": collector.url, "sample_ratio": 1.0, **more}


@pytest.mark.vendors("sim")
def test_a_collector_reads_calls_and_attempts_of_every_kind(gateway, collector):
    gw = gateway(vendor_b=["status=503", ""], traces=traces(collector, service_name="edge"), videos={})
    account = gw.account()
    client = account.client()
    parent = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    raw = client.chat.completions.with_raw_response
    whole = raw.create(model="lmb-5.5", messages=ask(QUESTION), extra_headers=parent)
    list(client.chat.completions.create(model="lma-sonnet-4-6", messages=ask(QUESTION), stream=True))
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="no-such-model", messages=ask(QUESTION))
    film(client, seconds=1)
    spans = collector.has(8)

    trace = whole.headers["x-request-id"].replace("-", "")
    first = [span for span in spans if span.trace == trace]
    (call,) = (span for span in first if span.kind == "SERVER")
    attempts = [span for span in first if span.kind == "CLIENT"]
    assert call.name == "POST /v1/chat/completions" and not call.parent and not call.failed
    assert call.links == [("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")]
    assert call.attributes["tollgate.account"] == account.name
    request_id = whole.headers["x-request-id"]
    (charge,) = (charge for charge in account.charges(3) if charge.request_id == request_id)
    assert int(call.attributes["tollgate.charged_nanousd"]) == charge.amount_nano
    assert [span.name for span in attempts] == ["chat lmb-5.5"] * 2
    assert all(span.parent == call.id for span in attempts)
    failed, served = sorted(attempts, key=lambda span: not span.failed)
    assert failed.attributes["error.type"] == "503" and failed.attributes["tollgate.route"] == "main"
    usage = whole.parse().usage
    told = served.attributes["gen_ai.usage.input_tokens"], served.attributes["gen_ai.usage.output_tokens"]
    assert told == (str(usage.prompt_tokens), str(usage.completion_tokens))

    # A translated stream, a refusal, and a video with the order that the worker sent.
    assert sorted(span.name for span in spans if span.trace != trace) == [
        "POST /v1/chat/completions",
        "POST /v1/chat/completions",
        "POST /v1/videos",
        "chat lma-sonnet-4-6",
        *(span.name for span in spans if span.name.startswith("generate_content ")),
    ]
    for span in spans:
        parents = [other for other in spans if other.id == span.parent and other.trace == span.trace]
        assert len(parents) == (span.kind == "CLIENT"), span
    text = collector.text()
    assert "service.name: Str(edge)" in text
    assert QUESTION not in text and account.key not in text and "vk-test" not in text


@pytest.mark.vendors("sim")
@pytest.mark.stores("sqlite")
def test_a_trace_of_the_client_goes_on_through_the_collector(gateway, collector):
    gw = gateway(traces=traces(collector, callers="continue"))
    client = gw.account().client()
    for flag in "01", "00":
        parent = {"traceparent": f"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flag}"}
        client.chat.completions.create(model="lmb-5.5", messages=ask(QUESTION), extra_headers=parent)
    call, attempt = sorted(collector.has(2), key=lambda span: span.kind != "SERVER")
    assert (call.trace, call.parent) == ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    assert (attempt.trace, attempt.parent) == (call.trace, call.id)


@pytest.mark.vendors("sim")
@pytest.mark.stores("sqlite")
def test_the_standard_variables_are_enough(gateway, collector):
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_SERVICE_NAME": "by-variable"}
    gw = gateway(environment=variables | {"OTEL_TRACES_SAMPLER": "always_on"})
    gw.account().client().chat.completions.create(model="lmb-5.5", messages=ask(QUESTION))
    collector.has(2)
    assert "service.name: Str(by-variable)" in collector.text()
