//! The bounds of what a store keeps of webhooks, for each account and in all.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::row::RowBounds;

/// An account has at most this many endpoints.
pub const ENDPOINTS_OF_ACCOUNT_MAX: u32 = 4;
/// Operators have at most this many endpoints.
pub const ENDPOINTS_OF_OPERATORS_MAX: u32 = 16;
/// There are at most this many endpoints in all.
pub const ENDPOINTS_MAX: u32 = 2_000;
/// The messages of an endpoint, sent ones among them. The oldest one makes room for a new one.
pub(crate) const MESSAGES: RowBounds = RowBounds { of_owner: 500, in_all: 50_000 };
/// The levels that the budgets of an account have crossed. The oldest one makes room for a new one.
pub(crate) const BUDGET_LEVELS: RowBounds = RowBounds { of_owner: 500, in_all: 100_000 };
/// The accounts whose balances were low for an endpoint. The oldest one makes room for a new one.
pub(crate) const BALANCE_LEVELS: RowBounds = RowBounds { of_owner: 20_000, in_all: 100_000 };
/// The routes that were down.
pub(crate) const ROUTE_LEVELS: RowBounds = RowBounds { of_owner: 1_000, in_all: 101_000 };
/// A message is kept for this long after its event, in ms: 30 days.
pub(crate) const MESSAGE_KEPT_MS: i64 = 30 * 86_400_000;
/// An address has at most this many bytes.
pub const URL_BYTES_MAX: usize = 1_024;
/// What a receiver has answered is kept up to this many characters.
pub(crate) const ERROR_CHARS_MAX: usize = 200;
