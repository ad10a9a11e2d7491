//! The ledger: prepaid credit, holds, and charges that happen once.
//!
//! Of an account, credit C and what was written off W are what came in; available A, held H and
//! posted P are where it is: `C + W = A + H + P`, and none is ever below zero. A hold is open, and
//! then once and for all posted, voided or expired. Every operation carries its caller's id, and
//! the same operation again gives the same answer.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::money::price::Quote;
use crate::money::{BilledUnits, Money, UsageBasis};

pub mod account;
pub mod key;
pub mod lease;

pub use account::Balances;
pub use key::{KeyHash, KeyRecord};
pub use lease::{Lease, Leases};

/// The name of an account: 1 to 64 letters, digits, `-`, `_` and `.`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AccountName(Arc<str>);

impl TryFrom<String> for AccountName {
    type Error = &'static str;

    fn try_from(text: String) -> Result<AccountName, &'static str> {
        AccountName::parse(&text).ok_or("no name of an account")
    }
}

impl From<AccountName> for String {
    fn from(name: AccountName) -> String {
        name.as_str().to_owned()
    }
}

impl AccountName {
    /// Reads a name; `None` if it is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<AccountName> {
        let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        let sound = (1..=64).contains(&text.len()) && text.bytes().all(fits);
        sound.then(|| AccountName(text.into()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AccountName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What can be done to an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Adds credit.
    Credit {
        /// The caller's id of the payment.
        tx: String,
        /// How much.
        amount: Money,
    },
    /// Sets money aside: as much of `wanted` as there is, but not below `least`.
    Hold {
        /// The caller's id of the hold.
        id: String,
        /// What covers the call to the full.
        wanted: Money,
        /// Below it nothing is held.
        least: Money,
        /// For how long, in ms.
        lease_ms: u64,
    },
    /// Sets more money aside for a hold that stands: so much in all, as far as there is any. It
    /// never holds less afterwards.
    Extend {
        /// The hold.
        id: String,
        /// What is to be held in all.
        wanted: Money,
    },
    /// Lengthens a hold's life to at least so many ms from now.
    Renew {
        /// The hold.
        id: String,
        /// For how long, in ms.
        lease_ms: u64,
    },
    /// Says what a call has cost so far: what expiry would post.
    Checkpoint {
        /// The hold.
        id: String,
        /// The cost so far.
        charge: Money,
        /// The journal line that expiry would write, as JSON.
        line: String,
    },
    /// Charges a call and ends its hold.
    Settle {
        /// The hold.
        id: String,
        /// The cost.
        charge: Money,
        /// The journal line, as JSON.
        line: String,
        /// How the hold began: with it a store that lost the hold can settle it all the same.
        /// Without, a hold that is not known stays unknown.
        origin: Option<HoldRequest>,
    },
    /// Ends a hold without a charge. Of an unknown id it leaves a tombstone.
    Void {
        /// The hold.
        id: String,
    },
}

impl Operation {
    /// The id of the hold it is about; `None` for a payment.
    #[must_use]
    pub fn hold_id(&self) -> Option<&str> {
        match self {
            Operation::Credit { .. } => None,
            Operation::Hold { id, .. }
            | Operation::Extend { id, .. }
            | Operation::Renew { id, .. }
            | Operation::Checkpoint { id, .. }
            | Operation::Settle { id, .. }
            | Operation::Void { id } => Some(id),
        }
    }
}

/// What a hold was asked for with: the content by which a store knows it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldRequest {
    /// What covers the call to the full.
    pub wanted: Money,
    /// Below it nothing is held.
    pub least: Money,
    /// When it was asked for, in unix ms.
    #[serde(default)]
    pub at: i64,
}

/// A hold that is not known is not settled any more after so long, in ms: a store remembers for a
/// day what became of one, and after that would charge it once more.
const HOLD_REQUEST_AGE_MAX_MS: u64 = 12 * 60 * 60 * 1_000;

impl HoldRequest {
    /// Whether a store that does not know the hold can only have lost it, at a moment (unix ms) by
    /// the store's own clock.
    #[must_use]
    pub fn is_recent(&self, now: i64) -> bool {
        now.abs_diff(self.at) < HOLD_REQUEST_AGE_MAX_MS
    }
}

/// What came of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It was done.
    Done,
    /// It had been done before.
    AlreadyDone,
    /// The id was used before, for something else.
    Conflict,
    /// So much is held now.
    Held(Money),
    /// The hold was made before.
    HoldExists {
        /// With so much.
        held: Money,
        /// Whether it still stands.
        open: bool,
    },
    /// There is not enough; so much is available.
    Insufficient(Money),
    /// The hold was voided before it came.
    Tombstoned,
    /// So much is posted for the hold.
    Posted {
        /// In all.
        amount: Money,
        /// Of this, what the account could not pay.
        written_off: Money,
    },
    /// The hold had been posted before, with so much.
    AlreadyPosted(Money),
    /// The hold ended without a charge, now or before.
    Voided,
    /// The hold no longer stands.
    HoldEnded,
    /// There is no such hold.
    UnknownHold,
    /// There is no such account.
    NoAccount,
    /// A sum would not fit; nothing was done.
    OutOfRange,
}

/// A charge as the journal has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalEntry {
    /// Its place in the account's journal, from 1.
    pub seq: u64,
    /// What was posted.
    pub amount: Money,
    /// Of this, what the account could not pay.
    pub written_off: Money,
    /// The line, as JSON.
    pub line: String,
}

/// What a journal line says. The amount stands beside it in the store, where it is exact.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JournalLine {
    /// The id of the request, and of its hold.
    pub request_id: String,
    /// When it was settled, in unix ms.
    pub at: i64,
    /// The beginning of the key.
    pub key_prefix: String,
    /// The endpoint's short name.
    pub endpoint: String,
    /// The model's id.
    pub model: String,
    /// The vendor's token.
    pub vendor: String,
    /// The route that served.
    pub route: String,
    /// How many routes failed before it.
    pub depth: u32,
    /// The units.
    pub usage: BilledUnits,
    /// Where the units come from.
    pub basis: UsageBasis,
    /// What the vendor reported and was not believed; then the units are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected_usage: Option<BilledUnits>,
    /// The price list they were priced by.
    pub price_version: String,
    /// The vendor's id of the request, if it sent one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor_request_id: Option<String>,
}

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
    /// Does an operation. It is on its way when the future is first polled, and operations of one
    /// caller are done in that order.
    async fn apply(&self, account: &AccountName, op: Operation) -> Result<Outcome, Unavailable>;
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
    (at, lease_ms): (i64, u64),
) -> Result<Hold, HoldRefused> {
    let Quote { wanted, least } = quote;
    let op = Operation::Hold { id: id.to_owned(), wanted, least, lease_ms };
    match ledger.apply(account, op).await? {
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
        match ledger.apply(&self.account, op).await? {
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
        ledger.apply(&self.account, op).await.map_err(|why| (self, why))
    }

    /// Ends the hold without a charge.
    ///
    /// # Errors
    /// The hold comes back if the store could not be reached, to try again.
    pub async fn void(self, ledger: &dyn Ledger) -> Result<Outcome, (Hold, Unavailable)> {
        let op = Operation::Void { id: self.id.clone() };
        ledger.apply(&self.account, op).await.map_err(|why| (self, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_1_to_64_plain_letters_digits_and_marks() {
        let longest = "n".repeat(64);
        for good in ["a", "0", "Ada-1_b.c", &longest] {
            let name = AccountName::parse(good).expect("a name");
            assert_eq!((name.as_str(), name.to_string()), (good, good.to_owned()));
            assert_eq!(String::from(name.clone()), good);
            assert_eq!(AccountName::try_from(good.to_owned()), Ok(name));
        }
        for bad in ["", " ", "a b", "a/b", "a:b", "ä", "a\n", "{a}", &"n".repeat(65)] {
            assert_eq!(AccountName::parse(bad), None, "{bad:?}");
            assert!(AccountName::try_from(bad.to_owned()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_origin_counts_for_half_a_day_before_and_after_its_moment() {
        let half_a_day = 43_200_000;
        let of = |at| HoldRequest { wanted: Money::ZERO, least: Money::ZERO, at };
        for at in [0, 7, 1_800_000_000_000] {
            for (off, is_of_late) in [(0, true), (half_a_day - 1, true), (half_a_day, false)] {
                assert_eq!(of(at).is_recent(at + off), is_of_late, "{at} and {off} ms");
                assert_eq!(of(at).is_recent(at - off), is_of_late, "{off} ms before {at}");
            }
        }
        assert!(!of(i64::MIN).is_recent(i64::MAX));
    }

    #[test]
    fn every_operation_on_a_hold_names_it_and_a_payment_none() {
        let (id, amount, line) = ("h".to_owned(), Money::ZERO, String::new());
        let payment = Operation::Credit { tx: id.clone(), amount };
        assert_eq!(payment.hold_id(), None);
        for op in [
            Operation::Hold { id: id.clone(), wanted: amount, least: amount, lease_ms: 1 },
            Operation::Extend { id: id.clone(), wanted: amount },
            Operation::Renew { id: id.clone(), lease_ms: 1 },
            Operation::Checkpoint { id: id.clone(), charge: amount, line: line.clone() },
            Operation::Settle { id: id.clone(), charge: amount, line, origin: None },
            Operation::Void { id },
        ] {
            assert_eq!(op.hold_id(), Some("h"), "{op:?}");
        }
    }

    #[test]
    fn a_line_of_before_a_report_could_be_rejected_is_read_and_written_as_it_was() {
        let old = r#"{"request_id":"r","at":1,"key_prefix":"k","endpoint":"chat","model":"m","vendor":"v","route":"r0","depth":0,"usage":{"prompt_tokens":3,"completion_tokens":2},"basis":"counted","price_version":"p"}"#;
        let line: JournalLine = serde_json::from_str(old).expect("a line");
        assert_eq!(line.rejected_usage, None);
        assert_eq!(serde_json::to_string(&line).expect("JSON"), old);
        let tokens =
            crate::money::TokenUsage { input: 3, output: 900_000_000, ..Default::default() };
        let rejected_usage = Some(BilledUnits::Tokens(tokens));
        let written = serde_json::to_string(&JournalLine { rejected_usage, ..line }).expect("JSON");
        let read: JournalLine = serde_json::from_str(&written).expect("a line");
        assert_eq!(read.rejected_usage, rejected_usage);
    }
}
