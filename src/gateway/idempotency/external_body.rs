//! Stores long bodies of replies in the object store instead of the ledger's store.
//!
//! A body is written before the record of its key refers to it. If it cannot be written, the call
//! does not fail: the key is stored without a reply, and a repeat gets an error that says so.

use bytes::Bytes;

use crate::clock::unix_ms;
use crate::files::bodies::{BodyFiles, BodyKind, BodyName};
use crate::idempotency::{ExternalBody, INLINE_BYTES_MAX, IdempotencyKey, ReplyParts};
use crate::ledger::AccountName;

/// Returns the object name of the body of a reply. `owner` is the id of the call.
pub(super) fn body_name(account: &AccountName, owner: &str, body: ExternalBody) -> BodyName {
    BodyName {
        kind: BodyKind::Reply,
        account: account.to_string(),
        expires_s: body.expires_s,
        id: owner.to_owned(),
    }
}

/// Writes a long body to the object store, and returns the rest of the reply for the ledger's
/// store. A short body stays in the reply. `None` if there is no reply, or its body could not be
/// written.
pub(super) async fn store_long_body(
    bodies: &BodyFiles,
    account: &AccountName,
    key: &IdempotencyKey,
    reply: Option<ReplyParts>,
) -> Option<ReplyParts> {
    let ReplyParts { head, body } = reply?;
    if body.len() <= INLINE_BYTES_MAX {
        return Some(ReplyParts { head, body });
    }
    let life_s = key.life_ms.div_ceil(1_000);
    let now_s = unix_ms().unsigned_abs() / 1_000;
    let head = head.with_external_body(body.len() as u64, now_s.saturating_add(life_s));
    let name = body_name(account, &key.owner, head.external_body?);
    if let Err(why) = bodies.write(&name, body).await {
        log::warn!(
            event = "reply_store_failed", owner = key.owner, error:% = why;
            "reply body not stored"
        );
        return None;
    }
    Some(ReplyParts { head, body: Bytes::new() })
}

/// Deletes the body of a reply that cannot be replayed, because its key does not stand for this
/// call.
pub(super) async fn delete_body(
    bodies: &BodyFiles,
    account: &AccountName,
    key: &IdempotencyKey,
    reply: &ReplyParts,
) {
    let Some(external_body) = reply.head.external_body else { return };
    let deleted =
        bodies.delete(&body_name(account, &key.owner, external_body), external_body.bytes).await;
    if let Err(why) = deleted {
        log::warn!(
            event = "reply_delete_failed", owner = key.owner, error:% = why;
            "reply body delete failed, left to the sweep"
        );
    }
}
