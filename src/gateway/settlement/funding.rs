//! How a call is paid for.

use std::sync::Arc;

use crate::ledger::{AccountName, Hold, KeyRecord, Lease};
use crate::money::Money;

/// How a call is paid for. No vendor is called without it.
#[derive(Debug)]
pub(crate) enum Funding {
    /// Money is held for the call.
    Held {
        /// The hold.
        hold: Hold,
        /// The API key that the hold was made for.
        key: Arc<KeyRecord>,
        /// Renews the hold while the call runs.
        lease: Lease,
    },
    /// The call costs nothing.
    Free,
}

impl Funding {
    /// Returns the account that pays; `None` for a free call.
    #[must_use]
    pub(crate) fn account(&self) -> Option<&AccountName> {
        match self {
            Funding::Held { hold, .. } => Some(hold.account()),
            Funding::Free => None,
        }
    }

    /// Returns the held amount; zero for a free call.
    #[must_use]
    pub(crate) fn held(&self) -> Money {
        match self {
            Funding::Held { hold, .. } => hold.held(),
            Funding::Free => Money::ZERO,
        }
    }
}
