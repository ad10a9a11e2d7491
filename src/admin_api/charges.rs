//! `/admin/v1/charges`: the journal of an account, with all of its arithmetic.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::timeout;
use utoipa::{IntoParams, ToSchema};

use super::amounts::parse_account_name;
use super::error::AdminError;
use super::extract::{JsonReply, PathName, QueryParameters};
use super::page::{AccountPageParameters, AdminPage};
use super::state::AdminApi;
use crate::ledger::{AccountName, EntryKind, JournalEntry};
use crate::management::accounts::require_account;
use crate::management::charges::{entry_json, read_entries};
use crate::management::corrections::{
    corrected_amount, find_charged_account, find_request_lines, no_such_charge,
};
use crate::money::Money;

/// A search of all accounts is given up after this time.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(20);

/// A line of the journal: a charge, a correction of one, or granted credit that has expired.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ChargeReply {
    /// The number of the line in the account's journal.
    seq: u64,
    /// The account.
    account: String,
    /// `charge`, `correction` or `expiry`.
    #[schema(example = "charge")]
    kind: &'static str,
    /// The id of the request that was charged, also of a correction; null for an expiry.
    request_id: Option<String>,
    /// The amount that was charged, was given back or has expired, in nano-USD.
    amount_nano: i64,
    /// The amount that was charged, was given back or has expired, in USD.
    amount_usd: String,
    /// The part of it that the account could not pay, in nano-USD.
    written_off_nano: i64,
    /// The members of the journal line: `at` (unix ms), `key_prefix`, `key_id`, `endpoint`,
    /// `model`, `vendor`, `route`, `depth`, `usage`, `basis`, `fees`, `price_version`, `book`,
    /// `list_nano`, `cost_nano`, `lots`, `expired` and others, as far as the line has them; and
    /// `margin_nano`, the amount less the cost, of a charge whose cost is known.
    #[serde(flatten)]
    line: BTreeMap<String, Value>,
}

/// All lines about a request.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RequestChargesReply {
    /// The id of the request.
    request_id: String,
    /// The account that was charged.
    account: String,
    /// What was charged, in nano-USD.
    charged_nano: i64,
    /// What was given back, in nano-USD.
    corrected_nano: i64,
    /// The lines, oldest first.
    lines: Vec<ChargeReply>,
}

/// The parameters of a look-up of a charge.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ChargeParameters {
    /// The account that was charged. If it is missing, all accounts are searched, which takes
    /// longer.
    account: Option<String>,
}

impl ChargeReply {
    fn new(account: &AccountName, entry: &JournalEntry) -> Result<ChargeReply, AdminError> {
        let broken = |_| AdminError::internal("a line of the journal cannot be read");
        let mut line: BTreeMap<String, Value> =
            serde_json::from_value(entry_json(entry).map_err(broken)?).map_err(broken)?;
        // A correction names its request by another name, so that nobody takes it for the charge.
        let corrected = line.get("corrects").cloned();
        let request_id = line.remove("request_id").or(corrected);
        for name in ["seq", "account", "kind", "amount_nano", "amount_usd", "written_off_nano"] {
            line.remove(name);
        }
        Ok(ChargeReply {
            seq: entry.seq,
            account: account.to_string(),
            kind: entry.kind.as_str(),
            request_id: request_id.and_then(|id| Some(id.as_str()?.to_owned())),
            amount_nano: entry.amount.nano(),
            amount_usd: entry.amount.to_string(),
            written_off_nano: entry.written_off.nano(),
            line,
        })
    }
}

/// Lists the charges of an account, their corrections and the expiries of granted credit, oldest
/// first.
#[utoipa::path(
    get,
    path = "/admin/v1/charges",
    tag = "charges",
    operation_id = "listCharges",
    params(AccountPageParameters),
    responses((status = 200, description = "Lines of the journal.", body = AdminPage<ChargeReply>))
)]
pub(super) async fn list_charges(
    State(api): State<AdminApi>,
    QueryParameters(parameters): QueryParameters<AccountPageParameters>,
) -> Result<JsonReply<AdminPage<ChargeReply>>, AdminError> {
    let account = parse_account_name("account", &parameters.account)?;
    let range = parameters.parse()?;
    let after = range.after_number()?.unwrap_or_default();
    require_account(api.ledger(), &account).await?;
    let page = read_entries(&api.store, &account, after, range.limit).await?;
    let rows = page.entries.iter().map(|entry| ChargeReply::new(&account, entry));
    let data = rows.collect::<Result<Vec<_>, _>>()?;
    let next = data.last().filter(|_| page.has_more).map(|row| row.seq.to_string());
    Ok(JsonReply(AdminPage { data, has_more: next.is_some(), next }))
}

/// Shows what was charged for a request, and what of it was given back.
#[utoipa::path(
    get,
    path = "/admin/v1/charges/{request_id}",
    tag = "charges",
    operation_id = "getCharge",
    params(
        ("request_id" = String, Path, description = "The id of the request, or of the video job."),
        ChargeParameters
    ),
    responses((status = 200, description = "The lines of the request.", body = RequestChargesReply))
)]
pub(super) async fn show_charge(
    State(api): State<AdminApi>,
    PathName(request_id): PathName,
    QueryParameters(parameters): QueryParameters<ChargeParameters>,
) -> Result<JsonReply<RequestChargesReply>, AdminError> {
    let _permit = AdminApi::take_permit(&api.searching)?;
    let too_slow = |_| {
        let message = "the search of all accounts takes too long: give the account as well";
        AdminError::invalid("account", message)
    };
    let account = if let Some(name) = &parameters.account {
        parse_account_name("account", name)?
    } else {
        let finding = find_charged_account(&api.store, &request_id);
        timeout(SEARCH_TIMEOUT, finding).await.map_err(too_slow)??
    };
    require_account(api.ledger(), &account).await?;
    let entries = find_request_lines(&api.store, &account, &request_id).await?;
    if entries.is_empty() {
        return Err(no_such_charge(&request_id).into());
    }
    let corrected = corrected_amount(api.ledger(), &account, &request_id).await?;
    let lines = entries.iter().map(|entry| ChargeReply::new(&account, entry));
    Ok(JsonReply(RequestChargesReply {
        charged_nano: sum_of_charges(&entries)?,
        corrected_nano: corrected.nano(),
        lines: lines.collect::<Result<Vec<_>, _>>()?,
        account: account.to_string(),
        request_id,
    }))
}

fn sum_of_charges(entries: &[JournalEntry]) -> Result<i64, AdminError> {
    let mut sum = Money::ZERO;
    for entry in entries.iter().filter(|entry| entry.kind == EntryKind::Charge) {
        let added = sum.checked_add(entry.amount);
        sum = added.map_err(|why| AdminError::internal(&why.to_string()))?;
    }
    Ok(sum.nano())
}
