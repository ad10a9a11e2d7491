//! `tollgate charges`: an account's journal.

use std::sync::Arc;

use serde_json::json;

use super::account_name::{no_such_account, parse_account};
use super::output::{OutputFormat, print_line};
use crate::ledger::{JournalEntry, JournalLine, KeyId, Ledger};
use crate::money::BilledUnits;

/// The number of journal entries that are read at a time.
const PAGE_SIZE: u32 = 1_000;

pub(super) async fn run(
    ledger: Arc<dyn Ledger>,
    name: &str,
    out: OutputFormat,
) -> anyhow::Result<()> {
    let name = parse_account(name)?;
    if ledger.balances(&name).await?.is_none() {
        return Err(no_such_account(&name));
    }
    let mut after = 0;
    loop {
        let page = ledger.read_journal(&name, after, PAGE_SIZE).await?;
        let Some(last) = page.last() else { return Ok(()) };
        after = last.seq;
        for entry in &page {
            print_entry(entry, out)?;
        }
    }
}

fn print_entry(entry: &JournalEntry, out: OutputFormat) -> anyhow::Result<()> {
    let line: JournalLine<'_> = serde_json::from_str(&entry.line)?;
    if out.json {
        let mut shown = serde_json::to_value(&line)?;
        shown["amount_nano"] = json!(entry.amount);
        shown["written_off_nano"] = json!(entry.written_off);
        // Of a charge that is above no budget it is nothing.
        shown["over_budget_nano"] = json!(line.over_budget_nano.unwrap_or(0));
        if let Some(KeyId(id)) = line.key_id {
            // Many readers of JSON lose digits of a number as long as this one.
            shown["key_id"] = json!(id.to_string());
        }
        print_line(format_args!("{shown}"))?;
        return Ok(());
    }
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
    print_line(format_args!(
        "{moment}  {id}  {model:<28} {route:<10} depth {depth}  {used}  {amount} USD"
    ))?;
    Ok(())
}
