//! The budgets of accounts and keys, as they are shown.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::prepaid::window::{BudgetOwner, WindowId, WindowKind, WindowUse};
use crate::money::Money;

/// A budget, and what is used of its window that runs now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetUse {
    /// Whose budget it is.
    pub owner: BudgetOwner,
    /// How long its windows are.
    pub kind: WindowKind,
    /// The limit; `None` if it was removed. The window counts on.
    pub limit: Option<Money>,
    /// The window that runs now.
    pub window: WindowId,
    /// What is spent and held in it.
    pub used: WindowUse,
    /// The part of what is lent of it that no call needs, as gateways last said. It counts as left.
    pub free: Money,
}

impl BudgetUse {
    /// Returns what running calls hold of the window.
    #[must_use]
    pub fn held(&self) -> Money {
        self.used.held.saturating_sub(self.free)
    }

    /// Returns what is left below the limit; `None` without a limit.
    #[must_use]
    pub fn left(&self) -> Option<Money> {
        Some(self.limit?.saturating_sub(self.used.spent).saturating_sub(self.held()))
    }
}
