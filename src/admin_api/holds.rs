//! `/admin/v1/holds`: what is held of accounts at the moment.

use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::amounts::parse_account_name;
use super::error::AdminError;
use super::extract::{JsonReply, QueryParameters};
use super::page::{AdminPage, AnyAccountPageParameters};
use super::state::AdminApi;
use crate::ledger::KeyId;
use crate::management::holds::{HoldView, list_holds as read_holds};
use crate::money::Money;

/// An open hold.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct HoldReply {
    /// The id of the hold: that of the request, of the video job or of the allotment.
    id: String,
    /// The account.
    account: String,
    /// `call`, `job`, or `allotment`: what a gateway has borrowed for the calls of a busy account.
    #[schema(example = "call")]
    kind: &'static str,
    /// What is held, in nano-USD. Of an allotment this is what the calls of its gateway hold. The
    /// sum of all holds of an account is its `held_nano`.
    held_nano: i64,
    /// What is held, in USD.
    held_usd: String,
    /// What the call has cost so far, in nano-USD, which is charged if the lease expires; null if
    /// it has not said so.
    checkpoint_nano: Option<i64>,
    /// The id of the call's key; null if the store does not know it.
    key_id: Option<String>,
    /// The beginning of the call's key; null if the store does not know it.
    key_prefix: Option<String>,
    /// The id of the video job; null if the hold is for none.
    job_id: Option<String>,
    /// When the hold was made, in unix ms; null if that is not known.
    made_at: Option<i64>,
    /// When the lease expires unless it is renewed, in unix ms.
    lease_until: i64,
    /// What an allotment has in all, in nano-USD; null for other holds.
    lent_nano: Option<i64>,
    /// What of an allotment no call needs, in nano-USD: it counts as available. Null for other
    /// holds.
    free_nano: Option<i64>,
    /// How many calls had holds out of an allotment when its gateway last said so; null for other
    /// holds.
    open_calls: Option<u32>,
}

impl HoldReply {
    fn new(view: HoldView) -> HoldReply {
        let HoldView { hold, kind, checkpoint, lent } = view;
        let (made_at, job_id) = (hold.made_at(), hold.job_id().map(str::to_owned));
        HoldReply {
            id: hold.id,
            account: hold.account.to_string(),
            kind,
            held_nano: hold.held.nano(),
            held_usd: hold.held.to_string(),
            checkpoint_nano: checkpoint.map(Money::nano),
            // Many readers of JSON lose digits of a number as long as this one.
            key_id: hold.key.map(|KeyId(id)| id.to_string()),
            key_prefix: hold.key_prefix,
            job_id,
            made_at,
            lease_until: hold.lease_until,
            lent_nano: lent.map(|lent| lent.lent.nano()),
            free_nano: lent.map(|lent| lent.free.nano()),
            open_calls: lent.map(|lent| lent.open_calls),
        }
    }
}

/// Lists the open holds of an account, or of all accounts, by account and by the end of their
/// leases. A hold whose lease is renewed meanwhile may be on two pages.
#[utoipa::path(
    get,
    path = "/admin/v1/holds",
    tag = "holds",
    operation_id = "listHolds",
    params(AnyAccountPageParameters),
    responses((status = 200, description = "Open holds.", body = AdminPage<HoldReply>))
)]
pub(super) async fn list_holds(
    State(api): State<AdminApi>,
    QueryParameters(parameters): QueryParameters<AnyAccountPageParameters>,
) -> Result<JsonReply<AdminPage<HoldReply>>, AdminError> {
    let account = parameters.account.as_deref();
    let account = account.map(|name| parse_account_name("account", name)).transpose()?;
    let range = parameters.parse()?;
    let after = range.after.as_deref().map(str::parse).transpose();
    let after = after.map_err(|_| range.unknown_cursor())?;
    let asked = range.limit.saturating_add(1);
    let mut rows = read_holds(api.ledger(), account.as_ref(), after.as_ref(), asked).await?;
    let limit = range.limit as usize;
    let has_more = rows.len() > limit;
    rows.truncate(limit);
    let next = rows.last().filter(|_| has_more).map(|row| row.hold.cursor().to_string());
    let data = rows.into_iter().map(HoldReply::new).collect();
    Ok(JsonReply(AdminPage { data, has_more, next }))
}
