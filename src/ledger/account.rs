//! The pure state machine whose results every store must match.
//!
//! A store loads an account's [`Balances`] and the [`HoldRecord`] of the operation, calls
//! [`apply_to_hold`], and writes back what changed, all in one transaction.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::BTreeMap;

use super::journal::JournalEntry;
use super::operation::{HoldRequest, Operation, Outcome};
use crate::money::{Money, MoneyError};

/// The balances of an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Balances {
    /// C: the sum of all payments.
    pub credit: Money,
    /// A: the part that is free to hold.
    pub available: Money,
    /// H: the part that is set aside for running calls.
    pub held: Money,
    /// P: the sum of all charges.
    pub posted: Money,
    /// W: the part of the charges that the account could not pay: the operator's loss.
    pub written_off: Money,
}

impl Balances {
    /// Whether `C + W = A + H + P`.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        let sum = |parts: &[Money]| parts.iter().map(|m| i128::from(m.nano())).sum::<i128>();
        sum(&[self.credit, self.written_off]) == sum(&[self.available, self.held, self.posted])
    }

    /// Charges an amount to the available balance and writes off what that does not cover. Returns
    /// the write-off.
    fn charge_available(&mut self, amount: Money) -> Result<Money, MoneyError> {
        let paid = amount.min(self.available);
        let lost = amount.checked_sub(paid)?;
        self.available = self.available.checked_sub(paid)?;
        self.written_off = self.written_off.checked_add(lost)?;
        Ok(lost)
    }
}

/// The stored record of a hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HoldRecord {
    /// The amount that covers the call at its largest.
    pub wanted: Money,
    /// The least amount that was requested.
    pub least: Money,
    /// The amount that is or was set aside.
    pub held: Money,
    /// When the lease expires unless it is renewed, in unix ms.
    pub lease_until: i64,
    /// The state of the hold.
    pub state: HoldState,
}

/// The states of a hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HoldState {
    /// The hold is open. If it expires, the checkpoint is posted.
    Open {
        /// The cost so far, and the journal line for it.
        checkpoint: Option<(Money, String)>,
    },
    /// The call was charged with this amount.
    Posted(Money),
    /// The hold ended without a charge.
    Voided,
    /// The lease expired, and this amount was posted then.
    Expired(Money),
    /// The hold was voided before the request to place it arrived.
    Tombstone,
}

/// A charge, as it is written to the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Posting {
    /// The amount that is posted.
    pub amount: Money,
    /// The part of the amount that the account could not pay.
    pub written_off: Money,
    /// The journal line, as JSON.
    pub line: String,
}

/// The result of an operation, with all changes that the store must write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Transition {
    /// The outcome for the caller.
    pub answer: Outcome,
    /// The new record of the hold; `None` if it is unchanged.
    pub record: Option<HoldRecord>,
    /// The new entry of the journal, if there is one.
    pub posting: Option<Posting>,
}

impl Transition {
    fn unchanged(answer: Outcome) -> Transition {
        Transition { answer, record: None, posting: None }
    }
}

/// Applies an operation on a hold to the balances. `record` is the stored record of that hold,
/// `now` is in unix ms. If the outcome is [`Outcome::OutOfRange`], the balances are unchanged.
#[must_use]
pub(crate) fn apply_to_hold(
    balances: &mut Balances,
    record: Option<&HoldRecord>,
    op: &Operation,
    now: i64,
) -> Transition {
    let mut after = *balances;
    match decide(&mut after, record, op, now) {
        Ok(step) => {
            *balances = after;
            step
        }
        Err(_) => Transition::unchanged(Outcome::OutOfRange),
    }
}

/// Applies a payment to the balances. `known` is the amount of an earlier payment with the same id.
#[must_use]
pub fn credit(balances: &mut Balances, known: Option<Money>, amount: Money) -> Outcome {
    match known {
        Some(earlier) if earlier == amount => Outcome::AlreadyDone,
        Some(_) => Outcome::Conflict,
        None => match (balances.credit.checked_add(amount), balances.available.checked_add(amount))
        {
            (Ok(credit), Ok(available)) => {
                balances.credit = credit;
                balances.available = available;
                Outcome::Done
            }
            _ => Outcome::OutOfRange,
        },
    }
}

/// Ends an open hold whose lease has expired; `None` if the lease has not expired or the hold is
/// not open.
#[must_use]
pub(crate) fn expire_hold(
    balances: &mut Balances,
    record: &HoldRecord,
    now: i64,
) -> Option<Transition> {
    let HoldState::Open { checkpoint } = &record.state else { return None };
    if record.lease_until > now {
        return None;
    }
    let (charge, line) = checkpoint.clone().unwrap_or_default();
    let mut after = *balances;
    let mut step = post_charge(&mut after, record, charge, &line).ok()?;
    step.record = Some(HoldRecord { state: HoldState::Expired(charge), ..record.clone() });
    step.posting = step.posting.filter(|posting| posting.amount > Money::ZERO);
    *balances = after;
    Some(step)
}

fn decide(
    balances: &mut Balances,
    record: Option<&HoldRecord>,
    op: &Operation,
    now: i64,
) -> Result<Transition, MoneyError> {
    match (op, record) {
        (Operation::Hold { wanted, least, lease_ms, .. }, None) => {
            open_hold(balances, *wanted, *least, lease_until(now, *lease_ms))
        }
        (Operation::Hold { wanted, least, .. }, Some(known)) => {
            Ok(Transition::unchanged(repeated_hold(known, *wanted, *least)))
        }
        (
            Operation::Extend { wanted, .. },
            Some(known @ HoldRecord { state: HoldState::Open { .. }, .. }),
        ) => extend_hold(balances, known, *wanted),
        (
            Operation::Renew { lease_ms, .. },
            Some(known @ HoldRecord { state: HoldState::Open { .. }, .. }),
        ) => {
            let until = known.lease_until.max(lease_until(now, *lease_ms));
            Ok(with_record(Outcome::Done, HoldRecord { lease_until: until, ..known.clone() }))
        }
        (
            Operation::Checkpoint { charge, line, .. },
            Some(known @ HoldRecord { state: HoldState::Open { checkpoint }, .. }),
        ) => {
            let is_higher = checkpoint.as_ref().is_none_or(|(before, _)| before < charge);
            let state = HoldState::Open { checkpoint: Some((*charge, line.clone())) };
            let record = HoldRecord { state, ..known.clone() };
            Ok(if is_higher {
                with_record(Outcome::Done, record)
            } else {
                Transition::unchanged(Outcome::Done)
            })
        }
        (Operation::Extend { .. } | Operation::Renew { .. } | Operation::Checkpoint { .. }, _) => {
            Ok(Transition::unchanged(Outcome::HoldEnded))
        }
        (Operation::Settle { charge, line, .. }, Some(known)) => {
            settle_hold(balances, known, *charge, line)
        }
        (
            Operation::Settle {
                charge, line, origin: Some(HoldRequest { wanted, least, .. }), ..
            },
            None,
        ) => {
            // The store lost the hold, so the money that it held is available again, unless another
            // call has taken it since.
            let (held, state) = (Money::ZERO, HoldState::Expired(Money::ZERO));
            let lost = HoldRecord { wanted: *wanted, least: *least, held, lease_until: now, state };
            settle_hold(balances, &lost, *charge, line)
        }
        (Operation::Settle { origin: None, .. }, None) | (Operation::Credit { .. }, _) => {
            Ok(Transition::unchanged(Outcome::UnknownHold))
        }
        (Operation::Void { .. }, Some(known)) => void_hold(balances, known),
        (Operation::Void { .. }, None) => {
            let zero = Money::ZERO;
            let state = HoldState::Tombstone;
            let record =
                HoldRecord { wanted: zero, least: zero, held: zero, lease_until: now, state };
            Ok(with_record(Outcome::Voided, record))
        }
    }
}

fn lease_until(now: i64, lease_ms: u64) -> i64 {
    now.saturating_add(i64::try_from(lease_ms).unwrap_or(i64::MAX))
}

fn with_record(answer: Outcome, record: HoldRecord) -> Transition {
    Transition { answer, record: Some(record), posting: None }
}

fn open_hold(
    balances: &mut Balances,
    wanted: Money,
    least: Money,
    lease_until: i64,
) -> Result<Transition, MoneyError> {
    if balances.available < least {
        return Ok(Transition::unchanged(Outcome::Insufficient(balances.available)));
    }
    let held = wanted.min(balances.available);
    balances.available = balances.available.checked_sub(held)?;
    balances.held = balances.held.checked_add(held)?;
    let state = HoldState::Open { checkpoint: None };
    Ok(with_record(Outcome::Held(held), HoldRecord { wanted, least, held, lease_until, state }))
}

fn extend_hold(
    balances: &mut Balances,
    known: &HoldRecord,
    wanted: Money,
) -> Result<Transition, MoneyError> {
    let more = wanted.saturating_sub(known.held).min(balances.available);
    if more == Money::ZERO {
        return Ok(Transition::unchanged(Outcome::Held(known.held)));
    }
    let held = known.held.checked_add(more)?;
    balances.available = balances.available.checked_sub(more)?;
    balances.held = balances.held.checked_add(more)?;
    Ok(with_record(Outcome::Held(held), HoldRecord { held, ..known.clone() }))
}

fn repeated_hold(known: &HoldRecord, wanted: Money, least: Money) -> Outcome {
    match known.state {
        HoldState::Tombstone => Outcome::Tombstoned,
        _ if known.wanted != wanted || known.least != least => Outcome::Conflict,
        HoldState::Open { .. } => Outcome::HoldExists { held: known.held, open: true },
        _ => Outcome::HoldExists { held: known.held, open: false },
    }
}

fn settle_hold(
    balances: &mut Balances,
    known: &HoldRecord,
    charge: Money,
    line: &str,
) -> Result<Transition, MoneyError> {
    match known.state {
        HoldState::Open { .. } => post_charge(balances, known, charge, line),
        HoldState::Posted(amount) => Ok(Transition::unchanged(Outcome::AlreadyPosted(amount))),
        HoldState::Voided | HoldState::Tombstone => Ok(Transition::unchanged(Outcome::Voided)),
        HoldState::Expired(before) => {
            // The rest was released when the hold expired, so the amount still due comes from what
            // is available now.
            let due = charge.saturating_sub(before);
            let written_off = balances.charge_available(due)?;
            balances.posted = balances.posted.checked_add(due)?;
            Ok(with_posting(known, before.checked_add(due)?, due, written_off, line))
        }
    }
}

/// Charges an open hold. The part that the hold does not cover comes from the available balance,
/// and what that does not cover is written off.
fn post_charge(
    balances: &mut Balances,
    known: &HoldRecord,
    charge: Money,
    line: &str,
) -> Result<Transition, MoneyError> {
    balances.held = balances.held.checked_sub(known.held)?;
    balances.available = balances.available.checked_add(known.held.saturating_sub(charge))?;
    let written_off = balances.charge_available(charge.saturating_sub(known.held))?;
    balances.posted = balances.posted.checked_add(charge)?;
    Ok(with_posting(known, charge, charge, written_off, line))
}

fn with_posting(
    known: &HoldRecord,
    total: Money,
    amount: Money,
    written_off: Money,
    line: &str,
) -> Transition {
    Transition {
        answer: Outcome::Posted { amount: total, written_off },
        record: Some(HoldRecord { state: HoldState::Posted(total), ..known.clone() }),
        posting: Some(Posting { amount, written_off, line: line.to_owned() }),
    }
}

fn void_hold(balances: &mut Balances, known: &HoldRecord) -> Result<Transition, MoneyError> {
    match known.state {
        HoldState::Open { .. } => {
            balances.held = balances.held.checked_sub(known.held)?;
            balances.available = balances.available.checked_add(known.held)?;
            Ok(with_record(
                Outcome::Voided,
                HoldRecord { state: HoldState::Voided, ..known.clone() },
            ))
        }
        // A hold that expired without a charge counts as voided in time. It is not charged later
        // either, since a caller that gets this outcome may make the call once more.
        HoldState::Expired(Money::ZERO) => Ok(with_record(
            Outcome::Voided,
            HoldRecord { state: HoldState::Voided, ..known.clone() },
        )),
        HoldState::Voided | HoldState::Tombstone => Ok(Transition::unchanged(Outcome::Voided)),
        HoldState::Posted(amount) | HoldState::Expired(amount) => {
            Ok(Transition::unchanged(Outcome::AlreadyPosted(amount)))
        }
    }
}

/// An account in memory: the reference implementation that the stores are tested against.
#[derive(Debug, Clone, Default)]
pub struct InMemoryAccount {
    /// The balances.
    pub balances: Balances,
    /// The journal, oldest entry first.
    pub journal: Vec<JournalEntry>,
    payments: BTreeMap<String, Money>,
    holds: BTreeMap<String, HoldRecord>,
}

impl InMemoryAccount {
    /// Applies an operation at the time `now` (unix ms).
    pub fn apply(&mut self, op: &Operation, now: i64) -> Outcome {
        if let Operation::Credit { tx, amount } = op {
            let answer = credit(&mut self.balances, self.payments.get(tx).copied(), *amount);
            if answer == Outcome::Done {
                self.payments.insert(tx.clone(), *amount);
            }
            return answer;
        }
        let Some(id) = op.hold_id() else { return Outcome::UnknownHold };
        let step = apply_to_hold(&mut self.balances, self.holds.get(id), op, now);
        self.commit(id, step)
    }

    /// Ends the holds whose lease has expired at `now` (unix ms). Returns how many.
    pub fn expire_holds(&mut self, now: i64) -> u64 {
        let mut ended = 0;
        let mut holds: Vec<_> = self.holds.clone().into_iter().collect();
        // The hold that expired first ends first: the order decides which hold gets the available
        // rest.
        holds.sort_by_key(|(_, record)| record.lease_until);
        for (id, record) in holds {
            if let Some(step) = expire_hold(&mut self.balances, &record, now) {
                self.commit(&id, step);
                ended += 1;
            }
        }
        ended
    }

    fn commit(&mut self, id: &str, step: Transition) -> Outcome {
        if let Some(record) = step.record {
            self.holds.insert(id.to_owned(), record);
        }
        if let Some(Posting { amount, written_off, line }) = step.posting {
            let seq = self.journal.len() as u64 + 1;
            self.journal.push(JournalEntry { seq, amount, written_off, line });
        }
        step.answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nano(nano: i64) -> Money {
        Money::from_nano(nano).expect("not negative")
    }

    fn with_hold(lease_ms: u64) -> InMemoryAccount {
        let mut account = InMemoryAccount::default();
        account.apply(&Operation::Credit { tx: "t".to_owned(), amount: nano(9) }, 0);
        let id = "h".to_owned();
        account.apply(&Operation::Hold { id, wanted: nano(5), least: nano(5), lease_ms }, 100);
        account
    }

    #[test]
    fn balances_add_up_only_if_nothing_is_missing_and_nothing_too_much() {
        let [credit, available, held, posted, written_off] = [100, 20, 30, 60, 10].map(nano);
        let sound = Balances { credit, available, held, posted, written_off };
        assert!(sound.is_balanced() && Balances::default().is_balanced());
        for wrong in [99, 101, 0, i64::MAX].map(nano) {
            assert!(!Balances { credit: wrong, ..sound }.is_balanced());
            assert!(!Balances { available: wrong, ..sound }.is_balanced());
            assert!(!Balances { held: wrong, ..sound }.is_balanced());
            assert!(!Balances { posted: wrong, ..sound }.is_balanced());
            assert!(!Balances { written_off: wrong, ..sound }.is_balanced());
        }
        // Sums that do not fit into one amount are still computed correctly.
        let most = nano(i64::MAX);
        let large = Balances { credit: most, available: most, posted: most, ..Balances::default() };
        assert!(!large.is_balanced());
        assert!(Balances { written_off: most, ..large }.is_balanced());
    }

    #[test]
    fn a_lease_ends_at_its_last_ms_and_not_before() {
        let mut account = with_hold(5);
        assert_eq!(
            (account.expire_holds(104), account.expire_holds(105), account.expire_holds(106)),
            (0, 1, 0)
        );
    }

    #[test]
    fn a_renewal_counts_from_now_and_never_shortens() {
        for (lease_ms, now, until) in [(5, 102, 107), (5, 100, 105), (4, 100, 105), (0, 104, 105)] {
            let mut account = with_hold(5);
            account.apply(&Operation::Renew { id: "h".to_owned(), lease_ms }, now);
            assert_eq!(
                (account.expire_holds(until - 1), account.expire_holds(until)),
                (0, 1),
                "{lease_ms}"
            );
        }
    }

    #[test]
    fn a_lease_beyond_the_end_of_time_ends_with_it() {
        let mut account = with_hold(u64::MAX);
        assert_eq!((account.expire_holds(i64::MAX - 1), account.expire_holds(i64::MAX)), (0, 1));
    }

    #[test]
    fn of_two_checkpoints_of_one_cost_the_first_stays() {
        let mut account = with_hold(5);
        for line in ["first", "second"].map(str::to_owned) {
            let op = Operation::Checkpoint { id: "h".to_owned(), charge: nano(3), line };
            assert_eq!(account.apply(&op, 100), Outcome::Done);
        }
        account.expire_holds(105);
        assert_eq!(account.journal.iter().map(|e| &*e.line).collect::<Vec<_>>(), ["first"]);
    }
}
