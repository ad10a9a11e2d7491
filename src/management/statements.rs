//! Statements of accounts: the month that runs is told so far, and a month that is over is sealed
//! when somebody asks for it first.

use std::ops::Range;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::accounts::require_account;
use super::error::{ManagementError, no_such_account};
use crate::ledger::{AccountName, TransferEntry, Unavailable};
use crate::statement::{
    BooksCredit, DATED_FROM, InvalidMonth, LineRange, SealedStatement, Statement, StatementBooks,
    StatementDraft, StatementFault, StatementLines, StatementMonth, StatementSeal, StatementView,
    digest_of,
};
use crate::store::OpenStore;
use crate::usage::{
    PeriodKind, PostedEntry, RollupKey, RollupOwner, RollupSums, Rollups, UsageBooks, fold,
};
use crate::usage::{UsageOverflow, merge_rollups};

/// The number of lines of a journal that are read at a time.
const LINES_AT_A_TIME: u32 = 1_000;
/// How often the books are read again that are behind or change.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// How long at most.
const BOOKS_TIMEOUT: Duration = Duration::from_secs(5);
/// A month is sealed this long after its end, in ms: what was on its way at its end is posted then,
/// and clocks of several servers differ a little.
const SEAL_DELAY_MS: i64 = 300_000;
/// A statement that was sealed this long ago is durable, in ms, whoever has sealed it.
const YOUNG_MS: i64 = 60_000;
/// Up to this many lines that are in no roll-up yet are summed up here: on a busy account there are
/// always some.
const LINES_BEHIND_MAX: u64 = 20_000;

/// The books of an account, with what has to be known of the roll-ups.
struct BooksReading {
    books: StatementBooks,
    /// The number of lines that are in no roll-up yet.
    behind: u64,
    /// The first day of these lines, by its beginning in unix ms.
    behind_from: Option<i64>,
}

/// Why books cannot be used at the moment.
enum BooksDelay {
    /// So many lines are in no roll-up yet.
    Behind(u64),
    /// They do not agree. Somebody may have changed them while they were read.
    Differ(StatementFault),
}

/// Returns the statement of a month. If the month is over, it is sealed now or was before; the
/// months before it that nobody has asked for are sealed first, in their order, so that each
/// statement opens with the closing of the one before.
pub(crate) async fn read_statement(
    store: &OpenStore,
    account: &AccountName,
    month: StatementMonth,
) -> Result<StatementView, ManagementError> {
    require_account(&*store.ledger, account).await?;
    let now = store.statements.statement_clock().await?;
    let mut sealed = list_sealed(store, account, now).await?;
    if let Some(view) = sealed.iter().find(|view| view.month == month) {
        return view_of(account, view);
    }
    let current = StatementMonth::containing(now);
    // A month is sealed some minutes after its end.
    let unsealed = StatementMonth::containing(now.saturating_sub(SEAL_DELAY_MS));
    check_begun(month, now)?;
    let read = read_books(store, account, month, current).await?;
    let first = match sealed.first() {
        Some(one) => Some(one.month),
        None => first_month(store, account, &read.books).await?,
    };
    let first = first.unwrap_or(current).min(current);
    if month < first {
        let message = format!(
            "'month' must be {first} or later, not {month}: nothing is known of account \
             '{account}' before {first}"
        );
        return Err(ManagementError::Invalid { field: "month", message });
    }
    if month >= unsealed {
        let told = parse_all(account, &sealed)?;
        let is_over = month < current;
        let statement = make_statement(store, account, month, is_over, &read.books, &told).await?;
        let json = statement.to_json();
        return Ok(StatementView { statement, json, seal: None, as_of: now.min(month.end()) });
    }
    let mut next = sealed.last().map_or(first, |last| last.month.next());
    while next <= month {
        let told = parse_all(account, &sealed)?;
        let statement = make_statement(store, account, next, true, &read.books, &told).await?;
        let body = statement.to_json();
        let sha256 = digest_of(&body);
        let seal = async || store.statements.seal_statement(account, next, &body, &sha256).await;
        // Somebody else may have been first.
        sealed.push(store.durability.write(seal).await?);
        next = next.next();
    }
    match sealed.iter().find(|view| view.month == month) {
        Some(view) => view_of(account, view),
        None => Err(ManagementError::BooksDiffer(format!(
            "the statement {month} of account '{account}' is missing among the sealed ones"
        ))),
    }
}

/// Checks that a month has begun at `now` (unix ms).
pub(crate) fn check_begun(month: StatementMonth, now: i64) -> Result<(), ManagementError> {
    let current = StatementMonth::containing(now);
    if month > current {
        let message = format!("'month' must not be after {current}: {month} has not begun yet");
        return Err(ManagementError::Invalid { field: "month", message });
    }
    Ok(())
}

/// Returns the sealed statements. One that somebody sealed just now may be lost with a server that
/// has not written it, so it is told once it is durable.
async fn list_sealed(
    store: &OpenStore,
    account: &AccountName,
    now: i64,
) -> Result<Vec<SealedStatement>, ManagementError> {
    let mut sealed = store.statements.list_statements(account).await?;
    // One from ahead was sealed while the clock was wrong, and long ago.
    let is_young = |one: &SealedStatement| (0..YOUNG_MS).contains(&(now - one.sealed_at));
    let Some(first) = sealed.iter().position(is_young) else { return Ok(sealed) };
    let young = sealed.split_off(first);
    let seal_all = async || {
        let mut again = Vec::with_capacity(young.len());
        for SealedStatement { month, body, sha256, .. } in &young {
            let one = store.statements.seal_statement(account, *month, body, sha256).await?;
            again.push(one);
        }
        Ok::<_, Unavailable>(again)
    };
    sealed.extend(store.durability.write(seal_all).await?);
    Ok(sealed)
}

/// Returns the month of the first statement; `None` if nothing has happened. If an older version
/// has stored payments without their times, statements begin with the first thing that this version
/// has dated: what was before is in the opening.
async fn first_month(
    store: &OpenStore,
    account: &AccountName,
    books: &StatementBooks,
) -> Result<Option<StatementMonth>, ManagementError> {
    if !books.has_undated_transfers() {
        return Ok(books.first_month());
    }
    let is_dated = |posted_at: Option<i64>| posted_at.is_some_and(|at| at >= DATED_FROM);
    let line = find_line(store, account, books.lines, is_dated).await?;
    let found = store.usage.read_posted(account, line.saturating_sub(1), 1).await?;
    let posted_at =
        found.first().and_then(|posted| posted.posted_at).filter(|at| *at >= DATED_FROM);
    let months = [posted_at.map(StatementMonth::containing), books.first_transfer_month()];
    Ok(months.into_iter().flatten().min())
}

/// Parses the sealed statements, whose digests must be right.
fn parse_all(
    account: &AccountName,
    sealed: &[SealedStatement],
) -> Result<Vec<Statement>, ManagementError> {
    sealed.iter().map(|sealed| Ok(view_of(account, sealed)?.statement)).collect()
}

fn view_of(
    account: &AccountName,
    sealed: &SealedStatement,
) -> Result<StatementView, ManagementError> {
    let SealedStatement { number, month, sealed_at, sha256, body } = sealed;
    if digest_of(body) != *sha256 {
        return Err(ManagementError::BooksDiffer(format!(
            "the sealed statement {number} ({month}) was changed: it does not have its digest"
        )));
    }
    let statement = Statement::parse_stored(body, account, *month)?;
    let seal = StatementSeal { number: *number, sealed_at: *sealed_at, sha256: sha256.clone() };
    let (json, as_of) = (body.clone(), month.end());
    Ok(StatementView { statement, json, seal: Some(seal), as_of })
}

/// Makes the statement of a month. Its lines of the journal are looked for where they should be. If
/// they do not have the sums of the roll-ups, all lines are read: a clock that was wrong, or an
/// older version of the program, has left lines without their time or in another order.
async fn make_statement(
    store: &OpenStore,
    account: &AccountName,
    month: StatementMonth,
    is_over: bool,
    books: &StatementBooks,
    sealed: &[Statement],
) -> Result<Statement, ManagementError> {
    let draft = StatementDraft::new(account, month, is_over, books, sealed)?;
    let range = draft.range();
    let after = find_first(store, account, range).await?;
    let lines = read_lines(store, account, &draft, after, range.end).await?;
    if let Ok(statement) = draft.finish(&lines) {
        return Ok(statement);
    }
    let lines = read_lines(store, account, &draft, 0, i64::MAX).await?;
    Ok(draft.finish(&lines).or_else(|_| draft.finish_with_all(&lines))?)
}

/// Returns the number of a line after which all lines of a statement are, if the times of lines
/// never fall.
pub(super) async fn find_first(
    store: &OpenStore,
    account: &AccountName,
    range: LineRange,
) -> Result<u64, ManagementError> {
    let is_of_month = |at: Option<i64>| at.is_some_and(|at| at >= range.start);
    let first = find_line(store, account, range.lines, is_of_month).await?;
    Ok(first.saturating_sub(1).min(range.sealed_lines.unwrap_or(u64::MAX)))
}

/// Returns the number of the first line whose time of posting (unix ms) is what is looked for, if
/// that of each line after it is, too.
async fn find_line(
    store: &OpenStore,
    account: &AccountName,
    lines: u64,
    is_found: impl Fn(Option<i64>) -> bool,
) -> Result<u64, ManagementError> {
    let (mut low, mut high) = (1, lines.saturating_add(1));
    while low < high {
        let middle = low.midpoint(high);
        let found = store.usage.read_posted(account, middle.saturating_sub(1), 1).await?;
        if is_found(found.first().and_then(|posted| posted.posted_at)) {
            high = middle;
        } else {
            low = middle.saturating_add(1);
        }
    }
    Ok(low)
}

/// Reads the lines of a statement after number `after`, up to the first one that was posted at
/// `end` (unix ms) or later.
async fn read_lines(
    store: &OpenStore,
    account: &AccountName,
    draft: &StatementDraft,
    after: u64,
    end: i64,
) -> Result<StatementLines, ManagementError> {
    let range = draft.range();
    let mut lines = StatementLines::new(range);
    let take = |page: &[PostedEntry]| lines.push(page);
    read_pages(store, account, after..range.lines, end, take).await?;
    Ok(lines)
}

/// Reads lines of a journal by their numbers, those after the first number up to the last one, or
/// up to the first one that was posted at `end` (unix ms) or later.
pub(super) async fn read_pages(
    store: &OpenStore,
    account: &AccountName,
    numbers: Range<u64>,
    end: i64,
    mut take: impl FnMut(&[PostedEntry]) -> Result<(), StatementFault>,
) -> Result<(), ManagementError> {
    let mut after = numbers.start;
    while after < numbers.end {
        let page = store.usage.read_posted(account, after, LINES_AT_A_TIME).await?;
        let Some(last) = page.last() else { break };
        after = last.entry.seq;
        take(&page)?;
        if last.posted_at.is_some_and(|posted_at| posted_at >= end) {
            break;
        }
    }
    Ok(())
}

/// Reads the books of an account, and waits for a moment if they cannot be used yet.
async fn read_books(
    store: &OpenStore,
    account: &AccountName,
    month: StatementMonth,
    current: StatementMonth,
) -> Result<BooksReading, ManagementError> {
    let end = Instant::now() + BOOKS_TIMEOUT;
    loop {
        let delay = match try_read_books(store, account).await? {
            Ok(read) => {
                let is_waited_for =
                    month < current && read.behind_from.is_some_and(|day| day < month.end());
                if !is_waited_for {
                    return Ok(read);
                }
                BooksDelay::Behind(read.behind)
            }
            Err(delay) => delay,
        };
        if Instant::now() < end {
            sleep(RETRY_INTERVAL).await;
            continue;
        }
        return Err(match delay {
            BooksDelay::Behind(lines) => ManagementError::NotReady {
                code: "usage_behind",
                message: format!(
                    "there is no statement yet: {lines} lines of the journal of account \
                     '{account}' are in no sum of usage. A running gateway sums them up; ask again"
                ),
            },
            BooksDelay::Differ(why) => why.into(),
        });
    }
}

/// Reads the books of an account, and compares them with its balances.
async fn try_read_books(
    store: &OpenStore,
    account: &AccountName,
) -> Result<Result<BooksReading, BooksDelay>, ManagementError> {
    let no_account = || no_such_account(account);
    let found = store.usage.read_account_books(account).await?;
    let UsageBooks { folded, lines, posted, written_off, mut days } =
        found.ok_or_else(no_account)?;
    let behind = lines.saturating_sub(folded);
    if behind > LINES_BEHIND_MAX {
        return Ok(Err(BooksDelay::Behind(behind)));
    }
    let Some(tail) = read_tail(store, account, folded, lines).await? else {
        return Ok(Err(BooksDelay::Behind(behind)));
    };
    let behind_from = tail.keys().map(|key| key.period.start).min();
    merge_rollups(&mut days, tail).map_err(overflow)?;
    let transfers = read_transfers(store, account).await?;
    let balances = store.ledger.balances(account).await?.ok_or_else(no_account)?;
    let days: Vec<(RollupKey, RollupSums)> = days.into_iter().collect();
    let books = StatementBooks { lines, days, transfers };
    let compared = books.compare(BooksCredit { credit: balances.credit, posted, written_off });
    Ok(match compared {
        Ok(()) => Ok(BooksReading { books, behind, behind_from }),
        Err(why) => Err(BooksDelay::Differ(why)),
    })
}

/// Sums up the lines that are in no roll-up yet; `None` if one is missing.
async fn read_tail(
    store: &OpenStore,
    account: &AccountName,
    folded: u64,
    lines: u64,
) -> Result<Option<Rollups>, ManagementError> {
    let (mut rows, mut after) = (Rollups::new(), folded);
    while after < lines {
        let left = u32::try_from(lines.saturating_sub(after)).unwrap_or(u32::MAX);
        let limit = left.min(LINES_AT_A_TIME);
        let page = store.usage.read_posted(account, after, limit).await?;
        let Some(last) = page.last() else { return Ok(None) };
        after = last.entry.seq;
        merge_rollups(&mut rows, fold(&page).map_err(overflow)?).map_err(overflow)?;
    }
    rows.retain(|key, _| key.period.kind == PeriodKind::Day && key.owner == RollupOwner::Account);
    Ok(Some(rows))
}

/// Reads all transfers at once: one that comes meanwhile, with an earlier time, would move the
/// others from one page to the next.
async fn read_transfers(
    store: &OpenStore,
    account: &AccountName,
) -> Result<Vec<TransferEntry>, ManagementError> {
    Ok(store.ledger.list_transfers(account, 0, u32::MAX).await?)
}

fn overflow(why: UsageOverflow) -> ManagementError {
    StatementFault::from(why).into()
}

impl From<StatementFault> for ManagementError {
    fn from(why: StatementFault) -> ManagementError {
        ManagementError::BooksDiffer(why.to_string())
    }
}

impl From<InvalidMonth> for ManagementError {
    fn from(why: InvalidMonth) -> ManagementError {
        ManagementError::Invalid { field: "month", message: why.to_string() }
    }
}
