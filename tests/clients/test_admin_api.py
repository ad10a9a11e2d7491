"""The API of operators, by what its own document says of it.

`Document` knows nothing but that document: it finds an operation by its id, puts names into the path and sends what
the schema of the body asks for. What it cannot learn there, it cannot do.
"""

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import openai
import pytest
from processes import free_port, get_json, until
from stack import ask

MODEL = "lmb-5.5"
USAGE = "prompt=1000;completion=100"
LIST_NANO = 1000 * 5_000 + 100 * 30_000
BOOKS = '[book.partner]\nfactor = "0.85"'
CHARGE_NANO = LIST_NANO * 85 // 100


class Document:
    """A client that is made of an OpenAPI document."""

    def __init__(self, root, token):
        self.root, self.token = root, token
        self.document = get_json(f"{root}/admin/v1/openapi.json")
        self.operations = {
            operation["operationId"]: (method.upper(), path, operation)
            for path, item in self.document["paths"].items()
            for method, operation in item.items()
        }

    def schema_of(self, operation):
        reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        return self.document["components"]["schemas"][reference.rsplit("/", 1)[1]]

    def call(self, operation_id, status=None, names=(), query=(), key=None, **body):
        """Makes a call; its reply. The members of the body have to be in the schema, and all that it requires."""
        method, path, operation = self.operations[operation_id]
        path = path.format(**{name: urllib.parse.quote(value, safe="") for name, value in dict(names).items()})
        known = {parameter["name"] for parameter in operation.get("parameters", ())}
        assert set(dict(query)) | set(dict(names)) <= known, operation_id
        data, headers = None, {"authorization": f"Bearer {self.token}"}
        if "requestBody" in operation:
            schema = self.schema_of(operation)
            assert set(schema.get("required", ())) <= set(body) <= set(schema["properties"]), operation_id
            data, headers["content-type"] = json.dumps(body).encode(), "application/json"
        if key:
            assert "idempotency-key" in known
            headers["idempotency-key"] = key
        url = f"{self.root}{path}" + (f"?{urllib.parse.urlencode(dict(query))}" if query else "")
        request = urllib.request.Request(url, data=data, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=90) as reply:
                found = SimpleNamespace(status=reply.status, body=json.load(reply))
        except urllib.error.HTTPError as error:
            found = SimpleNamespace(status=error.code, body=json.load(error))
        assert str(found.status) in operation["responses"], (operation_id, found)
        assert found.status == status if status else found.status < 300, (operation_id, found)
        return found.body


@pytest.fixture
def operated(gateway):
    """A gateway with the API of operators, and a client of it with the token of an owner."""
    console = free_port()
    environment = {"TOLLGATE__LISTEN__CONSOLE": f"127.0.0.1:{console}"}
    running = gateway(vendor_b=USAGE, books=BOOKS, environment=environment)
    token = running.cli("operator", "add", "ada", "--role", "owner")
    root = f"http://127.0.0.1:{console}"
    return SimpleNamespace(gateway=running, root=root, token=token, api=Document(root, token))


@pytest.mark.vendors("sim")
def test_who_knows_only_the_document_can_do_everything(operated):
    api = operated.api
    assert api.call("listBooks")["data"] == [{"name": "partner", "factor": "0.85", "prices": 0, "loss": False}]
    refused = api.call("createAccount", status=400, name="acme", book="partners")["error"]
    assert refused["param"] == "book" and "closest is 'partner'" in refused["message"]
    assert api.call("createAccount", name="acme", book="partner")["book"] == "partner"
    assert api.call("createPayment", account="acme", amount_usd="5", id="p-1")["moved_nano"] == 5 * 10**9
    end = (datetime.now(UTC) + timedelta(days=30)).strftime("%Y-%m-%dT00:00:00Z")
    granted = api.call("createGrant", account="acme", amount_usd="1", id="g-1", expires_at=end, source="voucher")
    assert (granted["moved_nano"], granted["source"], granted["expires_at"]) == (10**9, "voucher", end)
    body = {"account": "acme", "name": "ci", "budgets": {"day": "1"}, "models": ["lmb-*"]}
    issued = api.call("createKey", key="issue", **body)
    again = api.call("createKey", status=409, key="issue", **body)
    assert again["error"]["code"] == "already_issued" and issued["prefix"] in again["error"]["message"]

    client = operated.gateway.client(issued["key"])
    reply = client.chat.completions.create(model=MODEL, messages=ask(USAGE))
    request_id = reply._request_id

    def charge():
        lines = api.call("listCharges", query={"account": "acme"})["data"]
        return [line for line in lines if line["request_id"] == request_id]

    (line,) = until(charge, "the call is charged")
    assert (line["kind"], line["amount_nano"], line["model"]) == ("charge", CHARGE_NANO, MODEL)
    assert (line["book"], line["list_nano"]) == ("partner", LIST_NANO)
    (budget,) = api.call("getKey", names={"prefix": issued["prefix"]})["budgets"]
    assert (budget["window"], budget["limit_usd"], budget["spent_nano"]) == ("day", "1.00", CHARGE_NANO)

    correction = {"account": "acme", "request_id": request_id, "amount_usd": "1", "id": "c-1", "reason": "cut off"}
    assert api.call("createCorrection", **correction)["moved_nano"] == CHARGE_NANO, "at most what is left of it"
    shown = api.call("getCharge", names={"request_id": request_id}, query={"account": "acme"})
    assert shown["charged_nano"] == shown["corrected_nano"] == CHARGE_NANO
    refunded = api.call("createRefund", account="acme", amount_usd="7", id="r-1", reason="closed")
    assert (refunded["moved_nano"], refunded["uncovered_nano"]) == (5 * 10**9, 2 * 10**9)
    account = api.call("getAccount", names={"name": "acme"})
    came = account["credited_nano"] + account["written_off_nano"]
    held = api.call("listHolds", query={"account": "acme"})["data"]
    assert sum(hold["held_nano"] for hold in held) == account["held_nano"]
    assert api.call("listJobs", query={"state": "completed"})["data"] == []
    # The call was paid with the voucher, to which the correction went back, and which is not paid back.
    assert came == account["available_nano"] + account["held_nano"] + account["posted_nano"] == 10**9
    (lot,) = account["lots"]
    assert (lot["source"], lot["expires_at"], lot["available_nano"]) == ("voucher", end, 10**9)

    api.call("createPayment", account="acme", amount_usd="5", id="p-2")
    assert client.chat.completions.create(model=MODEL, messages=ask(USAGE))
    api.call("updateAccount", names={"name": "acme"}, suspended=True)
    time.sleep(1)
    with pytest.raises(openai.PermissionDeniedError) as refused:
        client.chat.completions.create(model=MODEL, messages=ask(USAGE))
    assert refused.value.code == "account_suspended"

    actions = [line["action"] for line in api.call("listAudit")["data"]][::-1]
    assert actions == [
        *("operator.add", "account.create", "credit.add", "credit.grant", "key.issue", "charge.correct"),
        *("credit.take", "credit.add", "account.set"),
    ]


@pytest.mark.vendors("sim")
@pytest.mark.stores("sqlite")
def test_what_answers_is_what_the_document_says(operated):
    """Made-up requests for each operation, most of them wrong: each answer is one that is described."""
    # Imported here, since it takes each worker two seconds, and one worker needs it.
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks as documented

    conforms = (
        not_a_server_error,
        documented.status_code_conformance,
        documented.content_type_conformance,
        documented.response_headers_conformance,
        documented.response_schema_conformance,
    )
    operated.api.call("createAccount", name="acme", credit_usd="5")
    schema = schemathesis.openapi.from_dict(operated.api.document)
    schema.config.update(base_url=operated.root)
    # The last owner stays, so the token works to the end.
    headers = {"authorization": f"Bearer {operated.token}"}
    for found in schema.get_all_operations():
        operation = found.ok()

        @given(case=operation.as_strategy())
        @settings(
            max_examples=25,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def answers(case):
            case.call_and_validate(headers=headers, checks=conforms)

        # Its path may name the operator whose token this is, which would not work any more.
        if operation.label != "POST /admin/v1/operators/{name}/rotate":
            answers()
