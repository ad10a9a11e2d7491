//! What a gateway has of the windows of budgets in an allotment.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::BTreeMap;

use super::super::answer::AllotmentStatus;
use super::super::records::CallEnd;
use super::super::update::WINDOWS_USED_MAX;
use super::super::window::{BudgetOwner, KeyId, WindowId};
use super::use_of;
use crate::money::{Money, MoneyError};

/// What a gateway has of one window.
#[derive(Debug, Clone, Copy, Default)]
struct LocalWindow {
    /// What open holds, what they ask for, and ends that are not told yet use of it.
    used: Money,
    /// What the allotment has of it; `None` if nothing is lent of it.
    slice: Option<LocalSlice>,
    /// Whether new calls count in it.
    is_current: bool,
}

#[derive(Debug, Clone, Copy)]
struct LocalSlice {
    amount: Money,
    until: i64,
}

impl LocalWindow {
    fn lent(&self) -> Money {
        self.slice.map_or(Money::ZERO, |slice| slice.amount)
    }

    fn free(&self, now_ms: i64) -> Money {
        let alive = self.slice.filter(|slice| now_ms < slice.until);
        alive.map_or(Money::ZERO, |slice| slice.amount.saturating_sub(self.used))
    }

    fn is_needed(&self) -> bool {
        self.is_current || self.slice.is_some() || self.used > Money::ZERO
    }
}

/// What the next message says of windows.
#[derive(Debug, Default)]
pub(super) struct WindowDemand {
    /// What is needed once the ends of the message are posted.
    pub(super) needed: BTreeMap<WindowId, Money>,
    /// That, and what is kept for new holds.
    pub(super) kept: BTreeMap<WindowId, Money>,
}

/// The windows of which something is lent or used, or in which new calls count.
#[derive(Debug, Clone, Default)]
pub(super) struct LocalWindows(BTreeMap<WindowId, LocalWindow>);

impl LocalWindows {
    /// Returns the windows in which a new call of a key counts; `None` if `amount` is not free in
    /// all of them, or if too many windows would be in use.
    pub(super) fn of_call(
        &self,
        key: Option<KeyId>,
        amount: Money,
        now_ms: i64,
    ) -> Option<Vec<WindowId>> {
        let (mut counted, mut in_use) = (Vec::new(), 0);
        for (id, window) in &self.0 {
            let is_own = match id.owner {
                BudgetOwner::Account => true,
                BudgetOwner::Key(owner) => key == Some(owner),
            };
            let counts = window.is_current && is_own;
            if counts && window.free(now_ms) < amount {
                return None;
            }
            counted.extend(counts.then_some(*id));
            in_use += usize::from(counts || window.used > Money::ZERO);
        }
        (in_use <= WINDOWS_USED_MAX).then_some(counted)
    }

    /// What new calls of a key can hold as far as its own slices go; `None` if it has none. A
    /// window that has ended may have a slice for calls that still run; no new call counts in it.
    pub(super) fn free_of_key(&self, key: KeyId, now_ms: i64) -> Option<Money> {
        let is_lent = |(id, window): &(&WindowId, &LocalWindow)| {
            id.owner == BudgetOwner::Key(key) && window.is_current && window.slice.is_some()
        };
        self.0.iter().filter(is_lent).map(|(_, window)| window.free(now_ms)).min()
    }

    /// Whether an amount is free in all of these windows.
    pub(super) fn have_free(&self, windows: &[WindowId], amount: Money, now_ms: i64) -> bool {
        let free = |id| self.0.get(id).map_or(Money::ZERO, |window| window.free(now_ms));
        windows.iter().all(|id| free(id) >= amount)
    }

    /// How much more of a window is used than is lent of it.
    pub(super) fn missing_in(&self, id: WindowId) -> Money {
        self.0.get(&id).map_or(Money::ZERO, |window| window.used.saturating_sub(window.lent()))
    }

    /// What is used of each window.
    pub(super) fn used(&self) -> impl Iterator<Item = (WindowId, Money)> {
        self.0.iter().map(|(id, window)| (*id, window.used))
    }

    /// Counts an amount in windows.
    pub(super) fn add(&mut self, amount: Money, windows: &[WindowId]) -> Result<(), MoneyError> {
        for id in windows {
            let window = self.0.entry(*id).or_default();
            window.used = window.used.checked_add(amount)?;
        }
        Ok(())
    }

    /// Takes an amount out of windows that counts in them.
    pub(super) fn subtract(
        &mut self,
        amount: Money,
        windows: &[WindowId],
    ) -> Result<(), MoneyError> {
        let mut has_unneeded = false;
        for id in windows {
            let window = self.0.entry(*id).or_default();
            window.used = window.used.checked_sub(amount)?;
            has_unneeded |= !window.is_needed();
        }
        if has_unneeded {
            self.0.retain(|_, window| window.is_needed());
        }
        Ok(())
    }

    /// Returns what the next message says with these ends. At most `free` is kept of each window
    /// for new holds, and of that of a key what the key wants. All else is given back, so it is not
    /// used from here on.
    pub(super) fn demand(
        &mut self,
        ends: &[CallEnd],
        free: Money,
        keys: &BTreeMap<KeyId, Money>,
        now_ms: i64,
    ) -> Result<WindowDemand, MoneyError> {
        let mut needed = BTreeMap::new();
        needed.extend(self.used().filter(|(_, used)| *used > Money::ZERO));
        for end in ends {
            for id in &end.windows {
                if let Some(there) = needed.get_mut(id) {
                    *there = there.checked_sub(use_of(end))?;
                }
            }
        }
        needed.retain(|_, amount| *amount > Money::ZERO);
        let mut kept_in = needed.clone();
        for (id, window) in &mut self.0 {
            let needed = needed.get(id).copied().unwrap_or_default();
            let wanted = match id.owner {
                BudgetOwner::Account => free,
                BudgetOwner::Key(key) => keys.get(&key).copied().unwrap_or_default(),
            };
            let unused = if window.is_current { window.free(now_ms) } else { Money::ZERO };
            let kept = needed.checked_add(unused.min(wanted).min(free))?;
            if kept > Money::ZERO {
                kept_in.insert(*id, kept);
            }
            let of_ends = window.used.checked_sub(needed)?;
            if let Some(slice) = &mut window.slice {
                slice.amount = slice.amount.min(kept.checked_add(of_ends)?);
            }
        }
        Ok(WindowDemand { needed, kept: kept_in })
    }

    /// Notes the answer to the message that was sent at `asked_at`.
    pub(super) fn adopt(&mut self, status: &AllotmentStatus, asked_at: i64) {
        for window in self.0.values_mut() {
            (window.slice, window.is_current) = (None, false);
        }
        for (id, slice) in &status.slices {
            let until = slice.for_ms.map_or(i64::MAX, |for_ms| asked_at.saturating_add(for_ms));
            let slice = LocalSlice { amount: slice.amount, until };
            self.0.entry(*id).or_default().slice = Some(slice);
        }
        for id in &status.current {
            self.0.entry(*id).or_default().is_current = true;
        }
        self.0.retain(|_, window| window.is_needed());
    }
}
