//! `tollgate charges`: an account's journal.

use super::account_name::parse_account;
use super::output::{OutputFormat, print_line};
use crate::ledger::{EntryKind, JournalEntry, JournalLine, LotId};
use crate::management::accounts::require_account;
use crate::management::charges::{entry_json, read_entries};
use crate::management::grants::describe_lot;
use crate::money::{BilledUnits, Money};
use crate::store::OpenStore;

/// The number of journal entries that are read at a time.
const PAGE_SIZE: u32 = 1_000;

pub(super) async fn run(store: &OpenStore, name: &str, out: OutputFormat) -> anyhow::Result<()> {
    let name = parse_account(name)?;
    require_account(&*store.ledger, &name).await?;
    let mut after = 0;
    loop {
        let page = read_entries(store, &name, after, PAGE_SIZE).await?.entries;
        let Some(last) = page.last() else { return Ok(()) };
        after = last.seq;
        for entry in &page {
            print_entry(entry, out)?;
        }
    }
}

fn print_entry(entry: &JournalEntry, out: OutputFormat) -> anyhow::Result<()> {
    if out.json {
        print_line(format_args!("{}", entry_json(entry)?))?;
        return Ok(());
    }
    match entry.kind {
        EntryKind::Charge => print_charge(entry),
        EntryKind::Correction => print_correction(entry),
        EntryKind::Expiry => print_expiry(entry),
    }
}

fn print_charge(entry: &JournalEntry) -> anyhow::Result<()> {
    let line: JournalLine<'_> = serde_json::from_str(&entry.line)?;
    let moment = jiff::Timestamp::from_millisecond(line.at)?;
    let (model, route, depth) = (&line.model, &line.route, line.depth);
    let used = match line.usage {
        BilledUnits::Tokens(tokens) => format!("{}+{}", tokens.input, tokens.output),
        BilledUnits::Characters { characters } => format!("{characters} characters"),
        BilledUnits::BilledImages { images, .. } | BilledUnits::Images { images } => {
            format!("{images} image")
        }
        BilledUnits::Video { seconds, resolution, .. } => {
            format!("{seconds} seconds of {}", resolution.name())
        }
    };
    let (id, amount) = (&line.request_id, entry.amount);
    let cost = line.cost_nano.and_then(|nano| Money::from_nano(nano).ok());
    let cost = cost.map_or(String::new(), |cost| format!("  cost {cost} USD"));
    print_line(format_args!(
        "{moment}  {id}  {model:<28} {route:<10} depth {depth}  {used}  {amount} USD{cost}"
    ))?;
    Ok(())
}

fn print_correction(entry: &JournalEntry) -> anyhow::Result<()> {
    let line = entry_json(entry)?;
    let moment = jiff::Timestamp::from_millisecond(line["at"].as_i64().unwrap_or_default())?;
    let (id, reason) = (line["corrects"].as_str(), line["reason"].as_str());
    let (id, reason) = (id.unwrap_or_default(), reason.unwrap_or_default());
    let amount = entry.amount;
    print_line(format_args!("{moment}  {id}  corrected  {reason}  -{amount} USD"))?;
    Ok(())
}

fn print_expiry(entry: &JournalEntry) -> anyhow::Result<()> {
    let line = entry_json(entry)?;
    let moment = jiff::Timestamp::from_millisecond(line["at"].as_i64().unwrap_or_default())?;
    let lot = line["expired"].as_str().unwrap_or_default();
    let lot = lot.parse::<LotId>().map_or_else(|_| lot.to_owned(), describe_lot);
    let amount = entry.amount;
    print_line(format_args!("{moment}  expired  {lot}  {amount} USD"))?;
    Ok(())
}
