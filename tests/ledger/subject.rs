//! Stores that a script runs against.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tollgate::ledger::account::Balances;
use tollgate::ledger::{
    AccountName, BudgetOwner, BudgetUse, JournalEntry, KeyScope, Ledger, OpenHold, OpenLot,
    Operation, Outcome, Replaced, Replacement, WindowKind,
};
use tollgate::money::Money;
use tollgate::store::{self, OpenStore, StoreSection};

pub(crate) use super::memory::{Memory, Subject, name, perform, run};
use super::script::LONG_MS;

/// Short leases are this far apart, so that all subjects sweep in the same order.
const APART: Duration = Duration::from_millis(2);

/// A store.
pub(crate) struct Stored(pub(crate) Arc<dyn Ledger>);

impl Stored {
    /// SQLite in a folder.
    pub(crate) async fn sqlite(folder: &Path) -> Stored {
        Stored::at(&format!("sqlite:{}", folder.join("ledger.db").display())).await
    }

    /// Whatever is at an address.
    pub(crate) async fn at(url: &str) -> Stored {
        Stored(open(url).await)
    }
}

/// The section of a store.
pub(crate) fn at(url: String) -> StoreSection {
    StoreSection { url, allow_volatile: false, outbox: String::new(), ..StoreSection::default() }
}

/// Opens a store that must open, for its ledger.
pub(crate) async fn open(url: &str) -> Arc<dyn Ledger> {
    opened(url).await.ledger
}

/// Opens a store that must open.
pub(crate) async fn opened(url: &str) -> OpenStore {
    opened_as(&at(url.to_owned())).await
}

/// The same, of a section.
pub(crate) async fn opened_as(section: &StoreSection) -> OpenStore {
    let url = &section.url;
    store::create(section).await.unwrap_or_else(|why| panic!("{url}: {why}"));
    store::open(section).await.unwrap_or_else(|why| panic!("{url}: {why}"))
}

#[async_trait]
impl Subject for Stored {
    async fn open(&mut self, account: &AccountName) -> bool {
        self.0.open_account(account).await.expect("open")
    }

    async fn apply(&mut self, account: &AccountName, op: &Operation) -> Outcome {
        let answer = self.0.submit(account, op.clone()).await.expect("apply");
        let (Operation::Hold { lease_ms, .. } | Operation::Renew { lease_ms, .. }) = op else {
            return answer;
        };
        if *lease_ms < LONG_MS {
            tokio::time::sleep(APART).await;
        }
        answer
    }

    async fn expire(&mut self) -> u64 {
        tokio::time::sleep(APART).await;
        self.0.expire_holds().await.expect("expire").expired
    }

    async fn balances(&mut self, account: &AccountName) -> Option<Balances> {
        self.0.balances(account).await.expect("balances")
    }

    async fn journal(&mut self, account: &AccountName) -> Vec<JournalEntry> {
        self.0.read_journal(account, 0, 1_000).await.expect("journal")
    }

    async fn set_budget(
        &mut self,
        account: &AccountName,
        owner: BudgetOwner,
        kind: WindowKind,
        limit: Option<Money>,
    ) -> bool {
        self.0.set_budget(account, owner, kind, limit).await.expect("a budget")
    }

    async fn budgets(&mut self, account: &AccountName) -> Vec<BudgetUse> {
        self.0.list_budgets(account).await.expect("budgets")
    }

    async fn lots(&mut self, account: &AccountName) -> Vec<OpenLot> {
        self.0.list_lots(account).await.expect("lots")
    }

    async fn holds(&mut self, account: &AccountName) -> Vec<OpenHold> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            // Two at a time, so that most lists have several pages.
            let page = self.0.list_holds(Some(account), after.as_ref(), 2).await.expect("holds");
            after = page.last().map(OpenHold::cursor);
            let is_last = page.len() < 2;
            all.extend(page);
            if is_last {
                return all;
            }
        }
    }
}

/// Gives the key that is listed under a prefix a scope, in the place of the one it has.
pub(crate) async fn set_scope(ledger: &dyn Ledger, prefix: &str, after: KeyScope) -> Replaced {
    let found = ledger.find_key_by_prefix(prefix).await.expect("an answer");
    let before = found.map(|key| key.scope).unwrap_or_default();
    ledger.set_key_scope(prefix, Replacement { before, after }).await.expect("an answer")
}
