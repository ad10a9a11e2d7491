//! Handles repeats of paid calls. Under an idempotency key a call is made once; and when an
//! official client retries by itself, it gets the first reply instead of paying twice.
//!
//! A call claims its idempotency key before anything is looked up or held for it. After settlement
//! the reply is stored under the key if the call was charged; otherwise the key is released. If a
//! call ends in any other way, its claim expires, and the ledger tells whether the call was
//! charged.

use bytes::Bytes;
use http::HeaderName;
use pingora::proxy::Session;

use super::api_error::ApiError;
use super::context::RequestContext;
use super::state::Gateway;
use super::upstream;
use super::videos::shared::job_id;
use crate::dialect::Endpoint;
use crate::gateway::budgets::tenants::TenantId;
use crate::gateway::request::body::RequestBody as Body;
use crate::idempotency::encode_digest;
use crate::ledger::AccountName;

mod attempt_to_store;
pub(crate) mod call;
mod claim_attempt;
mod completion;
mod external_body;
mod fingerprint;
pub(super) mod journal_search;
pub(super) mod recorder;
pub(crate) mod refused_attempts;
mod replay;
pub(super) mod source;

pub(super) use completion::{
    await_claim, detect_undelivered, finish_claim, record_head, store_before_last_byte,
    store_local_reply,
};

pub(super) use attempt_to_store::attempt_to_store;

use call::{Claim, DELIVERED_BYTES_MAX, IdempotentCall, StoredClaim};
use claim_attempt::ClaimAttempt;
pub(super) use claim_attempt::ClaimOutcome;
use recorder::ReplyRecorder;
use source::IdempotencySource;

/// Claims the idempotency key of a call, or replays the reply stored under it.
///
/// # Errors
/// The key can neither be claimed nor its reply be replayed, or the store does not answer.
pub(super) async fn claim_or_replay(
    gateway: &Gateway,
    session: &mut Session,
    ctx: &mut RequestContext,
    account: &AccountName,
    mut source: IdempotencySource,
    endpoint: Endpoint,
    body: &mut Body,
) -> Result<ClaimOutcome, ApiError> {
    let headers = upstream::forwarded_headers(gateway, session, &body.parsed.model, endpoint);
    let content = fingerprint::fingerprint_call(&body.parsed, &headers).await;
    let id = source::attempt_id(endpoint, content);
    if source == IdempotencySource::Retry && gateway.refused_attempts.take(account, &id) {
        source = IdempotencySource::FirstAttempt;
    }
    // The hold of the call has the same id.
    let owner = if endpoint == Endpoint::Videos { job_id(&ctx.id) } else { ctx.id.clone() };
    let tenant = ctx
        .tenant
        .clone()
        .unwrap_or_else(|| gateway.tenants.tenant(TenantId::Account(account.clone())));
    // The charge of a video is not in the journal before its job has ended.
    let in_memory = (source == IdempotencySource::FirstAttempt && endpoint != Endpoint::Videos)
        .then(|| gateway.first_attempts.begin(account, id.clone(), &owner))
        .flatten();
    let claim = if let Some(attempt) = in_memory {
        Claim::InMemory(attempt)
    } else {
        let mut key = source.key(endpoint, content, owner);
        let background = if source == IdempotencySource::FirstAttempt {
            Some(completion::claim_in_background(gateway, account, &key))
        } else {
            let attempt = ClaimAttempt {
                gateway,
                account,
                tenant: &tenant,
                key: &mut key,
                source: &source,
                id: &id,
                endpoint,
                has_waited: false,
                file_dropped: false,
            };
            if Box::pin(attempt.run(session, ctx, body)).await? == ClaimOutcome::Answered {
                return Ok(ClaimOutcome::Answered);
            }
            None
        };
        let lease = gateway.leases.keep_alive(key.lease_entry(account));
        Claim::Stored(StoredClaim { key, background, lease })
    };
    ctx.idempotent_call = Some(Box::new(IdempotentCall {
        account: account.clone(),
        claim,
        attempt_id: (!matches!(source, IdempotencySource::Keyed(_))).then_some(id),
        delivered_bytes_max: match endpoint {
            // An image is expensive, and too large for the usual limit.
            Endpoint::Images | Endpoint::ImageEdits => usize::MAX,
            _ => DELIVERED_BYTES_MAX,
        },
        is_undelivered: false,
        recorder: ReplyRecorder::new(
            gateway.limits.reply_bytes_max,
            gateway.reply_budget.permit(&tenant),
        ),
    }));
    Ok(ClaimOutcome::New)
}

/// Returns the text by which the journal names the content of a call that its client may attempt
/// again by itself; `None` for any other call.
pub(super) fn retry_digest(ctx: &RequestContext) -> Option<String> {
    let id = ctx.idempotent_call.as_ref()?.attempt_id.as_ref()?;
    Some(encode_digest(&id.content))
}

/// Records a header of a call's reply that became known after the others.
pub(super) fn record_header(ctx: &mut RequestContext, name: &HeaderName, value: i64) {
    if let Some(call) = &mut ctx.idempotent_call {
        call.recorder.add_header(name.as_str(), value.to_string());
    }
}

/// Records response bytes of a call for replay, whether the client is still connected or not.
pub(super) fn record_body(ctx: &mut RequestContext, bytes: &[Bytes]) {
    if let Some(call) = &mut ctx.idempotent_call {
        bytes.iter().for_each(|piece| call.recorder.push(piece));
    }
}

/// Remembers that a call without a key was refused with an error after which clients try again.
pub(super) fn record_refusal(gateway: &Gateway, ctx: &RequestContext, refusal: &ApiError) {
    let Some(call) = &ctx.idempotent_call else { return };
    if let Some(id) = &call.attempt_id
        && ctx.access_log.charge.is_none()
        && refusal.invites_retry()
    {
        gateway.refused_attempts.add(&call.account, id);
    }
}

/// Discards the recorded reply: it was cut off, which its bytes do not show.
pub(super) fn discard_recording(ctx: &mut RequestContext) {
    if let Some(call) = &mut ctx.idempotent_call {
        call.recorder.discard();
    }
}
