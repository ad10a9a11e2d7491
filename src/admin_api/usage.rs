//! `/admin/v1/usage`: what an account used, from roll-ups.

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::amounts::parse_account_name;
use super::error::AdminError;
use super::extract::{JsonReply, QueryParameters};
use super::page::AdminPage;
use super::state::AdminApi;
use crate::clock::unix_ms;
use crate::management::error::ManagementError;
use crate::management::usage::read_usage;
use crate::usage::{RollupSums, UsageAsk, UsageGroup, UsageRange, date_text, moment_text};

/// The parameters of a page of usage.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct UsageParameters {
    /// The name of the account.
    account: String,
    /// From this date or whole hour on (RFC 3339, UTC), such as `2026-11-01`. 30 days before `to`
    /// if it is missing; a day before it, if hours are asked for.
    from: Option<String>,
    /// Until this date or whole hour, which is left out. The end of the current day if it is
    /// missing.
    to: Option<String>,
    /// `day`, `hour`, `model`, `key` and `endpoint`, or several of them with commas between them;
    /// `day` if it is missing. Sums by hour are kept for 8 days.
    #[param(example = "model,day")]
    group_by: Option<String>,
    /// The `next` of the page before.
    after: Option<String>,
}

/// The sums of the lines of the journal that have the same day, hour, model, key and endpoint, as
/// far as the request groups by them.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct UsageReply {
    /// The account.
    account: String,
    /// The day (UTC) on which the lines were posted; null unless the request groups by day or hour.
    #[schema(example = "2026-11-27")]
    day: Option<String>,
    /// When that day or hour began (RFC 3339); null unless the request groups by day or hour.
    #[schema(example = "2026-11-27T00:00:00Z")]
    start: Option<String>,
    /// The id of the key, empty for lines that name none; null unless the request groups by key.
    key_id: Option<String>,
    /// The model, empty for lines that name none, such as corrections; null unless the request
    /// groups by model.
    model: Option<String>,
    /// The endpoint, empty for lines that name none; null unless the request groups by endpoint.
    endpoint: Option<String>,
    /// The number of charges.
    calls: u64,
    /// The charges among them whose cost is not known.
    calls_without_cost: u64,
    /// The tokens of input, with those of the prompt cache.
    prompt_tokens: u64,
    /// The tokens of output.
    completion_tokens: u64,
    /// The tokens of input that were read from a prompt cache.
    cached_tokens: u64,
    /// The characters of speech.
    characters: u64,
    /// The images.
    images: u64,
    /// The seconds of video.
    seconds: u64,
    /// The sum of the charges, in nano-USD.
    charged_nano: i64,
    /// The sum of the charges, in USD.
    charged_usd: String,
    /// The part of the charges that the account could not pay, in nano-USD.
    written_off_nano: i64,
    /// What was given back of charges, also of those of earlier days, in nano-USD.
    corrected_nano: i64,
    /// What was given back of charges, in USD.
    corrected_usd: String,
    /// The part of that which the account had not paid, in nano-USD.
    corrected_written_off_nano: i64,
    /// The granted credit that has expired, in nano-USD.
    expired_nano: i64,
    /// The fees for tools that are in the charges, at list prices, in nano-USD.
    fees_nano: i64,
    /// The fees for tools that are in the charges, in USD.
    fees_usd: String,
    /// What the vendors charge for the charges whose cost is known, in nano-USD.
    cost_nano: i64,
    /// What the vendors charge for the charges whose cost is known, in USD.
    cost_usd: String,
}

impl UsageReply {
    fn new(account: &str, group: UsageGroup, sums: &RollupSums) -> UsageReply {
        let UsageGroup { start, key_id, model, endpoint } = group;
        UsageReply {
            account: account.to_owned(),
            day: start.and_then(date_text),
            start: start.and_then(moment_text),
            key_id,
            model,
            endpoint,
            calls: sums.calls,
            calls_without_cost: sums.calls_without_cost,
            prompt_tokens: sums.prompt_tokens,
            completion_tokens: sums.completion_tokens,
            cached_tokens: sums.cached_tokens,
            characters: sums.characters,
            images: sums.images,
            seconds: sums.seconds,
            charged_nano: sums.charged.nano(),
            charged_usd: sums.charged.to_string(),
            written_off_nano: sums.written_off.nano(),
            corrected_nano: sums.corrected.nano(),
            corrected_usd: sums.corrected.to_string(),
            corrected_written_off_nano: sums.corrected_written_off.nano(),
            expired_nano: sums.expired.nano(),
            fees_nano: sums.fees.nano(),
            fees_usd: sums.fees.to_string(),
            cost_nano: sums.cost.nano(),
            cost_usd: sums.cost.to_string(),
        }
    }
}

/// Tells what an account used, in groups. Lines of the journal count within a second or two. A page
/// of groups by day or hour ends with a whole one; other groups are one page, and a range with too
/// many sums for that is refused.
#[utoipa::path(
    get,
    path = "/admin/v1/usage",
    tag = "usage",
    operation_id = "listUsage",
    params(UsageParameters),
    responses((status = 200, description = "Sums of usage.", body = AdminPage<UsageReply>))
)]
pub(super) async fn list_usage(
    State(api): State<AdminApi>,
    QueryParameters(parameters): QueryParameters<UsageParameters>,
) -> Result<JsonReply<AdminPage<UsageReply>>, AdminError> {
    let account = parse_account_name("account", &parameters.account)?;
    let ask = UsageAsk {
        from: parameters.from.as_deref(),
        to: parameters.to.as_deref(),
        group_by: parameters.group_by.as_deref(),
        after: parameters.after.as_deref(),
    };
    let range = UsageRange::parse(ask, unix_ms()).map_err(ManagementError::from)?;
    let page = read_usage(&api.store, &account, &range).await?;
    let of_group = |(group, sums)| UsageReply::new(account.as_str(), group, &sums);
    let data = page.rows.into_iter().map(of_group).collect();
    Ok(JsonReply(AdminPage { data, has_more: page.next.is_some(), next: page.next }))
}
