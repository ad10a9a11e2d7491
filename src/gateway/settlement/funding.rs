//! What a call is paid with.

use std::sync::Arc;

use crate::ledger::{AccountName, Hold, KeyRecord, Lease};
use crate::money::Money;

/// How a call is paid for. No vendor is called without it.
#[derive(Debug)]
pub(crate) enum Funding {
    /// Money is held.
    Held {
        /// The hold.
        hold: Hold,
        /// The key that it was made for.
        key: Arc<KeyRecord>,
        /// What keeps it alive while the call runs.
        lease: Lease,
    },
    /// It costs nothing.
    Free,
}

impl Funding {
    /// Whose money it is, if it takes any.
    #[must_use]
    pub(crate) fn account(&self) -> Option<&AccountName> {
        match self {
            Funding::Held { hold, .. } => Some(hold.account()),
            Funding::Free => None,
        }
    }

    /// How much is held.
    #[must_use]
    pub(crate) fn held(&self) -> Money {
        match self {
            Funding::Held { hold, .. } => hold.held(),
            Funding::Free => Money::ZERO,
        }
    }
}
