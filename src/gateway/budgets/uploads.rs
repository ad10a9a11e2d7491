//! Limits the memory of uploads, which are as large as all other calls together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use crate::gateway::budgets::tenants::{
    BudgetPermit, Resource, ResourcePool, Tenant, TenantBudget, TenantShare,
};
use crate::gateway::limits::Limits;

/// A form has at most this many bytes besides its file.
pub(crate) const FORM_FIELDS_BYTES_MAX: usize = 1 << 20;

/// The bytes of one unit in which memory is counted.
pub(crate) const UNIT_BYTES: usize = 1 << 10;

/// An upload takes memory in steps of this many units.
pub(crate) const STEP_UNITS: u32 = 256;

pub(crate) const STEP_BYTES: usize = STEP_UNITS as usize * UNIT_BYTES;

/// An account that holds at most this many bytes does not wait only to leave memory for new
/// accounts.
pub(crate) const ACCOUNT_BYTES_MIN: usize = 4 << 20;

/// An upload that waits for the share of its account tries again at least this often.
pub(crate) const SHARE_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A body of at most this many bytes is not counted: every request may use that much.
pub(crate) const UNCOUNTED_BYTES_MAX: usize = 64 << 10;

/// The memory for uploads, of which a part is reserved.
#[derive(Debug)]
pub(crate) struct UploadBudget {
    semaphore: Arc<Semaphore>,
    /// The reserve, which is enough for the largest upload. One upload at a time may lock it.
    reserved: Arc<Mutex<()>>,
    waiting: AtomicUsize,
    shares: TenantBudget,
}

/// The memory that an upload holds, until this permit is dropped.
#[derive(Debug)]
pub(crate) struct UploadPermit {
    semaphore_permit: Option<OwnedSemaphorePermit>,
    reserved: Option<OwnedMutexGuard<()>>,
    /// Counts the same memory, without the reserve, against the share of the account.
    share: BudgetPermit,
}

impl UploadBudget {
    /// Creates a budget of `bytes_max` bytes in total. Of these, `one_bytes_max`, the size of the
    /// largest upload, are reserved. An account may hold up to `account_bytes_max` of the rest; 0
    /// for no bound.
    #[must_use]
    pub(crate) fn new(
        bytes_max: usize,
        one_bytes_max: usize,
        account_bytes_max: usize,
    ) -> UploadBudget {
        let units = bytes_max.saturating_sub(one_bytes_max) / UNIT_BYTES;
        let semaphore = Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS)));
        let pool = ResourcePool::new(units.saturating_mul(UNIT_BYTES));
        let share = TenantShare { max: account_bytes_max, min: ACCOUNT_BYTES_MIN };
        let shares = TenantBudget::new(Resource::UploadBytes, &pool, share);
        UploadBudget { semaphore, reserved: Arc::default(), waiting: AtomicUsize::new(0), shares }
    }

    /// Returns a permit that holds nothing yet, for an upload that begins.
    pub(crate) fn empty_permit(&self, tenant: &Arc<Tenant>) -> UploadPermit {
        UploadPermit { semaphore_permit: None, reserved: None, share: self.shares.permit(tenant) }
    }

    /// Waits for a step of memory: first in the share of the account, then in the memory for all.
    async fn acquire_step(&self, share: &mut BudgetPermit) -> Option<OwnedSemaphorePermit> {
        while share.grow(STEP_BYTES).is_err() {
            share.pool().wait_for_release(SHARE_POLL_INTERVAL).await;
        }
        self.semaphore.clone().acquire_many_owned(STEP_UNITS).await.ok()
    }

    /// Waits for the reserve.
    async fn acquire_reserved(&self) -> OwnedMutexGuard<()> {
        let _waiting = UploadWaiter::register(&self.waiting);
        self.reserved.clone().lock_owned().await
    }

    fn try_acquire_step(&self, share: &mut BudgetPermit) -> Option<OwnedSemaphorePermit> {
        share.grow(STEP_BYTES).ok()?;
        let step = self.semaphore.clone().try_acquire_many_owned(STEP_UNITS).ok();
        if step.is_none() {
            share.shrink(STEP_BYTES);
        }
        step
    }

    /// Whether an upload waits for memory.
    #[must_use]
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

impl UploadPermit {
    fn units(&self) -> usize {
        self.semaphore_permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }

    /// Whether `bytes` fit into the memory that was taken.
    pub(crate) fn covers(&self, bytes: usize) -> bool {
        bytes <= UNCOUNTED_BYTES_MAX
            || self.reserved.is_some()
            || self.units() >= bytes.div_ceil(UNIT_BYTES)
    }

    /// Waits for one more step of memory, or for the reserve if it is free first.
    pub(crate) async fn acquire_more(&mut self, uploads: &UploadBudget) {
        let step = if let Some(step) = uploads.try_acquire_step(&mut self.share) {
            step
        } else {
            let tenant = self.share.tenant().clone();
            let _guard = tenant.upload_wait_lock.lock().await;
            tokio::select! {
                biased;
                Some(step) = uploads.acquire_step(&mut self.share) => step,
                reserve_guard = uploads.acquire_reserved() => {
                    // The reserve is enough for the whole upload, so its other memory is released.
                    self.semaphore_permit = None;
                    self.reserved = Some(reserve_guard);
                    self.share.shrink(self.share.held());
                    return;
                }
            }
        };
        match &mut self.semaphore_permit {
            Some(taken) => taken.merge(step),
            None => self.semaphore_permit = Some(step),
        }
    }

    /// Releases the memory that an upload of `bytes` bytes does not need. Also exchanges the
    /// reserve for other memory, if enough is free now.
    pub(crate) fn release_surplus(&mut self, bytes: usize, uploads: &UploadBudget) {
        let needed = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
        if self.reserved.is_some() && self.share.grow(needed as usize * UNIT_BYTES).is_ok() {
            self.semaphore_permit = uploads.semaphore.clone().try_acquire_many_owned(needed).ok();
            if self.semaphore_permit.is_some() {
                self.reserved = None;
            }
        }
        let surplus = self.units().saturating_sub(bytes.div_ceil(UNIT_BYTES));
        drop(self.semaphore_permit.as_mut().and_then(|taken| taken.split(surplus)));
        let unused = self.share.held().saturating_sub(self.units() * UNIT_BYTES);
        self.share.shrink(unused);
    }
}

/// Creates the budget that the configuration sets.
pub(crate) fn upload_budget(limits: &Limits) -> UploadBudget {
    let one = limits.image_bytes_max.saturating_add(FORM_FIELDS_BYTES_MAX);
    UploadBudget::new(limits.uploads_bytes_max, one, limits.uploads_per_account_bytes_max)
}

/// Counts an upload that waits for the reserve, until this is dropped.
pub(crate) struct UploadWaiter<'a>(&'a AtomicUsize);

impl UploadWaiter<'_> {
    fn register(count: &AtomicUsize) -> UploadWaiter<'_> {
        count.fetch_add(1, Ordering::Relaxed);
        UploadWaiter(count)
    }
}

impl Drop for UploadWaiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::gateway::budgets::tenants::TenantId;
    use crate::gateway::budgets::tenants::TenantTable;
    use crate::ledger::AccountName;

    fn tenant(name: &str) -> Arc<Tenant> {
        let table: Arc<TenantTable> = Arc::default();
        table.tenant(TenantId::Account(AccountName::parse(name).expect("a name")))
    }

    /// Returns the permit of an upload that has taken this many steps.
    async fn permit(uploads: &UploadBudget, steps: usize) -> UploadPermit {
        permit_of(uploads, &tenant("one"), steps).await
    }

    async fn permit_of(uploads: &UploadBudget, tenant: &Arc<Tenant>, steps: usize) -> UploadPermit {
        let mut permit = uploads.empty_permit(tenant);
        for _ in 0..steps {
            permit.acquire_more(uploads).await;
        }
        permit
    }

    #[tokio::test]
    async fn who_finds_no_room_gets_what_is_set_apart_and_the_next_waits() {
        let uploads = UploadBudget::new(10 * STEP_BYTES, 6 * STEP_BYTES, 0);
        let first = permit(&uploads, 4).await;
        assert!(first.covers(4 * STEP_BYTES) && !first.covers(4 * STEP_BYTES + 1));
        let mut second = permit(&uploads, 1).await;
        assert!(second.covers(6 * STEP_BYTES) && second.units() == 0);
        second.release_surplus(STEP_BYTES, &uploads);
        assert!(second.reserved.is_some(), "there is no other room");
        let mut third = Box::pin(permit(&uploads, 2));
        assert!(third.as_mut().now_or_never().is_none());
        assert!(uploads.has_waiters());
        drop(first);
        let third = third.await;
        assert!(!uploads.has_waiters());
        assert!(third.covers(2 * STEP_BYTES) && third.reserved.is_none());
        second.release_surplus(STEP_BYTES, &uploads);
        assert!(second.reserved.is_none() && second.units() == STEP_UNITS as usize);
        drop((second, third));
        assert_eq!(uploads.semaphore.available_permits(), 4 * STEP_UNITS as usize);
        assert!(uploads.reserved.try_lock().is_ok());
    }

    /// Two uploads that together hold all memory, and need more, must not wait for each other.
    #[tokio::test]
    async fn uploads_that_share_the_room_can_all_end() {
        let uploads = UploadBudget::new(8 * STEP_BYTES, 6 * STEP_BYTES, 0);
        let [mut one, mut other] = [permit(&uploads, 1).await, permit(&uploads, 1).await];
        one.acquire_more(&uploads).await;
        assert!(one.covers(6 * STEP_BYTES) && one.units() == 0);
        other.acquire_more(&uploads).await;
        assert!(other.covers(2 * STEP_BYTES) && other.reserved.is_none());
    }

    #[tokio::test]
    async fn what_is_not_needed_goes_back() {
        let uploads = UploadBudget::new(10 * STEP_BYTES, 6 * STEP_BYTES, 0);
        let mut permit = permit(&uploads, 3).await;
        permit.release_surplus(STEP_BYTES + 1, &uploads);
        assert_eq!(permit.units(), STEP_UNITS as usize + 1);
        permit.release_surplus(10 * STEP_BYTES, &uploads);
        permit.release_surplus(0, &uploads);
        assert_eq!(permit.units(), 0);
        assert!(permit.covers(UNCOUNTED_BYTES_MAX) && !permit.covers(UNCOUNTED_BYTES_MAX + 1));
    }

    /// However many uploads an account has, an upload of another account waits behind one of them.
    #[tokio::test]
    async fn one_account_with_many_uploads_leaves_room_to_others() {
        let most = ACCOUNT_BYTES_MIN / STEP_BYTES;
        let uploads =
            UploadBudget::new((2 * most + 6) * STEP_BYTES, 6 * STEP_BYTES, ACCOUNT_BYTES_MIN);
        let (greedy, other) = (tenant("greedy"), tenant("other"));
        let first = permit_of(&uploads, &greedy, most).await;
        let with_reserve = permit_of(&uploads, &greedy, 1).await;
        assert!(first.reserved.is_none() && with_reserve.reserved.is_some());
        let mut waiting: Vec<_> =
            (0..9).map(|_| Box::pin(permit_of(&uploads, &greedy, 1))).collect();
        for upload in &mut waiting {
            assert!(upload.as_mut().now_or_never().is_none(), "its account has its share");
        }
        assert_eq!(uploads.waiting.load(Ordering::Relaxed), 1);
        let small = permit_of(&uploads, &other, most).now_or_never();
        let small = small.expect("there is room for who has little");
        let mut large = Box::pin(permit_of(&uploads, &other, 1));
        assert!(large.as_mut().now_or_never().is_none());
        drop(with_reserve);
        let next = waiting[0].as_mut().now_or_never().expect("it is its turn");
        assert!(next.reserved.is_some());
        assert!(waiting[1].as_mut().now_or_never().is_none());
        drop(next);
        let large = large.now_or_never().expect("it is the next, before the rest of the others");
        assert!(large.reserved.is_some());
        assert!(waiting[1].as_mut().now_or_never().is_none());
        drop((first, small, large));
    }
}
