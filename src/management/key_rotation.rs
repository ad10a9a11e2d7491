//! Rotating a key: a new key in the place of another one, with the same id.

use std::sync::atomic::{AtomicBool, Ordering};

use super::audit::AuditedChange;
use super::context::ManagementContext;
use super::error::{ManagementError, no_such_key, scope_fault};
use super::key_scope::{ScopePatch, change_scope};
use super::key_search::{FoundKeys, find_keys, has_ended, now_s};
use super::keys::{IssuedKey, end_sign_ins, make_key};
use crate::ledger::{KeyRecord, KeyScope, Ledger, Unavailable};

/// The longest time for which an old key may work beside the new one, in seconds.
pub(crate) const OVERLAP_S_MAX: u32 = 365 * 24 * 60 * 60;

/// What came of a rotation.
pub(crate) struct RotatedKey {
    pub(crate) issued: IssuedKey,
    /// The beginning of the key that was replaced.
    pub(crate) old_prefix: String,
    /// When that key stops working, in unix seconds.
    pub(crate) old_key_ends_at: i64,
}

/// When keys stop working that a new key replaces.
#[derive(Debug, Clone, Copy)]
struct OldKeyEnd {
    /// The time of the rotation, in unix seconds.
    now: i64,
    /// How long they work beside the new key, in seconds.
    overlap: i64,
}

impl OldKeyEnd {
    /// Returns the scope of an old key with its new expiry; `None` if the key is revoked instead.
    fn limit_scope(self, scope: &KeyScope) -> Option<KeyScope> {
        let ends_at = Some(self.at(scope));
        (self.overlap > 0).then(|| KeyScope { expires_at: ends_at, ..scope.clone() })
    }

    /// Returns when an old key stops working, in unix seconds.
    fn at(self, scope: &KeyScope) -> i64 {
        let overlapped = self.now.saturating_add(self.overlap);
        scope.expires_at.map_or(overlapped, |own| own.min(overlapped))
    }
}

/// Replaces a key, or all keys of an id that work. They go on working for `overlap` seconds.
pub(crate) async fn rotate_key(
    context: ManagementContext<'_>,
    prefix: &str,
    overlap: i64,
) -> Result<RotatedKey, ManagementError> {
    let (ledger, now) = (context.ledger(), now_s());
    let end = OldKeyEnd { now, overlap };
    let found = find_keys(ledger, prefix).await?.without_ended(now);
    let old = &found.newest;
    if has_ended(old, now) {
        let why = if old.revoked_at.is_some() { "is revoked" } else { "has expired" };
        let message =
            format!("the key {} {why}: `tollgate key issue` makes another one", old.prefix);
        return Err(ManagementError::Conflict { code: "key_ended", message });
    }
    let key = make_key()?;
    let (created_at, scope) = plan_new_key(ledger, old, now).await?;
    scope.check().map_err(|fault| scope_fault(&fault))?;
    let record = KeyRecord::new(&key, old.account.clone(), created_at, scope);
    let change = AuditedChange {
        action: "key.rotate",
        account: Some(old.account.clone()),
        key: Some(old.prefix.clone()),
        other_keys: found.older_prefixes(),
        new_key: Some(record.prefix.clone()),
        new_scope: Some(record.scope.clone()),
        scope: end.limit_scope(&old.scope),
        ..AuditedChange::default()
    };
    // It may run again, and then finds the old key ended by itself.
    let has_begun = AtomicBool::new(false);
    let rotating = async || {
        // The new key comes first: a change that ends halfway takes no key from its owner.
        ledger.add_key(key.hash(), record.clone()).await?;
        if !has_begun.load(Ordering::Relaxed) {
            check_still_same(ledger, old, &record, now).await?;
            has_begun.store(true, Ordering::Relaxed);
        }
        end_sign_ins(context.store, old).await?;
        finish_rotation(ledger, &found, &record, end).await.map_err(|cause| {
            let (new, id) = (&record.prefix, record.id.0);
            let message =
                format!("the key {new} was made and not shown; `key rotate {id}` begins again");
            ManagementError::Unfinished { message, cause: Box::new(cause) }
        })
    };
    context.change(&change, rotating).await?;
    let (old_prefix, old_key_ends_at) = (old.prefix.clone(), end.at(&old.scope));
    // Others may have changed it since it was planned.
    let stored = ledger.find_key_by_prefix(&record.prefix).await.ok().flatten();
    let record = stored.unwrap_or(record);
    Ok(RotatedKey { issued: IssuedKey { key, record }, old_prefix, old_key_ends_at })
}

/// Returns when the key that replaces `old` counts as created, in unix seconds, and its scope.
///
/// It is listed after all keys of its id. Its scope is that of the newest of them that works: the
/// end of a key that was replaced before is not the end of the new one.
async fn plan_new_key(
    ledger: &dyn Ledger,
    old: &KeyRecord,
    now: i64,
) -> Result<(i64, KeyScope), Unavailable> {
    let mut keys = ledger.list_keys(&old.account).await?;
    keys.retain(|key| key.id == old.id);
    let after = keys.iter().map(|key| key.created_at.saturating_add(1)).max();
    let newest = keys.iter().rfind(|key| !has_ended(key, now)).unwrap_or(old);
    let scope = KeyScope { id: Some(old.id), ..newest.scope.clone() };
    Ok((after.map_or(now, |at| at.max(now)), scope))
}

/// Checks that nobody has revoked the old key, or set its expiry, while the new one was made.
/// Whoever does so from now on finds the new key beside it. If somebody has, the new key, which
/// nobody has seen, is revoked.
async fn check_still_same(
    ledger: &dyn Ledger,
    old: &KeyRecord,
    new: &KeyRecord,
    now: i64,
) -> Result<(), ManagementError> {
    let stored = ledger.find_key_by_prefix(&old.prefix).await?;
    let stored = stored.ok_or_else(|| no_such_key(&old.prefix))?;
    let (code, what) = if stored.revoked_at.is_some() {
        ("key_ended", "revoked")
    } else if stored.scope.expires_at == old.scope.expires_at {
        return Ok(());
    } else {
        ("key_changed", "given another expiry")
    };
    ledger.revoke_key(&new.prefix, now).await?;
    let message = format!("the key {} was {what} while it was rotated", old.prefix);
    Err(ManagementError::Conflict { code, message })
}

/// Ends the keys that were replaced, and gives the new key the changes that others have made to the
/// scope of the newest of them since it was read. The same again changes nothing.
async fn finish_rotation(
    ledger: &dyn Ledger,
    found: &FoundKeys,
    new: &KeyRecord,
    end: OldKeyEnd,
) -> Result<(), ManagementError> {
    for KeyRecord { prefix, .. } in &found.older {
        end_key(ledger, prefix, end).await?;
    }
    let old = &found.newest;
    let scope = end_key(ledger, &old.prefix, end).await?;
    let changes = ScopePatch::between(&old.scope, &scope);
    if !changes.is_empty() {
        change_scope(ledger, &new.prefix, |scope| changes.apply(scope)).await?;
    }
    Ok(())
}

/// Ends a key that was replaced. Returns the scope that it had.
async fn end_key(
    ledger: &dyn Ledger,
    prefix: &str,
    end: OldKeyEnd,
) -> Result<KeyScope, ManagementError> {
    if end.overlap > 0 {
        let limit = |scope: &KeyScope| Ok(end.limit_scope(scope).unwrap_or_else(|| scope.clone()));
        return change_scope(ledger, prefix, limit).await;
    }
    let is_there = ledger.revoke_key(prefix, end.now).await?;
    let record = ledger.find_key_by_prefix(prefix).await?.filter(|_| is_there);
    Ok(record.ok_or_else(|| no_such_key(prefix))?.scope)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_key_ends_with_the_overlap_or_before() {
        let of = |expires_at| KeyScope { expires_at, ..KeyScope::default() };
        let end = OldKeyEnd { now: 100, overlap: 50 };
        for (own, ends_at) in [(None, 150), (Some(149), 149), (Some(151), 150)] {
            assert_eq!(end.limit_scope(&of(own)), Some(of(Some(ends_at))), "{own:?}");
            assert_eq!(end.at(&of(own)), ends_at);
        }
        let at_once = OldKeyEnd { now: 100, overlap: 0 };
        assert_eq!((at_once.limit_scope(&of(None)), at_once.at(&of(None))), (None, 100));
    }
}
