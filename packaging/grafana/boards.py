#!/usr/bin/env python3
"""The boards for Grafana: money, calls and fleet. Writes their JSON beside itself; with --check it
only says whether what is there is current, and with a folder it writes into that instead.

A panel is a title, a unit, what it means, and pairs of an expression and its legend. $instance and
the like are variables of the board, used where the metric has their label. What counts
only faults has no series while there are none; QUIET gives such a panel a 0 then.
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
QUIET = " or on() vector(0)"
SOLD = '{instance=~"$instance", model=~"$model", vendor=~"$vendor"}'
ASKED = '{instance=~"$instance", model=~"$model"}'
ROUTED = '{instance=~"$instance", vendor=~"$vendor"}'
HERE_ONLY = '{instance=~"$instance"}'
# Other programs have the same metrics.
RUNS = '{job=~"$job", instance=~"$instance"}'


def rate(metric, where=HERE_ONLY, by="", of="rate", span="$__rate_interval"):
    """The sum of the rates of a counter, by labels if any are given."""
    grouped = f" by ({by}) " if by else ""
    return f"sum{grouped}({of}(tollgate_{metric}{where}[{span}]))"


def grown(metric, where=HERE_ONLY, by=""):
    return rate(metric, where, by, of="increase")


def quantile(share, metric, where=HERE_ONLY, by=""):
    return f"histogram_quantile({share}, {rate(f'{metric}_bucket', where, f'le, {by}' if by else 'le')})"


def conventional(metric, share, by):
    """A quantile of a histogram that OpenTelemetry's conventions name."""
    where = '{instance=~"$instance", gen_ai_request_model=~"$model", gen_ai_provider_name=~"$vendor"}'
    return f"histogram_quantile({share}, sum by (le, {by}) (rate(gen_ai_{metric}_bucket{where}[$__rate_interval])))"


def usd(expression):
    return f"{expression} / 1e9"


def by_status(statuses):
    return f'{{instance=~"$instance", model=~"$model", status=~"{statuses}"}}'


MONEY = [
    ("Charged in the time shown", "currencyUSD", "The sum of all charges between the ends of the board.",
     [(usd(rate("charged_nanousd_total", SOLD, of="increase", span="$__range")), "charged")], "stat"),
    ("Margin in the time shown", "currencyUSD",
     "Charges less costs of the models whose cost the rules know. 0 if they know none.",
     [("sum(increase(tollgate_charged_nanousd_total" + SOLD + "[$__range]) - increase(tollgate_cost_nanousd_total"
       + SOLD + "[$__range])) / 1e9" + QUIET, "margin")], "stat"),
    ("Held now", "currencyUSD", "What open holds set aside, of the whole ledger: every gateway tells the same.",
     [(usd("max(tollgate_held_nanousd" + HERE_ONLY + ")"), "held")], "stat"),
    ("Written off in the time shown", "currencyUSD", "What accounts could not pay of their charges: your loss.",
     [(usd(rate("written_off_nanousd_total", of="increase", span="$__range")), "written off")], "stat"),
    ("Charged by model", "currencyUSD", "USD per second.",
     [(usd(rate("charged_nanousd_total", SOLD, "model")), "{{model}}")]),
    ("Charged by vendor", "currencyUSD", "USD per second.",
     [(usd(rate("charged_nanousd_total", SOLD, "vendor")), "{{vendor}}")]),
    ("Charged by endpoint", "currencyUSD", "USD per second.",
     [(usd(rate("charged_nanousd_total", SOLD, "endpoint")), "{{endpoint}}")]),
    ("Margin by model", "currencyUSD",
     "USD per second: charges less costs, of the models whose cost the rules know. Below 0 they are sold at a loss.",
     [("sum by (model) (rate(tollgate_charged_nanousd_total" + SOLD + "[$__rate_interval]) - "
       "rate(tollgate_cost_nanousd_total" + SOLD + "[$__rate_interval])) / 1e9" + QUIET, "{{model}}")]),
    ("Held and holds", "currencyUSD", "What open holds set aside, and how many there are (right axis).",
     [(usd("max(tollgate_held_nanousd" + HERE_ONLY + ")"), "held"),
      ("max(tollgate_holds_open" + HERE_ONLY + ")", "holds")]),
    ("Refused for want of money", "reqps", "Answers 402: no credit, or a budget of the account or the key is used up.",
     [(rate("requests_total", by_status("402"), "model") + QUIET, "{{model}}")]),
    ("Written off", "currencyUSD", "What accounts could not pay, in each step of the board.",
     [(usd(grown("written_off_nanousd_total", by="instance")), "{{instance}}")]),
    ("Charges written off above a cent", "short", "Each is a line write_off of the log, with account and call.",
     [(grown("write_offs_total", by="instance"), "{{instance}}")]),
    ("Usage not believed", "short", "Reports of usage that cannot be true, in each step of the board.",
     [(grown("usage_rejected_total", ROUTED, "vendor, route") + QUIET, "{{vendor}}/{{route}}")]),
    ("Attempts that may be billed to nobody", "short", "Attempts given up after the vendor may have begun paid work.",
     [(grown("lost_attempts_total", ROUTED, "vendor, route") + QUIET, "{{vendor}}/{{route}}")]),
    ("Calls dropped before their settlement", "short", "Their holds end with their leases. Look for a panic in the log.",
     [(grown("holds_dropped_total", by="instance"), "{{instance}}")]),
    ("Time of a settlement", "s", "Lag of posting: how long the ledger takes for a charge.",
     [(quantile(0.5, "ledger_seconds", '{instance=~"$instance", op="settle"}'), "50 %"),
      (quantile(0.99, "ledger_seconds", '{instance=~"$instance", op="settle"}'), "99 %")]),
    ("Charges not acknowledged by the store", "short", "Ends of holds that wait in the outbox.",
     [("sum by (instance) (tollgate_outbox_pending" + HERE_ONLY + ")", "{{instance}}")]),
    ("Told to the store again", "short", "Ends of holds that a store lacked, in each step of the board.",
     [(grown("outbox_replayed_total", by="instance"), "{{instance}}")]),
]

CALLS = [
    ("Answers per second", "reqps", "All endpoints.", [(rate("requests_total", ASKED), "answers")], "stat"),
    ("Share of faults", "percentunit", "Answers with a status from 500 on, of all.",
     [("(" + rate("requests_total", by_status("5..")) + QUIET + ") / " + rate("requests_total", ASKED), "faults")],
     "stat"),
    ("First byte, 95 %", "s", "From the head of a request to the first byte of its answer, all endpoints.",
     [(quantile(0.95, "first_byte_seconds"), "95 %")], "stat"),
    ("Tokens per second", "short", "Billed tokens, of input and output.",
     [(rate("tokens_total", ASKED), "tokens")], "stat"),
    ("Answers by status", "reqps", "",
     [(rate("requests_total", ASKED, "status"), "{{status}}")]),
    ("Answers by endpoint", "reqps", "Chats, streams, images and the others.",
     [(rate("requests_total", ASKED, "endpoint"), "{{endpoint}}")]),
    ("Answers by model", "reqps", "Without a name: calls whose model is not known.",
     [(rate("requests_total", ASKED, "model"), "{{model}}")]),
    ("Refusals and faults by model", "reqps", "Answers with a status from 400 on.",
     [(rate("requests_total", by_status("[45].."), "model, status") + QUIET, "{{model}} {{status}}")]),
    ("First byte by endpoint, 50 %", "s", "Of a stream: until it begins.",
     [(quantile(0.5, "first_byte_seconds", by="endpoint"), "{{endpoint}}")]),
    ("First byte by endpoint, 95 %", "s", "Of a stream: until it begins.",
     [(quantile(0.95, "first_byte_seconds", by="endpoint"), "{{endpoint}}")]),
    ("Whole call by endpoint, 95 %", "s", "To the end of the answer; of a stream to its last byte.",
     [(quantile(0.95, "request_seconds", by="endpoint"), "{{endpoint}}")]),
    ("Time in the gateway itself", "s", "Of the whole call, what was not spent waiting for a vendor or the client.",
     [(quantile(0.5, "overhead_seconds"), "50 %"), (quantile(0.99, "overhead_seconds"), "99 %")]),
    ("Tokens by kind", "short", "Billed tokens per second.", [(rate("tokens_total", ASKED, "kind"), "{{kind}}")]),
    ("Tokens by model", "short", "Billed tokens per second.", [(rate("tokens_total", ASKED, "model"), "{{model}}")]),
    ("Failed attempts by route", "reqps", "Routes that failed or were passed over, and why; docs/operate/metrics.md "
     "explains the reasons.",
     [(rate("fallbacks_total", ROUTED, "vendor, from_route, reason") + QUIET, "{{vendor}}/{{from_route}} {{reason}}")]),
    ("Share of calls that needed another route", "percentunit", "Of charged calls.",
     [("1 - " + rate("fallback_depth_bucket", '{instance=~"$instance", le=~"0|0.0"}') + " / "
       + rate("fallback_depth_count"), "share")]),
    ("Above a rate limit", "reqps", "enforce: refused with 429. shadow: would have been.",
     [(rate("limited_total", by="scope, kind, mode") + QUIET, "{{scope}} {{kind}} {{mode}}")]),
    ("Turned away or cut", "reqps", "For overload or slowness; docs/operate/metrics.md explains the reasons.",
     [(rate("shed_total", by="reason") + QUIET, "{{reason}}")]),
    ("Calls that came again", "reqps", "Repeats under an idempotency key or by an SDK, and what became of them.",
     [(rate("repeats_total", by="outcome") + QUIET, "{{outcome}}")]),
    ("Video jobs", "short", "Of the whole store.",
     [("max by (status) (tollgate_video_jobs" + HERE_ONLY + ")", "{{status}}")]),
    ("First byte of a stream by model, 95 %", "s", "By the names of OpenTelemetry's conventions.",
     [(conventional("server_time_to_first_token_seconds", 0.95, "gen_ai_request_model"), "{{gen_ai_request_model}}")]),
    ("Time of a token by model, 95 %", "s", "Of streams: after the first byte, for each token but one.",
     [(conventional("server_time_per_output_token_seconds", 0.95, "gen_ai_request_model"),
       "{{gen_ai_request_model}}")]),
    ("Whole call by model, 95 %", "s", "By model and error; empty: none.",
     [(conventional("server_request_duration_seconds", 0.95, "gen_ai_request_model, error_type"),
       "{{gen_ai_request_model}} {{error_type}}")]),
    ("Tokens of a call, 95 %", "short", "Billed tokens, input and output.",
     [(conventional("client_token_usage", 0.95, "gen_ai_token_type"), "{{gen_ai_token_type}}")]),
]

FLEET = [
    ("Gateways that answer", "short", "Scraped well, of all that are known.",
     [('sum(up{job=~"$job", instance=~"$instance"})', "up"),
      ('count(up{job=~"$job", instance=~"$instance"})', "known")], "stat"),
    ("Routes down", "short", "Routes that some gateway tries last.",
     [("count(min by (vendor, route) (tollgate_route_up" + HERE_ONLY + ") == 0)" + QUIET, "down")], "stat"),
    ("Answers 503", "percentunit", "Share of all: the store is away or full, no route is left, or overload.",
     [("(" + rate("requests_total", '{instance=~"$instance", status="503"}') + QUIET + ") / " + rate("requests_total"),
       "503")], "stat"),
    ("Not acknowledged by the store", "short", "Ends of holds that wait in the outboxes.",
     [("sum(tollgate_outbox_pending" + HERE_ONLY + ")", "ends")], "stat"),
    ("Gateways", "short", "1: it can be scraped.",
     [('max by (instance) (up{job=~"$job", instance=~"$instance"})', "{{instance}}")]),
    ("Time of a scrape", "s", "A gateway that takes long for its metrics is short of processor.",
     [('max by (instance) (scrape_duration_seconds{job=~"$job", instance=~"$instance"})', "{{instance}}")]),
    ("Answers by gateway", "reqps", "", [(rate("requests_total", by="instance"), "{{instance}}")]),
    ("Routes", "short", "1: all gateways use it. 0: some gateway tries it last.",
     [("min by (vendor, route) (tollgate_route_up" + HERE_ONLY + ")", "{{vendor}}/{{route}}")]),
    ("Store: time of an operation, 99 %", "s", "Above timeouts.ledger_ms (250 ms) a hold is refused.",
     [(quantile(0.99, "ledger_seconds", by="op"), "{{op}}")]),
    ("Store: operations", "ops", "", [(rate("ledger_seconds_count", by="op, store"), "{{op}} ({{store}})")]),
    ("Outbox", "short", "Ends of holds that the store has not acknowledged.",
     [("sum by (instance) (tollgate_outbox_pending" + HERE_ONLY + ")", "{{instance}}")]),
    ("Outbox: faults and repeats", "short", "Failures to write or read it; ends told to the store again. In each step.",
     [(grown("outbox_errors_total", by="instance"), "{{instance}} faults"),
      (grown("outbox_replayed_total", by="instance"), "{{instance}} told again")]),
    ("Connections", "short", "Of clients; limits.connections_max bounds them.",
     [("sum by (instance) (tollgate_connections" + HERE_ONLY + ")", "{{instance}}")]),
    ("Answers in memory", "bytes", "Not taken yet by clients; limits.answers_bytes_max bounds them.",
     [("sum by (instance) (tollgate_answer_bytes" + HERE_ONLY + ")", "{{instance}}")]),
    ("Turned away or cut", "reqps", "For overload or slowness.",
     [(rate("shed_total", by="instance, reason") + QUIET, "{{instance}} {{reason}}")]),
    ("Kept replies and files", "bytes", "store: bounded by store.kept_bytes_max. files: by files.kept_bytes_max.",
     [("max by (place) (tollgate_kept_bytes" + HERE_ONLY + ")", "{{place}}")]),
    ("Dropped to make room", "Bps", "Of what is kept.",
     [(rate("kept_evicted_bytes_total", by="place") + QUIET, "{{place}}")]),
    ("Holds", "short", "Open holds with their leases, of the whole ledger.",
     [("max(tollgate_holds_open" + HERE_ONLY + ")", "holds")]),
    ("Allotments", "short", "Accounts of which a gateway has borrowed money.",
     [("sum by (instance) (tollgate_allotments" + HERE_ONLY + ")", "{{instance}}")]),
    ("Allotments: messages to the store", "ops", "Messages, and the ends of calls that they tell.",
     [(rate("allotment_updates_total"), "messages"), (rate("allotment_ends_total"), "ends")]),
    ("Video jobs", "short", "Of the whole store.",
     [("max by (status) (tollgate_video_jobs" + HERE_ONLY + ")", "{{status}}")]),
    ("Archive", "short", "Lines of journals archived and taken out of the store, and runs that failed. In each step.",
     [(grown("journal_lines_archived_total"), "archived"), (grown("journal_lines_trimmed_total"), "taken out"),
      (grown("journal_archive_failures_total"), "failed runs")]),
    ("Versions", "short", "Gateways of each version.",
     [("count by (version) (tollgate_build_info" + HERE_ONLY + ")", "{{version}}")]),
    ("Running since", "dateTimeFromNow", "When each process started.",
     [("process_start_time_seconds" + RUNS + " * 1000", "{{instance}}")]),
    ("Processor", "short", "Cores.",
     [("sum by (instance) (rate(process_cpu_seconds_total" + RUNS + "[$__rate_interval]))", "{{instance}}"),
      ("sum by (instance) (process_threads" + RUNS + ")", "{{instance}} threads")]),
    ("Memory", "bytes", "Of the process: in RAM, and as addresses.",
     [("sum by (instance) (process_resident_memory_bytes" + RUNS + ")", "{{instance}}"),
      ("sum by (instance) (process_virtual_memory_bytes" + RUNS + ")", "{{instance}} addresses")]),
    ("Open files", "percentunit", "Of what the process may open: connections, files, pipes.",
     [("sum by (instance) (process_open_fds" + RUNS + ") / sum by (instance) (process_max_fds" + RUNS + ")",
       "{{instance}}")]),
    ("Traces", "ops", "Spans that the collector has taken, and those that were dropped, by reason.",
     [(rate("spans_exported_total"), "taken"),
      (rate("spans_dropped_total", by="reason") + QUIET, "dropped: {{reason}}")]),
    ("Webhooks: tries", "ops", "Tries to send messages, by what came of them.",
     [(rate("webhook_tries_total", by="outcome") + QUIET, "{{outcome}}")]),
    ("Webhooks: lost messages", "short", "No room was left for them, or they made room unsent. In each step.",
     [(grown("webhook_messages_lost_total", by="instance"), "{{instance}}")]),
    ("Warnings and errors in the log", "short", "By event, in each step; the runbook explains each.",
     [(grown("logged_total", by="level, event"), "{{level}} {{event}}")]),
]

# The variables of a board: the metric and the label whose values they offer.
VARIABLES = {
    "job": ("tollgate_connections", "job"),
    "instance": ("tollgate_connections", "instance"),
    "vendor": ("tollgate_route_up", "vendor"),
    "model": ("tollgate_requests_total", "model"),
}
BOARDS = {
    "money": (MONEY, ("instance", "vendor", "model")),
    "calls": (CALLS, ("instance", "vendor", "model")),
    "fleet": (FLEET, ("job", "instance")),
}


def variable(name):
    metric, label = VARIABLES[name]
    query = f"label_values({metric}, {label})"
    return {
        "name": name, "label": name, "type": "query", "datasource": DATASOURCE, "definition": query,
        "query": {"query": query, "refId": name}, "refresh": 2, "sort": 1, "multi": True, "includeAll": True,
        "allValue": ".*", "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def datasource():
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "refresh": 1}


def panel(number, title, unit, description, targets, kind="timeseries"):
    """Four numbers in a row at the top, then two curves in a row."""
    if kind == "stat":
        place = {"h": 4, "w": 6, "x": 6 * (number % 4), "y": 0}
        options = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
    else:
        row, column = divmod(number - 4, 2)
        place = {"h": 8, "w": 12, "x": 12 * column, "y": 4 + 8 * row}
        options = {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
                   "tooltip": {"mode": "multi", "sort": "desc"}}
    overrides = []
    if title == "Held and holds":
        overrides = [{"matcher": {"id": "byName", "options": "holds"},
                      "properties": [{"id": "unit", "value": "short"},
                                     {"id": "custom.axisPlacement", "value": "right"}]}]
    return {
        "id": number + 1, "type": kind, "title": title, "description": description or f"{title}.",
        "datasource": DATASOURCE, "gridPos": place, "options": options,
        "fieldConfig": {"defaults": {"unit": unit, **({"min": 0} if "argin" not in title else {})},
                        "overrides": overrides},
        "targets": [{"refId": chr(ord("A") + at), "datasource": DATASOURCE, "expr": expr, "legendFormat": legend,
                     "range": kind != "stat", "instant": kind == "stat"}
                    for at, (expr, legend) in enumerate(targets)],
    }


def board(name):
    panels, variables = BOARDS[name]
    return {
        "uid": f"tollgate-{name}", "title": f"tollgate: {name}", "tags": ["tollgate"], "schemaVersion": 39,
        "version": 1, "editable": True, "refresh": "30s", "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser", "graphTooltip": 1, "annotations": {"list": []},
        "links": [{"type": "dashboards", "title": "tollgate", "tags": ["tollgate"], "asDropdown": False,
                   "includeVars": True, "keepTime": True}],
        "templating": {"list": [datasource(), *map(variable, variables)]},
        "panels": [panel(number, *of) for number, of in enumerate(panels)],
    }


def main(words):
    texts = {f"{name}.json": json.dumps(board(name), indent=1) + "\n" for name in BOARDS}
    if words == ["--check"]:
        stale = [name for name, text in texts.items() if (HERE / name).read_text() != text]
        return f"not current, run packaging/grafana/boards.py: {', '.join(stale)}" if stale else 0
    folder = Path(words[0]) if words else HERE
    for name, text in texts.items():
        (folder / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
