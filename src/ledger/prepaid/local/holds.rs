//! The holds of calls that a gateway makes out of an allotment, and their ends.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::super::rate::{RateAsk, RateReading};
use super::super::records::CallEnd;
use super::super::update::CALLS_MAX;
use super::super::window::KeyId;
use super::{LocalAllotment, LocalHold};
use crate::money::{Money, MoneyError};

/// The answer to a hold that is to be made out of an allotment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalAnswer {
    /// The amount is held; the value is what each rate limit of the call has left.
    Held(Vec<RateReading>),
    /// The hold is to be asked of the store.
    Direct,
}

/// The answer to an extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalExtension {
    /// This amount is held now: all that was wanted, or what there is after the store was asked.
    Held(Money),
    /// The next message asks the store; then the caller tries again.
    Ask,
    /// There is no such open call.
    Unknown,
}

/// The number and the content of an end, which the outbox keeps until the store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumberedEnd {
    /// The number.
    pub seq: u64,
    /// The end.
    pub end: CallEnd,
}

impl LocalAllotment {
    /// Holds an amount for a call, in full and out of what is free, or not at all. A call without a
    /// key counts in no budget of a key.
    ///
    /// # Errors
    /// [`MoneyError::OutOfRange`] if a sum exceeds the range.
    pub fn hold(
        &mut self,
        call: &str,
        key: Option<KeyId>,
        amount: Money,
        rates: &[RateAsk],
        now_ms: i64,
    ) -> Result<LocalAnswer, MoneyError> {
        let has_place = self.open.len() + self.ends.len() < CALLS_MAX;
        let is_new = !self.open.contains_key(call);
        let is_lent_to = key.is_none_or(|key| self.is_lent_to(key));
        // A hold of nothing is covered by nothing, but it needs the right, too.
        let is_covered = self.may_hold(now_ms) && is_lent_to && self.free(now_ms) >= amount;
        if !(has_place && is_new && is_covered) {
            return Ok(LocalAnswer::Direct);
        }
        let Some(windows) = self.windows.of_call(key, amount, now_ms) else {
            return Ok(LocalAnswer::Direct);
        };
        self.used.checked_add(amount)?;
        let Some(readings) = self.rates.take(rates) else { return Ok(LocalAnswer::Direct) };
        let mut counted = Vec::with_capacity(rates.len());
        let within = rates.iter().zip(&readings).filter(|(_, reading)| !reading.is_exceeded);
        counted.extend(within.map(|(ask, _)| *ask));
        self.add_use(amount, &windows)?;
        self.fresh = self.fresh.saturating_sub(amount);
        let hold = LocalHold {
            key,
            held: amount,
            asked: Money::ZERO,
            asked_step: 0,
            windows,
            rates: counted,
            checkpoint: None,
            is_checkpoint_new: false,
            is_told: false,
        };
        self.open.insert(call.to_owned(), hold);
        Ok(LocalAnswer::Held(readings))
    }

    /// Raises a hold to `wanted` in total: at once if that is free, else by asking the store. After
    /// the store was asked, the call gets what there is.
    ///
    /// # Errors
    /// [`MoneyError::OutOfRange`] if a sum exceeds the range.
    pub fn extend(
        &mut self,
        call: &str,
        wanted: Money,
        now_ms: i64,
    ) -> Result<LocalExtension, MoneyError> {
        let Some(hold) = self.open.get(call).cloned() else { return Ok(LocalExtension::Unknown) };
        let more = wanted.saturating_sub(hold.held);
        if self.has_ended || more == Money::ZERO {
            return Ok(LocalExtension::Held(hold.held));
        }
        if hold.asked == Money::ZERO {
            let is_free =
                self.free(now_ms) >= more && self.windows.have_free(&hold.windows, more, now_ms);
            self.add_use(more, &hold.windows)?;
            if let Some(hold) = self.open.get_mut(call) {
                if is_free {
                    hold.held = hold.held.checked_add(more)?;
                } else {
                    (hold.asked, hold.asked_step) = (more, self.step.saturating_add(1));
                }
                return Ok(if is_free {
                    LocalExtension::Held(hold.held)
                } else {
                    LocalExtension::Ask
                });
            }
        }
        if self.answered_step < hold.asked_step {
            return Ok(LocalExtension::Ask);
        }
        // The part of what was asked for that the store did not give is given up.
        let missing = hold.windows.iter().map(|window| self.windows.missing_in(*window));
        let missing = missing.fold(self.used.saturating_sub(self.lent), Money::max);
        let missing = missing.min(hold.asked);
        self.drop_use(missing, &hold.windows)?;
        let granted = hold.held.checked_add(hold.asked.checked_sub(missing)?)?;
        if let Some(hold) = self.open.get_mut(call) {
            hold.held = granted;
            hold.asked = Money::ZERO;
        }
        Ok(LocalExtension::Held(granted))
    }

    /// Notes what an open call has cost so far.
    pub fn checkpoint(&mut self, call: &str, charge: Money, line: &str) {
        if let Some(hold) = self.open.get_mut(call)
            && hold.checkpoint.as_ref().is_none_or(|(before, _)| *before < charge)
        {
            hold.checkpoint = Some((charge, line.to_owned()));
            hold.is_checkpoint_new = true;
        }
    }

    /// Ends a call whose caller is gone without an end. It is charged what it had cost so far.
    ///
    /// # Errors
    /// [`MoneyError::OutOfRange`] if a sum exceeds the range.
    pub fn abandon(&mut self, call: &str) -> Result<Option<NumberedEnd>, MoneyError> {
        match self.open.get(call).and_then(|hold| hold.checkpoint.clone()) {
            Some((charge, line)) => self.end(call, charge, &line, None),
            None => self.void(call),
        }
    }

    /// Ends a call with its charge; `tokens` corrects what it took of rate limits. The end goes to
    /// the outbox before the caller's answer does.
    ///
    /// # Errors
    /// [`MoneyError::OutOfRange`] if a sum exceeds the range.
    pub fn end(
        &mut self,
        call: &str,
        charge: Money,
        line: &str,
        tokens: Option<i64>,
    ) -> Result<Option<NumberedEnd>, MoneyError> {
        let Some(hold) = self.open.remove(call) else { return Ok(None) };
        self.rates.end(&hold.rates, tokens);
        let unused = hold.held.saturating_sub(charge).checked_add(hold.asked)?;
        self.drop_use(unused, &hold.windows)?;
        Ok(Some(self.number(call, &hold, Some(charge), line)))
    }

    /// Ends a call without a charge. Only if the store may know a checkpoint of the call, there is
    /// something to tell.
    ///
    /// # Errors
    /// [`MoneyError::OutOfRange`] if a sum exceeds the range.
    pub fn void(&mut self, call: &str) -> Result<Option<NumberedEnd>, MoneyError> {
        let Some(hold) = self.open.remove(call) else { return Ok(None) };
        self.rates.void(&hold.rates);
        self.drop_use(hold.held.checked_add(hold.asked)?, &hold.windows)?;
        Ok(hold.is_told.then(|| self.number(call, &hold, None, "")))
    }

    fn number(
        &mut self,
        call: &str,
        hold: &LocalHold,
        charge: Option<Money>,
        line: &str,
    ) -> NumberedEnd {
        self.last_seq = self.last_seq.saturating_add(1);
        let (seq, end) = (self.last_seq, call_end(call, hold, charge, line));
        self.ends.insert(seq, end.clone());
        NumberedEnd { seq, end }
    }
}

pub(super) fn call_end(call: &str, hold: &LocalHold, charge: Option<Money>, line: &str) -> CallEnd {
    CallEnd {
        call: call.to_owned(),
        key: hold.key,
        held: hold.held,
        charge,
        windows: hold.windows.clone(),
        line: line.to_owned(),
    }
}
