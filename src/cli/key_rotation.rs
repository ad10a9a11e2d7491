//! `tollgate key rotate`: a new key in the place of another one, with the same id.

use anyhow::{bail, ensure};
use serde_json::json;

use super::key_scope::parse_duration;
use super::output::{OutputFormat, print_line};
use crate::management::context::ManagementContext;
use crate::management::key_rotation::{self, RotatedKey};
use crate::management::key_search::now_s;

/// Parses for how long an old key works beside the new one. Returns seconds.
pub(super) fn parse_overlap(text: Option<&str>) -> anyhow::Result<i64> {
    let Some(text) = text else { return Ok(0) };
    let Some(overlap) = parse_duration(text) else {
        bail!("'{text}' is no time: write how long the old key goes on working, as in 1h or 7d");
    };
    let end = jiff::Timestamp::from_second(now_s().saturating_add(overlap));
    ensure!(end.is_ok(), "'{text}' is too far away");
    Ok(overlap)
}

pub(super) async fn rotate_key(
    context: ManagementContext<'_>,
    prefix: &str,
    overlap: i64,
    out: OutputFormat,
) -> anyhow::Result<()> {
    let rotated = key_rotation::rotate_key(context, prefix, overlap).await?;
    let RotatedKey { issued, old_prefix, old_key_ends_at } = rotated;
    if out.json {
        let shown = json!({
            "key": issued.key.reveal(),
            "prefix": issued.record.prefix,
            "id": issued.record.id.0.to_string(),
            "old_prefix": old_prefix,
            "old_key_ends_at": old_key_ends_at,
        });
        print_line(format_args!("{shown}"))?;
    } else {
        print_line(format_args!("{}", issued.key.reveal()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlap_is_a_time_from_now() {
        for (text, seconds) in
            [(None, 0), (Some("0s"), 0), (Some("90m"), 5_400), (Some("1d"), 86_400)]
        {
            assert_eq!(parse_overlap(text).expect("a time"), seconds, "{text:?}");
        }
        for (text, told) in [
            ("soon", "as in 1h or 7d"),
            ("", "as in 1h or 7d"),
            ("-1h", "as in 1h or 7d"),
            ("99999999999999w", "too far away"),
        ] {
            let why = parse_overlap(Some(text)).expect_err("no time").to_string();
            assert!(why.contains(told), "{text}: {why}");
        }
    }
}
