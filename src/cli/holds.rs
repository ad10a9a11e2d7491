//! `tollgate holds`: what is held of accounts at the moment.

use serde_json::json;

use super::account_name::parse_account;
use super::output::{OutputFormat, print_line};
use crate::ledger::{AccountName, KeyId, Ledger};
use crate::management::holds::{HoldView, LentView, list_holds};
use crate::money::Money;

/// The number of holds that are read at a time.
const PAGE_SIZE: u32 = 1_000;

pub(super) async fn run(
    ledger: &dyn Ledger,
    name: Option<&str>,
    out: OutputFormat,
) -> anyhow::Result<()> {
    let account: Option<AccountName> = name.map(parse_account).transpose()?;
    let mut after = None;
    loop {
        let page = list_holds(ledger, account.as_ref(), after.as_ref(), PAGE_SIZE).await?;
        let is_last = page.len() < PAGE_SIZE as usize;
        for view in &page {
            print_hold(view, out)?;
        }
        after = page.last().map(|view| view.hold.cursor());
        if is_last {
            return Ok(());
        }
    }
}

fn print_hold(view: &HoldView, out: OutputFormat) -> anyhow::Result<()> {
    let HoldView { hold, kind, checkpoint, lent } = view;
    let (id, account, held) = (&hold.id, &hold.account, hold.held);
    if out.json {
        let shown = json!({
            "id": id,
            "account": account.as_str(),
            "kind": kind,
            "held_nano": held,
            "checkpoint_nano": checkpoint,
            // Many readers of JSON lose digits of a number as long as this one.
            "key_id": hold.key.map(|KeyId(id)| id.to_string()),
            "key_prefix": hold.key_prefix,
            "job_id": hold.job_id(),
            "made_at": hold.made_at(),
            "lease_until": hold.lease_until,
            "lent_nano": lent.map(|lent| lent.lent),
            "free_nano": lent.map(|lent| lent.free),
            "open_calls": lent.map(|lent| lent.open_calls),
        });
        print_line(format_args!("{shown}"))?;
        return Ok(());
    }
    let made = match hold.made_at() {
        Some(ms) => jiff::Timestamp::from_millisecond(ms)?.to_string(),
        None => "-".to_owned(),
    };
    let until = tell_lease(hold.lease_until);
    let more = match lent {
        Some(LentView { lent, free, open_calls }) => {
            format!("lent {lent} USD  free {free} USD  {open_calls} calls")
        }
        None => {
            checkpoint.map_or_else(String::new, |cost: Money| format!("cost so far {cost} USD"))
        }
    };
    let line = format!("{made}  {account}  {id}  {kind}  {held} USD  until {until}  {more}");
    print_line(format_args!("{}", line.trim_end()))?;
    Ok(())
}

/// Returns when a lease expires; some never do.
fn tell_lease(until: i64) -> String {
    let moment = jiff::Timestamp::from_millisecond(until);
    moment.map_or_else(|_| "never".to_owned(), |moment| moment.to_string())
}
