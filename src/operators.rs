//! Operators: the people and programs that manage a gateway through its API, each with a token of
//! its own, and the record of what they changed.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use async_trait::async_trait;

use crate::ledger::Unavailable;

pub mod bounds;
mod token;

pub use token::{OperatorToken, TokenHash};

/// What an operator may do. Each role may do all that the roles before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Reads everything, and changes nothing.
    Support,
    /// Manages accounts, keys and payments.
    Operator,
    /// Manages operators too.
    Owner,
}

impl Role {
    /// All roles, the one with the fewest rights first.
    pub const ALL: [Role; 3] = [Role::Support, Role::Operator, Role::Owner];

    /// Returns the name of the role, as in `owner`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Role::Support => "support",
            Role::Operator => "operator",
            Role::Owner => "owner",
        }
    }

    /// Returns the role of a name; `None` if there is none.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// The stored record of an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorRecord {
    /// The name, by which the audit trail names the operator.
    pub name: String,
    /// What the operator may do.
    pub role: Role,
    /// The beginning of the token, which is shown in lists.
    pub prefix: String,
    /// When the operator was added, in unix seconds.
    pub created_at: i64,
    /// When the token expires, in unix seconds; `None` if it does not.
    pub expires_at: Option<i64>,
}

impl OperatorRecord {
    /// Whether this is an owner whose token does not expire. One of these always stays.
    #[must_use]
    pub fn is_lasting_owner(&self) -> bool {
        self.role == Role::Owner && self.expires_at.is_none()
    }

    /// Whether the token has expired at a time, in unix seconds.
    #[must_use]
    pub fn is_expired(&self, now: i64) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
}

/// What came of a change of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperatorChange {
    /// The change was made.
    Done,
    /// There is an operator of that name already.
    AlreadyExists,
    /// There is no operator of that name.
    Unknown,
    /// The operator is the last owner whose token does not expire, and so has to stay.
    LastOwner,
}

/// What the store knows of a request that an operator has named by an idempotency key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamedRequest {
    /// The name is new; it is claimed now.
    New,
    /// A request of this name runs, or ended without a reply.
    Running,
    /// The name was used for a request with another content.
    OtherContent,
    /// The request was answered with this reply.
    Answered(String),
}

/// The operators of a store, the record of their changes, and the requests that they have named.
///
/// An embedded store acknowledges these writes when they are on disk. On a server, a caller that
/// must not lose a write runs it within the store's `DurabilityScope`, which may run it again if
/// the server restarts meanwhile:
///
/// - [`add_operator`](Self::add_operator), [`replace_token`](Self::replace_token),
///   [`remove_operator`](Self::remove_operator) and [`append_audit`](Self::append_audit) should be
///   run so; `OpenStore` has functions that do it. The same again changes nothing, but the removal
///   of an operator that was removed before says [`OperatorChange::Unknown`].
/// - [`answer_request`](Self::answer_request) and [`release_request`](Self::release_request) may be
///   run so: the same again changes nothing.
/// - [`claim_request`](Self::claim_request) should not be: the second run finds the claim of the
///   first, and says [`NamedRequest::Running`]. A claim is durable when a later write of the same
///   caller is. A server that restarts between the two may lose it, so a change that must not be
///   made twice needs an id of its own.
///
/// What is longer than the [`bounds`] allow, or is no name, is not written: [`Unavailable`].
#[async_trait]
pub trait OperatorStore: Send + Sync {
    /// Adds an operator. The same operator with the same token may be added again.
    ///
    /// # Errors
    /// [`Unavailable`] if there are [`bounds::OPERATORS_MAX`] operators, or another one has the
    /// token, too.
    async fn add_operator(
        &self,
        hash: TokenHash,
        record: OperatorRecord,
    ) -> Result<OperatorChange, Unavailable>;
    /// Returns the operator with this token; `None` if there is none. An expired token is found.
    async fn find_operator(&self, hash: TokenHash) -> Result<Option<OperatorRecord>, Unavailable>;
    /// Returns all operators, ordered by name.
    async fn list_operators(&self) -> Result<Vec<OperatorRecord>, Unavailable>;
    /// Replaces the token of an operator. The earlier one does not work any more. The last owner
    /// whose token does not expire gets no token that does.
    async fn replace_token(
        &self,
        name: &str,
        hash: TokenHash,
        prefix: &str,
        expires_at: Option<i64>,
    ) -> Result<OperatorChange, Unavailable>;
    /// Removes an operator, unless it is the last owner whose token does not expire.
    async fn remove_operator(&self, name: &str) -> Result<OperatorChange, Unavailable>;
    /// Appends a line to the record of changes: JSON, at most 64 KiB. A line that is the same as
    /// one of the last [`bounds::AUDIT_RECENT_LINES`] is not appended again, so each line needs an
    /// id or a time. The record keeps the last [`bounds::AUDIT_LINES_MAX`] lines.
    async fn append_audit(&self, line: &str) -> Result<(), Unavailable>;
    /// Returns lines of the record of changes before number `before` (`None`: the newest), newest
    /// first, at most `limit` and at most [`bounds::AUDIT_PAGE_MAX`], each with its number. The
    /// first line has number 1. A number stays that of its line when older lines have left.
    async fn read_audit(
        &self,
        before: Option<u64>,
        limit: u32,
    ) -> Result<Vec<(u64, String)>, Unavailable>;
    /// Claims the name of a request for one day. `owner` is the name of the operator; `content` is
    /// the digest of the method, the path and the body. Of an operator's requests, the last
    /// [`bounds::OPERATOR_REQUESTS_MAX`] are known.
    async fn claim_request(
        &self,
        owner: &str,
        name: &str,
        content: [u8; 32],
    ) -> Result<NamedRequest, Unavailable>;
    /// Keeps the reply to a request whose name was claimed, for the rest of its day. The first
    /// reply stays. Nothing is kept if the name is not claimed any more.
    async fn answer_request(&self, owner: &str, name: &str, reply: &str)
    -> Result<(), Unavailable>;
    /// Gives a name back whose request has changed nothing, unless it was answered.
    async fn release_request(&self, owner: &str, name: &str) -> Result<(), Unavailable>;
}
