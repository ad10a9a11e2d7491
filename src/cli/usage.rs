//! `tollgate usage`: what an account used, from roll-ups.

use clap::Args;
use serde_json::{Map, Value, json};

use super::account_name::parse_account;
use super::output::{OutputFormat, print_line};
use crate::clock::unix_ms;
use crate::management::usage::read_usage;
use crate::store::OpenStore;
use crate::usage::{
    PeriodKind, ROLLUP_FIELDS, RollupSums, UsageAsk, UsageGroup, UsageRange, date_text, moment_text,
};

/// The names of the sums that are amounts begin with this one.
const FIRST_AMOUNT: &str = "charged";

#[derive(Debug, Args)]
pub(super) struct UsageArgs {
    /// The account.
    name: String,
    /// From this date or whole hour on, such as 2026-11-01 or 2026-11-01T13:00:00Z. By default for
    /// 30 days.
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Until this date or whole hour, which is left out. By default until now.
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// Group by day, hour, model, key or endpoint, or several of them with commas between them.
    #[arg(long, value_name = "NAMES", default_value = "day")]
    group_by: String,
}

pub(super) async fn run(
    store: &OpenStore,
    args: &UsageArgs,
    out: OutputFormat,
) -> anyhow::Result<()> {
    let account = parse_account(&args.name)?;
    let mut after: Option<String> = None;
    loop {
        let ask = UsageAsk {
            from: args.from.as_deref(),
            to: args.to.as_deref(),
            group_by: Some(&args.group_by),
            after: after.as_deref(),
        };
        let page = read_usage(store, &account, &UsageRange::parse(ask, unix_ms())?).await?;
        for (group, sums) in &page.rows {
            print_row(group, sums, out)?;
        }
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}

fn print_row(group: &UsageGroup, sums: &RollupSums, out: OutputFormat) -> anyhow::Result<()> {
    if out.json {
        let shown = row_json(group, sums)?;
        print_line(format_args!("{}", Value::Object(shown)))?;
        return Ok(());
    }
    let UsageGroup { start, key_id, model, endpoint } = group;
    let named = |text: &String| if text.is_empty() { "-".to_owned() } else { text.clone() };
    let key = key_id.as_ref().map(named);
    let of = [
        start.and_then(moment_text),
        key.map(|key| format!("key {key}")),
        model.as_ref().map(named),
        endpoint.as_ref().map(named),
    ];
    let mut parts: Vec<String> = of.into_iter().flatten().collect();
    let RollupSums { calls, prompt_tokens, completion_tokens, charged, corrected, .. } = sums;
    parts.push(format!("{calls} calls"));
    parts.push(format!("{prompt_tokens}+{completion_tokens} tokens"));
    for (count, unit) in [
        (sums.characters, "characters"),
        (sums.images, "images"),
        (sums.seconds, "seconds of video"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {unit}"));
        }
    }
    parts.push(format!("{charged} USD"));
    if corrected.nano() > 0 {
        parts.push(format!("corrected -{corrected} USD"));
    }
    if sums.calls_without_cost < *calls {
        parts.push(format!("cost {} USD", sums.cost));
    }
    print_line(format_args!("{}", parts.join("  ")))?;
    Ok(())
}

/// Returns a row with the names that the API of operators uses.
fn row_json(group: &UsageGroup, sums: &RollupSums) -> anyhow::Result<Map<String, Value>> {
    let mut shown = Map::new();
    if let Some(start) = group.start {
        shown.insert("day".to_owned(), json!(date_text(PeriodKind::Day.start_of(start))));
        shown.insert("start".to_owned(), json!(moment_text(start)));
    }
    let named = [("key_id", &group.key_id), ("model", &group.model), ("endpoint", &group.endpoint)];
    for (name, value) in named {
        if let Some(value) = value {
            shown.insert(name.to_owned(), value.as_str().into());
        }
    }
    let mut is_amount = false;
    for (name, value) in ROLLUP_FIELDS.into_iter().zip(sums.to_values()?) {
        is_amount |= name == FIRST_AMOUNT;
        let name = if is_amount { format!("{name}_nano") } else { name.to_owned() };
        shown.insert(name, value.into());
    }
    Ok(shown)
}
