//! The leases that this process renews: of the holds of running calls, and of their idempotency
//! keys. A lease that is no longer renewed, by intent or after a crash, expires.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::account_name::AccountName;
use super::operation::{HoldRequest, Operation};
use crate::fast_map::FastMap;
use crate::money::Money;

/// The number of shards of the lease table, so that calls seldom wait for the lock of each other.
const SHARDS: usize = 16;

/// What a lease is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeasedItem {
    /// The hold of a call.
    Hold {
        /// The amounts and the time with which the hold was requested.
        origin: HoldRequest,
        /// The amount that is held now.
        held: Money,
        /// Whether it is held in the memory of this process, out of an allotment.
        is_in_memory: bool,
    },
    /// The idempotency key of a call.
    Name {
        /// The id of the call that claimed the key.
        owner: String,
        /// The digest of the call's content.
        content: [u8; 32],
        /// How long the key is remembered, in ms.
        life_ms: u64,
    },
}

/// A lease of an account that this process renews.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseEntry {
    /// The account.
    pub account: AccountName,
    /// The id of the hold, or the idempotency key.
    pub id: String,
    /// What the lease is for.
    pub item: LeasedItem,
}

impl LeaseEntry {
    /// Returns the operations that restore a hold, in its present size, after a store has lost it;
    /// empty for an idempotency key, and for a hold that is not in the store.
    #[must_use]
    pub fn restore_operations(&self, lease_ms: u64) -> Vec<Operation> {
        let LeasedItem::Hold { origin, held, is_in_memory: false } = self.item else {
            return Vec::new();
        };
        let HoldRequest { wanted, least, key, .. } = origin;
        // What the call took of rate limits is lost with the buckets.
        let (id, rates) = (self.id.clone(), Vec::new());
        let hold = Operation::Hold { id, wanted, least, lease_ms, key, rates };
        vec![hold, Operation::Extend { id: self.id.clone(), wanted: held }]
    }
}

/// For each account and id, the serial number of the [`Lease`] that keeps it alive, and the item.
type LeaseShard = FastMap<(AccountName, String), (u64, LeasedItem)>;

/// All leases that this process renews.
#[derive(Debug, Clone, Default)]
pub struct Leases(Arc<LeaseTable>);

#[derive(Debug, Default)]
struct LeaseTable {
    shards: [Mutex<LeaseShard>; SHARDS],
    next_serial: AtomicU64,
}

/// Keeps one lease alive until it is dropped.
#[derive(Debug)]
#[must_use = "a lease that nobody keeps runs out"]
pub struct Lease {
    leases: Leases,
    key: (AccountName, String),
    serial: u64,
}

impl Leases {
    /// Adds a lease. If another call of this process had the same idempotency key, the key belongs
    /// to the new call from now on.
    pub fn keep_alive(&self, LeaseEntry { account, id, item }: LeaseEntry) -> Lease {
        let key = (account, id);
        let serial = self.0.next_serial.fetch_add(1, Ordering::Relaxed);
        lock(self.shard(&key.1)).insert(key.clone(), (serial, item));
        Lease { leases: self.clone(), key, serial }
    }

    /// Returns all leases that are to be renewed now.
    #[must_use]
    pub fn entries(&self) -> Vec<LeaseEntry> {
        let entries_of = |shard: &Mutex<LeaseShard>| {
            let kept = lock(shard).clone();
            kept.into_iter().map(|((account, id), (_, item))| LeaseEntry { account, id, item })
        };
        self.0.shards.iter().flat_map(entries_of).collect()
    }

    /// Whether there is a lease of this id.
    #[must_use]
    pub(crate) fn contains(&self, account: &AccountName, id: &str) -> bool {
        let key = (account.clone(), id.to_owned());
        lock(self.shard(id)).contains_key(&key)
    }

    fn shard(&self, id: &str) -> &Mutex<LeaseShard> {
        // The end of an id is random, so it spreads ids evenly.
        let end = id.bytes().rev().take(4).fold(0, |sum, byte| sum * 31 + usize::from(byte));
        &self.0.shards[end % SHARDS]
    }
}

impl Lease {
    /// Records the amount that the hold of this lease holds now.
    pub(crate) fn set_held(&self, amount: Money) {
        if let Some((number, LeasedItem::Hold { held, .. })) =
            lock(self.leases.shard(&self.key.1)).get_mut(&self.key)
            && *number == self.serial
        {
            *held = amount;
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut shard = lock(self.leases.shard(&self.key.1));
        if shard.get(&self.key).is_some_and(|(number, _)| *number == self.serial) {
            shard.remove(&self.key);
        }
    }
}

fn lock(shard: &Mutex<LeaseShard>) -> std::sync::MutexGuard<'_, LeaseShard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::ledger::KeyId;

    #[test]
    fn a_call_that_lost_its_name_to_another_one_took_that_ones_lease_along() {
        let leases = Leases::default();
        let keep = |owner: &str| {
            let account = AccountName::parse("a").expect("a name");
            let kept = LeasedItem::Name { owner: owner.to_owned(), content: [1; 32], life_ms: 9 };
            leases.keep_alive(LeaseEntry { account, id: "name".to_owned(), item: kept })
        };
        let owner = |entry: LeaseEntry| match entry.item {
            LeasedItem::Name { owner, .. } => owner,
            LeasedItem::Hold { .. } => String::new(),
        };
        let owners = || leases.entries().into_iter().map(owner).collect::<Vec<_>>();
        let (first, second) = (keep("first"), keep("second"));
        drop(first);
        assert_eq!(owners(), ["second"]);
        drop(second);
        assert!(owners().is_empty());
    }

    #[test]
    fn a_lease_is_kept_until_it_is_dropped_and_knows_what_it_holds_now() {
        let leases = Leases::default();
        let account = AccountName::parse("a").expect("a name");
        let nano = |n| Money::from_nano(n).expect("money");
        let origin = HoldRequest { wanted: nano(9), least: nano(1), at: 0, key: Some(KeyId(3)) };
        let kept = LeasedItem::Hold { origin, held: nano(4), is_in_memory: false };
        let lease = leases.keep_alive(LeaseEntry {
            account: account.clone(),
            id: "h".to_owned(),
            item: kept,
        });
        lease.set_held(nano(7));
        let all = leases.entries();
        assert_eq!(
            all.iter().flat_map(|entry| entry.restore_operations(5)).collect::<Vec<_>>(),
            [
                Operation::Hold {
                    id: "h".to_owned(),
                    wanted: nano(9),
                    least: nano(1),
                    lease_ms: 5,
                    key: Some(KeyId(3)),
                    rates: Vec::new(),
                },
                Operation::Extend { id: "h".to_owned(), wanted: nano(7) },
            ]
        );
        drop(lease);
        assert!(leases.entries().is_empty());
        let kept = LeasedItem::Hold { origin, held: nano(4), is_in_memory: true };
        let entry = LeaseEntry { account, id: "h".to_owned(), item: kept };
        assert_eq!(entry.restore_operations(5), [], "the store never had it");
    }

    #[test]
    fn ids_are_spread_over_all_parts_by_how_they_end() {
        let leases = Leases::default();
        let place = |id: &str| std::ptr::from_ref(leases.shard(id));
        let used: HashSet<_> = (0..256).map(|n| place(&format!("0192ac5e-{n:02x}"))).collect();
        assert_eq!(used.len(), SHARDS);
        assert_ne!(place("ab"), place("ba"), "it matters in which order");
        assert_eq!(place("0192ac5e-0007"), place("7fffffff-0007"), "they begin alike");
    }

    #[test]
    fn leases_of_many_are_kept_apart_and_each_ends_with_its_own() {
        let leases = Leases::default();
        let nano = |n| Money::from_nano(n).expect("money");
        let keep = |account: &str, id: String| {
            let account = AccountName::parse(account).expect("a name");
            let origin = HoldRequest { wanted: nano(9), least: nano(1), at: 0, key: None };
            leases.keep_alive(LeaseEntry {
                account,
                id,
                item: LeasedItem::Hold { origin, held: nano(0), is_in_memory: false },
            })
        };
        let (mut ada, bob) = ((0..50).map(|n| keep("ada", format!("h{n:03}"))), "bob");
        let first = ada.next().expect("a lease");
        let (others, same_id) = (ada.collect::<Vec<_>>(), keep(bob, "h000".to_owned()));
        first.set_held(nano(5));
        let held = |wanted: i64| {
            let all = leases.entries().into_iter();
            let such = all.filter(
                |e| matches!(e.item, LeasedItem::Hold { held, .. } if held.nano() == wanted),
            );
            such.map(|entry| (entry.account.to_string(), entry.id)).collect::<Vec<_>>()
        };
        assert_eq!(held(5), [("ada".to_owned(), "h000".to_owned())]);
        assert_eq!(held(0).len(), 50);
        drop(first);
        assert_eq!((held(5).len(), held(0).len()), (0, 50));
        drop(others);
        assert_eq!(held(0), [("bob".to_owned(), "h000".to_owned())]);
        drop(same_id);
        assert!(leases.entries().is_empty());
    }
}
