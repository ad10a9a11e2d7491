//! What a script runs against, and machines in memory: all of it without a store.

use std::collections::BTreeMap;

use async_trait::async_trait;
use tollgate::ledger::account::Balances;
use tollgate::ledger::in_memory::InMemoryAccount;
use tollgate::ledger::{
    AccountName, BudgetOwner, BudgetUse, JournalEntry, OpenHold, OpenLot, Operation, Outcome,
    WindowKind,
};
use tollgate::money::Money;

use super::script::{self, Action, Case};

/// No case takes so long, in ms.
const CASE_MS: i64 = 5_000;

/// An account's machine: the right one, or one of the canaries.
pub(crate) trait Machine: Send {
    /// Does an operation at a moment (unix ms).
    fn apply(&mut self, op: &Operation, now: i64) -> Outcome;
    /// Ends what is due; tells how many holds.
    fn expire(&mut self, now: i64) -> u64;
    /// The balances.
    fn balances(&self) -> Balances;
    /// The journal.
    fn journal(&self) -> &[JournalEntry];
    /// Sets or removes the limit of a budget at a moment.
    fn set_budget(&mut self, owner: BudgetOwner, kind: WindowKind, limit: Option<Money>, now: i64);
    /// The budgets, with what is used of the windows that run at a moment.
    fn budgets(&mut self, now: i64) -> Vec<BudgetUse>;
    /// The open lots beside that of payments; most canaries know none.
    fn lots(&self) -> Vec<OpenLot> {
        Vec::new()
    }
    /// The open holds; canaries list none.
    fn holds(&self, _: &AccountName) -> Vec<OpenHold> {
        Vec::new()
    }
}

impl Machine for InMemoryAccount {
    fn apply(&mut self, op: &Operation, now: i64) -> Outcome {
        InMemoryAccount::apply(self, op, now)
    }

    fn expire(&mut self, now: i64) -> u64 {
        InMemoryAccount::expire_holds(self, now)
    }

    fn balances(&self) -> Balances {
        self.balances
    }

    fn journal(&self) -> &[JournalEntry] {
        &self.journal
    }

    fn set_budget(&mut self, owner: BudgetOwner, kind: WindowKind, limit: Option<Money>, now: i64) {
        InMemoryAccount::set_budget(self, owner, kind, limit, now);
    }

    fn budgets(&mut self, now: i64) -> Vec<BudgetUse> {
        InMemoryAccount::budgets(self, now)
    }

    fn lots(&self) -> Vec<OpenLot> {
        InMemoryAccount::lots(self).collect()
    }

    fn holds(&self, name: &AccountName) -> Vec<OpenHold> {
        InMemoryAccount::open_holds(self, name)
    }
}

/// Whatever a script can run against.
#[async_trait]
pub(crate) trait Subject: Send {
    /// Opens an account; `false` if it was there.
    async fn open(&mut self, account: &AccountName) -> bool;
    /// Does an operation.
    async fn apply(&mut self, account: &AccountName, op: &Operation) -> Outcome;
    /// Waits until short leases have run out, and sweeps; tells how many holds ended.
    async fn expire(&mut self) -> u64;
    /// The balances.
    async fn balances(&mut self, account: &AccountName) -> Option<Balances>;
    /// The journal.
    async fn journal(&mut self, account: &AccountName) -> Vec<JournalEntry>;
    /// Sets or removes the limit of a budget; `false` if there is no such account.
    async fn set_budget(
        &mut self,
        account: &AccountName,
        owner: BudgetOwner,
        kind: WindowKind,
        limit: Option<Money>,
    ) -> bool;
    /// The budgets.
    async fn budgets(&mut self, account: &AccountName) -> Vec<BudgetUse>;
    /// The open lots beside that of payments.
    async fn lots(&mut self, account: &AccountName) -> Vec<OpenLot>;
    /// The open holds.
    async fn holds(&mut self, account: &AccountName) -> Vec<OpenHold>;
}

/// Machines in memory, under a clock that only operations move.
pub(crate) struct Memory<M> {
    accounts: BTreeMap<AccountName, M>,
    make: Box<dyn Fn() -> M + Send + Sync>,
    now: i64,
}

impl<M> Memory<M> {
    /// No accounts yet; `make` makes one. The clock starts where an hour begins, so that no window
    /// of a budget ends in the course of a test.
    pub(crate) fn new(make: impl Fn() -> M + Send + Sync + 'static) -> Memory<M> {
        let now = WindowKind::Hour.start_at(script::now());
        Memory { accounts: BTreeMap::new(), make: Box::new(make), now }
    }
}

#[async_trait]
impl<M: Machine> Subject for Memory<M> {
    async fn open(&mut self, account: &AccountName) -> bool {
        let new = !self.accounts.contains_key(account);
        self.accounts.entry(account.clone()).or_insert_with(|| (self.make)());
        new
    }

    async fn apply(&mut self, account: &AccountName, op: &Operation) -> Outcome {
        self.now += 2;
        let now = self.now;
        self.accounts.get_mut(account).map_or(Outcome::NoAccount, |a| a.apply(op, now))
    }

    async fn expire(&mut self) -> u64 {
        self.now += 2;
        let now = self.now;
        self.accounts.values_mut().map(|a| a.expire(now)).sum()
    }

    async fn balances(&mut self, account: &AccountName) -> Option<Balances> {
        self.accounts.get(account).map(Machine::balances)
    }

    async fn journal(&mut self, account: &AccountName) -> Vec<JournalEntry> {
        self.accounts.get(account).map_or_else(Vec::new, |a| a.journal().to_vec())
    }

    async fn set_budget(
        &mut self,
        account: &AccountName,
        owner: BudgetOwner,
        kind: WindowKind,
        limit: Option<Money>,
    ) -> bool {
        self.now += 2;
        let Some(machine) = self.accounts.get_mut(account) else { return false };
        machine.set_budget(owner, kind, limit, self.now);
        true
    }

    async fn budgets(&mut self, account: &AccountName) -> Vec<BudgetUse> {
        let now = self.now;
        self.accounts.get_mut(account).map_or_else(Vec::new, |a| a.budgets(now))
    }

    async fn lots(&mut self, account: &AccountName) -> Vec<OpenLot> {
        self.accounts.get(account).map_or_else(Vec::new, Machine::lots)
    }

    async fn holds(&mut self, account: &AccountName) -> Vec<OpenHold> {
        self.accounts.get(account).map_or_else(Vec::new, |a| a.holds(account))
    }
}

/// An account's name.
pub(crate) fn name(text: &str) -> AccountName {
    AccountName::parse(text).unwrap_or_else(|| panic!("no name: {text}"))
}

/// Does one thing; tells in the tables' words what came of it.
pub(crate) async fn perform(
    subject: &mut dyn Subject,
    account: &AccountName,
    action: &Action,
) -> String {
    match action {
        Action::Open if subject.open(account).await => "new".to_owned(),
        Action::Open => "there".to_owned(),
        Action::Apply(op) => script::answer_text(&subject.apply(account, op).await),
        Action::Expire => subject.expire().await.to_string(),
        Action::Balances => script::balances_text(subject.balances(account).await),
        Action::Journal => script::journal_text(&subject.journal(account).await),
        Action::SetBudget { owner, kind, limit } => {
            let is_set = subject.set_budget(account, *owner, *kind, *limit).await;
            (if is_set { "set" } else { "no account" }).to_owned()
        }
        Action::Budgets => script::budgets_text(&subject.budgets(account).await),
        Action::Lots => script::lots_text(&subject.lots(account).await),
    }
}

/// Runs the cases; tells how many lines held, or which line did not and why.
pub(crate) async fn run(subject: &mut dyn Subject, cases: &[Case]) -> Result<usize, String> {
    let mut held = 0;
    for (number, case) in (1..).zip(cases) {
        script::wait_for_room_in_the_hour(CASE_MS).await;
        // Nothing of an earlier case may be left to sweep.
        subject.expire().await;
        for line in &case.lines {
            let account = name(&format!("case-{number}-{}", line.account));
            let came = perform(subject, &account, &line.action).await;
            let place = format!("line {} ({}): {:?}", line.number, case.name, line.action);
            if came != line.expected {
                return Err(format!("{place}\n  expected {}\n  came     {came}", line.expected));
            }
            let balances = subject.balances(&account).await.unwrap_or_default();
            if !balances.is_balanced() {
                return Err(format!("{place}\n  {balances:?} do not add up"));
            }
            held += 1;
        }
    }
    Ok(held)
}
