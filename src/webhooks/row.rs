//! The rows that a store keeps of webhooks: endpoints, messages and crossed levels. What is in a
//! row is decided in this room alone. A store knows whose a row is and when something is due with
//! it, and replaces a row only if nobody has replaced it meanwhile.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use async_trait::async_trait;

use crate::ledger::Unavailable;

/// What a row is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WebhookRowKind {
    /// An address to which messages are sent. Its owner is an account, or nobody (an empty text) if
    /// it is the operators'.
    Endpoint,
    /// A message to an endpoint, which is its owner.
    Message,
    /// A level that the balance or a budget of an account, its owner, has crossed.
    Crossing,
}

impl WebhookRowKind {
    /// All kinds.
    pub const ALL: [WebhookRowKind; 3] =
        [WebhookRowKind::Endpoint, WebhookRowKind::Message, WebhookRowKind::Crossing];

    /// Returns the name by which a store tells the kinds apart.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            WebhookRowKind::Endpoint => "endpoint",
            WebhookRowKind::Message => "message",
            WebhookRowKind::Crossing => "crossing",
        }
    }

    /// Returns the kind of a name; `None` if there is none.
    #[must_use]
    pub fn of_name(name: &str) -> Option<WebhookRowKind> {
        WebhookRowKind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// A row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookRow {
    /// What it is about.
    pub kind: WebhookRowKind,
    /// Its id, which no other row of its kind has: visible ASCII without `:`.
    pub id: String,
    /// Whose it is; empty if the operators'.
    pub owner: String,
    /// When it was made, in unix ms.
    pub created_at: i64,
    /// When something is to be done with it, in unix ms; `None` if nothing.
    pub due_at: Option<i64>,
    /// How often it was replaced, from 1.
    pub version: u64,
    /// What it says, as JSON.
    pub body: String,
}

impl WebhookRow {
    /// Returns the place of the row in the lists.
    #[must_use]
    pub fn place(&self) -> RowPlace {
        RowPlace { created_at: self.created_at, id: self.id.clone() }
    }
}

/// A place in a list of rows, which is that of a row. The order is that of the fields.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowPlace {
    /// When the row was made, in unix ms.
    pub created_at: i64,
    /// Its id.
    pub id: String,
}

impl RowPlace {
    /// Parses the text form, `CREATED_AT:ID`; `None` if the text is anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<RowPlace> {
        let (created_at, id) = text.split_once(':')?;
        let is_number = !created_at.is_empty() && created_at.bytes().all(|b| b.is_ascii_digit());
        let created_at = created_at.parse().ok().filter(|_| is_number)?;
        Some(RowPlace { created_at, id: id.to_owned() })
    }
}

impl std::fmt::Display for RowPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.created_at, self.id)
    }
}

/// A row that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueRow {
    /// Its id.
    pub id: String,
    /// Whose it is.
    pub owner: String,
}

/// How many rows of a kind there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowBounds {
    /// Of one owner.
    pub of_owner: u32,
    /// Of all owners; `None` if that follows from how many owners there are.
    pub in_all: Option<u32>,
}

/// The result of adding a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WebhookRowAdded {
    /// It was added.
    Added,
    /// It was added, and the oldest row of its owner was removed, which said this.
    InPlaceOf(String),
    /// There is a row with its id, which stays as it is.
    Exists,
    /// There are as many as there may be. Nothing was added.
    Full,
}

/// The rows of a store. An embedded store acknowledges a write when it is on disk. A server that
/// restarts may forget those of the last second; a caller that must not lose one runs it within the
/// store's `DurabilityScope`.
#[async_trait]
pub trait WebhookStore: Send + Sync {
    /// Adds a row with version 1, within the bounds. With `makes_room` the oldest row of the owner
    /// is removed if there is no room for the owner's next one.
    ///
    /// # Errors
    /// [`Unavailable`] if the store does not answer.
    async fn add_row(
        &self,
        row: &WebhookRow,
        bounds: RowBounds,
        makes_room: bool,
    ) -> Result<WebhookRowAdded, Unavailable>;
    /// Returns a row; `None` if there is none.
    async fn find_row(
        &self,
        kind: WebhookRowKind,
        id: &str,
    ) -> Result<Option<WebhookRow>, Unavailable>;
    /// Replaces the body and the due time of a row, and raises its version by one. Returns whether
    /// it still had the version of `row`.
    async fn replace_row(&self, row: &WebhookRow) -> Result<bool, Unavailable>;
    /// Removes a row. Returns whether there was one.
    async fn remove_row(&self, kind: WebhookRowKind, id: &str) -> Result<bool, Unavailable>;
    /// Returns rows of one owner, or of all (`None`), newest first: those before the place
    /// `before`, or from the newest one on, at most `limit`.
    async fn list_rows(
        &self,
        kind: WebhookRowKind,
        owner: Option<&str>,
        before: Option<&RowPlace>,
        limit: u32,
    ) -> Result<Vec<WebhookRow>, Unavailable>;
    /// Returns what is due at `now` (unix ms), the longest due first, at most `limit`. Of each
    /// owner it is one row, however many are due: an owner with many hides no others.
    async fn list_due_rows(
        &self,
        kind: WebhookRowKind,
        now: i64,
        limit: u32,
    ) -> Result<Vec<DueRow>, Unavailable>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_was_written() {
        let place = RowPlace { created_at: 7, id: "msg_1".to_owned() };
        assert_eq!(RowPlace::parse(&place.to_string()), Some(place));
        for text in ["", "7", ":a", "-1:a", "+1:a", "a:b", "99999999999999999999:a"] {
            assert_eq!(RowPlace::parse(text), None, "{text}");
        }
        for kind in WebhookRowKind::ALL {
            assert_eq!(WebhookRowKind::of_name(kind.name()), Some(kind));
        }
    }
}
