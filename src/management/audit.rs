//! The audit trail: who changed which account, key, credit or operator, when, from where, and with
//! which result.
//!
//! Each change has two lines in the file: one before it is made, without which it is not made, and
//! one after. A line is one JSON object. It names accounts, payments and the beginnings of keys,
//! and never a secret. The store has one line of each change, which the API reads.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::actor::{Actor, name_of};
use super::budgets::{LimitChanges, limits_json};
use super::error::AuditTrailError;
use crate::clock;
use crate::conf::AuditSection;
use crate::ledger::key::PREFIX_CHARS;
use crate::ledger::{AccountName, AccountSettings, BudgetOwner, KeyScope, Ledger, LotId};
use crate::money::Money;
use crate::operators::Role;
use crate::operators::bounds::AUDIT_LINE_BYTES_MAX;
use crate::permissions;
use crate::store::OpenStore;

/// The most characters of a text from outside (arguments, errors) in a line.
const TEXT_CHARS_MAX: usize = 256;

/// The result of a change that was made.
const DONE: &str = "done";

/// A change that is recorded in the audit trail.
#[derive(Debug, Default)]
pub(crate) struct AuditedChange {
    /// The kind of object and what is done to it, such as `credit.add`.
    pub(crate) action: &'static str,
    pub(crate) account: Option<AccountName>,
    /// The key as the operator gave it; only its beginning is recorded.
    pub(crate) key: Option<String>,
    /// The beginnings of the other keys that are changed as well, since they have the same id.
    pub(crate) other_keys: Vec<String>,
    /// The beginning of the key that replaces the other ones.
    pub(crate) new_key: Option<String>,
    /// The scope of that key.
    pub(crate) new_scope: Option<KeyScope>,
    /// The id of a payment, a grant, a refund or a correction.
    pub(crate) payment: Option<String>,
    pub(crate) amount: Option<Money>,
    /// The id of the request whose charge is corrected.
    pub(crate) request: Option<String>,
    /// The lot to which credit is granted.
    pub(crate) lot: Option<LotId>,
    /// Why credit is paid back, or a charge corrected.
    pub(crate) reason: Option<String>,
    /// The file of a backup, as the operator named it.
    pub(crate) backup: Option<String>,
    /// The budgets of the account or the key that are changed.
    pub(crate) budgets: Option<AuditedBudgets>,
    /// The scope that the key is given.
    pub(crate) scope: Option<KeyScope>,
    /// The settings that the account is given.
    pub(crate) settings: Option<AccountSettings>,
    /// The name of the operator that is changed.
    pub(crate) operator: Option<String>,
    /// Who is known to an identity provider, and whose sessions end.
    pub(crate) identity: Option<String>,
    /// The role of that operator.
    pub(crate) role: Option<Role>,
    /// The endpoint of webhooks that is changed, and what it has from now on.
    pub(crate) webhook: Option<Value>,
    /// Whether the keys are revoked, so that the time of that is told before and after.
    pub(crate) revokes: bool,
}

/// Changes of budgets that are recorded in the audit trail.
#[derive(Debug)]
pub(crate) struct AuditedBudgets {
    owner: BudgetOwner,
    limits: LimitChanges,
}

impl AuditedBudgets {
    /// Takes the limits that are set and removed; `None` if there are none.
    pub(crate) fn new(owner: BudgetOwner, limits: &LimitChanges) -> Option<AuditedBudgets> {
        (!limits.is_empty()).then(|| AuditedBudgets { owner, limits: limits.clone() })
    }
}

/// Where changes are recorded, and what is asked for the state before and after each.
#[derive(Clone, Copy)]
pub(crate) struct AuditTrail<'a> {
    pub(crate) to: &'a AuditSection,
    pub(crate) actor: &'a Actor,
    /// The store that is changed, which keeps a line too; `None` if there is none yet.
    pub(crate) store: Option<&'a OpenStore>,
}

impl AuditTrail<'_> {
    /// Makes a change and records it before and after.
    ///
    /// # Errors
    /// The first line cannot be written, and nothing was changed; or the error of the change
    /// itself.
    pub(crate) async fn record<T, E: From<AuditTrailError> + std::fmt::Display>(
        &self,
        change: &AuditedChange,
        apply: impl AsyncFnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let id = uuid::Uuid::now_v7().to_string();
        let (fields, who) = (self.fields_of(change), self.actor.fields());
        let before = self.state_of(change).await;
        let mut begun = fields.clone();
        begun.extend(who.clone());
        begun.extend(before.named("before"));
        write_line(self.to, &id, "begun", begun).map_err(AuditTrailError)?;
        let result = apply().await;
        let mut ended = fields;
        // A change that failed may have been made in part.
        let after = self.state_of(change).await;
        let outcome = match &result {
            Ok(_) => Map::from_iter([("result".to_owned(), DONE.into())]),
            Err(why) => Map::from_iter([
                ("result".to_owned(), "failed".into()),
                ("why".to_owned(), change.redact_key(&format!("{why:#}")).into()),
            ]),
        };
        ended.extend(outcome.clone());
        if result.is_ok() {
            ended.extend(after.named("after"));
        }
        if let Err(why) = write_line(self.to, &id, "ended", ended) {
            // The change cannot be undone, and after an error the operator might repeat it and make
            // it twice.
            log::error!(
                event = "audit_line_lost", id = id.as_str(), error = why.as_str();
                "what came of this is not in the audit trail"
            );
        }
        self.append_to_store(&StoreLine { id, change, who, before, after, outcome }).await;
        result
    }

    /// Appends the one line of a change that the API reads. The file has the change already, so a
    /// store that does not take the line ends nothing.
    async fn append_to_store(&self, line: &StoreLine<'_>) {
        let Some(store) = self.store else { return };
        let mut fields = line.fields(self.actor);
        let mut text = Value::Object(fields.clone()).to_string();
        if text.len() > AUDIT_LINE_BYTES_MAX {
            // The file has all of it.
            for long in LONG_FIELDS {
                fields.remove(long);
            }
            fields.insert("shortened".to_owned(), true.into());
            text = Value::Object(fields).to_string();
        }
        if let Err(why) = store.append_audit(&text).await {
            log::warn!(
                event = "audit_line_not_stored", id = line.id.as_str(), error:% = why;
                "audit line not stored; the audit trail's file has it"
            );
        }
    }

    fn fields_of(&self, change: &AuditedChange) -> Map<String, Value> {
        let mut fields = Map::new();
        fields.insert("from".to_owned(), self.actor.origin().into());
        fields.extend(change.fields());
        fields
    }

    /// Returns the state of what a change is about, as far as the store answers.
    async fn state_of(&self, change: &AuditedChange) -> ChangeState {
        let Some(store) = self.store else { return ChangeState::default() };
        let ledger = &*store.ledger;
        let balances = match &change.account {
            Some(account) => ledger.balances(account).await.ok().flatten(),
            None => None,
        };
        let posted = balances.filter(|_| change.request.is_some());
        ChangeState {
            credited: balances.map(|balances| json!(balances.credit)),
            posted: posted.map(|balances| json!(balances.posted)),
            budgets: limits_nano(ledger, change).await,
            scope: stored_scope(ledger, change).await,
            other_scopes: other_scopes(ledger, change).await,
            settings: stored_settings(ledger, change).await,
            operator: stored_operator(store, change).await,
            revoked_at: stored_revocation(ledger, change).await,
        }
    }
}

/// The state of what a change is about, before or after it.
#[derive(Debug, Default)]
struct ChangeState {
    /// The sum of all payments of the account.
    credited: Option<Value>,
    /// The sum of its charges, if one of them is corrected.
    posted: Option<Value>,
    /// The limits of the account or the key whose budgets are changed.
    budgets: Option<Value>,
    /// The scope of the key whose scope is changed.
    scope: Option<Value>,
    /// The scopes of the other keys whose scopes are changed, each below the beginning of its key.
    other_scopes: Option<Value>,
    /// The settings of the account whose settings are changed.
    settings: Option<Value>,
    /// The operator that is changed.
    operator: Option<Value>,
    /// When the key that is revoked was revoked, in unix seconds; null if it works.
    revoked_at: Option<Value>,
}

impl ChangeState {
    /// The members with their names, and the ends of those names.
    fn members(&self) -> [(&'static str, &'static str, &Option<Value>); 8] {
        [
            ("credited", "_nano", &self.credited),
            ("posted", "_nano", &self.posted),
            ("budgets", "_nano", &self.budgets),
            ("scope", "", &self.scope),
            ("other_scopes", "", &self.other_scopes),
            ("settings", "", &self.settings),
            ("operator", "", &self.operator),
            ("revoked_at", "", &self.revoked_at),
        ]
    }

    /// Returns the members for a line of the file, whose names tell the time, such as
    /// `credited_before_nano`.
    fn named(&self, time: &str) -> Map<String, Value> {
        let known = self.members().into_iter().filter_map(|(name, end, value)| {
            let name = format!("{name}_{time}{end}");
            Some((name, value.clone()?))
        });
        known.collect()
    }

    /// Returns the members as one object.
    fn to_json(&self) -> Value {
        let known = self.members().into_iter().filter_map(|(name, end, value)| {
            let name = format!("{name}{end}");
            Some((name, value.clone()?))
        });
        Value::Object(known.collect())
    }
}

/// What a line of the store goes without if it would be too long.
const LONG_FIELDS: [&str; 5] = ["before", "after", "other_key_prefixes", "scope", "new_scope"];

/// The one line of a change, in the store.
struct StoreLine<'a> {
    id: String,
    change: &'a AuditedChange,
    who: Map<String, Value>,
    before: ChangeState,
    after: ChangeState,
    /// The result, and why a change failed.
    outcome: Map<String, Value>,
}

impl StoreLine<'_> {
    fn fields(&self, actor: &Actor) -> Map<String, Value> {
        let mut fields = Map::new();
        fields.insert("id".to_owned(), self.id.as_str().into());
        fields.insert("at".to_owned(), clock::timestamp().to_string().into());
        fields.insert("who".to_owned(), name_of(&self.who).into());
        fields.insert("from".to_owned(), actor.origin().into());
        fields.extend(self.who.clone());
        fields.extend(self.change.fields());
        fields.insert("before".to_owned(), self.before.to_json());
        fields.insert("after".to_owned(), self.after.to_json());
        fields.extend(self.outcome.clone());
        fields
    }
}

impl AuditedChange {
    fn fields(&self) -> Map<String, Value> {
        let text = |text: &Option<String>| {
            text.as_deref().map(|text| Value::from(truncate(text, TEXT_CHARS_MAX)))
        };
        let others = (!self.other_keys.is_empty()).then(|| json!(self.other_keys));
        let fields: [(&str, Option<Value>); 19] = [
            ("action", Some(self.action.into())),
            ("account", self.account.as_ref().map(|name| name.as_str().into())),
            ("key_prefix", self.key.as_deref().map(|key| key_prefix(key).into())),
            ("other_key_prefixes", others),
            ("new_key_prefix", self.new_key.as_deref().map(Value::from)),
            ("new_scope", self.new_scope.as_ref().map(|scope| json!(scope))),
            ("payment", text(&self.payment)),
            ("amount_nano", self.amount.map(|amount| json!(amount))),
            ("charged_request", text(&self.request)),
            ("lot", self.lot.map(|lot| lot.to_string().into())),
            ("reason", text(&self.reason)),
            ("backup", text(&self.backup)),
            ("webhook", self.webhook.clone()),
            ("budgets_nano", self.budgets.as_ref().map(|changed| limits_json(&changed.limits))),
            ("scope", self.scope.as_ref().map(|scope| json!(scope))),
            ("settings", self.settings.as_ref().map(|settings| json!(settings))),
            ("operator", text(&self.operator)),
            ("identity", text(&self.identity)),
            ("role", self.role.map(|role| role.name().into())),
        ];
        fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }

    /// Shortens the key in a text that may quote the operator's arguments: the operator may have
    /// given a whole key where its beginning was asked for.
    fn redact_key(&self, text: &str) -> String {
        let text = match &self.key {
            Some(key) if !key.is_empty() => text.replace(key, &key_prefix(key)),
            _ => text.to_owned(),
        };
        truncate(&text, TEXT_CHARS_MAX)
    }
}

fn key_prefix(key: &str) -> String {
    truncate(key, PREFIX_CHARS)
}

fn truncate(text: &str, chars_max: usize) -> String {
    text.chars().take(chars_max).collect()
}

/// Returns the limits of the account or the key whose budgets are changed, if the store answers.
async fn limits_nano(ledger: &dyn Ledger, change: &AuditedChange) -> Option<Value> {
    let (account, changed) = (change.account.as_ref()?, change.budgets.as_ref()?);
    let uses = ledger.list_budgets(account).await.ok()?;
    let of_owner = uses.iter().filter(|budget| budget.owner == changed.owner);
    let limited = of_owner.filter(|budget| budget.limit.is_some());
    Some(limits_json(limited.map(|budget| (&budget.kind, &budget.limit))))
}

/// Returns the scope of the key whose scope is changed, if there is the key and the store answers.
async fn stored_scope(ledger: &dyn Ledger, change: &AuditedChange) -> Option<Value> {
    change.scope.as_ref()?;
    let prefix = key_prefix(change.key.as_deref()?);
    let record = ledger.find_key_by_prefix(&prefix).await.ok()??;
    Some(json!(record.scope))
}

/// Returns when the key that is revoked was revoked, if there is the key and the store answers.
async fn stored_revocation(ledger: &dyn Ledger, change: &AuditedChange) -> Option<Value> {
    let prefix = key_prefix(change.key.as_deref().filter(|_| change.revokes)?);
    let record = ledger.find_key_by_prefix(&prefix).await.ok()??;
    Some(json!(record.revoked_at))
}

/// Returns the scopes of the other keys whose scopes are changed, of those that the store tells.
async fn other_scopes(ledger: &dyn Ledger, change: &AuditedChange) -> Option<Value> {
    change.scope.as_ref()?;
    let mut scopes = Map::new();
    for prefix in &change.other_keys {
        if let Ok(Some(record)) = ledger.find_key_by_prefix(prefix).await {
            scopes.insert(prefix.clone(), json!(record.scope));
        }
    }
    (!scopes.is_empty()).then_some(Value::Object(scopes))
}

/// Returns the settings of the account whose settings are changed, if the store answers.
async fn stored_settings(ledger: &dyn Ledger, change: &AuditedChange) -> Option<Value> {
    let (account, _) = (change.account.as_ref()?, change.settings.as_ref()?);
    let settings = ledger.account_settings(account).await.ok()??;
    Some(json!(settings))
}

/// Returns the operator that is changed, if there is one and the store answers.
async fn stored_operator(store: &OpenStore, change: &AuditedChange) -> Option<Value> {
    let name = change.operator.as_ref()?;
    let all = store.operators.list_operators().await.ok()?;
    let record = all.into_iter().find(|record| record.name == *name)?;
    Some(json!({
        "role": record.role.name(),
        "prefix": record.prefix,
        "expires_at": record.expires_at,
    }))
}

/// Writes one line; in a file it is synced to disk before this returns. The error is its reason.
fn write_line(
    to: &AuditSection,
    id: &str,
    stage: &str,
    fields: Map<String, Value>,
) -> Result<(), String> {
    let mut line = Map::new();
    line.insert("at".to_owned(), clock::timestamp().to_string().into());
    line.insert("target".to_owned(), "audit".into());
    line.insert("id".to_owned(), id.into());
    line.insert("stage".to_owned(), stage.into());
    line.extend(fields);
    let line = format!("{}\n", Value::Object(line));
    match to {
        AuditSection::Log => {
            std::io::stderr().lock().write_all(line.as_bytes()).map_err(|why| why.to_string())
        }
        AuditSection::File(path) => {
            append_line(path.as_ref(), &line).map_err(|why| format!("audit.to: {path}: {why}"))
        }
    }
}

/// Appends the line in one write, so that the lines of several commands do not mix.
fn append_line(path: &Path, line: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        permissions::make_shared_folder(folder)?;
    }
    permissions::make_file(path)?;
    let mut file = OpenOptions::new().append(true).open(path)?;
    file.write_all(line.as_bytes())?;
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_key_in_the_place_of_its_beginning_is_not_told() {
        let key = format!("sk-tg-{}", "0123456789abcdef".repeat(4));
        let change = AuditedChange {
            action: "key.revoke",
            key: Some(key.clone()),
            ..AuditedChange::default()
        };
        let fields = format!("{:?}", change.fields());
        assert!(fields.contains("sk-tg-01234567") && !fields.contains("012345678"), "{fields}");
        let why = change.redact_key(&format!("there is no key listed as '{key}'"));
        assert_eq!(why, "there is no key listed as 'sk-tg-01234567'");
    }
}
