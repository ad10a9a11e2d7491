//! The audit trail: which user changed which account, key or credit, when, by which command, and
//! with which result.
//!
//! Each change has two lines: one before it is made, without which it is not made, and one after. A
//! line is one JSON object. It names accounts, payments and the beginnings of keys, and never a
//! secret.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use rustix::process::{geteuid, getuid};
use serde_json::{Map, Value, json};

use super::budgets::{LimitChanges, limits_json};
use crate::clock;
use crate::conf::AuditSection;
use crate::ledger::key::PREFIX_CHARS;
use crate::ledger::{AccountName, AccountSettings, BudgetOwner, KeyScope, Ledger};
use crate::money::Money;
use crate::operators::Role;
use crate::permissions;

/// The most characters of a text from outside (arguments, errors) in a line.
const TEXT_CHARS_MAX: usize = 256;

/// A change that is recorded in the audit trail.
#[derive(Debug, Default)]
pub(super) struct AuditedChange {
    /// The kind of object and what is done to it, such as `credit.add`.
    pub(super) action: &'static str,
    pub(super) account: Option<AccountName>,
    /// The key as the operator gave it; only its beginning is recorded.
    pub(super) key: Option<String>,
    /// The beginnings of the other keys that are changed as well, since they have the same id.
    pub(super) other_keys: Vec<String>,
    /// The beginning of the key that replaces the other ones.
    pub(super) new_key: Option<String>,
    /// The scope of that key.
    pub(super) new_scope: Option<KeyScope>,
    /// The id of a payment.
    pub(super) payment: Option<String>,
    pub(super) amount: Option<Money>,
    /// The file of a backup, as the operator named it.
    pub(super) backup: Option<String>,
    /// The budgets of the account or the key that are changed.
    pub(super) budgets: Option<AuditedBudgets>,
    /// The scope that the key is given.
    pub(super) scope: Option<KeyScope>,
    /// The settings that the account is given.
    pub(super) settings: Option<AccountSettings>,
    /// The name of the operator that is changed, and the role.
    pub(super) operator: Option<String>,
    pub(super) role: Option<Role>,
}

/// Changes of budgets that are recorded in the audit trail.
#[derive(Debug)]
pub(super) struct AuditedBudgets {
    owner: BudgetOwner,
    limits: LimitChanges,
}

impl AuditedBudgets {
    /// Takes the limits that are set and removed; `None` if there are none.
    pub(super) fn new(owner: BudgetOwner, limits: &LimitChanges) -> Option<AuditedBudgets> {
        (!limits.is_empty()).then(|| AuditedBudgets { owner, limits: limits.clone() })
    }
}

/// Makes a change and writes a line before and after it. A change of an account is told with what
/// its `ledger` says.
///
/// # Errors
/// The first line cannot be written, and nothing was changed; or the error of the change itself.
pub(super) async fn run_audited<T>(
    to: &AuditSection,
    ledger: Option<&dyn Ledger>,
    change: &AuditedChange,
    apply: impl AsyncFnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let id = uuid::Uuid::now_v7().to_string();
    let mut begun = change.fields();
    begun.extend(actor_fields());
    let before = credited_nano(ledger, change).await;
    begun.extend(before.map(|nano| ("credited_before_nano".to_owned(), nano)));
    let before = limits_nano(ledger, change).await;
    begun.extend(before.map(|limits| ("budgets_before_nano".to_owned(), limits)));
    let before = stored_scope(ledger, change).await;
    begun.extend(before.map(|scope| ("scope_before".to_owned(), scope)));
    let before = other_scopes(ledger, change).await;
    begun.extend(before.map(|scopes| ("other_scopes_before".to_owned(), scopes)));
    let before = stored_settings(ledger, change).await;
    begun.extend(before.map(|settings| ("settings_before".to_owned(), settings)));
    write_line(to, &id, "begun", begun)
        .context("no line can be written to the audit trail, so nothing was changed")?;
    let result = apply().await;
    let mut ended = change.fields();
    match &result {
        Ok(_) => {
            let after = credited_nano(ledger, change).await;
            ended.insert("result".to_owned(), "done".into());
            ended.extend(after.map(|nano| ("credited_after_nano".to_owned(), nano)));
            let after = limits_nano(ledger, change).await;
            ended.extend(after.map(|limits| ("budgets_after_nano".to_owned(), limits)));
            let after = stored_scope(ledger, change).await;
            ended.extend(after.map(|scope| ("scope_after".to_owned(), scope)));
            let after = other_scopes(ledger, change).await;
            ended.extend(after.map(|scopes| ("other_scopes_after".to_owned(), scopes)));
            let after = stored_settings(ledger, change).await;
            ended.extend(after.map(|settings| ("settings_after".to_owned(), settings)));
        }
        Err(why) => {
            ended.insert("result".to_owned(), "failed".into());
            ended.insert("why".to_owned(), change.redact_key(&format!("{why:#}")).into());
        }
    }
    if let Err(why) = write_line(to, &id, "ended", ended) {
        // The change cannot be undone, and after an error the operator might repeat it and make it
        // twice.
        eprintln!("tollgate: what came of this is not in the audit trail: {why:#}");
    }
    result
}

/// Returns the line about a change that was made, for the record of changes in the store.
pub(super) fn line_of_done(change: &AuditedChange) -> String {
    let mut fields = change.fields();
    fields.extend(actor_fields());
    fields.insert("result".to_owned(), "done".into());
    fields.insert("at".to_owned(), clock::timestamp().to_string().into());
    fields.insert("id".to_owned(), uuid::Uuid::now_v7().to_string().into());
    Value::Object(fields).to_string()
}

impl AuditedChange {
    fn fields(&self) -> Map<String, Value> {
        let mut fields_json = Map::new();
        fields_json.insert("from".to_owned(), "cli".into());
        fields_json.insert("action".to_owned(), self.action.into());
        fields_json.extend(self.operator.iter().map(|o| ("operator".to_owned(), o.clone().into())));
        fields_json.extend(self.role.map(|role| ("role".to_owned(), role.name().into())));
        let account = self.account.as_ref().map(|name| name.as_str().into());
        let key = self.key.as_deref().map(|key| key_prefix(key).into());
        let payment = self.payment.as_deref().map(|id| truncate(id, TEXT_CHARS_MAX).into());
        let amount = self.amount.map(|amount| json!(amount));
        let backup = self.backup.as_deref().map(|file| truncate(file, TEXT_CHARS_MAX).into());
        let budgets = self.budgets.as_ref().map(|changed| limits_json(&changed.limits));
        let scope = self.scope.as_ref().map(|scope| json!(scope));
        let settings = self.settings.as_ref().map(|settings| json!(settings));
        let others = (!self.other_keys.is_empty()).then(|| json!(self.other_keys));
        let new_scope = self.new_scope.as_ref().map(|scope| json!(scope));
        let fields: [(&str, Option<Value>); 11] = [
            ("account", account),
            ("key_prefix", key),
            ("other_key_prefixes", others),
            ("new_key_prefix", self.new_key.as_deref().map(Value::from)),
            ("new_scope", new_scope),
            ("payment", payment),
            ("amount_nano", amount),
            ("backup", backup),
            ("budgets_nano", budgets),
            ("scope", scope),
            ("settings", settings),
        ];
        fields_json.extend(fields.into_iter().filter_map(|(name, v)| Some((name.to_owned(), v?))));
        fields_json
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

/// Returns the sum of all payments of the account, if the store answers.
async fn credited_nano(ledger: Option<&dyn Ledger>, change: &AuditedChange) -> Option<Value> {
    let account = change.account.as_ref()?;
    let balances = ledger?.balances(account).await.ok()??;
    Some(json!(balances.credit))
}

/// Returns the limits of the account or the key whose budgets are changed, if the store answers.
async fn limits_nano(ledger: Option<&dyn Ledger>, change: &AuditedChange) -> Option<Value> {
    let (account, changed) = (change.account.as_ref()?, change.budgets.as_ref()?);
    let uses = ledger?.list_budgets(account).await.ok()?;
    let of_owner = uses.iter().filter(|budget| budget.owner == changed.owner);
    let limited = of_owner.filter(|budget| budget.limit.is_some());
    Some(limits_json(limited.map(|budget| (&budget.kind, &budget.limit))))
}

/// Returns the scope of the key whose scope is changed, if there is the key and the store answers.
async fn stored_scope(ledger: Option<&dyn Ledger>, change: &AuditedChange) -> Option<Value> {
    change.scope.as_ref()?;
    let prefix = key_prefix(change.key.as_deref()?);
    let record = ledger?.find_key_by_prefix(&prefix).await.ok()??;
    Some(json!(record.scope))
}

/// Returns the scopes of the other keys whose scopes are changed, each below the beginning of its
/// key, of those that the store tells.
async fn other_scopes(ledger: Option<&dyn Ledger>, change: &AuditedChange) -> Option<Value> {
    let (ledger, _) = (ledger?, change.scope.as_ref()?);
    let mut scopes = Map::new();
    for prefix in &change.other_keys {
        if let Ok(Some(record)) = ledger.find_key_by_prefix(prefix).await {
            scopes.insert(prefix.clone(), json!(record.scope));
        }
    }
    (!scopes.is_empty()).then_some(Value::Object(scopes))
}

/// Returns the settings of the account whose settings are changed, if the store answers.
async fn stored_settings(ledger: Option<&dyn Ledger>, change: &AuditedChange) -> Option<Value> {
    let (account, _) = (change.account.as_ref()?, change.settings.as_ref()?);
    let settings = ledger?.account_settings(account).await.ok()??;
    Some(json!(settings))
}

/// Returns the user that runs this command, according to the system and to sudo.
fn actor_fields() -> Map<String, Value> {
    let (uid, effective) = (getuid().as_raw(), geteuid().as_raw());
    let mut who = Map::new();
    who.insert("uid".to_owned(), uid.into());
    let user = std::fs::read_to_string("/etc/passwd").ok().and_then(|all| find_user(&all, uid));
    who.extend(user.map(|name| ("user".to_owned(), name.into())));
    if effective != uid {
        who.insert("effective_uid".to_owned(), effective.into());
    }
    let login = std::fs::read_to_string("/proc/self/loginuid").ok();
    // The system reports `u32::MAX` for a process without a login session.
    let login =
        login.and_then(|text| text.trim().parse::<u32>().ok()).filter(|uid| *uid != u32::MAX);
    who.extend(login.map(|uid| ("login_uid".to_owned(), uid.into())));
    let sudo = std::env::var("SUDO_USER").ok();
    who.extend(sudo.map(|name| ("sudo_user".to_owned(), truncate(&name, TEXT_CHARS_MAX).into())));
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    who.extend(host.map(|name| ("host".to_owned(), name.trim().into())));
    who
}

/// Finds the name of a user in the text of the system's user list.
fn find_user(list: &str, uid: u32) -> Option<String> {
    list.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _, number) = (fields.next()?, fields.next()?, fields.next()?);
        (number.parse::<u32>() == Ok(uid)).then(|| name.to_owned())
    })
}

/// Writes one line; in a file it is synced to disk before this returns.
fn write_line(
    to: &AuditSection,
    id: &str,
    stage: &str,
    fields: Map<String, Value>,
) -> anyhow::Result<()> {
    let mut line = Map::new();
    line.insert("at".to_owned(), clock::timestamp().to_string().into());
    line.insert("target".to_owned(), "audit".into());
    line.insert("id".to_owned(), id.into());
    line.insert("stage".to_owned(), stage.into());
    line.extend(fields);
    let line = format!("{}\n", Value::Object(line));
    match to {
        AuditSection::Log => Ok(std::io::stderr().lock().write_all(line.as_bytes())?),
        AuditSection::File(path) => {
            append_line(path.as_ref(), &line).with_context(|| format!("audit.to: {path}"))
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

    #[test]
    fn users_have_names() {
        let list = "root:x:0:0::/:/bin/sh\nbroken\nada:x:1000:1000::/:/bin/sh\n";
        assert_eq!(find_user(list, 1_000).as_deref(), Some("ada"));
        assert_eq!(find_user(list, 0).as_deref(), Some("root"));
        assert_eq!(find_user(list, 7), None);
    }
}
