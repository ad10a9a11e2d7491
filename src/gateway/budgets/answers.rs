//! Limits the memory of answers that their clients have not read yet, in total and for each
//! account.
//!
//! A short answer is not counted. A longer answer counts with the bytes that are buffered of it. If
//! no memory is left, the answer waits, and meanwhile nothing more of it is read from the vendor.
//! Answers that each hold a part of the memory they need could wait for each other forever. So one
//! answer of each account, and a few in total, may exceed the limits: such an answer can always
//! finish.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::dialect::Endpoint;
use crate::gateway::api_error::{ApiError, CapacityError};
use crate::gateway::budgets::overload::reject;
use crate::gateway::budgets::tenants::{
    BudgetPermit, OverBudget, Resource, ResourcePool, Tenant, TenantBudget, TenantShare,
};
use crate::gateway::limits::Limits;
use crate::metrics::METRICS;

/// A response of which at most this many bytes are buffered is not counted against the budget.
pub(crate) const UNCOUNTED_BYTES_MAX: usize = 64 << 10;
/// The budget counts buffered bytes in steps of this many bytes.
const STEP_BYTES: usize = 64 << 10;
/// Bytes that an image reserves before its vendor is called. An image is expensive, so there should
/// be memory for it once it is made. By default, 256 images of an account may be in the making at a
/// time, as many as vendors make in a minute for their largest customers.
const IMAGE_RESERVED_BYTES: usize = 256 << 10;
/// A call is admitted if its account could take this many bytes. This is more than one step, or
/// else a call could be admitted into the last step that is free.
const ADMIT_BYTES: usize = 4 * STEP_BYTES;
/// An account with at most this many images in the making is not refused because other accounts
/// have many.
const IMAGES_MIN: usize = 4;
/// An account that holds at most this many bytes is not refused because other accounts hold many.
const ACCOUNT_BYTES_MIN: usize = 4 << 20;
/// At most this many answers may exceed the limits at a time.
const EXTRA_ANSWERS_MAX: usize = 4;
/// An answer that waits for memory tries again at least this often.
const BUDGET_POLL_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct AnswerBudget {
    bytes: TenantBudget,
    /// Answers that exceed the limits.
    extra_answers: TenantBudget,
    /// Images in the making. Their reservations use at most half of the memory. The other half is
    /// left for answers that outgrow their reservation; otherwise all images would wait for each
    /// other.
    images: TenantBudget,
    /// Bytes for which answers wait. This budget has no limit; it only counts.
    awaited_bytes: TenantBudget,
    /// An answer that has waited for memory for this time fails, and its vendor is not read any
    /// more.
    wait_max: Duration,
    /// Bytes that one account may hold, at most; 0 for no limit.
    account_bytes_max: usize,
}

/// The part of the budget that one answer holds, until this permit is dropped.
#[derive(Debug, Default)]
pub(crate) struct AnswerPermit {
    bytes: Option<BudgetPermit>,
    extra_answer: Option<BudgetPermit>,
    image: Option<BudgetPermit>,
}

/// There was no memory for an answer in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AnswerBudgetExceeded {
    /// Whether the account's own answers held, or waited for, more than its share.
    pub(crate) is_account_limit: bool,
}

impl AnswerBudget {
    /// Creates the budget that the configuration sets. An answer waits for memory at most for
    /// `wait_max`.
    #[must_use]
    pub(crate) fn new(limits: &Limits, wait_max: Duration) -> AnswerBudget {
        let (all, max) = (limits.answers_bytes_max, limits.answers_per_account_bytes_max);
        let share = TenantShare { max, min: ACCOUNT_BYTES_MIN };
        let bytes = TenantBudget::new(Resource::AnswerBytes, &ResourcePool::new(all), share);
        let one = TenantShare { max: 1, min: 1 };
        let pool = ResourcePool::new(EXTRA_ANSWERS_MAX);
        let extra_answers = TenantBudget::new(Resource::ExtraAnswers, &pool, one);
        let account_bytes_max = if max == 0 || all == 0 { max.max(all) } else { max.min(all) };
        // Rounds up, so that any limit allows one image at least. 0 stays 0, which means no limit.
        let half = |bytes: usize| (bytes / 2).div_ceil(IMAGE_RESERVED_BYTES);
        let share = TenantShare { max: half(account_bytes_max), min: IMAGES_MIN };
        let images = TenantBudget::new(Resource::Images, &ResourcePool::new(half(all)), share);
        let any = TenantShare { max: 0, min: 0 };
        let awaited_bytes =
            TenantBudget::new(Resource::AwaitedAnswerBytes, &ResourcePool::new(0), any);
        AnswerBudget { bytes, extra_answers, images, awaited_bytes, wait_max, account_bytes_max }
    }

    /// Admits a call if memory for its answer is likely to be free. An image reserves memory at
    /// once.
    ///
    /// # Errors
    /// The unread answers of the account, or of all accounts together, leave no memory.
    pub(crate) fn admit(
        &self,
        tenant: &Arc<Tenant>,
        endpoint: Endpoint,
    ) -> Result<AnswerPermit, ApiError> {
        let mut permit = AnswerPermit::default();
        let admitted = match endpoint {
            Endpoint::Images | Endpoint::ImageEdits => {
                permit.image = Some(self.images.permit(tenant));
                permit.bytes = Some(self.bytes.permit(tenant));
                permit.reserve_image(self, tenant)
            }
            _ => match self.bytes.check_room(tenant, ADMIT_BYTES) {
                // The answer may be short, and then needs nothing of the shared pool.
                Err(OverBudget::Pool) => Ok(()),
                other => other,
            },
        };
        match admitted {
            Ok(()) => {
                permit.update_gauge(0);
                Ok(permit)
            }
            Err(OverBudget::Tenant) => {
                METRICS.rejected_or_cut.with_label_values(&["answers"]).inc();
                Err(CapacityError::AnswersUnread.into())
            }
            Err(OverBudget::Pool) => Err(reject("answers")),
        }
    }
}

impl AnswerPermit {
    /// Reserves memory for the `bytes` that are buffered of an answer, and waits if there is not
    /// enough.
    pub(crate) async fn reserve(
        &mut self,
        budget: &AnswerBudget,
        tenant: Option<&Arc<Tenant>>,
        bytes: usize,
    ) -> Result<(), AnswerBudgetExceeded> {
        let Some(tenant) = tenant.filter(|_| bytes > UNCOUNTED_BYTES_MAX) else { return Ok(()) };
        let (began, mut is_account_limit) = (Instant::now(), false);
        let mut awaited_permit = None;
        while let Err(no_room) = self.try_reserve(budget, tenant, bytes) {
            let missing = bytes.saturating_sub(self.reserved_bytes());
            let awaited_permit =
                awaited_permit.get_or_insert_with(|| budget.awaited_bytes.permit(tenant));
            if awaited_permit.held() < missing
                && awaited_permit.grow(missing - awaited_permit.held()).is_err()
            {
                return Err(no_room);
            }
            let awaited_by_other_answers =
                tenant.used(Resource::AwaitedAnswerBytes).saturating_sub(awaited_permit.held());
            // Remembers a true result: the account's other answers that wait now may have given up
            // when this one does.
            is_account_limit |= budget.bytes.exceeds_share(tenant, awaited_by_other_answers);
            if began.elapsed() > budget.wait_max {
                METRICS.rejected_or_cut.with_label_values(&["answers"]).inc();
                return Err(AnswerBudgetExceeded {
                    is_account_limit: is_account_limit || no_room.is_account_limit,
                });
            }
            budget.bytes.pool().wait_for_release(BUDGET_POLL_INTERVAL).await;
        }
        Ok(())
    }

    fn reserved_bytes(&self) -> usize {
        self.bytes.as_ref().map_or(0, BudgetPermit::held)
    }

    /// Reserves memory for the first bytes of an image.
    fn reserve_image(&mut self, budget: &AnswerBudget, tenant: &Tenant) -> Result<(), OverBudget> {
        if budget.images.exceeds_share(tenant, 1) {
            return Err(OverBudget::Tenant);
        }
        let grow = |permit: &mut Option<BudgetPermit>, amount| {
            permit.as_mut().map_or(Ok(()), |permit| permit.grow(amount))
        };
        let grown =
            grow(&mut self.image, 1).and_then(|()| grow(&mut self.bytes, IMAGE_RESERVED_BYTES));
        let is_account_limit = budget.bytes.exceeds_share(tenant, IMAGE_RESERVED_BYTES);
        // Memory that other accounts hold cannot be freed by this account, so it is not its own
        // doing.
        grown.map_err(|_| if is_account_limit { OverBudget::Tenant } else { OverBudget::Pool })
    }

    fn try_reserve(
        &mut self,
        budget: &AnswerBudget,
        tenant: &Arc<Tenant>,
        bytes: usize,
    ) -> Result<(), AnswerBudgetExceeded> {
        let permit = self.bytes.get_or_insert_with(|| budget.bytes.permit(tenant));
        let before = permit.held();
        let missing = bytes.saturating_sub(before);
        if self.extra_answer.is_some() || missing == 0 {
            return Ok(());
        }
        if permit.grow(missing.next_multiple_of(STEP_BYTES)).is_ok() {
            self.update_gauge(before);
            return Ok(());
        }
        let mut extra_answer = budget.extra_answers.permit(tenant);
        if let Err(over) = extra_answer.grow(1) {
            let is_full = budget.bytes.exceeds_share(tenant, missing);
            return Err(AnswerBudgetExceeded {
                is_account_limit: is_full && over == OverBudget::Tenant,
            });
        }
        self.extra_answer = Some(extra_answer);
        Ok(())
    }

    /// Releases the memory that an answer does not need if only `bytes` of it are buffered.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let Some(permit) = &mut self.bytes else { return };
        let before = permit.held();
        let needed = if bytes > UNCOUNTED_BYTES_MAX { bytes } else { 0 };
        permit.shrink(before.saturating_sub(needed));
        let now = permit.held();
        if needed <= now {
            self.extra_answer = None;
        }
        self.update_gauge(before);
    }

    /// Whether the answer is counted against the budget.
    pub(crate) fn is_counted(&self) -> bool {
        self.bytes.is_some()
    }

    /// Whether the answer holds memory while little is left (less than a quarter of what one
    /// account may hold), or exceeds the limits.
    pub(crate) fn is_under_pressure(&self, budget: &AnswerBudget) -> bool {
        let Some(permit) = self.bytes.as_ref().filter(|permit| permit.held() > 0) else {
            return self.extra_answer.is_some();
        };
        self.extra_answer.is_some()
            || budget.bytes.check_room(permit.tenant(), budget.account_bytes_max / 4).is_err()
    }

    /// Updates the metric by the change of the reserved bytes since they were `before`.
    fn update_gauge(&self, before: usize) {
        let now = self.reserved_bytes();
        let [now, before] = [now, before].map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        if now != before {
            METRICS.answer_bytes.add(now - before);
        }
    }
}

impl Drop for AnswerPermit {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::gateway::budgets::tenants::TenantId;
    use crate::gateway::budgets::tenants::TenantTable;
    use crate::ledger::AccountName;

    const MIB: usize = 1 << 20;

    fn budget(all: usize, one: usize) -> AnswerBudget {
        let limits = Limits {
            answers_bytes_max: all,
            answers_per_account_bytes_max: one,
            ..Limits::default()
        };
        AnswerBudget::new(&limits, Duration::from_millis(200))
    }

    fn tenant(table: &Arc<TenantTable>, name: &str) -> Arc<Tenant> {
        table.tenant(TenantId::Account(AccountName::parse(name).expect("a name")))
    }

    /// Returns the permit of an answer of which `bytes` are buffered; `None` if it would have to
    /// wait.
    fn reserve_now(
        budget: &AnswerBudget,
        tenant: &Arc<Tenant>,
        bytes: usize,
    ) -> Option<AnswerPermit> {
        let mut permit = AnswerPermit::default();
        let reserved = permit.reserve(budget, Some(tenant), bytes).now_or_never();
        (reserved == Some(Ok(()))).then_some(permit)
    }

    #[tokio::test]
    async fn a_short_answer_takes_nothing() {
        let (table, budget) = (Arc::default(), budget(10 * MIB, 2 * MIB));
        let one = tenant(&table, "one");
        let permit = reserve_now(&budget, &one, UNCOUNTED_BYTES_MAX).expect("it needs no room");
        assert!(!permit.is_counted() && !permit.is_under_pressure(&budget));
        assert_eq!(one.used(Resource::AnswerBytes), 0);
    }

    #[tokio::test]
    async fn who_finds_no_room_waits_but_for_one() {
        let (table, budget) = (Arc::default(), budget(40 * MIB, 4 * MIB));
        let [one, other] = ["one", "other"].map(|name| tenant(&table, name));
        let mut first = reserve_now(&budget, &one, 3 * MIB).expect("room");
        assert!(reserve_now(&budget, &one, 50 * MIB).is_some(), "it may go beyond");
        let second = reserve_now(&budget, &one, 50 * MIB).expect("the one before has ended");
        assert!(second.is_under_pressure(&budget) && reserve_now(&budget, &one, 2 * MIB).is_none());
        assert!(reserve_now(&budget, &other, 3 * MIB).is_some(), "others have room of their own");
        let mut third = AnswerPermit::default();
        let reserving = third.reserve(&budget, Some(&one), 2 * MIB);
        let shrinking = async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            first.shrink_to(MIB);
        };
        assert_eq!(tokio::join!(reserving, shrinking).0, Ok(()));
        drop((first, second, third));
        assert_eq!((one.used(Resource::AnswerBytes), budget.bytes.pool().used()), (0, 0));
        assert_eq!(one.used(Resource::ExtraAnswers), 0);
    }

    #[tokio::test]
    async fn a_call_is_refused_whose_account_has_read_too_little() {
        let (table, budget) = (Arc::default(), budget(40 * MIB, 4 * MIB));
        let [one, other] = ["one", "other"].map(|name| tenant(&table, name));
        let full = reserve_now(&budget, &one, 4 * MIB).expect("room");
        for endpoint in [Endpoint::Chat, Endpoint::Embeddings, Endpoint::Images] {
            let refused = budget.admit(&one, endpoint).err();
            assert!(
                matches!(refused, Some(ApiError::Capacity(CapacityError::AnswersUnread))),
                "{refused:?}"
            );
            assert!(budget.admit(&other, endpoint).is_ok());
        }
        drop(full);
        let images: Vec<_> =
            std::iter::from_fn(|| budget.admit(&one, Endpoint::Images).ok()).collect();
        assert_eq!(images.len(), 8, "half is left for what is longer");
    }

    #[tokio::test]
    async fn so_many_images_were_let_in_that_none_found_room_to_grow() {
        let (table, budget) = (Arc::default(), budget(40 * MIB, 10 * MIB));
        let tenants = (0..20).map(|n| tenant(&table, &n.to_string())).collect::<Vec<_>>();
        let images = tenants.iter().cycle().take(100);
        let let_in: Vec<_> =
            images.filter_map(|one| budget.admit(one, Endpoint::Images).ok()).collect();
        assert_eq!(let_in.len(), 80, "half of the room of all");
        let idle = tenant(&table, "idle");
        let refused = budget.admit(&idle, Endpoint::Images).err();
        assert!(
            matches!(refused, Some(ApiError::Capacity(CapacityError::Overloaded))),
            "it has nothing to read: {refused:?}"
        );
        assert!(reserve_now(&budget, &tenants[0], 3 * MIB).is_some());
    }

    #[tokio::test]
    async fn embeddings_of_two_accounts_left_no_image_to_others() {
        let (table, budget) = (Arc::default(), budget(40 * MIB, 10 * MIB));
        let greedy = ["one", "two"].map(|name| tenant(&table, name));
        let unread = greedy.each_ref().map(|one| reserve_now(&budget, one, 10 * MIB));
        assert!(unread.iter().all(Option::is_some));
        assert!(budget.admit(&tenant(&table, "idle"), Endpoint::Images).is_ok());
    }

    #[tokio::test]
    async fn an_answer_is_lost_by_its_own_account_or_by_others() {
        let (table, budget) = (Arc::default(), budget(40 * MIB, 4 * MIB));
        let [one, other] = ["one", "other"].map(|name| tenant(&table, name));
        let mut unread =
            vec![reserve_now(&budget, &one, 4 * MIB), reserve_now(&budget, &one, 9 * MIB)];
        let covered = AnswerPermit::default().reserve(&budget, Some(&one), MIB).await;
        assert_eq!(covered, Err(AnswerBudgetExceeded { is_account_limit: true }));
        // With the first account, four answers exceed the limits.
        for name in ["a", "b", "c"] {
            let beyond = tenant(&table, name);
            unread.push(reserve_now(&budget, &beyond, 4 * MIB));
            unread.push(reserve_now(&budget, &beyond, 9 * MIB));
        }
        assert!(unread.iter().all(Option::is_some));
        let covered = AnswerPermit::default().reserve(&budget, Some(&other), 9 * MIB).await;
        assert_eq!(covered, Err(AnswerBudgetExceeded { is_account_limit: false }));
    }

    #[tokio::test]
    async fn images_of_accounts_that_read_nothing_were_lost_by_the_operator() {
        let (table, budget) = (Arc::default(), budget(40 * MIB, 10 * MIB));
        let tenants: Vec<_> = (0..8).map(|n| tenant(&table, &n.to_string())).collect();
        let mut permits: Vec<_> = (0..48).map(|_| AnswerPermit::default()).collect();
        let answers = permits.iter_mut().zip(tenants.iter().cycle());
        let reserving = answers.map(|(permit, one)| permit.reserve(&budget, Some(one), 3 * MIB));
        let covered = futures_util::future::join_all(reserving).await;
        let lost: Vec<_> = covered.into_iter().filter_map(Result::err).collect();
        assert!(lost.len() > 30, "{}", lost.len());
        assert!(lost.iter().all(|no_room| no_room.is_account_limit), "each wants 18 MiB of 10");
        assert!(tenants.iter().all(|one| one.used(Resource::AwaitedAnswerBytes) == 0));
    }

    #[tokio::test]
    async fn short_answers_go_on_where_all_have_read_too_little() {
        let (table, budget) = (Arc::default(), budget(4 * MIB, 100 * MIB));
        let names = ["one", "two", "three", "four", "five"];
        let tenants = names.map(|name| tenant(&table, name));
        let held: Vec<_> = tenants.iter().map(|one| reserve_now(&budget, one, MIB)).collect();
        assert_eq!(budget.bytes.pool().used(), 4 * MIB);
        assert!(held.iter().all(Option::is_some));
        let new = tenant(&table, "new");
        assert!(budget.admit(&new, Endpoint::Chat).is_ok());
        assert!(matches!(
            budget.admit(&new, Endpoint::Images),
            Err(ApiError::Capacity(CapacityError::Overloaded))
        ));
    }

    #[tokio::test]
    async fn little_that_is_left_presses_those_who_have_something() {
        let (table, budget) = (Arc::default(), budget(40 * MIB, 8 * MIB));
        let one = tenant(&table, "one");
        let first = reserve_now(&budget, &one, 5 * MIB).expect("room");
        assert!(!first.is_under_pressure(&budget));
        let second = reserve_now(&budget, &one, 2 * MIB).expect("room");
        assert!(first.is_under_pressure(&budget) && second.is_under_pressure(&budget));
        assert!(!AnswerPermit::default().is_under_pressure(&budget));
    }
}
