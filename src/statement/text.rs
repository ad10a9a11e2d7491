//! A statement as text in columns, for a terminal.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::document::{Statement, usd_text};
use super::view::StatementView;

/// Writes a statement.
pub(crate) fn write_text(view: &StatementView) -> String {
    let mut lines = head_of(view);
    lines.push(String::new());
    lines.extend(rows_of(view));
    lines.push(String::new());
    lines.join("\n")
}

fn head_of(view: &StatementView) -> Vec<String> {
    let Statement { account, month, from, to, .. } = &view.statement;
    let account = printable(account);
    let mut lines = vec![format!("statement  {account}  {month}  (from {from} until {to}, UTC)")];
    match &view.seal {
        Some(seal) => lines.extend([
            format!("number     {}, {}", seal.number, view.state()),
            format!("sha256     {}", seal.sha256),
        ]),
        None => lines.push(format!("state      {}", view.state())),
    }
    lines
}

/// Returns a line for each item. The amounts stand with their points below each other.
fn rows_of(view: &StatementView) -> Vec<String> {
    let rows = view.items().into_iter().map(|item| {
        let versions = item.price_versions();
        let priced = if versions.is_empty() { versions } else { format!("prices {versions}") };
        let told = [item.name, item.model_name(), &item.usage(), &priced].map(printable);
        (told, usd_text(item.nano))
    });
    let rows: Vec<([String; 4], String)> = rows.collect();
    let mut widths = [0; 4];
    for (told, _) in &rows {
        for (width, cell) in widths.iter_mut().zip(told) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let whole_part = |usd: &str| usd.find('.').unwrap_or(usd.len());
    let whole_max = rows.iter().map(|(_, usd)| whole_part(usd)).max().unwrap_or(0);
    let line = |(told, usd): &([String; 4], String)| {
        let cells = widths.iter().zip(told).filter(|(width, _)| **width > 0);
        let mut cells: Vec<String> = cells.map(|(width, cell)| format!("{cell:<width$}")).collect();
        let indent = whole_max.saturating_sub(whole_part(usd));
        cells.push(format!("{:indent$}{usd} USD", ""));
        cells.join("  ")
    };
    rows.iter().map(line).collect()
}

/// Returns a text without characters that would steer a terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}
