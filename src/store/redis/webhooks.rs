//! The rows of webhooks in Redis. All their keys have one hash tag, which is no name of an account,
//! so they are in one slot of a cluster. Each row is a hash. Sorted sets have the places of the
//! rows of an owner and of a kind, and when which row is due.

use async_trait::async_trait;

use super::reply_parts::{parse_part, unexpected};
use super::scripts::ScriptCall;
use super::shared_store::RedisStore;
use crate::ledger::Unavailable;
use crate::webhooks::{
    DueRow, RowBounds, RowPlace, WebhookRow, WebhookRowAdded, WebhookRowKind, WebhookStore,
};

/// The parts of a row in the reply of what is due.
const DUE_PARTS: usize = 2;
/// The parts of a row in the reply of a list.
const ROW_PARTS: usize = 6;

/// Returns the beginning of the keys of the rows of a kind.
fn rows_prefix(kind: WebhookRowKind) -> String {
    format!("tollgate:{{:webhooks}}:{}:", kind.name())
}

fn row_key(kind: WebhookRowKind, id: &str) -> String {
    rows_prefix(kind) + id
}

/// Returns the beginning of the keys of the places of an owner's rows.
fn owners_prefix(kind: WebhookRowKind) -> String {
    format!("tollgate:{{:webhooks}}:{}s_of:", kind.name())
}

/// Returns the key of the places of all rows of a kind.
fn all_key(kind: WebhookRowKind) -> String {
    format!("tollgate:{{:webhooks}}:{}s", kind.name())
}

/// Returns the beginning of the keys of when the rows of an owner are due.
fn dues_prefix(kind: WebhookRowKind) -> String {
    format!("tollgate:{{:webhooks}}:{}s_due_of:", kind.name())
}

/// Returns the key of when the next row of which owner is due.
fn due_key(kind: WebhookRowKind) -> String {
    format!("tollgate:{{:webhooks}}:{}s_due", kind.name())
}

/// Returns a place as a text whose order is that of places. Times are below 10^15 ms for 30,000
/// years.
fn place_text(place: &RowPlace) -> String {
    format!("{:015}:{}", place.created_at, place.id)
}

fn time_text(at: Option<i64>) -> String {
    at.map(|at| at.to_string()).unwrap_or_default()
}

/// Parses the parts that a list tells of a row.
fn parse_row(kind: WebhookRowKind, parts: &[String]) -> Result<WebhookRow, Unavailable> {
    let [id, owner, created_at, due_at, version, body] = parts else {
        return Err(unexpected(parts));
    };
    Ok(WebhookRow {
        kind,
        id: id.clone(),
        owner: owner.clone(),
        created_at: parse_part(created_at)?,
        due_at: if due_at.is_empty() { None } else { Some(parse_part(due_at)?) },
        version: parse_part(version)?,
        body: body.clone(),
    })
}

/// Returns the command that reads a row.
fn read_command(kind: WebhookRowKind, id: &str) -> redis::Cmd {
    let mut read = redis::cmd("HMGET");
    read.arg(row_key(kind, id)).arg(&["owner", "created_at", "due_at", "version", "body"]);
    read
}

/// Parses the reply of [`read_command`]; `None` if there is no such row.
fn parse_fields(
    kind: WebhookRowKind,
    id: &str,
    fields: Vec<Option<String>>,
) -> Result<Option<WebhookRow>, Unavailable> {
    let Some(fields) = fields.into_iter().collect::<Option<Vec<_>>>() else { return Ok(None) };
    let parts: Vec<_> = std::iter::once(id.to_owned()).chain(fields).collect();
    parse_row(kind, &parts).map(Some)
}

#[async_trait]
impl WebhookStore for RedisStore {
    async fn add_row(
        &self,
        row: &WebhookRow,
        bounds: RowBounds,
        makes_room: bool,
    ) -> Result<WebhookRowAdded, Unavailable> {
        let (kind, id) = (row.kind, &row.id);
        let mut call = ScriptCall::default();
        call.key(row_key(kind, id)).key(owners_prefix(kind) + &row.owner).key(all_key(kind));
        call.key(due_key(kind)).key(dues_prefix(kind) + &row.owner).key(rows_prefix(kind));
        call.arg(id).arg(&row.owner).arg(row.created_at).arg(time_text(row.due_at)).arg(&row.body);
        call.arg(place_text(&row.place()));
        let in_all = bounds.in_all.unwrap_or(u32::MAX);
        call.arg(bounds.of_owner).arg(in_all).arg(u8::from(makes_room));
        let mut reply = self.run_script(&call, |s| &s.webhooks.add).await?.into_iter();
        match (reply.next().as_deref(), reply.next()) {
            (Some("added"), None) => Ok(WebhookRowAdded::Added),
            (Some("in_place_of"), Some(body)) => Ok(WebhookRowAdded::InPlaceOf(body)),
            (Some("exists"), None) => Ok(WebhookRowAdded::Exists),
            (Some("full"), None) => Ok(WebhookRowAdded::Full),
            (word, _) => Err(unexpected(word)),
        }
    }

    async fn find_row(
        &self,
        kind: WebhookRowKind,
        id: &str,
    ) -> Result<Option<WebhookRow>, Unavailable> {
        let fields = self.connection().await?.query(&read_command(kind, id)).await?;
        let found = parse_fields(kind, id, fields)?;
        if found.is_none() {
            self.confirm_absence(&row_key(kind, id)).await?;
        }
        Ok(found)
    }

    async fn replace_row(&self, row: &WebhookRow) -> Result<bool, Unavailable> {
        let mut call = ScriptCall::default();
        let (kind, id, owner) = (row.kind, &row.id, &row.owner);
        call.key(row_key(kind, id)).key(due_key(kind)).key(dues_prefix(kind) + owner);
        call.arg(id).arg(row.version).arg(time_text(row.due_at)).arg(&row.body).arg(owner);
        let reply = self.run_script(&call, |s| &s.webhooks.replace).await?;
        match reply.first().map(String::as_str) {
            Some("replaced") => Ok(true),
            Some("changed") => Ok(false),
            word => Err(unexpected(word)),
        }
    }

    async fn remove_row(&self, kind: WebhookRowKind, id: &str) -> Result<bool, Unavailable> {
        let mut call = ScriptCall::default();
        call.key(row_key(kind, id)).key(owners_prefix(kind)).key(dues_prefix(kind));
        call.key(all_key(kind)).key(due_key(kind)).arg(id);
        let reply = self.run_script(&call, |s| &s.webhooks.remove).await?;
        match reply.first().map(String::as_str) {
            Some("removed") => Ok(true),
            Some("none") => {
                self.confirm_absence(&row_key(kind, id)).await?;
                Ok(false)
            }
            word => Err(unexpected(word)),
        }
    }

    async fn list_rows(
        &self,
        kind: WebhookRowKind,
        owner: Option<&str>,
        before: Option<&RowPlace>,
        limit: u32,
    ) -> Result<Vec<WebhookRow>, Unavailable> {
        let places = owner.map_or_else(|| all_key(kind), |owner| owners_prefix(kind) + owner);
        let mut call = ScriptCall::default();
        call.key(&places).key(rows_prefix(kind));
        call.arg(before.map(place_text).unwrap_or_default()).arg(limit);
        let reply = self.run_script(&call, |s| &s.webhooks.list).await?;
        if reply.is_empty() {
            self.confirm_absence(&places).await?;
        }
        reply.chunks(ROW_PARTS).map(|parts| parse_row(kind, parts)).collect()
    }

    async fn list_due_rows(
        &self,
        kind: WebhookRowKind,
        now: i64,
        limit: u32,
    ) -> Result<Vec<DueRow>, Unavailable> {
        let mut call = ScriptCall::default();
        call.key(due_key(kind)).key(dues_prefix(kind)).arg(now).arg(limit);
        let reply = self.run_script(&call, |s| &s.webhooks.list_due).await?;
        let parse = |parts: &[String]| match parts {
            [owner, id] => Ok(DueRow { id: id.clone(), owner: owner.clone() }),
            _ => Err(unexpected(parts)),
        };
        reply.chunks(DUE_PARTS).map(parse).collect()
    }
}
