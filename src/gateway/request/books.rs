//! The price book of a caller.

use std::sync::Arc;

use crate::catalogue::{PriceBook, PriceBooks};
use crate::gateway::api_error::{ApiError, ScopeError};
use crate::ledger::KeyRecord;

/// Finds the price book of a key's account; `None` if it pays the list prices.
///
/// # Errors
/// The book is not set up here. Then nobody knows what the account pays.
pub(crate) fn find_book(
    books: &PriceBooks,
    key: &KeyRecord,
) -> Result<Option<Arc<PriceBook>>, ApiError> {
    let Some(name) = &key.account_settings.book else { return Ok(None) };
    let found = books.find(name).cloned();
    found.map(Some).ok_or_else(|| ScopeError::UnknownBook(name.clone()).into())
}
