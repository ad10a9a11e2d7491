//! `/admin/v1/payments`, `grants`, `refunds` and `corrections`: money that comes into an account
//! and goes back.

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::amounts::{Moment, parse_account_name, parse_moved_usd};
use super::error::AdminError;
use super::extract::{JsonBody, JsonReply, QueryParameters};
use super::page::{AccountPageParameters, AdminPage};
use super::state::AdminApi;
use crate::ledger::{CreditSource, LotId, TransferEntry, TransferType};
use crate::management::actor::Actor;
use crate::management::context::ManagementContext;
use crate::management::corrections::correct_charge;
use crate::management::grants::{check_lot, expiry_text, grant_credit, parse_source};
use crate::management::key_search::now_s;
use crate::management::payments::{
    self, Transfer, list_transfers, parse_reason, parse_transfer_id,
};
use crate::money::Money;

/// A payment.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PaymentBody {
    /// The account.
    #[schema(example = "acme")]
    account: String,
    /// The amount, in USD, above 0.
    #[schema(example = "5")]
    amount_usd: String,
    /// The id of the payment, such as that of the payment provider: the same again adds nothing.
    #[schema(example = "invoice-2026-11-0042", min_length = 1, max_length = 255)]
    id: String,
}

/// A grant of credit.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GrantBody {
    /// The account.
    #[schema(example = "acme")]
    account: String,
    /// The amount, in USD, above 0.
    #[schema(example = "10")]
    amount_usd: String,
    /// The id of the grant: the same again adds nothing.
    #[schema(min_length = 1, max_length = 255)]
    id: String,
    /// When the credit expires, at most ten years from now; null if it never does.
    #[serde(deserialize_with = "read_nullable")]
    #[schema(required = true)]
    expires_at: Option<Moment>,
    /// Where the credit comes from: `promotion`, `voucher` or `paid`; `promotion` if it is missing.
    /// Only paid credit is ever paid back, and it must expire: else it is a payment.
    #[schema(example = "promotion")]
    source: Option<String>,
}

/// Reads a member that may be null and must not be missing.
fn read_nullable<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<Moment>, D::Error> {
    Option::deserialize(reader)
}

/// A refund.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RefundBody {
    /// The account.
    #[schema(example = "acme")]
    account: String,
    /// The amount, in USD, above 0. At most what the account has of paid credit is paid back.
    #[schema(example = "2.50")]
    amount_usd: String,
    /// The id of the refund: the same again takes nothing.
    #[schema(min_length = 1, max_length = 255)]
    id: String,
    /// Why, for the people who read the list of payments.
    #[schema(max_length = 500)]
    reason: Option<String>,
}

/// A correction of a charge.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CorrectionBody {
    /// The account.
    #[schema(example = "acme")]
    account: String,
    /// The id of the charged request, which its response had in `x-request-id`.
    request_id: String,
    /// The amount to give back, in USD, above 0. At most what is left of the charge is given.
    #[schema(example = "0.10")]
    amount_usd: String,
    /// The id of the correction: the same again gives nothing back.
    #[schema(min_length = 1, max_length = 255)]
    id: String,
    /// Why, for the people who read the journal.
    #[schema(min_length = 1, max_length = 500)]
    reason: String,
}

/// A payment, a grant, a refund or a correction.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TransferReply {
    /// `payment`, `grant`, `refund` or `correction`.
    #[schema(example = "payment")]
    kind: &'static str,
    /// The account.
    account: String,
    /// The caller's id.
    id: String,
    /// The amount that was asked for, in nano-USD.
    amount_nano: i64,
    /// The amount that was asked for, in USD.
    amount_usd: String,
    /// The amount that was moved, in nano-USD; null while a refund waits for money that gateways
    /// have borrowed.
    moved_nano: Option<i64>,
    /// The amount that was moved, in USD.
    moved_usd: Option<String>,
    /// The part of a refund that the account did not have, in nano-USD; null for the other kinds.
    uncovered_nano: Option<i64>,
    /// Where granted credit comes from: `promotion`, `voucher` or `paid`; null for the other kinds.
    source: Option<&'static str>,
    /// When granted credit expires (RFC 3339); null if it never does, and for the other kinds.
    expires_at: Option<String>,
    /// When it was asked for first, in unix ms; null if that is not known, or not yet.
    at: Option<i64>,
    /// The request whose charge was corrected.
    request_id: Option<String>,
    /// Why; empty if nobody has said so.
    reason: String,
}

impl TransferReply {
    fn of_entry(account: &str, entry: TransferEntry) -> TransferReply {
        let is_refund = entry.kind == TransferType::Refund;
        let moved = entry.moved;
        let uncovered = moved.filter(|_| is_refund);
        TransferReply {
            kind: entry.kind.as_str(),
            account: account.to_owned(),
            id: entry.tx,
            amount_nano: entry.amount.nano(),
            amount_usd: entry.amount.to_string(),
            moved_nano: moved.map(Money::nano),
            moved_usd: moved.map(|moved| moved.to_string()),
            uncovered_nano: uncovered.map(|moved| entry.amount.saturating_sub(moved).nano()),
            source: entry.lot.map(|lot| lot.source.as_str()),
            expires_at: entry.lot.and_then(expiry_text),
            at: entry.at,
            request_id: entry.request,
            reason: entry.reason,
        }
    }

    /// Returns a transfer that was made now, of which `moved` was moved.
    fn of_new(kind: &'static str, transfer: Transfer, moved: Money) -> TransferReply {
        TransferReply {
            kind,
            account: transfer.account.to_string(),
            id: transfer.tx,
            amount_nano: transfer.amount.nano(),
            amount_usd: transfer.amount.to_string(),
            moved_nano: Some(moved.nano()),
            moved_usd: Some(moved.to_string()),
            uncovered_nano: None,
            source: None,
            expires_at: None,
            at: None,
            request_id: None,
            reason: transfer.reason,
        }
    }
}

/// Lists the payments, grants, refunds and corrections of an account, oldest first.
#[utoipa::path(
    get,
    path = "/admin/v1/payments",
    tag = "payments",
    operation_id = "listPayments",
    params(AccountPageParameters),
    responses((status = 200, description = "Payments.", body = AdminPage<TransferReply>))
)]
pub(super) async fn list_payments(
    State(api): State<AdminApi>,
    QueryParameters(parameters): QueryParameters<AccountPageParameters>,
) -> Result<JsonReply<AdminPage<TransferReply>>, AdminError> {
    let account = parse_account_name("account", &parameters.account)?;
    let range = parameters.parse()?;
    let skipped = range.after_number()?.unwrap_or_default();
    let rows = list_transfers(api.ledger(), &account, skipped, range.limit + 1).await?;
    let of_entry = |entry| TransferReply::of_entry(account.as_str(), entry);
    let rows = rows.into_iter().map(of_entry).collect();
    let next = skipped.saturating_add(u64::from(range.limit)).to_string();
    Ok(JsonReply(AdminPage::new(rows, range.limit, |_| next.clone())))
}

/// Adds a payment to an account. The same id again adds nothing.
#[utoipa::path(
    post,
    path = "/admin/v1/payments",
    tag = "payments",
    operation_id = "createPayment",
    request_body = PaymentBody,
    responses((status = 201, description = "The payment is in the books.", body = TransferReply))
)]
pub(super) async fn create_payment(
    State(api): State<AdminApi>,
    Extension(actor): Extension<Actor>,
    JsonBody(body): JsonBody<PaymentBody>,
) -> Result<(StatusCode, JsonReply<TransferReply>), AdminError> {
    let payment = Transfer {
        account: parse_account_name("account", &body.account)?,
        tx: parse_transfer_id(&body.id)?,
        amount: parse_moved_usd(&body.amount_usd)?,
        reason: String::new(),
    };
    let adding = async move |context: ManagementContext<'_>| {
        payments::add_payment(context, &payment).await?;
        let moved = payment.amount;
        Ok(TransferReply::of_new("payment", payment, moved))
    };
    Ok((StatusCode::CREATED, JsonReply(api.change(actor, adding).await?)))
}

/// Grants credit, which may expire. Calls draw first what expires first, and of credit that expires
/// together promotions before vouchers before what was paid. The same id again adds nothing. An
/// account has at most 15 open lots of granted credit; grants with the same source and the same
/// expiry are one lot.
#[utoipa::path(
    post,
    path = "/admin/v1/grants",
    tag = "payments",
    operation_id = "createGrant",
    request_body = GrantBody,
    responses((status = 201, description = "The credit is in the books.", body = TransferReply))
)]
pub(super) async fn create_grant(
    State(api): State<AdminApi>,
    Extension(actor): Extension<Actor>,
    JsonBody(body): JsonBody<GrantBody>,
) -> Result<(StatusCode, JsonReply<TransferReply>), AdminError> {
    let lot = parse_lot(&body, now_s())?;
    let grant = Transfer {
        account: parse_account_name("account", &body.account)?,
        tx: parse_transfer_id(&body.id)?,
        amount: parse_moved_usd(&body.amount_usd)?,
        reason: String::new(),
    };
    let granting = async move |context: ManagementContext<'_>| {
        grant_credit(context, &grant, lot).await?;
        let moved = grant.amount;
        let mut reply = TransferReply::of_new("grant", grant, moved);
        (reply.source, reply.expires_at) = (Some(lot.source.as_str()), expiry_text(lot));
        Ok(reply)
    };
    Ok((StatusCode::CREATED, JsonReply(api.change(actor, granting).await?)))
}

fn parse_lot(body: &GrantBody, now: i64) -> Result<LotId, AdminError> {
    let source = body.source.as_deref().map_or(Ok(CreditSource::Promotion), parse_source)?;
    let expires_at = body.expires_at.as_ref();
    let expires_at = expires_at.map(|at| at.parse_future("expires_at", now)).transpose()?;
    Ok(check_lot(source, expires_at, now)?)
}

/// Pays credit back, at most what the account has of paid credit. Money that gateways have borrowed
/// is waited for, which takes at most a minute. What the account does not have is told as
/// uncovered, and that is final for the id.
#[utoipa::path(
    post,
    path = "/admin/v1/refunds",
    tag = "payments",
    operation_id = "createRefund",
    request_body = RefundBody,
    responses((status = 201, description = "What was paid back.", body = TransferReply))
)]
pub(super) async fn create_refund(
    State(api): State<AdminApi>,
    Extension(actor): Extension<Actor>,
    JsonBody(body): JsonBody<RefundBody>,
) -> Result<(StatusCode, JsonReply<TransferReply>), AdminError> {
    let refund = Transfer {
        account: parse_account_name("account", &body.account)?,
        tx: parse_transfer_id(&body.id)?,
        amount: parse_moved_usd(&body.amount_usd)?,
        reason: parse_reason(body.reason.as_deref().unwrap_or_default())?,
    };
    let permit = AdminApi::take_permit(&api.refunding)?;
    let taking = async move |context: ManagementContext<'_>| {
        // It waits for money that is lent, also if the caller goes away meanwhile.
        let _permit = permit;
        let done = payments::refund(context, &refund).await?;
        let mut reply = TransferReply::of_new("refund", refund, done.taken);
        reply.uncovered_nano = Some(done.uncovered.nano());
        Ok(reply)
    };
    Ok((StatusCode::CREATED, JsonReply(api.change(actor, taking).await?)))
}

/// Gives back a part of a charge, by a line of its own in the journal.
#[utoipa::path(
    post,
    path = "/admin/v1/corrections",
    tag = "payments",
    operation_id = "createCorrection",
    request_body = CorrectionBody,
    responses((status = 201, description = "What was given back.", body = TransferReply))
)]
pub(super) async fn create_correction(
    State(api): State<AdminApi>,
    Extension(actor): Extension<Actor>,
    JsonBody(body): JsonBody<CorrectionBody>,
) -> Result<(StatusCode, JsonReply<TransferReply>), AdminError> {
    if body.reason.is_empty() {
        return Err(AdminError::invalid("reason", "say why, in 1 to 500 characters"));
    }
    let correction = Transfer {
        account: parse_account_name("account", &body.account)?,
        tx: parse_transfer_id(&body.id)?,
        amount: parse_moved_usd(&body.amount_usd)?,
        reason: parse_reason(&body.reason)?,
    };
    let permit = AdminApi::take_permit(&api.searching)?;
    let correcting = async move |context: ManagementContext<'_>| {
        let _permit = permit;
        let given = correct_charge(context, &body.request_id, &correction).await?;
        let mut reply = TransferReply::of_new("correction", correction, given);
        reply.request_id = Some(body.request_id);
        Ok(reply)
    };
    Ok((StatusCode::CREATED, JsonReply(api.change(actor, correcting).await?)))
}
