//! The rows of webhooks, in one table.

use async_trait::async_trait;

use super::embedded_store::SqliteStore;
use super::webhook_rows;
use crate::ledger::Unavailable;
use crate::webhooks::{
    DueRow, RowBounds, RowPlace, WebhookRow, WebhookRowAdded, WebhookRowKind, WebhookStore,
};

#[async_trait]
impl WebhookStore for SqliteStore {
    async fn add_row(
        &self,
        row: &WebhookRow,
        bounds: RowBounds,
        makes_room: bool,
    ) -> Result<WebhookRowAdded, Unavailable> {
        // Most rows that are added twice are there already, which a reader tells.
        if self.find_row(row.kind, &row.id).await?.is_some() {
            return Ok(WebhookRowAdded::Exists);
        }
        let row = row.clone();
        self.write_alone(move |c| webhook_rows::add(c, &row, bounds, makes_room)).await
    }

    async fn find_row(
        &self,
        kind: WebhookRowKind,
        id: &str,
    ) -> Result<Option<WebhookRow>, Unavailable> {
        let id = id.to_owned();
        self.reader.query(move |c| webhook_rows::find(c, kind, &id)).await
    }

    async fn replace_row(&self, row: &WebhookRow) -> Result<bool, Unavailable> {
        let row = row.clone();
        self.write_alone(move |c| webhook_rows::replace(c, &row)).await
    }

    async fn remove_row(&self, kind: WebhookRowKind, id: &str) -> Result<bool, Unavailable> {
        let id = id.to_owned();
        self.write_alone(move |c| webhook_rows::remove(c, kind, &id)).await
    }

    async fn list_rows(
        &self,
        kind: WebhookRowKind,
        owner: Option<&str>,
        before: Option<&RowPlace>,
        limit: u32,
    ) -> Result<Vec<WebhookRow>, Unavailable> {
        let (owner, before) = (owner.map(str::to_owned), before.cloned());
        let listing = move |c: &rusqlite::Connection| {
            webhook_rows::list(c, kind, owner.as_deref(), before.as_ref(), limit)
        };
        self.reader.query(listing).await
    }

    async fn list_due_rows(
        &self,
        kind: WebhookRowKind,
        now: i64,
        limit: u32,
    ) -> Result<Vec<DueRow>, Unavailable> {
        self.reader.query(move |c| webhook_rows::list_due(c, kind, now, limit)).await
    }
}
