//! The ledger: prepaid credit, holds, and charges that are made once.
//!
//! Credit C and the write-offs W of an account are what came in; available A, held H and posted P
//! are where it is: `C + W = A + H + P`, and none is ever negative. A hold is open, and then
//! posted, voided or expired. Every operation carries its caller's id; the same operation again
//! changes nothing.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use async_trait::async_trait;

use crate::money::Money;
use crate::money::price::Quote;

pub mod account;
mod account_name;
mod journal;
pub mod key;
pub mod lease;
mod operation;
mod receipt;

pub use account::Balances;
pub use account_name::AccountName;
pub use journal::JournalEntry;
pub(crate) use journal::JournalLine;
pub use key::{KeyHash, KeyRecord};
pub use lease::Lease;
pub use lease::Leases;
pub use operation::{HoldRequest, Operation, Outcome};
pub use receipt::Receipt;

/// What a sweep found and did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Holds that it ended.
    pub expired: u64,
    /// Holds still open.
    pub open: u64,
    /// What they hold.
    pub held: Money,
}

/// The store cannot be reached, or does not answer in time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the ledger is unavailable: {0}")]
pub struct Unavailable(pub String);

/// Where accounts live. Every store gives the answers of [`account`]'s pure machine.
#[async_trait]
pub trait Ledger: Send + Sync {
    /// Opens an account; `false` if it was there.
    async fn open_account(&self, account: &AccountName) -> Result<bool, Unavailable>;
    /// Submits an operation on an account. It is on its way when this returns.
    fn submit<'a>(&'a self, account: &'a AccountName, op: Operation) -> Receipt<'a>;
    /// An account's balances; `None` if there is no such account.
    async fn balances(&self, account: &AccountName) -> Result<Option<Balances>, Unavailable>;
    /// All accounts, by name.
    async fn list_accounts(&self) -> Result<Vec<AccountName>, Unavailable>;
    /// Entries of an account's journal after `seq`, oldest first, at most `limit`.
    async fn read_journal(
        &self,
        account: &AccountName,
        seq: u64,
        limit: u32,
    ) -> Result<Vec<JournalEntry>, Unavailable>;
    /// Ends every hold whose lease has run out: posts its checkpoint, releases the rest.
    async fn expire_holds(&self) -> Result<SweepReport, Unavailable>;
    /// Adds a key.
    async fn add_key(&self, hash: KeyHash, record: KeyRecord) -> Result<(), Unavailable>;
    /// The record of a key.
    async fn find_key(&self, hash: KeyHash) -> Result<Option<KeyRecord>, Unavailable>;
    /// The keys of an account, oldest first.
    async fn list_keys(&self, account: &AccountName) -> Result<Vec<KeyRecord>, Unavailable>;
    /// Revokes the key that is listed under a prefix; `false` if there is none.
    async fn revoke_key(&self, prefix: &str, at: i64) -> Result<bool, Unavailable>;
    /// Whether new holds are accepted now. A caller that is refused here has sent nothing yet, so
    /// there is nothing to void.
    async fn accepts_holds(&self) -> Result<(), Unavailable> {
        Ok(())
    }
    /// Whether it answers.
    async fn ping(&self) -> Result<(), Unavailable>;
}

/// Money set aside for one call. Only a ledger makes it, and ending it takes it away, so a vendor
/// is never called without one and none is settled twice.
#[derive(Debug)]
#[must_use = "a hold must be settled or voided"]
pub struct Hold {
    account: AccountName,
    id: String,
    held: Money,
    origin: HoldRequest,
}

/// Why nothing is held.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HoldRefused {
    /// There is not enough.
    #[error("the balance does not cover the call")]
    Insufficient {
        /// What the call needs, at least.
        least: Money,
        /// What there is.
        available: Money,
    },
    /// The id was used before.
    #[error("the id was used before")]
    Conflict,
    /// The account is gone.
    #[error("there is no such account")]
    NoAccount,
    /// The store does not answer.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

/// Sets money aside for a call that was made at a moment (unix ms).
///
/// # Errors
/// See [`HoldRefused`]. After [`HoldRefused::Unavailable`] the hold may have been made all the
/// same: the caller voids its id.
pub async fn place_hold(
    ledger: &dyn Ledger,
    account: &AccountName,
    id: &str,
    quote: Quote,
    at: i64,
    lease_ms: u64,
) -> Result<Hold, HoldRefused> {
    let Quote { wanted, least } = quote;
    let op = Operation::Hold { id: id.to_owned(), wanted, least, lease_ms };
    match ledger.submit(account, op).await? {
        Outcome::Held(held) | Outcome::HoldExists { held, open: true } => {
            let origin = HoldRequest { wanted, least, at };
            Ok(Hold { account: account.clone(), id: id.to_owned(), held, origin })
        }
        Outcome::Insufficient(available) => Err(HoldRefused::Insufficient { least, available }),
        Outcome::NoAccount => Err(HoldRefused::NoAccount),
        _ => Err(HoldRefused::Conflict),
    }
}

impl Hold {
    /// A hold that a store placed together with a job, which keeps what is known of it: the job's
    /// worker takes it up again to end it.
    pub(crate) fn resume(account: AccountName, id: String, held: Money, placed_at: i64) -> Hold {
        let origin = HoldRequest { wanted: held, least: held, at: placed_at };
        Hold { account, id, held, origin }
    }

    /// Whose money it is.
    #[must_use]
    pub fn account(&self) -> &AccountName {
        &self.account
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// How much it is.
    #[must_use]
    pub fn held(&self) -> Money {
        self.held
    }

    /// What it was asked for with.
    #[must_use]
    pub fn origin(&self) -> HoldRequest {
        self.origin
    }

    /// Sets more money aside, so much in all, as far as there is any; tells how much it is now.
    ///
    /// # Errors
    /// The store could not be reached, or knows no such hold that stands.
    pub async fn extend(
        &mut self,
        ledger: &dyn Ledger,
        wanted: Money,
    ) -> Result<Money, Unavailable> {
        let op = Operation::Extend { id: self.id.clone(), wanted };
        match ledger.submit(&self.account, op).await? {
            Outcome::Held(held) => {
                self.held = held;
                Ok(held)
            }
            other => Err(Unavailable(format!("the hold was not extended: {other:?}"))),
        }
    }

    /// Charges the call and ends the hold.
    ///
    /// # Errors
    /// The hold comes back if the store could not be reached, to try again.
    pub async fn settle(
        self,
        ledger: &dyn Ledger,
        charge: Money,
        line: &str,
    ) -> Result<Outcome, (Hold, Unavailable)> {
        let (id, line) = (self.id.clone(), line.to_owned());
        let op = Operation::Settle { id, charge, line, origin: Some(self.origin) };
        ledger.submit(&self.account, op).await.map_err(|why| (self, why))
    }

    /// Ends the hold without a charge.
    ///
    /// # Errors
    /// The hold comes back if the store could not be reached, to try again.
    pub async fn void(self, ledger: &dyn Ledger) -> Result<Outcome, (Hold, Unavailable)> {
        let op = Operation::Void { id: self.id.clone() };
        ledger.submit(&self.account, op).await.map_err(|why| (self, why))
    }
}
