//! Long bodies of replies, which are kept in the object store and not in the ledger's.
//!
//! A body is there before its name says so. One that cannot be written costs nobody the call: its
//! name is kept without a reply, and whoever asks for it is told so.

use bytes::Bytes;

use crate::clock::unix_ms;
use crate::files::bodies::{BodyFiles, BodyKind, BodyName};
use crate::idempotency::{ExternalBody, INLINE_BYTES_MAX, IdempotencyKey, ReplyParts};
use crate::ledger::AccountName;

/// Where the body of an owner's reply is.
pub(super) fn body_name(account: &AccountName, owner: &str, body: ExternalBody) -> BodyName {
    BodyName {
        kind: BodyKind::Reply,
        account: account.to_string(),
        expires_s: body.expires_s,
        id: owner.to_owned(),
    }
}

/// Puts a long body where such are; gives what is left to be kept in the ledger's store. `None` if
/// the body could not be put there.
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
    let name = body_name(account, &key.owner, head.apart?);
    if let Err(why) = bodies.write(&name, body).await {
        log::warn!(
            event = "reply_store_failed", owner = key.owner, why:% = why;
            "reply body not stored"
        );
        return None;
    }
    Some(ReplyParts { head, body: Bytes::new() })
}

/// Deletes the body of a reply that nobody will ask for: its name is another call's by now.
pub(super) async fn delete_body(
    bodies: &BodyFiles,
    account: &AccountName,
    key: &IdempotencyKey,
    reply: &ReplyParts,
) {
    let Some(apart) = reply.head.apart else { return };
    let deleted = bodies.delete(&body_name(account, &key.owner, apart), apart.bytes).await;
    if let Err(why) = deleted {
        log::warn!(
            event = "reply_delete_failed", owner = key.owner, why:% = why;
            "reply body delete failed, left to the sweep"
        );
    }
}
