//! Usage and costs in the shapes of `/v1/organization`, for dashboards that know them: buckets of
//! days or hours, each with its results.

use std::collections::{BTreeMap, BTreeSet};

use super::json_object::{JsonObjectWriter, signed_usd, write_list};
use super::shown_line::JournalView;
use super::usage::read_rows;
use crate::clock::unix_ms;
use crate::dialect::{CallError, Endpoint};
use crate::gateway::api_error::{ApiError, ServerError};
use crate::gateway::request::key_cache::AuthenticatedCaller;
use crate::gateway::request::target::percent_decode;
use crate::gateway::state::Gateway;
use crate::ledger::KeyId;
use crate::money::Money;
use crate::usage::{
    HOURS_KEPT_MS, PeriodKind, RollupKey, RollupOwner, RollupSums, UsageQuery, UsageRows,
};

/// At most this many rows of sums are read for a page.
const ROWS_MAX: usize = 20_000;
/// The endpoints whose calls are completions.
const COMPLETIONS: [Endpoint; 4] =
    [Endpoint::Chat, Endpoint::Responses, Endpoint::ResponsesCompact, Endpoint::Messages];

/// Which report is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReportKind {
    /// What was charged.
    Costs,
    /// The tokens of chats, responses and messages.
    Completions,
}

impl ReportKind {
    /// Returns the number of buckets of a page if none is asked for, and the most.
    fn limits(self, width: PeriodKind) -> (i64, i64) {
        match (self, width) {
            (ReportKind::Costs, _) => (7, 180),
            (ReportKind::Completions, PeriodKind::Day) => (7, 31),
            (ReportKind::Completions, PeriodKind::Hour) => (24, 168),
        }
    }

    /// Returns what buckets may be grouped by. Some of it is the same for all calls.
    fn dimensions(self) -> &'static [&'static str] {
        match self {
            ReportKind::Costs => {
                &["line_item", "api_key_id", "project_id", "user_id", "api_source"]
            }
            ReportKind::Completions => &[
                "model",
                "api_key_id",
                "project_id",
                "user_id",
                "batch",
                "service_tier",
                "api_source",
            ],
        }
    }

    /// Returns the parameter that selects by models.
    fn models_parameter(self) -> &'static str {
        match self {
            ReportKind::Costs => "line_items",
            ReportKind::Completions => "models",
        }
    }

    /// Returns by what buckets are grouped to have one result a model.
    fn model_dimension(self) -> &'static str {
        match self {
            ReportKind::Costs => "line_item",
            ReportKind::Completions => "model",
        }
    }

    fn includes(self, row: &RollupKey) -> bool {
        match self {
            ReportKind::Costs => true,
            ReportKind::Completions => COMPLETIONS.iter().any(|known| known.name() == row.endpoint),
        }
    }
}

/// A report, as it is asked for. Times are in unix ms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReportQuery {
    kind: ReportKind,
    width: PeriodKind,
    /// When the first bucket of the page begins.
    from: i64,
    /// When the last bucket of all pages ends; `None` for the current one.
    to: Option<i64>,
    /// The most buckets of the page.
    limit: i64,
    by_model: bool,
    by_key: bool,
    /// The models whose calls are told; empty for all.
    models: BTreeSet<String>,
    /// The ids of the keys whose calls are told; empty for all.
    keys: BTreeSet<u64>,
}

impl ReportQuery {
    /// Parses the parameters of a report. A list may be written as `models=a,b`, as
    /// `models=a&models=b`, and with `[]` or `[0]` after its name. An empty value is none.
    pub(super) fn parse(kind: ReportKind, query: &str) -> Result<ReportQuery, ApiError> {
        let mut given = BTreeMap::<String, Vec<String>>::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if value.is_empty() {
                continue;
            }
            let decoded = percent_decode(name).zip(percent_decode(value));
            let (name, value) =
                decoded.ok_or_else(|| CallError::invalid(name, "percent-encoded UTF-8"))?;
            let name = name.split_once('[').map_or(&*name, |(name, _)| name).to_owned();
            given.entry(name).or_default().push(value);
        }
        let mut single = |name: &str| match given.remove(name).as_deref() {
            None => Ok(None),
            Some([value]) => Ok(Some(value.clone())),
            Some(_) => Err(CallError::invalid(name, "given once")),
        };
        let width = parse_width(kind, single("bucket_width")?.as_deref())?;
        let (limit_default, limit_max) = kind.limits(width);
        let limit = match single("limit")? {
            None => limit_default,
            Some(text) => parse_limit(&text, limit_max)?,
        };
        let start = single("start_time")?;
        let start = start.ok_or_else(|| CallError::missing("start_time", SECONDS))?;
        let start = width.start_of(parse_seconds("start_time", &start)?);
        let end = single("end_time")?.map(|text| parse_seconds("end_time", &text)).transpose()?;
        let page = single("page")?.map(|text| parse_seconds("page", &text)).transpose()?;
        let from = page.map_or(start, |page| width.start_of(page).max(start));
        let mut many = |name: &str| -> Vec<String> {
            let values = given.remove(name).unwrap_or_default();
            values.iter().flat_map(|values| values.split(',')).map(str::to_owned).collect()
        };
        let mut by: BTreeSet<String> = BTreeSet::new();
        for name in many("group_by") {
            if !kind.dimensions().contains(&&*name) {
                let expected = format!("one of {}, not '{name}'", kind.dimensions().join(", "));
                return Err(CallError::invalid("group_by", &expected).into());
            }
            by.insert(name);
        }
        let models = many(kind.models_parameter()).into_iter().collect();
        let keys = many("api_key_ids");
        let keys = keys.iter().map(|id| id.parse().map_err(|_| id.clone()));
        let keys = keys.collect::<Result<_, String>>().map_err(|id| {
            CallError::invalid(
                "api_key_ids",
                &format!("ids of keys, which are numbers, not '{id}'"),
            )
        })?;
        if let Some(name) = given.keys().next() {
            let expected = "left out: it selects by what no call here has, or it is not known";
            return Err(CallError::invalid(name, expected).into());
        }
        Ok(ReportQuery {
            kind,
            width,
            from,
            to: end,
            limit,
            by_model: by.contains(kind.model_dimension()),
            by_key: by.contains("api_key_id"),
            models,
            keys,
        })
    }

    /// Returns when the buckets of the page begin, and when the bucket after them does if there is
    /// one. `now` is in unix ms.
    fn buckets(&self, now: i64) -> (Vec<i64>, Option<i64>) {
        let end = self.to.unwrap_or_else(|| self.width.end_of(self.width.start_of(now)));
        let (mut starts, mut next) = (Vec::new(), self.from);
        while next < end {
            if i64::try_from(starts.len()).is_ok_and(|count| count >= self.limit) {
                return (starts, Some(next));
            }
            starts.push(next);
            next = self.width.end_of(next);
        }
        (starts, None)
    }

    /// Returns the rows that are read if all of the account may be seen.
    fn rows_of_account(&self) -> UsageRows {
        match self.keys.first() {
            Some(id) if self.keys.len() == 1 => UsageRows::Key(KeyId(*id)),
            None if !self.by_key => UsageRows::Account,
            _ => UsageRows::Keys,
        }
    }

    fn selects(&self, row: &RollupKey) -> bool {
        let is_model = self.models.is_empty() || self.models.contains(&row.model);
        let is_key = match row.owner {
            _ if self.keys.is_empty() => true,
            RollupOwner::Key(KeyId(id)) => self.keys.contains(&id),
            RollupOwner::Account | RollupOwner::NoKey => false,
        };
        self.kind.includes(row) && is_model && is_key
    }

    fn result_of(&self, row: &RollupKey) -> ResultKey {
        let key_id = match row.owner {
            RollupOwner::Key(KeyId(id)) => Some(id.to_string()),
            RollupOwner::Account | RollupOwner::NoKey => None,
        };
        ResultKey {
            model: self.by_model.then(|| row.model.clone()).filter(|model| !model.is_empty()),
            key_id: key_id.filter(|_| self.by_key),
        }
    }
}

/// What a moment must be.
const SECONDS: &str = "a time in unix seconds";

fn parse_seconds(name: &str, text: &str) -> Result<i64, CallError> {
    let seconds: Option<u32> = text.parse().ok();
    let seconds = seconds.ok_or_else(|| CallError::invalid(name, SECONDS))?;
    Ok(i64::from(seconds) * 1_000)
}

fn parse_width(kind: ReportKind, text: Option<&str>) -> Result<PeriodKind, CallError> {
    match (kind, text) {
        (_, None | Some("1d")) => Ok(PeriodKind::Day),
        (ReportKind::Completions, Some("1h")) => Ok(PeriodKind::Hour),
        (ReportKind::Costs, Some(_)) => Err(CallError::invalid("bucket_width", "1d")),
        (ReportKind::Completions, Some(_)) => Err(CallError::invalid("bucket_width", "1d or 1h")),
    }
}

fn parse_limit(text: &str, most: i64) -> Result<i64, CallError> {
    let limit = text.parse().ok().filter(|limit| (1..=most).contains(limit));
    limit.ok_or_else(|| CallError::invalid("limit", &format!("a whole number from 1 to {most}")))
}

/// What the calls of a result have in common; `None` where a report does not group by it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ResultKey {
    model: Option<String>,
    key_id: Option<String>,
}

/// Answers with a page of a report.
///
/// # Errors
/// The range has no sums by hour any more, the account has a search already, or the store does not
/// answer.
pub(super) async fn show_report(
    gateway: &Gateway,
    caller: &AuthenticatedCaller,
    asked: ReportQuery,
) -> Result<String, ApiError> {
    let now = unix_ms();
    let kept_from = now.saturating_sub(HOURS_KEPT_MS);
    if asked.width == PeriodKind::Hour && asked.from < kept_from {
        let expected = "later, or ask for days: sums by hour are kept for 8 days";
        return Err(CallError::invalid("start_time", expected).into());
    }
    let (mut starts, mut next) = asked.buckets(now);
    let mut rows = Vec::new();
    if let (Some(first), Some(last)) = (starts.first(), starts.last()) {
        let all = asked.rows_of_account();
        let query = UsageQuery {
            account: caller.key.account.clone(),
            kind: asked.width,
            rows: JournalView::of_caller(caller).own_rows().unwrap_or(all),
            from: *first,
            to: asked.width.end_of(*last),
            rows_max: u32::try_from(ROWS_MAX).unwrap_or(u32::MAX).saturating_add(1),
        };
        rows = read_rows(gateway, caller, query).await?;
    }
    if let Some((beyond, _)) = rows.get(ROWS_MAX) {
        // The bucket whose rows were not all read is for the next page.
        let cut = beyond.period.start;
        rows.retain(|(row, _)| row.period.start < cut);
        starts.retain(|start| *start < cut);
        next = Some(cut);
        if starts.is_empty() {
            let expected = "without api_key_id: one bucket alone has too many results";
            return Err(CallError::invalid("group_by", expected).into());
        }
    }
    report_json(&asked, &starts, next, &rows)
}

fn report_json(
    asked: &ReportQuery,
    starts: &[i64],
    next: Option<i64>,
    rows: &[(RollupKey, RollupSums)],
) -> Result<String, ApiError> {
    let mut buckets = BTreeMap::<i64, BTreeMap<ResultKey, RollupSums>>::new();
    for (row, sums) in rows.iter().filter(|(row, _)| asked.selects(row)) {
        let results = buckets.entry(row.period.start).or_default();
        let sum = results.entry(asked.result_of(row)).or_default();
        *sum = sum.checked_add(sums).map_err(|_| ServerError::LedgerUnavailable)?;
    }
    let bucket = |start: &i64| {
        let results = buckets.get(start).into_iter().flatten();
        let results: Vec<String> =
            results.map(|(key, sums)| result_json(asked.kind, key, sums)).collect();
        JsonObjectWriter::new()
            .text("object", "bucket")
            .number("start_time", start / 1_000)
            .number("end_time", asked.width.end_of(*start) / 1_000)
            .json("results", &write_list(&results))
            .finish()
    };
    let data: Vec<String> = starts.iter().map(bucket).collect();
    let next = next.map(|next| (next / 1_000).to_string());
    Ok(JsonObjectWriter::new()
        .text("object", "page")
        .json("data", &write_list(&data))
        .json("has_more", if next.is_some() { "true" } else { "false" })
        .text("next_page", next.as_deref())
        .finish())
}

fn result_json(kind: ReportKind, key: &ResultKey, sums: &RollupSums) -> String {
    let (model, key_id) = (key.model.as_deref(), key.key_id.as_deref());
    match kind {
        ReportKind::Costs => {
            // What was given back is no cost, and neither is what could not be paid. A bucket may
            // have more given back than charged.
            let less = |more: Money, less: Money| more.nano().saturating_sub(less.nano());
            let not_paid = less(sums.written_off, sums.corrected_written_off);
            let cost = less(sums.charged, sums.corrected).saturating_sub(not_paid);
            let amount = JsonObjectWriter::new().json("value", &signed_usd(cost));
            JsonObjectWriter::new()
                .text("object", "organization.costs.result")
                .json("amount", &amount.text("currency", "usd").finish())
                .text("line_item", model)
                .text("project_id", None)
                .text("api_key_id", key_id)
                .finish()
        }
        ReportKind::Completions => JsonObjectWriter::new()
            .text("object", "organization.usage.completions.result")
            .number("input_tokens", sums.prompt_tokens)
            .number("output_tokens", sums.completion_tokens)
            .number("input_cached_tokens", sums.cached_tokens)
            .number("input_audio_tokens", 0)
            .number("output_audio_tokens", 0)
            .number("num_model_requests", sums.calls)
            .text("project_id", None)
            .text("user_id", None)
            .text("api_key_id", key_id)
            .text("model", model)
            .json("batch", "null")
            .text("service_tier", None)
            .finish(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::api_error::AdmissionError;
    use crate::usage::RollupPeriod;

    const DAY_S: i64 = 86_400;
    /// 2026-11-27, in unix seconds.
    const TODAY_S: i64 = 1_795_737_600;

    fn costs(query: &str) -> Result<ReportQuery, ApiError> {
        ReportQuery::parse(ReportKind::Costs, query)
    }

    fn completions(query: &str) -> Result<ReportQuery, ApiError> {
        ReportQuery::parse(ReportKind::Completions, query)
    }

    fn row(
        day: i64,
        owner: RollupOwner,
        names: [&str; 2],
        sums: RollupSums,
    ) -> (RollupKey, RollupSums) {
        let start = (TODAY_S + day * DAY_S) * 1_000;
        let [model, endpoint] = names.map(str::to_owned);
        let period = RollupPeriod { kind: PeriodKind::Day, start };
        (RollupKey { period, owner, model, endpoint }, sums)
    }

    fn nano(nano: i64) -> Money {
        Money::from_nano(nano).expect("not negative")
    }

    fn sums(calls: u64, charged: i64, corrected: i64) -> RollupSums {
        RollupSums {
            calls,
            prompt_tokens: 10 * calls,
            completion_tokens: calls,
            cached_tokens: 5 * calls,
            charged: nano(charged),
            corrected: nano(corrected),
            ..RollupSums::default()
        }
    }

    #[test]
    fn pages_follow_each_other_bucket_by_bucket() {
        let now = (TODAY_S + 3 * DAY_S + 7) * 1_000;
        let start = TODAY_S + 5;
        let seconds = |starts: Vec<i64>| -> Vec<i64> { starts.iter().map(|s| s / 1_000).collect() };
        let (starts, next) =
            costs(&format!("start_time={start}&limit=3")).expect("a report").buckets(now);
        assert_eq!(seconds(starts), [0, 1, 2].map(|day| TODAY_S + day * DAY_S));
        let page = next.expect("more") / 1_000;
        assert_eq!(page, TODAY_S + 3 * DAY_S);
        let last = costs(&format!("start_time={start}&limit=3&page={page}")).expect("a report");
        assert_eq!(last.buckets(now), (vec![page * 1_000], None));
        let end = TODAY_S + DAY_S;
        let one = costs(&format!("start_time={start}&end_time={end}")).expect("a report");
        assert_eq!(one.buckets(now), (vec![TODAY_S * 1_000], None));
        let hours = completions(&format!("start_time={start}&bucket_width=1h")).expect("a report");
        let (starts, next) = hours.buckets(now);
        assert_eq!((starts.len(), next.is_some()), (24, true));
        let empty = costs(&format!("start_time={}", TODAY_S + 9 * DAY_S)).expect("a report");
        assert_eq!(empty.buckets(now), (Vec::new(), None));
        // A page before the start is none.
        let early = costs(&format!("start_time={start}&page=0")).expect("a report");
        assert_eq!(early.from, TODAY_S * 1_000);
    }

    #[test]
    fn a_parameter_that_is_missing_or_wrong_is_named() {
        for (report, query, param) in [
            (ReportKind::Costs, "", "start_time"),
            (ReportKind::Costs, "start_time=yesterday", "start_time"),
            (ReportKind::Costs, "start_time=-1", "start_time"),
            (ReportKind::Costs, "start_time=1&start_time=2", "start_time"),
            (ReportKind::Costs, "start_time=1&end_time=x", "end_time"),
            (ReportKind::Costs, "start_time=1&bucket_width=1h", "bucket_width"),
            (ReportKind::Completions, "start_time=1&bucket_width=1m", "bucket_width"),
            (ReportKind::Costs, "start_time=1&limit=181", "limit"),
            (ReportKind::Completions, "start_time=1&limit=0", "limit"),
            (ReportKind::Completions, "start_time=1&limit=32", "limit"),
            (ReportKind::Costs, "start_time=1&group_by=model", "group_by"),
            (ReportKind::Completions, "start_time=1&group_by[]=line_item", "group_by"),
            (ReportKind::Completions, "start_time=1&api_key_ids=key_a", "api_key_ids"),
            (ReportKind::Completions, "start_time=1&user_ids=u", "user_ids"),
            (ReportKind::Completions, "start_time=1&line_items=m", "line_items"),
            (ReportKind::Costs, "start_time=1&models=m", "models"),
            (ReportKind::Costs, "start_time=", "start_time"),
            (ReportKind::Completions, "start_time=1&page=next", "page"),
            (ReportKind::Completions, "start_time=%zz", "start_time"),
        ] {
            let Err(ApiError::Admission(AdmissionError::InvalidCall(why))) =
                ReportQuery::parse(report, query)
            else {
                panic!("{query} is not refused");
            };
            assert_eq!(why.param.as_deref(), Some(param), "{query}");
        }
    }

    #[test]
    fn costs_are_what_was_charged_less_what_was_given_back() {
        let asked = costs(&format!("start_time={TODAY_S}&group_by[]=line_item")).expect("a report");
        let starts = [0, 1, 2].map(|day| (TODAY_S + day * DAY_S) * 1_000);
        let rows = [
            row(0, RollupOwner::Account, ["m", "chat"], sums(2, 1_500_000_000, 0)),
            row(
                0,
                RollupOwner::Account,
                ["m", "messages"],
                RollupSums { written_off: nano(3), ..sums(1, 10, 0) },
            ),
            row(2, RollupOwner::Account, ["", ""], sums(0, 0, 250_000_000)),
        ];
        let told = report_json(&asked, &starts, Some(starts[2]), &rows).expect("a report");
        let result = |value: &str, item: &str| {
            format!(
                r#"{{"object":"organization.costs.result","amount":{{"value":{value},"currency":"usd"}},"line_item":{item},"project_id":null,"api_key_id":null}}"#
            )
        };
        let bucket = |day: i64, results: String| {
            let (start, end) = (TODAY_S + day * DAY_S, TODAY_S + (day + 1) * DAY_S);
            format!(
                r#"{{"object":"bucket","start_time":{start},"end_time":{end},"results":[{results}]}}"#
            )
        };
        let expected = format!(
            r#"{{"object":"page","data":[{},{},{}],"has_more":true,"next_page":"{}"}}"#,
            bucket(0, result("1.500000007", "\"m\"")),
            bucket(1, String::new()),
            bucket(2, result("-0.25", "null")),
            TODAY_S + 2 * DAY_S,
        );
        assert_eq!(told, expected);
    }

    #[test]
    fn completions_are_of_texts_and_of_the_models_and_keys_that_are_asked_for() {
        let starts = [TODAY_S * 1_000];
        let key = |id| RollupOwner::Key(KeyId(id));
        let rows = [
            row(0, key(1), ["m", "chat"], sums(1, 5, 0)),
            row(0, key(1), ["n", "messages"], sums(2, 5, 0)),
            row(0, key(2), ["m", "responses"], sums(4, 5, 0)),
            row(0, key(2), ["e", "embeddings"], sums(8, 5, 0)),
            row(0, key(1), ["", ""], sums(0, 0, 5)),
        ];
        for (query, expected) in [
            ("", vec![(None, None, 7)]),
            ("&group_by=model", vec![(Some("m"), None, 5), (Some("n"), None, 2)]),
            ("&group_by=api_key_id", vec![(None, Some("1"), 3), (None, Some("2"), 4)]),
            ("&models=m&api_key_ids[]=1", vec![(None, None, 1)]),
            ("&models%5B%5D=m&models%5B%5D=n&api_key_ids=2", vec![(None, None, 4)]),
            ("&models=x", vec![]),
            ("&models=m,n&page=&api_key_ids[0]=1&api_key_ids[1]=2", vec![(None, None, 7)]),
        ] {
            let asked = completions(&format!("start_time={TODAY_S}{query}")).expect("a report");
            let told = report_json(&asked, &starts, None, &rows).expect("a report");
            let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
            let results = told["data"][0]["results"].as_array().expect("results").iter();
            let found: Vec<_> = results
                .map(|result| {
                    let calls = result["num_model_requests"].as_u64().expect("a number");
                    assert_eq!(result["input_tokens"], 10 * calls);
                    (result["model"].as_str(), result["api_key_id"].as_str(), calls)
                })
                .collect();
            assert_eq!(found, expected, "{query}");
        }
    }
}
