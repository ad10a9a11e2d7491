//! Accounts: opening them, and changing their settings and budgets.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use super::audit::{AuditedBudgets, AuditedChange};
use super::budgets::{self, LimitChanges};
use super::context::ManagementContext;
use super::error::{ManagementError, no_such_account};
use super::field_patch::FieldPatch;
use super::key_scope::CHANGE_ATTEMPTS_MAX;
use super::living::missing_account;
use super::payments::submit_payment;
use super::webhooks::tell_payment;
use crate::ledger::account::Balances;
use crate::ledger::{
    AccountName, AccountSettings, BookName, BudgetOwner, BudgetUse, KeyId, KeyOrder, KeyPage,
    KeyRange, KeyRecord, Ledger, OpenLot, PlanName, Replaced, Replacement,
};
use crate::money::Money;
use crate::store::OpenStore;

/// An account that is to be opened.
#[derive(Debug)]
pub(crate) struct NewAccount {
    pub(crate) name: AccountName,
    /// Its plan; `None` for the default plan.
    pub(crate) plan: Option<PlanName>,
    /// Its price book; `None` for the list prices.
    pub(crate) book: Option<BookName>,
    /// A first payment.
    pub(crate) credit: Option<Money>,
}

/// The changes of an account's settings. `None` leaves a setting as it is.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct SettingsPatch {
    /// The plan, or none.
    pub(crate) plan: FieldPatch<PlanName>,
    /// The price book, or none.
    pub(crate) book: FieldPatch<BookName>,
    pub(crate) suspended: Option<bool>,
}

impl SettingsPatch {
    /// Whether nothing is to be changed.
    pub(crate) fn is_empty(&self) -> bool {
        *self == SettingsPatch::default()
    }

    /// Returns what becomes of the settings of an account.
    pub(crate) fn apply(&self, settings: &AccountSettings) -> AccountSettings {
        let mut settings = settings.clone();
        self.plan.apply_to(&mut settings.plan);
        self.book.apply_to(&mut settings.book);
        settings.suspended = self.suspended.unwrap_or(settings.suspended);
        settings
    }
}

/// What people see of an account.
#[derive(Debug)]
pub(crate) struct AccountView {
    pub(crate) name: AccountName,
    pub(crate) balances: Balances,
    /// The open lots of granted credit, in the order in which they are drawn.
    pub(crate) lots: Vec<OpenLot>,
    pub(crate) settings: AccountSettings,
    /// When the account was deleted, in unix seconds; `None` if it was not.
    pub(crate) deleted_at: Option<i64>,
    /// The budgets of the account and of its keys.
    pub(crate) budgets: Vec<BudgetUse>,
    /// The keys, if some of the budgets are about keys.
    pub(crate) keys: Vec<KeyRecord>,
}

/// Opens an account.
pub(crate) async fn open_account(
    context: ManagementContext<'_>,
    new: &NewAccount,
) -> Result<(), ManagementError> {
    let (ledger, name) = (context.ledger(), &new.name);
    let payment = opening_payment_id(name);
    let (plan, book) = (new.plan.clone(), new.book.clone());
    let patch = SettingsPatch {
        plan: FieldPatch::set_if_given(plan),
        book: FieldPatch::set_if_given(book),
        ..SettingsPatch::default()
    };
    let settings = (!patch.is_empty()).then(|| patch.apply(&AccountSettings::default()));
    // It may run again: an account that the first run opened is still new.
    let is_new = AtomicBool::new(false);
    let opening = async || {
        if ledger.open_account(name).await? {
            is_new.store(true, Ordering::Relaxed);
        }
        if !is_new.load(Ordering::Relaxed) {
            let message = match ledger.account_deletion(name).await? {
                None => format!("account '{name}' is there already"),
                Some(_) => format!("account '{name}' was deleted, and its books have the name"),
            };
            return Err(ManagementError::AlreadyExists { what: "account", message });
        }
        // Somebody may have suspended it already.
        change_settings(ledger, name, &patch).await?;
        let Some(amount) = new.credit else { return Ok(()) };
        submit_payment(ledger, name, &payment, amount).await.map(drop)
    };
    let change = AuditedChange {
        action: "account.create",
        account: Some(name.clone()),
        payment: new.credit.map(|_| payment.clone()),
        amount: new.credit,
        settings: settings.clone(),
        ..AuditedChange::default()
    };
    context.change(&change, opening).await?;
    if let Some(amount) = new.credit {
        tell_payment(context.store, name, &payment, amount).await;
    }
    Ok(())
}

/// Changes the settings and the budgets of an account.
pub(crate) async fn set_account(
    context: ManagementContext<'_>,
    name: &AccountName,
    limits: &LimitChanges,
    changes: &SettingsPatch,
) -> Result<(), ManagementError> {
    let (ledger, owner) = (context.ledger(), BudgetOwner::Account);
    let settings = if changes.is_empty() {
        None
    } else {
        Some(changes.apply(&read_settings(ledger, name).await?))
    };
    let change = AuditedChange {
        action: "account.set",
        account: Some(name.clone()),
        budgets: AuditedBudgets::new(owner, limits),
        settings,
        ..AuditedChange::default()
    };
    let (new, removed) = budgets::split_limits(limits);
    let setting = async || {
        // As with keys: a change that ends halfway leaves no account that may do more than before
        // and after it.
        budgets::set_limits(ledger, name, owner, &new).await?;
        change_settings(ledger, name, changes).await?;
        budgets::set_limits(ledger, name, owner, &removed).await
    };
    context.change(&change, setting).await
}

/// Reads an account.
pub(crate) async fn read_account(
    ledger: &dyn Ledger,
    name: &AccountName,
) -> Result<AccountView, ManagementError> {
    let view = read_without_budgets(ledger, name).await?;
    let budgets = ledger.list_budgets(name).await?;
    let has_keys = budgets.iter().any(|budget| matches!(budget.owner, BudgetOwner::Key(_)));
    let keys = if has_keys { ledger.list_keys(name).await? } else { Vec::new() };
    Ok(AccountView { budgets, keys, ..view })
}

/// Reads an account with the newest of its keys, and with their budgets alone: an account may have
/// very many keys.
pub(crate) async fn read_account_page(
    ledger: &dyn Ledger,
    name: &AccountName,
    keys_max: u32,
) -> Result<(AccountView, KeyPage), ManagementError> {
    let view = read_without_budgets(ledger, name).await?;
    let range = KeyRange { order: KeyOrder::NewestFirst, after: None, limit: keys_max };
    let newest = ledger.list_keys_in(name, range).await?;
    let ids: Vec<KeyId> = newest.keys.iter().map(|key| key.id).collect();
    let budgets = ledger.list_budgets_of(name, &ids).await?;
    Ok((AccountView { budgets, ..view }, newest))
}

async fn read_without_budgets(
    ledger: &dyn Ledger,
    name: &AccountName,
) -> Result<AccountView, ManagementError> {
    let Some(balances) = ledger.balances(name).await? else { return Err(no_such_account(name)) };
    let lots = ledger.list_lots(name).await?;
    let settings = read_settings(ledger, name).await?;
    let deleted_at = ledger.account_deletion(name).await?;
    let (name, budgets, keys) = (name.clone(), Vec::new(), Vec::new());
    Ok(AccountView { name, balances, lots, settings, deleted_at, budgets, keys })
}

/// Returns the accounts, by name. Those that are deleted are among them only if `with_deleted`.
pub(crate) async fn list_accounts(
    store: &OpenStore,
    with_deleted: bool,
) -> Result<Vec<AccountName>, ManagementError> {
    let mut names = store.ledger.list_accounts().await?;
    if !with_deleted {
        let deleted: BTreeSet<_> = store.eraser.list_deleted().await?.into_iter().collect();
        names.retain(|name| !deleted.contains(name));
    }
    Ok(names)
}

/// Checks that there is an account of this name, which may be deleted.
pub(crate) async fn require_account(
    ledger: &dyn Ledger,
    name: &AccountName,
) -> Result<(), ManagementError> {
    match ledger.balances(name).await? {
        Some(_) => Ok(()),
        None => Err(no_such_account(name)),
    }
}

async fn read_settings(
    ledger: &dyn Ledger,
    name: &AccountName,
) -> Result<AccountSettings, ManagementError> {
    ledger.account_settings(name).await?.ok_or_else(|| no_such_account(name))
}

/// Changes the settings that an account has at this moment. Others may change them at the same
/// time, and may have suspended the account: then this change is made on top of theirs.
async fn change_settings(
    ledger: &dyn Ledger,
    name: &AccountName,
    changes: &SettingsPatch,
) -> Result<(), ManagementError> {
    if changes.is_empty() {
        return Ok(());
    }
    for _ in 0..CHANGE_ATTEMPTS_MAX {
        let before = read_settings(ledger, name).await?;
        let after = changes.apply(&before);
        match ledger.set_account_settings(name, Replacement { before, after }).await? {
            Replaced::Done => return Ok(()),
            Replaced::Changed => {}
            Replaced::Unknown => return Err(missing_account(ledger, name).await),
        }
    }
    Err(account_changed(name))
}

/// Returns the error that others change the same account.
fn account_changed(name: &AccountName) -> ManagementError {
    let message = format!("others are changing account '{name}' at this moment: change it again");
    ManagementError::Conflict { code: "account_changed", message }
}

/// Returns the id of an account's first payment.
fn opening_payment_id(name: &AccountName) -> String {
    format!("opening-{name}")
}
