//! Keys: issuing, changing and revoking them.

use super::accounts::require_account;
use super::audit::{AuditedBudgets, AuditedChange};
use super::budgets::{self, LimitChanges};
use super::context::ManagementContext;
use super::error::{ManagementError, no_such_key};
use super::key_scope::{ScopePatch, change_scope};
use super::key_search::{FoundKeys, find_keys, has_ended, now_s, parse_key_id};
use super::living::require_living;
use super::random::random_bits;
use crate::gateway::request::scope_check::sees_account;
use crate::ledger::key::ApiKey;
use crate::ledger::{AccountName, BudgetOwner, KeyPage, KeyRange, KeyRecord, KeyScope, Ledger};
use crate::sessions::Principal;
use crate::store::OpenStore;

/// A new key, which is shown this once.
pub(crate) struct IssuedKey {
    pub(crate) key: ApiKey,
    pub(crate) record: KeyRecord,
}

/// Issues a key with budgets and a scope.
pub(crate) async fn issue_key(
    context: ManagementContext<'_>,
    account: &AccountName,
    limits: &LimitChanges,
    scope: KeyScope,
) -> Result<IssuedKey, ManagementError> {
    let ledger = context.ledger();
    require_living(ledger, account).await?;
    let key = make_key()?;
    let record = KeyRecord::new(&key, account.clone(), now_s(), scope);
    let owner = BudgetOwner::Key(record.id);
    let change = AuditedChange {
        action: "key.issue",
        account: Some(record.account.clone()),
        key: Some(record.prefix.clone()),
        budgets: AuditedBudgets::new(owner, limits),
        scope: (record.scope != KeyScope::default()).then(|| record.scope.clone()),
        ..AuditedChange::default()
    };
    let adding = async || {
        // The budgets must be in force before the key works.
        budgets::set_limits(ledger, &record.account, owner, limits).await?;
        let added = ledger.add_key(key.hash(), record.clone()).await;
        if added.is_err() {
            // The account may have been deleted since.
            require_living(ledger, &record.account).await?;
        }
        Ok(added?)
    };
    context.change(&change, adding).await?;
    Ok(IssuedKey { key, record })
}

/// Changes the budgets and the scope of a key, or of all keys of an id that work. Returns the
/// newest of them.
pub(crate) async fn set_key(
    context: ManagementContext<'_>,
    prefix: &str,
    limits: &LimitChanges,
    changes: &ScopePatch,
) -> Result<KeyRecord, ManagementError> {
    let (ledger, now) = (context.ledger(), now_s());
    let found = find_keys(ledger, prefix).await?.without_ended(now);
    let FoundKeys { newest: record, older, .. } = &found;
    let apply = || changes.apply(&record.scope);
    let scope = (!changes.is_empty()).then(apply).transpose()?;
    let (account, owner) = (&record.account, BudgetOwner::Key(record.id));
    let change = AuditedChange {
        action: "key.set",
        account: Some(account.clone()),
        key: Some(record.prefix.clone()),
        other_keys: if changes.is_empty() { Vec::new() } else { found.older_prefixes() },
        budgets: AuditedBudgets::new(owner, limits),
        scope,
        ..AuditedChange::default()
    };
    let (new, removed) = budgets::split_limits(limits);
    let setting = async || {
        // What opens a key comes after new limits, and what restricts it before old ones go: a
        // change that ends halfway leaves no key that may do more than before and after it.
        budgets::set_limits(ledger, account, owner, &new).await?;
        if !changes.is_empty() {
            for KeyRecord { prefix, .. } in older {
                change_scope(ledger, prefix, |scope| changes.apply_to_older(scope)).await?;
            }
            let change_newest = |scope: &KeyScope| {
                // A rotation may have limited the key since: it has a new one in its place.
                let is_limited = found.is_by_id && scope.expires_at != record.scope.expires_at;
                if is_limited { changes.apply_to_older(scope) } else { changes.apply(scope) }
            };
            change_scope(ledger, &record.prefix, change_newest).await?;
            // A rotation that read the old scope before this write has its new key by now.
            if found.is_by_id {
                change_new_keys(ledger, &found, changes).await?;
            }
        }
        if changes.disabled == Some(true) {
            end_sign_ins(context.store, record).await?;
        }
        budgets::set_limits(ledger, account, owner, &removed).await
    };
    context.change(&change, setting).await?;
    Ok(find_keys(ledger, &record.prefix).await?.newest)
}

/// Changes the scopes of the keys that have the same id as some and were made since those were
/// found. Keys that have ended stay as they are.
async fn change_new_keys(
    ledger: &dyn Ledger,
    found: &FoundKeys,
    changes: &ScopePatch,
) -> Result<(), ManagementError> {
    let (known, now) = (&found.newest, now_s());
    let is_known =
        |key: &KeyRecord| found.older.iter().chain([known]).any(|found| found.prefix == key.prefix);
    let mut keys = ledger.list_keys(&known.account).await?;
    keys.retain(|key| key.id == known.id && !has_ended(key, now) && !is_known(key));
    for KeyRecord { prefix, .. } in &keys {
        change_scope(ledger, prefix, |scope| changes.apply(scope)).await?;
    }
    Ok(())
}

/// Revokes the key that is listed under a beginning, or all keys that have an id. Returns the
/// beginnings of the keys.
pub(crate) async fn revoke_key(
    context: ManagementContext<'_>,
    prefix: &str,
) -> Result<Vec<String>, ManagementError> {
    let (ledger, at) = (context.ledger(), now_s());
    let id = parse_key_id(prefix);
    let (prefix, others) = if id.is_some() {
        let found = find_keys(ledger, prefix).await?;
        (found.newest.prefix.clone(), found.older_prefixes())
    } else {
        (prefix.to_owned(), Vec::new())
    };
    let known = ledger.find_key_by_prefix(&prefix).await.ok().flatten();
    let change = AuditedChange {
        action: "key.revoke",
        account: known.as_ref().map(|record| record.account.clone()),
        key: Some(prefix.clone()),
        other_keys: others.clone(),
        revokes: true,
        ..AuditedChange::default()
    };
    let prefixes: Vec<String> = others.into_iter().chain([prefix]).collect();
    let revoking = async || {
        for prefix in &prefixes {
            if !ledger.revoke_key(prefix, at).await? {
                return Err(no_such_key(prefix));
            }
        }
        if let Some(record) = &known {
            end_sign_ins(context.store, record).await?;
        }
        // A rotation that runs beside this may have made another one since they were found.
        if let (Some(id), Some(KeyRecord { account, .. })) = (id, &known) {
            for key in ledger.list_keys(account).await? {
                if key.id == id && key.revoked_at.is_none() {
                    ledger.revoke_key(&key.prefix, at).await?;
                }
            }
        }
        Ok(())
    };
    context.change(&change, revoking).await?;
    Ok(prefixes)
}

/// Ends the sessions of an account's customer in the console, if a key signs in there: it may be in
/// wrong hands.
pub(super) async fn end_sign_ins(
    store: &OpenStore,
    record: &KeyRecord,
) -> Result<(), ManagementError> {
    if sees_account(&record.scope) {
        let customer = Principal::Account(record.account.clone());
        store.sessions.end_sessions_of(&customer).await?;
    }
    Ok(())
}

/// Returns a part of the keys of an account.
pub(crate) async fn list_keys_in(
    ledger: &dyn Ledger,
    account: &AccountName,
    range: KeyRange,
) -> Result<KeyPage, ManagementError> {
    require_account(ledger, account).await?;
    Ok(ledger.list_keys_in(account, range).await?)
}

/// Makes a key of random bits.
pub(crate) fn make_key() -> Result<ApiKey, ManagementError> {
    Ok(ApiKey::from_random(random_bits()?))
}
