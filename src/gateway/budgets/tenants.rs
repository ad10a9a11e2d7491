//! Budgets of resources that tenants share: requests in flight, bytes of bodies, bytes of answers.
//!
//! A tenant is an account or, before the API key of a request is known, an address. Each resource
//! has a pool with a limit for all tenants together, and a fixed limit for each tenant. In
//! addition, a tenant may hold at most as much as is still free in the pool, in the way in which
//! the ports of a network switch share its buffer memory. An eighth of the pool is reserved for
//! tenants that hold little. So a tenant that is alone gets half of the rest. A new tenant finds
//! room, however many tenants take as much as they can, one after the other.
//!
//! ```text
//! let pool = ResourcePool::new(bytes_max);
//! let budget = TenantBudget::new(Resource::AnswerBytes, &pool, TenantShare { max, min });
//! let mut permit = budget.permit(&tenant);    // holds nothing yet
//! permit.grow(piece.len())?;                  // Err(OverBudget): nothing was taken
//! permit.shrink(written);                     // releases a part; the drop releases the rest
//! ```

use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, Semaphore};

use crate::fast_map::{FastMap, HashKeys};
use crate::ledger::{AccountName, Balances};

/// One part in this many of a pool is reserved for tenants that hold little.
const RESERVE_DIVISOR: usize = 8;
/// The table of tenants is split into this many shards, each with its own lock.
const SHARDS: usize = 16;

/// A resource that tenants share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resource {
    /// Requests in flight.
    Requests,
    /// Bytes of request bodies in memory, except for uploads.
    BodyBytes,
    /// Bytes of uploads in memory.
    UploadBytes,
    /// Bytes of answers that are buffered until they are written to the client.
    AnswerBytes,
    /// Answers that may exceed the limits of `AnswerBytes`.
    ExtraAnswers,
    /// Bytes for which answers wait.
    AwaitedAnswerBytes,
    /// Images in the making.
    Images,
    /// Bytes of replies that are recorded for clients that repeat their calls.
    ReplyBytes,
}

const RESOURCES: usize = 8;

/// The identity of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum TenantId {
    /// The account that owns a known API key.
    Account(AccountName),
    /// The [network](crate::gateway::edge::connection_limits::client_network) of a client whose API
    /// key is not known yet.
    Address(IpAddr),
}

/// A tenant, with how much of each resource it uses at the moment. It is removed from its table
/// when the last reference to it is dropped.
#[derive(Debug)]
pub(crate) struct Tenant {
    id: TenantId,
    used: [AtomicUsize; RESOURCES],
    /// Only one upload of the tenant at a time waits for memory, while it locks this; see
    /// [`uploads`](crate::gateway::request::uploads).
    pub(crate) upload_wait_lock: tokio::sync::Mutex<()>,
    /// The balances of the account as they were read last, and when.
    balances: Mutex<Option<(Instant, Balances)>>,
    /// Only one call of the tenant at a time has its tokens counted. Made for the first of them.
    count_turn: OnceLock<Arc<Semaphore>>,
    table: Weak<TenantTable>,
}

impl Tenant {
    /// Returns how much of a resource the tenant uses.
    #[must_use]
    pub(crate) fn used(&self, resource: Resource) -> usize {
        self.counter(resource).load(Ordering::Relaxed)
    }

    /// Returns the balances of the account, if they were read at most `age_max` ago.
    #[must_use]
    pub(crate) fn recent_balances(&self, age_max: Duration) -> Option<Balances> {
        let (at, balances) = (*self.balances.lock().unwrap_or_else(PoisonError::into_inner))?;
        (at.elapsed() <= age_max).then_some(balances)
    }

    /// Keeps the balances of the account, which were read just now.
    pub(crate) fn keep_balances(&self, balances: Balances) {
        let mut kept = self.balances.lock().unwrap_or_else(PoisonError::into_inner);
        *kept = Some((Instant::now(), balances));
    }

    /// Returns the permit to have a call's tokens counted.
    pub(crate) fn count_turn(&self) -> Arc<Semaphore> {
        self.count_turn.get_or_init(|| Arc::new(Semaphore::new(1))).clone()
    }

    fn counter(&self, resource: Resource) -> &AtomicUsize {
        &self.used[resource as usize]
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        if let Some(table) = self.table.upgrade() {
            table.remove_dropped(&self.id);
        }
    }
}

type Shard = Mutex<FastMap<TenantId, Weak<Tenant>>>;

/// All tenants that use a resource at the moment. Idle tenants are not in the table.
#[derive(Debug, Default)]
pub(crate) struct TenantTable {
    shards: [Shard; SHARDS],
    hash_keys: HashKeys,
}

impl TenantTable {
    /// Returns the tenant with an id. As long as a reference to it exists, all callers get the same
    /// one.
    #[must_use]
    pub(crate) fn tenant(self: &Arc<TenantTable>, id: TenantId) -> Arc<Tenant> {
        let mut shard = self.shard(&id).lock().unwrap_or_else(PoisonError::into_inner);
        let known = shard.entry(id.clone()).or_default();
        if let Some(tenant) = known.upgrade() {
            return tenant;
        }
        let table = Arc::downgrade(self);
        let (used, upload_wait_lock, balances) = Default::default();
        let tenant = Arc::new(Tenant {
            id,
            used,
            upload_wait_lock,
            balances,
            count_turn: OnceLock::new(),
            table,
        });
        *known = Arc::downgrade(&tenant);
        tenant
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        let length = |shard: &Shard| shard.lock().unwrap_or_else(PoisonError::into_inner).len();
        self.shards.iter().map(length).sum()
    }

    fn shard(&self, id: &TenantId) -> &Shard {
        let hash = self.hash_keys.hash_one(id);
        &self.shards[usize::try_from(hash % SHARDS as u64).unwrap_or_default()]
    }

    /// Removes a tenant whose last reference was dropped, unless a new tenant with this id has
    /// replaced it meanwhile.
    fn remove_dropped(&self, id: &TenantId) {
        let mut shard = self.shard(id).lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(known) = shard.entry(id.clone())
            && known.get().strong_count() == 0
        {
            known.remove();
        }
    }
}

/// The limit of a resource for all tenants together, and how much they use of it.
#[derive(Debug)]
pub(crate) struct ResourcePool {
    used: AtomicUsize,
    /// 0 for no bound.
    max: usize,
    waiting: AtomicUsize,
    freed: Notify,
}

impl ResourcePool {
    /// Creates a pool of which nothing is used; 0 for no bound.
    #[must_use]
    pub(crate) fn new(max: usize) -> Arc<ResourcePool> {
        let [used, waiting] = [0; 2].map(AtomicUsize::new);
        Arc::new(ResourcePool { used, max, waiting, freed: Notify::new() })
    }

    /// Returns how much of the pool is used.
    #[must_use]
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Waits until an amount is released, at most for `wait`. Another task may take the released
    /// amount first.
    pub(crate) async fn wait_for_release(&self, wait: Duration) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _waiting = WaitGuard(&self.waiting);
        let _ = tokio::time::timeout(wait, self.freed.notified()).await;
    }

    fn release(&self, amount: usize) {
        if amount > 0 {
            self.used.fetch_sub(amount, Ordering::SeqCst);
            if self.waiting.load(Ordering::SeqCst) > 0 {
                self.freed.notify_one();
            }
        }
    }
}

struct WaitGuard<'a>(&'a AtomicUsize);

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// How much of a pool one tenant may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TenantShare {
    /// The most that a tenant may hold; 0 for no limit of a single tenant at all.
    pub max: usize,
    /// Up to this amount only the limit of the pool applies, so a tenant that uses little is not
    /// refused because many tenants use little each.
    pub min: usize,
}

/// The limit that keeps a permit from growing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OverBudget {
    /// The tenant would hold more than its share.
    Tenant,
    /// All tenants together would hold more than the pool has.
    Pool,
}

/// The budget of a resource for one kind of tenant: accounts or addresses. Clones share the pool.
#[derive(Debug, Clone)]
pub(crate) struct TenantBudget {
    resource: Resource,
    pool: Arc<ResourcePool>,
    share: TenantShare,
}

impl TenantBudget {
    /// Creates a budget that gives each tenant a share of `pool`.
    #[must_use]
    pub(crate) fn new(
        resource: Resource,
        pool: &Arc<ResourcePool>,
        share: TenantShare,
    ) -> TenantBudget {
        TenantBudget { resource, pool: pool.clone(), share }
    }

    #[must_use]
    pub(crate) fn pool(&self) -> &Arc<ResourcePool> {
        &self.pool
    }

    /// Returns a permit that holds nothing yet.
    #[must_use]
    pub(crate) fn permit(&self, tenant: &Arc<Tenant>) -> BudgetPermit {
        BudgetPermit { budget: self.clone(), tenant: tenant.clone(), held: 0, pooled: 0 }
    }

    /// Checks whether a tenant could take an amount at the moment, but does not take it.
    ///
    /// # Errors
    /// As for [`BudgetPermit::grow`].
    pub(crate) fn check_room(&self, tenant: &Tenant, amount: usize) -> Result<(), OverBudget> {
        self.check_amount(amount, tenant.used(self.resource), self.pool.used())
    }

    /// Whether a tenant would exceed its fixed limit with `amount` more, whatever other tenants
    /// hold.
    #[must_use]
    pub(crate) fn exceeds_share(&self, tenant: &Tenant, amount: usize) -> bool {
        let own = tenant.used(self.resource).saturating_add(amount);
        self.share.max > 0 && own > self.share.max
    }

    /// Checks whether `amount` more is allowed if the tenant uses `own`, and all tenants use `all`.
    fn check_amount(&self, amount: usize, own: usize, all: usize) -> Result<(), OverBudget> {
        let TenantShare { max, min } = self.share;
        let own = own.saturating_add(amount);
        if max > 0 && own > max {
            return Err(OverBudget::Tenant);
        }
        if self.pool.max == 0 {
            return Ok(());
        }
        let free = self.pool.max.saturating_sub(all);
        let unreserved = free.saturating_sub(self.pool.max / RESERVE_DIVISOR);
        if max > 0 && own > min && own > unreserved {
            return Err(OverBudget::Tenant);
        }
        if amount > free { Err(OverBudget::Pool) } else { Ok(()) }
    }
}

/// The amount of a resource that is held for a tenant, until this permit is dropped.
#[derive(Debug)]
pub(crate) struct BudgetPermit {
    budget: TenantBudget,
    tenant: Arc<Tenant>,
    /// The amount that is counted for the tenant.
    held: usize,
    /// The amount that is counted in the pool.
    pooled: usize,
}

impl BudgetPermit {
    /// Returns the amount that is counted for the tenant.
    #[must_use]
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    #[must_use]
    pub(crate) fn resource(&self) -> Resource {
        self.budget.resource
    }

    /// Returns the pool in which the permit is counted.
    #[must_use]
    pub(crate) fn pool(&self) -> &Arc<ResourcePool> {
        &self.budget.pool
    }

    #[must_use]
    pub(crate) fn tenant(&self) -> &Arc<Tenant> {
        &self.tenant
    }

    /// Takes an amount more.
    ///
    /// # Errors
    /// The tenant or all tenants would hold too much; nothing was taken.
    pub(crate) fn grow(&mut self, amount: usize) -> Result<(), OverBudget> {
        let (pool, own) = (&self.budget.pool, self.tenant.counter(self.budget.resource));
        let all_before = pool.used.fetch_add(amount, Ordering::Relaxed);
        let own_before = own.fetch_add(amount, Ordering::Relaxed);
        if let Err(over) = self.budget.check_amount(amount, own_before, all_before) {
            own.fetch_sub(amount, Ordering::Relaxed);
            // Does not notify waiting tasks: nothing was released, and two waiting tasks would wake
            // each other without end.
            pool.used.fetch_sub(amount, Ordering::Relaxed);
            return Err(over);
        }
        self.held += amount;
        self.pooled += amount;
        Ok(())
    }

    /// Releases an amount, but at most what is held.
    pub(crate) fn shrink(&mut self, amount: usize) {
        let amount = amount.min(self.held);
        self.held -= amount;
        self.tenant.counter(self.budget.resource).fetch_sub(amount, Ordering::Relaxed);
        let from_pool = self.pooled - self.pooled.min(self.held);
        self.pooled -= from_pool;
        self.budget.pool.release(from_pool);
    }

    /// Releases the amount in the pool. The amount still counts for the tenant until the permit is
    /// dropped.
    pub(crate) fn leave_pool(&mut self) {
        self.budget.pool.release(std::mem::take(&mut self.pooled));
    }

    /// Transfers the permit to another tenant, in a budget with the same pool: the permit of an
    /// address becomes that of an account. The count of the pool does not change.
    ///
    /// # Errors
    /// The other tenant would hold too much. The permit is transferred all the same: a request that
    /// is to be refused counts for its account until the refusal is written, and not for other
    /// clients at the address.
    pub(crate) fn transfer(
        &mut self,
        budget: &TenantBudget,
        tenant: &Arc<Tenant>,
    ) -> Result<(), OverBudget> {
        let own = tenant.counter(budget.resource);
        let own_before = own.fetch_add(self.held, Ordering::Relaxed);
        let all_before = budget.pool.used().saturating_sub(self.pooled);
        let checked = budget.check_amount(self.held, own_before, all_before);
        self.tenant.counter(self.budget.resource).fetch_sub(self.held, Ordering::Relaxed);
        (self.budget, self.tenant) = (budget.clone(), tenant.clone());
        checked
    }
}

impl Drop for BudgetPermit {
    fn drop(&mut self) {
        self.tenant.counter(self.budget.resource).fetch_sub(self.held, Ordering::Relaxed);
        self.budget.pool.release(self.pooled);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn account(table: &Arc<TenantTable>, name: &str) -> Arc<Tenant> {
        table.tenant(TenantId::Account(AccountName::parse(name).expect("a name")))
    }

    fn budget(all: usize, max: usize, min: usize) -> TenantBudget {
        let pool = ResourcePool::new(all);
        TenantBudget::new(Resource::AnswerBytes, &pool, TenantShare { max, min })
    }

    /// Takes one unit after the other for a tenant until one is refused.
    fn filled(budget: &TenantBudget, tenant: &Arc<Tenant>) -> (BudgetPermit, OverBudget) {
        let mut permit = budget.permit(tenant);
        loop {
            if let Err(over) = permit.grow(1) {
                return (permit, over);
            }
        }
    }

    #[test]
    fn a_tenant_gets_its_bound_and_what_it_gives_back_again() {
        let (table, budget) = (Arc::default(), budget(100, 10, 0));
        let one = account(&table, "one");
        let (mut permit, over) = filled(&budget, &one);
        assert_eq!((permit.held(), over), (10, OverBudget::Tenant));
        assert!(budget.permit(&one).grow(1).is_err(), "the bound is of all its permits");
        assert!(budget.permit(&account(&table, "two")).grow(10).is_ok());
        permit.shrink(4);
        assert_eq!((one.used(Resource::AnswerBytes), budget.pool().used()), (6, 6));
        assert_eq!(permit.grow(5), Err(OverBudget::Tenant));
        assert_eq!(one.used(Resource::AnswerBytes), 6, "a refused amount is not taken");
        permit.shrink(1_000);
        drop(permit);
        assert_eq!((one.used(Resource::AnswerBytes), budget.pool().used()), (0, 0));
        assert_eq!(one.used(Resource::Requests), 0);
    }

    #[test]
    fn a_few_greedy_tenants_leave_something_to_a_newcomer() {
        let (table, budget) = (Arc::default(), budget(120, 1_000, 0));
        let mut greedy = Vec::new();
        for (number, most) in [(1, 53), (2, 26), (3, 13)] {
            let (permit, over) = filled(&budget, &account(&table, &number.to_string()));
            assert_eq!((permit.held(), over), (most, OverBudget::Tenant));
            greedy.push(permit);
        }
        assert!(budget.permit(&account(&table, "new")).grow(7).is_ok());
    }

    #[test]
    fn who_holds_little_is_refused_only_when_all_is_held() {
        let (table, budget) = (Arc::default(), budget(12, 100, 3));
        let mut held = Vec::new();
        for number in 0..3 {
            let (permit, _) = filled(&budget, &account(&table, &number.to_string()));
            held.push(permit);
        }
        let amounts: Vec<_> = held.iter().map(BudgetPermit::held).collect();
        assert_eq!(amounts, [6, 3, 3]);
        let mut newcomer = budget.permit(&account(&table, "new"));
        assert_eq!(newcomer.grow(1), Err(OverBudget::Pool));
        held.pop();
        assert_eq!(newcomer.grow(3), Ok(()));
    }

    #[test]
    fn accounts_that_took_what_they_could_one_after_the_other_left_nothing_to_newcomers() {
        let (table, budget) = (Arc::default(), budget(8_192, 1_024, 16));
        let greedy: Vec<_> =
            (0..40).map(|n| filled(&budget, &account(&table, &n.to_string())).0).collect();
        assert!(greedy[39].held() >= 16, "{greedy:?}");
        assert!(budget.pool().used() <= 8_192 - 8_192 / 8 + 40 * 16);
        assert!(budget.permit(&account(&table, "new")).grow(16).is_ok());
    }

    #[test]
    fn without_a_bound_of_a_tenant_one_may_hold_all_and_without_any_more_than_that() {
        let (table, unshared) = (Arc::default(), budget(5, 0, 0));
        let one = account(&table, "one");
        let (permit, over) = filled(&unshared, &one);
        assert_eq!((permit.held(), over), (5, OverBudget::Pool));
        assert!(budget(0, 0, 0).permit(&one).grow(usize::MAX >> 1).is_ok());
        assert_eq!(budget(0, 7, 0).permit(&one).grow(8), Err(OverBudget::Tenant));
    }

    #[test]
    fn what_left_the_pool_still_counts_for_its_tenant() {
        let (table, budget) = (Arc::default(), budget(10, 2, 0));
        let one = account(&table, "one");
        let (mut permit, _) = filled(&budget, &one);
        permit.leave_pool();
        assert_eq!((budget.pool().used(), one.used(Resource::AnswerBytes)), (0, 2));
        assert_eq!(budget.permit(&one).grow(1), Err(OverBudget::Tenant));
        permit.shrink(1);
        assert!(budget.permit(&one).grow(1).is_ok());
        drop(permit);
        assert_eq!((budget.pool().used(), one.used(Resource::AnswerBytes)), (0, 0));
    }

    #[test]
    fn the_place_of_an_address_becomes_that_of_an_account() {
        let table: Arc<TenantTable> = Arc::default();
        let pool = ResourcePool::new(10);
        let share = |max| TenantShare { max, min: 0 };
        let by_address = TenantBudget::new(Resource::Requests, &pool, share(1));
        let by_account = TenantBudget::new(Resource::Requests, &pool, share(2));
        let address = table.tenant(TenantId::Address([10, 0, 0, 1].into()));
        let one = account(&table, "one");
        let mut places = Vec::new();
        for _ in 0..2 {
            let mut place = by_address.permit(&address);
            place.grow(1).expect("the last one has gone on");
            place.transfer(&by_account, &one).expect("a place of the account");
            places.push(place);
        }
        let mut third = by_address.permit(&address);
        third.grow(1).expect("a place of the address");
        assert_eq!(third.transfer(&by_account, &one), Err(OverBudget::Tenant));
        assert_eq!((address.used(Resource::Requests), one.used(Resource::Requests)), (0, 3));
        assert_eq!(pool.used(), 3);
        drop((places, third));
        assert_eq!((address.used(Resource::Requests), one.used(Resource::Requests)), (0, 0));
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn idle_tenants_are_forgotten_and_busy_ones_are_the_same() {
        let (table, budget) = (Arc::default(), budget(10, 10, 0));
        let permit = budget.permit(&account(&table, "one"));
        assert!(Arc::ptr_eq(permit.tenant(), &account(&table, "one")));
        drop(account(&table, "two"));
        assert_eq!(table.count(), 1);
        drop(permit);
        assert_eq!(table.count(), 0);
    }

    #[tokio::test]
    async fn who_waits_is_told_of_what_is_given_back() {
        let (table, budget) = (Arc::default(), budget(1, 10, 1));
        let (permit, _) = filled(&budget, &account(&table, "one"));
        let long = Duration::from_secs(600);
        let waiting = budget.pool().wait_for_release(long);
        let releasing = async {
            tokio::task::yield_now().await;
            drop(permit);
        };
        let both = async { tokio::join!(waiting, releasing) };
        tokio::time::timeout(Duration::from_secs(20), both).await.expect("it was told");
        assert_eq!(budget.pool().waiting.load(Ordering::Relaxed), 0);
        let (permit, _) = filled(&budget, &account(&table, "one"));
        let mut waiting = std::pin::pin!(budget.pool().wait_for_release(long));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(budget.permit(&account(&table, "two")).grow(1).is_err());
        assert!(waiting.now_or_never().is_none(), "nothing was given back");
        drop(permit);
        assert!(budget.permit(&account(&table, "two")).grow(1).is_ok());
    }
}
