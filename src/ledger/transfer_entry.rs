//! What came into an account and went back beside charges, as people are shown it.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::prepaid::lot::LotId;
use crate::money::Money;

/// What a transfer was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransferType {
    /// A payment: C and A grew.
    Payment,
    /// Credit was granted to a lot: C and A grew.
    Grant,
    /// Credit was paid back: C and A fell.
    Refund,
    /// A part of a charge was given back: P fell.
    Correction,
}

impl TransferType {
    /// Returns the name, as in `refund`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            TransferType::Payment => "payment",
            TransferType::Grant => "grant",
            TransferType::Refund => "refund",
            TransferType::Correction => "correction",
        }
    }

    /// Returns the transfer of a name; `None` if there is none.
    #[must_use]
    pub fn of_name(name: &str) -> Option<TransferType> {
        let all = [
            TransferType::Payment,
            TransferType::Grant,
            TransferType::Refund,
            TransferType::Correction,
        ];
        all.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// A payment, a grant, a refund or a correction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferEntry {
    /// The caller's id.
    pub tx: String,
    /// What it was.
    pub kind: TransferType,
    /// The amount that was asked for.
    pub amount: Money,
    /// The amount that was moved; `None` while a refund waits for money that is lent.
    pub moved: Option<Money>,
    /// When it was asked for first, in unix ms; `None` for a payment that an older version has
    /// stored without its time.
    pub at: Option<i64>,
    /// The lot of a grant.
    pub lot: Option<LotId>,
    /// The id of the request whose charge was corrected.
    pub request: Option<String>,
    /// Why; empty if nobody has said so.
    pub reason: String,
}

/// A place in the list of transfers, which is that of a transfer. The order is that of the fields.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TransferPlace {
    /// When the transfer was asked for first, in unix ms. One whose time is not known is before all
    /// others.
    pub at: Option<i64>,
    /// The caller's id.
    pub tx: String,
}

impl TransferEntry {
    /// Returns the place of the transfer in the list.
    #[must_use]
    pub fn place(&self) -> TransferPlace {
        TransferPlace { at: self.at, tx: self.tx.clone() }
    }
}
