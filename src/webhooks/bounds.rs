//! The bounds of what a store keeps of webhooks, for each account and in all.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::row::RowBounds;

/// An account has at most this many endpoints.
pub const ENDPOINTS_OF_ACCOUNT_MAX: u32 = 4;
/// Operators have at most this many endpoints.
pub const ENDPOINTS_OF_OPERATORS_MAX: u32 = 16;
/// All accounts together have at most this many endpoints.
pub const ENDPOINTS_MAX: u32 = 1_000;
/// The messages of an endpoint of an account, sent ones among them. The oldest one makes room for a
/// new one.
pub(crate) const MESSAGES: RowBounds = RowBounds { of_owner: 200, in_all: None };
/// The same of an endpoint of the operators, who are told of all accounts.
pub(crate) const MESSAGES_OF_OPERATORS: RowBounds = RowBounds { of_owner: 2_000, in_all: None };
/// The windows of budgets of an account that have reached a level. Of more, nothing is told.
pub(crate) const BUDGET_LEVELS: RowBounds = RowBounds { of_owner: 100, in_all: Some(20_000) };
/// The accounts whose balances are low for an endpoint. Of more, nothing is told.
pub(crate) const BALANCE_LEVELS: RowBounds = RowBounds { of_owner: 10_000, in_all: Some(20_000) };
/// The routes that are down.
pub(crate) const ROUTE_LEVELS: RowBounds = RowBounds { of_owner: 1_000, in_all: Some(21_000) };
/// The level of what has fallen is kept for this long, in ms: it may rise again at once.
pub(crate) const FALLEN_KEPT_MS: i64 = 60_000;
/// A message is kept for this long after its event, in ms: 30 days.
pub(crate) const MESSAGE_KEPT_MS: i64 = 30 * 86_400_000;
/// An address has at most this many bytes.
pub const URL_BYTES_MAX: usize = 1_024;
/// What a receiver has answered is kept up to this many characters.
pub(crate) const ERROR_CHARS_MAX: usize = 200;
