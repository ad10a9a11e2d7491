//! Finds the charge of one call in the journal of its account, by the id of the call or of its
//! reply.

use std::time::Duration;

use super::json_object::{JsonObjectWriter, format_ms};
use super::shown_line::{JournalView, ShownLine};
use crate::gateway::api_error::{AccountError, ApiError, ServerError};
use crate::gateway::request::key_cache::AuthenticatedCaller;
use crate::gateway::state::Gateway;
use crate::ledger::journal_search::{
    JournalReader, SEARCH_PAGE_SIZE, SearchBounds, search_from_time,
};
use crate::ledger::{AccountName, JournalEntry, TransferType};
use crate::money::{BilledUnits, Money, UsageBasis};

/// This many lines are read at a time.
pub(super) const PAGE_LINES: u32 = SEARCH_PAGE_SIZE;
/// At most this many pages are read from the time of a call on.
const PAGES_MAX: usize = 20;
/// At most this many of the newest pages are read for the id of a reply.
const NEWEST_PAGES_MAX: u32 = 5;
/// At most this many payments, grants, refunds and corrections are read.
const TRANSFERS_MAX: u32 = 5_000;
/// A settlement may wait so long for its store.
const SETTLEMENT_DELAY_MAX: Duration = Duration::from_hours(1);

/// Answers with the charge of a call.
///
/// # Errors
/// The key may see no such call, the account has a search already, or the ledger does not answer.
pub(super) async fn find_generation(
    gateway: &Gateway,
    caller: &AuthenticatedCaller,
    id: &str,
) -> Result<String, ApiError> {
    let account = &caller.key.account;
    let permit = gateway.account_searches.begin(account);
    let _permit = permit.ok_or(AccountError::SearchRunning)?;
    let search = CallSearch { gateway, account, view: JournalView::of_caller(caller) };
    let mut found = search.search_from(id).await?;
    if found.is_none() {
        found = search.search_newest(id).await?;
        // The newest lines are not all that a call may have.
        if let Some(newest) = &found {
            found = search.search_from(&newest.id).await?.or(found);
        }
    }
    let found = found.ok_or(AccountError::GenerationNotFound)?;
    let corrected = corrected_amount(gateway, account, &found.id).await;
    Ok(generation_json(&found, corrected))
}

/// A call that was charged.
struct FoundCall {
    /// The id of the call.
    id: String,
    /// What it has cost in all.
    amount: Money,
    /// Its last line. Few calls have more than one: where the hold has ended before the call, a
    /// later line has the rest of the charge.
    line: ShownLine,
}

/// The journal of an account, of which each read ends in time.
struct TimedJournal<'a> {
    gateway: &'a Gateway,
    account: &'a AccountName,
}

impl JournalReader for TimedJournal<'_> {
    type Error = ApiError;

    async fn length(&self) -> Result<u64, ApiError> {
        let length = self.gateway.ledger.journal_length(self.account);
        let length = self.gateway.with_ledger_timeout("journal", length).await;
        length.map_err(|_| ServerError::LedgerUnavailable.into())
    }

    async fn read(&self, after: u64, limit: u32) -> Result<Vec<JournalEntry>, ApiError> {
        read_page(self.gateway, self.account, after, limit).await
    }
}

/// The search for the charge of a call. A line that the key may not see is passed over, so that it
/// costs what an unknown id costs.
struct CallSearch<'a> {
    gateway: &'a Gateway,
    account: &'a AccountName,
    view: JournalView<'a>,
}

impl CallSearch<'_> {
    /// Searches from the time in the id of a call on, as long as calls of that time may be charged.
    /// Finds nothing if the id is not one of ours.
    async fn search_from(&self, id: &str) -> Result<Option<FoundCall>, ApiError> {
        let bounds = SearchBounds { call_life_ms: self.call_life_ms(), pages_max: PAGES_MAX };
        let mut found = None;
        let collect = |page: Vec<JournalEntry>| self.collect(&page, id, &mut found);
        search_from_time(&self.journal(), id, bounds, collect).await?;
        Ok(found)
    }

    /// Searches the newest lines, the last ones first.
    async fn search_newest(&self, id: &str) -> Result<Option<FoundCall>, ApiError> {
        let mut last = self.journal().length().await?;
        let mut found = None;
        for _ in 0..NEWEST_PAGES_MAX {
            let first = last.saturating_sub(u64::from(PAGE_LINES));
            let count = u32::try_from(last - first).unwrap_or(PAGE_LINES);
            if count == 0 || found.is_some() {
                break;
            }
            let page = read_page(self.gateway, self.account, first, count).await?;
            self.collect(&page, id, &mut found)?;
            // What is before has left the store.
            if page.first().is_none_or(|entry| entry.seq > first.saturating_add(1)) {
                break;
            }
            last = first;
        }
        Ok(found)
    }

    /// Adds the lines of the call with this id, or whose reply has it, that may be seen.
    fn collect(
        &self,
        entries: &[JournalEntry],
        id: &str,
        found: &mut Option<FoundCall>,
    ) -> Result<(), ApiError> {
        for entry in entries.iter().filter(|entry| entry.line.contains(id)) {
            let Some(line) = ShownLine::parse(entry).filter(|line| self.view.shows(line)) else {
                continue;
            };
            let Some(call) = line.request_id.clone() else { continue };
            let amount = match found {
                // Ids of replies are the vendors', so two calls may have the same one.
                Some(known) if known.id == call => known.amount.checked_add(entry.amount),
                _ if call == id || line.reply_id.as_deref() == Some(id) => Ok(entry.amount),
                _ => continue,
            };
            let amount = amount.map_err(|why| {
                // All that an account was charged fits into one sum.
                log::error!(event = "charge_sum_invalid", id, error:% = why; "charges do not fit");
                ServerError::Internal
            })?;
            *found = Some(FoundCall { id: call, amount, line });
        }
        Ok(())
    }

    /// Returns how long after its beginning a call, or a video, is charged at the latest, in ms.
    fn call_life_ms(&self) -> i64 {
        let video = Duration::from_millis(self.gateway.videos.schedule.hold_lease_ms());
        let life = self.gateway.timeouts.total.max(video).saturating_add(SETTLEMENT_DELAY_MAX);
        i64::try_from(life.as_millis()).unwrap_or(i64::MAX)
    }

    fn journal(&self) -> TimedJournal<'_> {
        TimedJournal { gateway: self.gateway, account: self.account }
    }
}

/// Reads entries of a journal after a number.
///
/// # Errors
/// The ledger does not answer.
pub(super) async fn read_page(
    gateway: &Gateway,
    account: &AccountName,
    after: u64,
    lines: u32,
) -> Result<Vec<JournalEntry>, ApiError> {
    let page = gateway.ledger.read_journal(account, after, lines);
    let page = gateway.with_ledger_timeout("journal", page).await;
    page.map_err(|_| ServerError::LedgerUnavailable.into())
}

/// Returns how much of the charge of a call was given back; `None` if that is not known.
async fn corrected_amount(gateway: &Gateway, account: &AccountName, call: &str) -> Option<Money> {
    let transfers = gateway.ledger.list_transfers(account, 0, TRANSFERS_MAX);
    let transfers = gateway.with_ledger_timeout("transfers", transfers).await.ok()?;
    if transfers.len() >= TRANSFERS_MAX as usize {
        return None;
    }
    let of_call = transfers.iter().filter(|transfer| {
        transfer.kind == TransferType::Correction && transfer.request.as_deref() == Some(call)
    });
    let mut amounts = of_call.map(|transfer| transfer.moved.unwrap_or_default());
    amounts.try_fold(Money::ZERO, |sum, amount| sum.checked_add(amount).ok())
}

fn generation_json(call: &FoundCall, corrected: Option<Money>) -> String {
    let FoundCall { id, amount, line } = call;
    let (input, output) = match line.usage {
        Some(BilledUnits::Tokens(tokens)) => (Some(tokens.input), Some(tokens.output)),
        _ => (None, None),
    };
    let data = JsonObjectWriter::new()
        .text("id", id.as_str())
        .text("model", line.model.as_deref())
        .usd("total_cost", *amount)
        .optional_number("tokens_prompt", input)
        .optional_number("tokens_completion", output)
        .text("created_at", format_ms(line.at).as_deref())
        // The journal does not say whether the answer was a stream, how long it took to begin, and
        // how much was held.
        .json("streamed", "null")
        .json("latency", "null")
        .text("api_type", line.endpoint.as_deref())
        .text("provider_name", line.vendor.as_deref())
        .text("reply_id", line.reply_id.as_deref())
        .json("usage", line.usage_json().as_deref().unwrap_or("null"))
        .text("basis", line.basis.map(UsageBasis::name))
        .optional_json("fees", line.fees_json().as_deref())
        .text("price_version", line.price_version.as_deref())
        .optional_number("depth", line.depth)
        .json("held_nano", "null")
        .number("amount_nano", amount.nano())
        .optional_number("corrected_nano", corrected.map(Money::nano));
    JsonObjectWriter::new().json("data", &data.finish()).finish()
}
