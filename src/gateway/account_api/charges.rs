//! Lists the charges of a key, or of its account with its corrections and expiries.

use std::time::Duration;

use super::generation::{PAGE_LINES, read_page};
use super::json_object::{JsonObjectWriter, format_ms, write_list};
use super::query::ChargesPage;
use super::shown_line::{JournalView, ShownLine};
use crate::gateway::api_error::{AccountError, ApiError, ServerError};
use crate::gateway::request::key_cache::AuthenticatedCaller;
use crate::gateway::state::Gateway;
use crate::ledger::{AccountName, JournalEntry, KeyId};
use crate::money::UsageBasis;

/// At most this many pages of the journal are read for one page of the list, so a page may be short
/// although more follow.
const PAGES_MAX: u32 = 5;
/// A read of lines that have left the store may take this long: it fetches a file.
const ARCHIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Answers with a page of the charges that a key may see.
///
/// # Errors
/// The account has a search already, or the ledger does not answer.
pub(super) async fn list_charges(
    gateway: &Gateway,
    caller: &AuthenticatedCaller,
    asked: ChargesPage,
) -> Result<String, ApiError> {
    let account = &caller.key.account;
    let permit = gateway.account_searches.begin(account);
    let _permit = permit.ok_or(AccountError::SearchRunning)?;
    let mut collected =
        CollectedCharges::new(JournalView::of_caller(caller), asked.after, asked.limit);
    for _ in 0..PAGES_MAX {
        let (page, has_more) = read_lines(gateway, account, collected.next).await?;
        if collected.add(&page, has_more) {
            break;
        }
    }
    Ok(collected.into_json())
}

/// Reads a page of the journal, also of lines that have left the store. Returns whether there may
/// be more after it, too.
async fn read_lines(
    gateway: &Gateway,
    account: &AccountName,
    after: u64,
) -> Result<(Vec<JournalEntry>, bool), ApiError> {
    let page = read_page(gateway, account, after, PAGE_LINES).await?;
    if page.first().is_none_or(|first| first.seq == after.saturating_add(1)) {
        let has_more = page.len() >= PAGE_LINES as usize;
        return Ok((page, has_more));
    }
    // A page of the archive may be short, and the store has the lines after it.
    let posted = gateway.usage.read_posted(account, after, PAGE_LINES);
    let posted = tokio::time::timeout(ARCHIVE_TIMEOUT, posted).await;
    let posted = posted.ok().and_then(Result::ok).ok_or(ServerError::LedgerUnavailable)?;
    Ok((posted.into_iter().map(|posted| posted.entry).collect(), true))
}

/// The lines of a page while they are collected.
struct CollectedCharges<'a> {
    view: JournalView<'a>,
    rows: Vec<String>,
    limit: usize,
    /// The number of the last line that was looked at.
    next: u64,
    has_more: bool,
}

impl CollectedCharges<'_> {
    fn new(view: JournalView<'_>, after: u64, limit: usize) -> CollectedCharges<'_> {
        CollectedCharges { view, rows: Vec::new(), limit, next: after, has_more: true }
    }

    /// Adds the entries that may be seen, as long as there is room. Returns whether the page is
    /// full, or the journal has ended.
    fn add(&mut self, entries: &[JournalEntry], has_more: bool) -> bool {
        for entry in entries {
            let line = ShownLine::parse(entry).filter(|line| self.view.shows(line));
            if let Some(line) = line {
                // There is one more than fits.
                if self.rows.len() == self.limit {
                    return true;
                }
                self.rows.push(charge_json(entry, &line));
            }
            self.next = entry.seq;
        }
        self.has_more = has_more;
        !self.has_more || self.rows.len() == self.limit
    }

    fn into_json(self) -> String {
        JsonObjectWriter::new()
            .json("data", &write_list(&self.rows))
            .json("has_more", if self.has_more { "true" } else { "false" })
            .optional_number("next", self.has_more.then_some(self.next))
            .finish()
    }
}

fn charge_json(entry: &JournalEntry, line: &ShownLine) -> String {
    // Many readers of JSON lose digits of a number as long as this one.
    let key_id = line.key_id.map(|KeyId(id)| id.to_string());
    JsonObjectWriter::new()
        .number("seq", entry.seq)
        .text("id", line.call_id())
        .text("kind", entry.kind.as_str())
        .text("created_at", format_ms(line.at).as_deref())
        .text("endpoint", line.endpoint.as_deref())
        .text("model", line.model.as_deref())
        .text("key_id", key_id.as_deref())
        .text("key_prefix", line.key_prefix.as_deref())
        .json("usage", line.usage_json().as_deref().unwrap_or("null"))
        .text("basis", line.basis.map(UsageBasis::name))
        .optional_json("fees", line.fees_json().as_deref())
        .text("price_version", line.price_version.as_deref())
        .text("route", line.route.as_deref())
        .text("vendor", line.vendor.as_deref())
        .number("amount_nano", entry.amount.nano())
        .text("amount_usd", entry.amount.to_string().as_str())
        .number("written_off_nano", entry.written_off.nano())
        .finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::key::ApiKey;
    use crate::ledger::{AccountName, EntryKind, KeyRecord, KeyScope};
    use crate::money::Money;

    fn key() -> KeyRecord {
        let account = AccountName::parse("acme").expect("a name");
        KeyRecord::new(&ApiKey::from_random([1; 32]), account, 1, KeyScope::default())
    }

    /// Entries with these numbers, of which every third is the key's.
    fn entries(key: &KeyRecord, numbers: std::ops::RangeInclusive<u64>) -> Vec<JournalEntry> {
        let entry = |seq: u64| {
            let owner = if seq.is_multiple_of(3) { key.id.0 } else { 7 };
            let line = format!(r#"{{"request_id":"r{seq}","at":{seq},"key_id":{owner}}}"#);
            let (kind, amount) = (EntryKind::Charge, Money::ZERO);
            JournalEntry { seq, kind, amount, written_off: Money::ZERO, line }
        };
        numbers.map(entry).collect()
    }

    #[test]
    fn a_page_goes_on_where_the_last_one_ended() {
        let key = key();
        let page_lines = u64::from(PAGE_LINES);
        let all = 2 * page_lines + 5;
        // Pages of the journal are read as the list asks for them.
        for limit in [1, 7, 333, 334, 1_000] {
            let (mut after, mut seen, mut rounds) = (0, 0, 0);
            loop {
                let mut page = CollectedCharges::new(JournalView::of_key(&key), after, limit);
                for _ in 0..PAGES_MAX {
                    let last = all.min(page.next + page_lines);
                    let has_more = last - page.next >= page_lines;
                    if page.add(&entries(&key, page.next + 1..=last), has_more) {
                        break;
                    }
                }
                seen += page.rows.len();
                rounds += 1;
                assert!(page.rows.len() <= limit && rounds < 1_000, "{limit}");
                if !page.has_more {
                    assert!(page.into_json().ends_with(r#""has_more":false,"next":null}"#));
                    break;
                }
                assert!(page.next > after, "{limit}: it does not go on");
                after = page.next;
            }
            assert_eq!(seen as u64, all / 3, "{limit}");
        }
    }

    /// A page of the archive ends with a file of it.
    #[test]
    fn a_short_page_is_not_the_end_of_the_journal() {
        let key = key();
        let mut page = CollectedCharges::new(JournalView::of_key(&key), 0, 10);
        assert!(!page.add(&entries(&key, 1..=4), true));
        assert_eq!((page.rows.len(), page.next, page.has_more), (1, 4, true));
        assert!(page.add(&entries(&key, 5..=6), false), "this is the end");
        assert_eq!((page.rows.len(), page.has_more), (2, false));
    }

    #[test]
    fn a_line_of_another_kind_is_passed_over_and_a_correction_has_what_it_has() {
        let key = key();
        let mut lines = entries(&key, 1..=3);
        lines[0].line = "no JSON".to_owned();
        lines[1].kind = EntryKind::Correction;
        lines[1].amount = Money::from_nano(1_500_000_000).expect("money");
        lines[1].line =
            format!(r#"{{"corrects":"r0","correction":"t","at":0,"key_id":{}}}"#, key.id.0);
        let mut page = CollectedCharges::new(JournalView::of_key(&key), 0, 10);
        assert!(page.add(&lines, false), "the journal has ended");
        assert_eq!((page.rows.len(), page.next), (2, 3));
        let expected = format!(
            concat!(
                r#"{{"seq":2,"id":"r0","kind":"correction","created_at":"1970-01-01T00:00:00Z","#,
                r#""endpoint":null,"model":null,"key_id":"{}","key_prefix":null,"usage":null,"#,
                r#""basis":null,"price_version":null,"route":null,"vendor":null,"#,
                r#""amount_nano":1500000000,"amount_usd":"1.50","written_off_nano":0}}"#
            ),
            key.id.0
        );
        assert_eq!(page.rows[0], expected);
    }

    #[test]
    fn an_expiry_is_shown_without_a_call_to_a_key_for_the_account_alone() {
        let wide = KeyScope { endpoints: vec!["account".to_owned()], ..KeyScope::default() };
        let account = AccountName::parse("acme").expect("a name");
        let wide = KeyRecord::new(&ApiKey::from_random([2; 32]), account, 1, wide);
        let amount = Money::from_nano(7).expect("money");
        let line = r#"{"expired":"1000/promotion","at":1000}"#.to_owned();
        let kind = EntryKind::Expiry;
        let expiry = [JournalEntry { seq: 1, kind, amount, written_off: Money::ZERO, line }];
        let rows_of = |key: &KeyRecord| {
            let mut page = CollectedCharges::new(JournalView::of_key(key), 0, 10);
            page.add(&expiry, false);
            page.rows
        };
        assert!(rows_of(&key()).is_empty());
        let expected = concat!(
            r#"{"seq":1,"id":null,"kind":"expiry","created_at":"1970-01-01T00:00:01Z","#,
            r#""endpoint":null,"model":null,"key_id":null,"key_prefix":null,"usage":null,"#,
            r#""basis":null,"price_version":null,"route":null,"vendor":null,"#,
            r#""amount_nano":7,"amount_usd":"0.000000007","written_off_nano":0}"#
        );
        assert_eq!(rows_of(&wide), [expected]);
    }
}
