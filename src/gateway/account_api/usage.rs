//! Tells what a key or its account has used, from the sums of usage.

use std::time::Duration;

use super::json_object::{JsonObjectWriter, write_list};
use super::parameters::single_value;
use super::shown_line::JournalView;
use crate::clock::unix_ms;
use crate::dialect::CallError;
use crate::gateway::api_error::{AccountError, ApiError, ServerError};
use crate::gateway::request::key_cache::AuthenticatedCaller;
use crate::gateway::state::Gateway;
use crate::usage::{
    InvalidQuestion, NoUsagePage, RollupKey, RollupSums, UsageAsk, UsageGroup, UsageQuery,
    UsageRange, date_text, moment_text,
};

/// A page of many rows takes longer than a balance, and nobody else waits for it.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The names of the parameters of a page of usage.
const NAMES: [&str; 4] = ["from", "to", "group_by", "after"];

/// The parameters of a page of usage, as they were written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AccountUsageQuery {
    pub(super) from: Option<String>,
    pub(super) to: Option<String>,
    pub(super) group_by: Option<String>,
    pub(super) after: Option<String>,
}

impl AccountUsageQuery {
    pub(super) fn parse(query: &str) -> Result<AccountUsageQuery, ApiError> {
        let names = query.split('&').filter(|pair| !pair.is_empty());
        let names = names.map(|pair| pair.split_once('=').map_or(pair, |(name, _)| name));
        for name in names {
            if !NAMES.contains(&name) {
                let expected = format!("left out: there are {}", NAMES.join(", "));
                return Err(CallError::invalid(name, &expected).into());
            }
        }
        let value = |name| single_value(query, name, "a text in percent-encoded UTF-8, once");
        Ok(AccountUsageQuery {
            from: value("from")?,
            to: value("to")?,
            group_by: value("group_by")?,
            after: value("after")?,
        })
    }
}

/// Answers with a page of what a key has used or, if it is for the account, all keys of it.
///
/// # Errors
/// A parameter is invalid, the account has a search already, or the store does not answer.
pub(super) async fn show_usage(
    gateway: &Gateway,
    caller: &AuthenticatedCaller,
    asked: AccountUsageQuery,
) -> Result<String, ApiError> {
    let AccountUsageQuery { from, to, group_by, after } = &asked;
    let ask = UsageAsk {
        from: from.as_deref(),
        to: to.as_deref(),
        group_by: group_by.as_deref(),
        after: after.as_deref(),
    };
    let range = UsageRange::parse(ask, unix_ms())?;
    let own = JournalView::of_caller(caller).own_rows();
    let rows = read_rows(gateway, caller, range.query(&caller.key.account, own)).await?;
    let page = range.page_of(rows).map_err(|why| match why {
        NoUsagePage::TooLarge(why) => why.into(),
        NoUsagePage::Overflow(_) => ApiError::from(ServerError::LedgerUnavailable),
    })?;
    let rows: Vec<String> = page.rows.iter().map(|(group, sums)| row_json(group, sums)).collect();
    Ok(JsonObjectWriter::new()
        .json("data", &write_list(&rows))
        .json("has_more", if page.next.is_some() { "true" } else { "false" })
        .text("next", page.next.as_deref())
        .finish())
}

/// Reads sums of the account of a caller. An account has one such question at a time.
pub(super) async fn read_rows(
    gateway: &Gateway,
    caller: &AuthenticatedCaller,
    query: UsageQuery,
) -> Result<Vec<(RollupKey, RollupSums)>, ApiError> {
    let permit = gateway.account_searches.begin(&caller.key.account);
    let _permit = permit.ok_or(AccountError::SearchRunning)?;
    let read = tokio::time::timeout(READ_TIMEOUT, gateway.usage.list_usage(query)).await;
    let rows = read.map_err(|_| ServerError::LedgerUnavailable)?;
    rows.map_err(|_| ServerError::LedgerUnavailable.into())
}

/// What vendors charge is no matter of customers.
fn row_json(group: &UsageGroup, sums: &RollupSums) -> String {
    let UsageGroup { start, key_id, model, endpoint } = group;
    JsonObjectWriter::new()
        .text("day", start.and_then(date_text).as_deref())
        .text("start", start.and_then(moment_text).as_deref())
        .text("model", model.as_deref())
        .text("key_id", key_id.as_deref())
        .text("endpoint", endpoint.as_deref())
        .number("calls", sums.calls)
        .number("prompt_tokens", sums.prompt_tokens)
        .number("completion_tokens", sums.completion_tokens)
        .number("cached_tokens", sums.cached_tokens)
        .number("characters", sums.characters)
        .number("images", sums.images)
        .number("seconds", sums.seconds)
        .number("charged_nano", sums.charged.nano())
        .text("charged_usd", sums.charged.to_string().as_str())
        .number("written_off_nano", sums.written_off.nano())
        .number("corrected_nano", sums.corrected.nano())
        .text("corrected_usd", sums.corrected.to_string().as_str())
        .number("expired_nano", sums.expired.nano())
        .finish()
}

impl From<InvalidQuestion> for ApiError {
    fn from(why: InvalidQuestion) -> ApiError {
        CallError::invalid(why.field, &why.expected).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::money::Money;

    #[test]
    fn a_row_has_what_was_paid_and_not_what_it_costs() {
        let nano = |nano| Money::from_nano(nano).expect("not negative");
        let sums = RollupSums {
            calls: 2,
            calls_without_cost: 1,
            prompt_tokens: 30,
            completion_tokens: 4,
            cached_tokens: 10,
            charged: nano(1_500_000_007),
            written_off: nano(7),
            corrected: nano(500_000_000),
            cost: nano(9),
            ..RollupSums::default()
        };
        let group = UsageGroup {
            start: Some(1_795_737_600_000),
            key_id: None,
            model: Some("m\"x".to_owned()),
            endpoint: None,
        };
        let expected = concat!(
            r#"{"day":"2026-11-27","start":"2026-11-27T00:00:00Z","model":"m\"x","key_id":null,"#,
            r#""endpoint":null,"calls":2,"prompt_tokens":30,"completion_tokens":4,"#,
            r#""cached_tokens":10,"characters":0,"images":0,"seconds":0,"#,
            r#""charged_nano":1500000007,"charged_usd":"1.500000007","written_off_nano":7,"#,
            r#""corrected_nano":500000000,"corrected_usd":"0.50","expired_nano":0}"#
        );
        assert_eq!(row_json(&group, &sums), expected);
    }
}
