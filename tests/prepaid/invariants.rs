//! What the records of an account must say of each other after every operation.

use std::collections::BTreeMap;

use tollgate::ledger::open_hold::list_open_holds;
use tollgate::ledger::prepaid::lot::{CreditLot, LotAmounts, LotId, OPEN_LOTS_MAX};
use tollgate::ledger::prepaid::rate::{RateBucket, RateId, RateKind};
use tollgate::ledger::prepaid::records::{
    DirectHoldState, JournalRecord, PrepaidAccount, RecordKind, TransferKind,
};
use tollgate::ledger::prepaid::window::WindowId;
use tollgate::ledger::{AccountName, OpenHold, OpenHoldKind};
use tollgate::money::Money;

fn nano(amount: Money) -> i128 {
    i128::from(amount.nano())
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

/// Checks an account at a moment.
pub(crate) fn check(account: &PrepaidAccount, now: i64) -> Result<(), String> {
    let balances = account.head.balances;
    ensure(balances.is_balanced(), || format!("{balances:?} do not add up"))?;
    lots(account, now)?;
    windows(account)?;
    places(account)?;
    open_holds(account, now)?;
    journal(account)?;
    let lent = account.allotments.values().filter(|a| a.is_out() && a.may_be_free).count();
    ensure(lent == account.head.lent_out as usize, || {
        format!("{lent} allotments may be free, {} are counted", account.head.lent_out)
    })
}

/// What open holds and allotments have drawn.
fn all_drawn(account: &PrepaidAccount) -> impl Iterator<Item = &LotAmounts> {
    let holds = account.holds.values().map(|hold| &hold.drawn);
    holds.chain(account.allotments.values().map(|allotment| &allotment.drawn))
}

fn lots(account: &PrepaidAccount, now: i64) -> Result<(), String> {
    let head = &account.head;
    let mut in_holds: BTreeMap<LotId, i128> = BTreeMap::new();
    for (lot, amount) in all_drawn(account).flat_map(LotAmounts::iter) {
        *in_holds.entry(lot).or_default() += nano(amount);
    }
    let lots: BTreeMap<LotId, i128> =
        head.lots.iter().map(|(id, lot)| (*id, nano(lot.held))).collect();
    let is_held = |(_, amount): &(LotId, i128)| *amount > 0;
    let said: Vec<_> = lots.into_iter().filter(is_held).collect();
    let drawn: Vec<_> = in_holds.into_iter().filter(is_held).collect();
    ensure(said == drawn, || format!("lots say {said:?} is held, the holds {drawn:?}"))?;
    let sum = |part: fn(&CreditLot) -> Money| head.lots.values().map(|l| nano(part(l))).sum();
    let (available, not_free): (i128, i128) = (sum(|l| l.available), sum(|l| l.held));
    ensure(available == nano(head.balances.available), || "lots are not A".to_owned())?;
    ensure(not_free == nano(head.balances.held), || "what is held of lots is not H".to_owned())?;
    ensure(head.lots.len() <= OPEN_LOTS_MAX, || "too many lots are open".to_owned())?;
    let stale = head.lots.iter().find(|(id, l)| id.is_expired(now) && l.available > Money::ZERO);
    // A lot expires with the next operation, so only the last one's time counts.
    ensure(stale.is_none(), || format!("{stale:?} has expired and is available"))?;
    for hold in account.holds.values() {
        let drawn = hold.drawn.total().map_err(|why| why.to_string())?;
        let is_open = matches!(hold.state, DirectHoldState::Open { .. });
        let expected = if is_open { hold.held } else { Money::ZERO };
        ensure(drawn == expected, || format!("{hold:?} has drawn something else"))?;
    }
    Ok(())
}

/// What people are told of open holds and allotments: it is all that is held or free of what is
/// lent.
fn open_holds(account: &PrepaidAccount, now: i64) -> Result<(), String> {
    let name = AccountName::parse("a").ok_or("no name")?;
    let open = list_open_holds(&name, &account.holds, &account.allotments, now);
    let free = |hold: &OpenHold| match hold.kind {
        OpenHoldKind::Allotment { free, .. } => nano(free),
        OpenHoldKind::Direct { .. } => 0,
    };
    let sum: i128 = open.iter().map(|hold| nano(hold.held) + free(hold)).sum();
    ensure(sum == nano(account.head.balances.held), || format!("H is not what {open:?} hold"))?;
    let is_ordered = open.is_sorted_by_key(OpenHold::cursor);
    ensure(is_ordered, || format!("{open:?} are not in order"))
}

fn windows(account: &PrepaidAccount) -> Result<(), String> {
    let mut held: BTreeMap<WindowId, i128> = BTreeMap::new();
    for hold in account.holds.values() {
        if matches!(hold.state, DirectHoldState::Open { .. }) {
            for window in &hold.windows {
                *held.entry(*window).or_default() += nano(hold.held);
            }
        }
    }
    let mut lent: BTreeMap<WindowId, i128> = BTreeMap::new();
    for (window, slice) in account.allotments.values().flat_map(|a| &a.slices) {
        *held.entry(*window).or_default() += nano(*slice);
        *lent.entry(*window).or_default() += nano(*slice);
    }
    for (id, used) in &account.windows {
        let of_slices = lent.remove(id).unwrap_or_default();
        ensure(nano(used.lent) == of_slices, || {
            format!("{id:?} says {} is lent, the slices {of_slices}", used.lent.nano())
        })?;
        let expected = held.remove(id).unwrap_or_default();
        ensure(nano(used.held) == expected, || {
            format!("{id:?} says {} is held, holds and slices {expected}", used.held.nano())
        })?;
    }
    held.retain(|_, amount| *amount > 0);
    ensure(held.is_empty(), || format!("no record of {held:?}"))?;
    account.windows.iter().try_for_each(|(id, used)| spent(account, *id, used.spent))
}

/// What is spent in a window is what the lines say that name it; what was given back counts while
/// the window runs.
fn spent(account: &PrepaidAccount, id: WindowId, said: Money) -> Result<(), String> {
    let named = account.journal.iter().filter(|line| line.windows.contains(&id));
    let of_line = |line: &JournalRecord| match line.kind {
        RecordKind::Charge => nano(line.amount),
        RecordKind::Correction(_) if !id.is_over(line.posted_at) => -nano(line.amount),
        RecordKind::Correction(_) | RecordKind::Expiry(_) => 0,
    };
    let sum: i128 = named.map(of_line).sum();
    ensure(sum == nano(said), || format!("{said} is spent in {id:?}, the lines say {sum}"))
}

/// Whoever is in has a place: open holds, and allotments with their slices.
fn places(account: &PrepaidAccount) -> Result<(), String> {
    let mut taken: BTreeMap<RateId, i64> = BTreeMap::new();
    for hold in account.holds.values() {
        if matches!(hold.state, DirectHoldState::Open { .. }) {
            for ask in &hold.rates {
                *taken.entry(ask.id).or_default() += ask.amount;
            }
        }
    }
    for (id, slice) in account.allotments.values().flat_map(|allotment| &allotment.rates) {
        *taken.entry(*id).or_default() += slice;
    }
    let places = account.rates.iter().filter(|(id, _)| id.kind == RateKind::Calls);
    for (id, bucket) in places {
        let expected = taken.get(id).copied().unwrap_or_default();
        ensure(bucket.level == expected * 60_000, || {
            format!("{id:?} has {bucket:?}, and {expected} places are taken")
        })?;
    }
    let is_empty = |bucket: &RateBucket| bucket.level < 0;
    ensure(!account.rates.values().any(is_empty), || "a bucket is below nothing".to_owned())
}

/// What the journal and the transfers say must be what the balances say.
fn journal(account: &PrepaidAccount) -> Result<(), String> {
    let (mut credit, mut posted, mut lost) = (0i128, 0i128, 0i128);
    for transfer in account.transfers.values() {
        let moved = nano(transfer.moved.unwrap_or_default());
        match transfer.kind {
            TransferKind::Payment | TransferKind::Grant(_) => credit += moved,
            TransferKind::Take => credit -= moved,
            TransferKind::Correction(_) => {}
        }
    }
    let mut before = (0, 0);
    let mut left: BTreeMap<&str, i128> = BTreeMap::new();
    for line in &account.journal {
        ensure(line.seq == before.0 + 1, || format!("line {} follows {}", line.seq, before.0))?;
        ensure(line.posted_at >= before.1, || format!("line {} goes back in time", line.seq))?;
        before = (line.seq, line.posted_at);
        let of_call = left.entry(&line.request).or_default();
        match line.kind {
            RecordKind::Charge => {
                posted += nano(line.amount);
                lost += nano(line.written_off);
                *of_call += nano(line.amount);
            }
            RecordKind::Correction(_) => {
                posted -= nano(line.amount);
                lost -= nano(line.written_off);
                *of_call -= nano(line.amount);
            }
            RecordKind::Expiry(_) => credit -= nano(line.amount),
        }
        let left = *of_call;
        ensure(left >= 0, || format!("more was given back of {} than charged", line.request))?;
        let paid = nano(line.lots.total().map_err(|why| why.to_string())?);
        ensure(paid == nano(line.amount) - nano(line.written_off), || {
            format!("the lots of line {} are not what was paid", line.seq)
        })?;
    }
    let balances = account.head.balances;
    let told = (nano(balances.credit), nano(balances.posted), nano(balances.written_off));
    ensure(told == (credit, posted, lost), || {
        format!("the journal says C {credit} P {posted} W {lost}, the balances {balances:?}")
    })
}
