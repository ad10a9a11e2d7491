//! The page of the record of changes.

use axum::extract::State;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::error::PageError;
use super::forms::PageQuery;
use super::page::Page;
use super::state::Console;
use super::views::audit as view;

/// The number of changes of a page.
const PAGE_SIZE: u32 = 50;

/// The place in the list.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AuditPlace {
    /// The number of the last change of the page before.
    before: Option<u64>,
}

/// Shows the page.
pub(super) async fn show(
    State(console): State<Console>,
    PageQuery(AuditPlace { before }): PageQuery<AuditPlace>,
) -> Result<Page, PageError> {
    let read = console.api.store.operators.read_audit(before, PAGE_SIZE + 1).await?;
    let has_more = read.len() > PAGE_SIZE as usize;
    let lines: Vec<(u64, Map<String, Value>)> = read
        .into_iter()
        .take(PAGE_SIZE as usize)
        .map(|(number, line)| (number, serde_json::from_str(&line).unwrap_or_default()))
        .collect();
    let next = lines.last().filter(|_| has_more).map(|(number, _)| *number);
    Ok(Page::new("Audit trail", "/audit", view::draw(&lines, next)))
}
