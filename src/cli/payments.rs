//! `tollgate payments`: what came into an account and went back beside charges.

use serde_json::json;

use super::account_name::parse_account;
use super::output::{OutputFormat, print_line};
use crate::ledger::{Ledger, TransferEntry};
use crate::management::grants::describe_lot;
use crate::management::payments::list_transfers;

/// The number of entries that are read at a time.
const PAGE_SIZE: u32 = 1_000;

pub(super) async fn run(ledger: &dyn Ledger, name: &str, out: OutputFormat) -> anyhow::Result<()> {
    let name = parse_account(name)?;
    let mut skipped = 0;
    loop {
        let page = list_transfers(ledger, &name, skipped, PAGE_SIZE).await?;
        if page.is_empty() {
            return Ok(());
        }
        skipped += u64::try_from(page.len())?;
        for entry in &page {
            print_entry(entry, out)?;
        }
    }
}

fn print_entry(entry: &TransferEntry, out: OutputFormat) -> anyhow::Result<()> {
    let TransferEntry { tx, kind, amount, moved, at, lot, request, reason } = entry;
    let kind = kind.as_str();
    if out.json {
        let shown = json!({
            "at": at,
            "kind": kind,
            "id": tx,
            "amount_nano": amount,
            "moved_nano": moved,
            "lot": lot.map(|lot| lot.to_string()),
            "request_id": request,
            "reason": reason,
        });
        print_line(format_args!("{shown}"))?;
        return Ok(());
    }
    let time = match at {
        Some(ms) => jiff::Timestamp::from_millisecond(*ms)?.to_string(),
        None => "-".to_owned(),
    };
    let moved = moved.map_or_else(|| "waiting".to_owned(), |moved| format!("{moved} USD"));
    let lot = lot.map(describe_lot);
    let of = request.as_deref().or(lot.as_deref()).unwrap_or_default();
    let line = format!("{time}  {kind:<10}  {tx}  {amount} USD  {moved}  {of}  {reason}");
    print_line(format_args!("{}", line.trim_end()))?;
    Ok(())
}
