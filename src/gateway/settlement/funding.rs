//! How a call is paid for.

use std::sync::Arc;

use crate::gateway::call_rates::CallRates;
use crate::ledger::{AccountName, Hold, KeyRecord, Lease, RateAsk};
use crate::money::Money;

/// How a call is paid for. No vendor is called without it.
#[derive(Debug)]
#[must_use = "the hold of a call must be settled or voided"]
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

    /// Returns the rate limits of a call that takes `asks` of them, with what is left.
    #[must_use]
    pub(crate) fn rates(&self, asks: Vec<RateAsk>) -> CallRates {
        let readings = match self {
            Funding::Held { hold, .. } => hold.rates().to_vec(),
            Funding::Free => Vec::new(),
        };
        CallRates { asks, readings }
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
