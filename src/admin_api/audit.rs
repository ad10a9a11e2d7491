//! `/admin/v1/audit`: the record of changes.

use axum::extract::State;
use serde_json::{Map, Value};

use super::error::AdminError;
use super::extract::{JsonReply, QueryParameters};
use super::page::{AdminPage, PageParameters};
use super::state::AdminApi;

/// Lists changes, newest first. Each has `seq`, `id`, `at`, `who`, `from` (`api` or `cli`),
/// `action`, `before`, `after` and `result`, and what the change is about: `account`,
/// `key_prefix`, `payment`, `amount_nano` and others.
#[utoipa::path(
    get,
    path = "/admin/v1/audit",
    tag = "audit",
    operation_id = "listAudit",
    params(PageParameters),
    responses((status = 200, description = "Changes.", body = AdminPage<Value>))
)]
pub(super) async fn list_audit(
    State(api): State<AdminApi>,
    QueryParameters(parameters): QueryParameters<PageParameters>,
) -> Result<JsonReply<AdminPage<Value>>, AdminError> {
    let range = parameters.parse()?;
    let before = range.after_number()?;
    let lines = api.store.operators.read_audit(before, range.limit + 1).await?;
    let rows = lines.into_iter().map(|(number, line)| {
        let mut row: Map<String, Value> = serde_json::from_str(&line).unwrap_or_default();
        row.insert("seq".to_owned(), number.into());
        Value::Object(row)
    });
    Ok(JsonReply(AdminPage::new(rows.collect(), range.limit, |row| row["seq"].to_string())))
}
