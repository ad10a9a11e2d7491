//! The sums of all accounts. They are read in the background when they are asked for and older than
//! some seconds, by one reader at a time: however many look at the page, and however many accounts
//! there are, a look costs nothing more.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::sync::Semaphore;

use crate::clock::unix_ms;
use crate::ledger::{AccountName, Balances};
use crate::management::accounts::list_accounts;
use crate::management::error::ManagementError;
use crate::money::MoneyError;
use crate::store::OpenStore;
use crate::usage::{PeriodKind, RollupKey, RollupSums, UsageQuery, UsageRows};

/// Sums are read again when they are asked for and are at least as old as this.
const FRESH: Duration = Duration::from_secs(10);
/// How long a look waits for sums that are being read, before it shows older ones or none.
const PATIENCE: Duration = Duration::from_millis(40);
/// A read that takes longer is given up.
const READ_TIMEOUT: Duration = Duration::from_secs(120);
/// The pause after a read is at least this many times as long as the read: of the time that calls
/// need, the sums take at most a fiftieth, however many accounts there are.
const PAUSE_FACTOR: u32 = 49;
/// At most this many rows of an account's day are read.
const ROWS_MAX: u32 = 10_000;
/// The number of accounts that are read at a time.
const ACCOUNTS_AT_A_TIME: usize = 4;

/// The sums of all accounts at one time.
#[derive(Debug, Clone, Default)]
pub(super) struct Overview {
    /// When they were read, in unix ms.
    pub(super) at: i64,
    pub(super) accounts: u64,
    pub(super) balances: Balances,
    /// What was charged on the current day (UTC), by model.
    pub(super) today: Vec<(String, RollupSums)>,
}

/// The sums that were read last.
pub(crate) struct OverviewCache {
    last: Mutex<Option<Arc<Overview>>>,
    /// Before this time nothing is read again; `None` if nothing was read yet.
    next_read: Mutex<Option<Instant>>,
    /// One permit, for the reader.
    reading: Arc<Semaphore>,
}

impl OverviewCache {
    /// Makes a cache that knows nothing yet.
    pub(crate) fn new() -> OverviewCache {
        let reading = Arc::new(Semaphore::new(1));
        OverviewCache { last: Mutex::default(), next_read: Mutex::default(), reading }
    }

    /// Returns the sums; `None` if they were never read, and are not after a moment.
    pub(super) async fn look(self: &Arc<Self>, store: &OpenStore) -> Option<Arc<Overview>> {
        let next = *self.next_read.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = next.is_none_or(|next| next <= Instant::now());
        if is_due && let Ok(permit) = self.reading.clone().try_acquire_owned() {
            let (cache, store) = (self.clone(), store.clone());
            let reading = tokio::spawn(async move {
                cache.read_again(&store).await;
                drop(permit);
            });
            let _ = tokio::time::timeout(PATIENCE, reading).await;
        }
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn read_again(&self, store: &OpenStore) {
        let began = Instant::now();
        match tokio::time::timeout(READ_TIMEOUT, read(store)).await {
            Ok(Ok(overview)) => {
                *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(overview.into());
            }
            Ok(Err(why)) => log_failure(&why.to_string()),
            Err(_) => log_failure("the store takes too long"),
        }
        // With very many accounts a reader would be at work all the time.
        let pause = began.elapsed().saturating_mul(PAUSE_FACTOR).max(FRESH);
        *self.next_read.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Instant::now() + pause);
    }
}

fn log_failure(why: &str) {
    log::warn!(event = "console_overview_failed", error = why; "sums of all accounts not read");
}

async fn read(store: &OpenStore) -> Result<Overview, ManagementError> {
    let now = unix_ms();
    let day = PeriodKind::Day.start_of(now);
    let accounts = list_accounts(store, true).await?;
    let mut overview = Overview { at: now, ..Overview::default() };
    let mut today = BTreeMap::<String, RollupSums>::new();
    let overflow = |why: MoneyError| ManagementError::UnexpectedAnswer(why.to_string());
    for names in accounts.chunks(ACCOUNTS_AT_A_TIME) {
        for read in join_all(names.iter().map(|name| read_account(store, name, day))).await {
            let Some((balances, rows)) = read? else { continue };
            overview.accounts = overview.accounts.saturating_add(1);
            overview.balances = added(&overview.balances, &balances).map_err(overflow)?;
            for (key, sums) in rows {
                let known = today.entry(key.model).or_default();
                let sum = known.checked_add(&sums);
                *known = sum.map_err(|why| ManagementError::UnexpectedAnswer(why.to_string()))?;
            }
        }
    }
    overview.today = today.into_iter().collect();
    Ok(overview)
}

/// What is read of an account: its balances, and its sums of the day.
type ReadAccount = (Balances, Vec<(RollupKey, RollupSums)>);

async fn read_account(
    store: &OpenStore,
    account: &AccountName,
    day: i64,
) -> Result<Option<ReadAccount>, ManagementError> {
    let Some(balances) = store.ledger.balances(account).await? else { return Ok(None) };
    let kind = PeriodKind::Day;
    let (from, to) = (day, kind.end_of(day));
    let (rows, rows_max) = (UsageRows::Account, ROWS_MAX);
    let query = UsageQuery { account: account.clone(), kind, rows, from, to, rows_max };
    Ok(Some((balances, store.usage.list_usage(query).await?)))
}

fn added(one: &Balances, other: &Balances) -> Result<Balances, MoneyError> {
    Ok(Balances {
        credit: one.credit.checked_add(other.credit)?,
        available: one.available.checked_add(other.available)?,
        held: one.held.checked_add(other.held)?,
        posted: one.posted.checked_add(other.posted)?,
        written_off: one.written_off.checked_add(other.written_off)?,
    })
}
