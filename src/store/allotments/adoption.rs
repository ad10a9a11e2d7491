//! Tells the store the ends that ended processes have left, and ends their allotments.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use super::store::AllotmentStore;
use crate::ledger::prepaid::answer::LedgerAnswer;
use crate::ledger::prepaid::records::{AllotmentId, CallEnd};
use crate::ledger::prepaid::update::{AllotmentUpdate, CALLS_MAX};
use crate::ledger::{AccountName, Unavailable};
use crate::metrics::METRICS;
use crate::store::outbox::{AllotmentEnds, EndLog, OrphanedEnds};

/// Locks the folders of ended processes, tells the store their ends, and removes them. Those that
/// belong to another store, or have ends that the store does not accept, go to `kept`, locked.
///
/// # Errors
/// The store does not answer; or a folder cannot be read, which is told after all others were. It
/// may have charges that nobody knows, so whoever asks for those of dead processes has to wait.
pub(super) async fn adopt(
    store: &impl AllotmentStore,
    log: &EndLog,
    kept: &mut Vec<OrphanedEnds>,
) -> Result<(), Unavailable> {
    let found = OrphanedEnds::lock_all(log.root()).map_err(|why| unread(log.root(), &why))?;
    let mut done = Ok(());
    // The lock of this process' own folder may have been deleted.
    for orphan in found.into_iter().filter(|orphan| orphan.run() != log.run()) {
        let read = orphan.store_id().and_then(|of_store| Ok((of_store, orphan.read()?)));
        let (of_store, (left, torn)) = match read {
            Ok(read) => read,
            Err(why) => {
                done = Err(unread(orphan.path(), &why));
                continue;
            }
        };
        if of_store.is_some_and(|id| id != store.store_id()) {
            log::error!(
                event = "outbox_store_mismatch", place:? = orphan.path();
                "outbox has settlements for another store id; they are kept"
            );
            METRICS.outbox_errors.inc();
            kept.push(orphan);
            continue;
        }
        let is_whole = tell_ends(store, left, torn).await?;
        end_allotments(store, orphan.run()).await?;
        store.sync().await?;
        if is_whole {
            orphan.remove();
        } else {
            kept.push(orphan);
        }
    }
    done
}

/// Tells the store ends. Returns whether it has accepted all of them.
async fn tell_ends(
    store: &impl AllotmentStore,
    left: BTreeMap<(AccountName, AllotmentId), AllotmentEnds>,
    torn: usize,
) -> Result<bool, Unavailable> {
    let (mut told, mut is_whole) = (0, true);
    for ((account, id), ends) in left {
        for run in consecutive(ends.ends) {
            told += run.1.len();
            is_whole &= tell_run(store, &account, &id, ends.lent_at, run).await?;
        }
    }
    if told > 0 || torn > 0 {
        log::info!(
            event = "outbox_replay_finished", source = "allotments", entries = told, torn;
            "outbox replay finished"
        );
    }
    Ok(is_whole)
}

/// Divides ends into runs of consecutive numbers, of at most as many as an update may have. Each
/// run has the number of its first end.
fn consecutive(ends: BTreeMap<u64, CallEnd>) -> Vec<(u64, Vec<CallEnd>)> {
    let mut runs: Vec<(u64, Vec<CallEnd>)> = Vec::new();
    for (seq, end) in ends {
        match runs.last_mut() {
            Some((first, run)) if *first + run.len() as u64 == seq && run.len() < CALLS_MAX => {
                run.push(end);
            }
            _ => runs.push((seq, vec![end])),
        }
    }
    runs
}

async fn tell_run(
    store: &impl AllotmentStore,
    account: &AccountName,
    id: &AllotmentId,
    lent_at: i64,
    (first_seq, ends): (u64, Vec<CallEnd>),
) -> Result<bool, Unavailable> {
    let mut update = AllotmentUpdate::replay(id.clone(), lent_at, first_seq, ends);
    let mut answer = store.update_allotment(account, update.clone()).await?;
    if let Some(LedgerAnswer::MissingEnds { .. }) = answer {
        // Their lines are damaged, or were removed since the store had them.
        update.earlier_lost = true;
        answer = store.update_allotment(account, update.clone()).await?;
    }
    match answer {
        Some(LedgerAnswer::AllotmentEnded { .. }) => Ok(true),
        other => {
            log::error!(
                event = "allotment_ends_lost", account = account.as_str(), allotment = id.0,
                ends = update.ends.len(), answer:? = other;
                "ends of an allotment cannot be charged"
            );
            Ok(false)
        }
    }
}

/// Ends the allotments of a gateway that is gone, so that nothing stays held until the leases end.
async fn end_allotments(store: &impl AllotmentStore, run: &str) -> Result<(), Unavailable> {
    for (account, id, lent_at) in store.list_allotments(run).await? {
        let replay = AllotmentUpdate::replay(id, lent_at, 1, Vec::new());
        store.update_allotment(&account, AllotmentUpdate { retires: true, ..replay }).await?;
    }
    Ok(())
}

fn unread(place: &Path, why: &io::Error) -> Unavailable {
    log::error!(
        event = "outbox_read_failed", place:?, error:% = why;
        "outbox read failed"
    );
    METRICS.outbox_errors.inc();
    Unavailable(format!("{}: {why}", place.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::money::Money;

    #[test]
    fn ends_are_told_in_runs_without_a_gap() {
        let end = |call: u64| CallEnd {
            call: call.to_string(),
            key: None,
            held: Money::ZERO,
            charge: None,
            windows: Vec::new(),
            line: String::new(),
        };
        let numbers = (3..=300).chain([302, 303]);
        let runs = consecutive(numbers.map(|seq| (seq, end(seq))).collect());
        let shape: Vec<_> = runs.iter().map(|(first, run)| (*first, run.len())).collect();
        assert_eq!(shape, [(3, 256), (259, 42), (302, 2)]);
        assert!(runs.iter().all(|(first, run)| run[0].call == first.to_string()));
        assert_eq!(consecutive(BTreeMap::new()), []);
    }
}
