//! Price books: what accounts pay instead of the list prices.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::sync::Arc;

use super::model::Model;
use crate::fast_map::FastMap;
use crate::ledger::BookName;
use crate::money::factor::PriceFactor;
use crate::money::price::Price;
use crate::money::{BilledUnits, Money, MoneyError, Rate};

/// A price book.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PriceBook {
    /// The name.
    pub name: BookName,
    /// What the amount at list prices is multiplied by, for models without a price of their own.
    pub factor: PriceFactor,
    /// The models with a price of their own, by id. The factor does not apply to these prices.
    pub(super) prices: FastMap<String, Price>,
    /// Whether the book may be below what the vendors bill.
    pub allows_loss: bool,
}

impl PriceBook {
    /// Returns the price of the book for a model; `None` if it is the factor times the list price.
    #[must_use]
    pub fn own_price(&self, model_id: &str) -> Option<&Price> {
        self.prices.get(model_id)
    }

    /// Returns how many models have a price of their own.
    #[must_use]
    pub fn own_price_count(&self) -> usize {
        self.prices.len()
    }
}

/// All price books.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PriceBooks {
    /// In order of their names.
    books: Vec<Arc<PriceBook>>,
    /// The index in `books` for each name.
    by_name: FastMap<BookName, usize>,
}

impl PriceBooks {
    /// Makes the books of a file, in which no name stands twice.
    #[must_use]
    pub(crate) fn new(mut books: Vec<PriceBook>) -> PriceBooks {
        books.sort_by(|one, other| one.name.cmp(&other.name));
        let books: Vec<Arc<PriceBook>> = books.into_iter().map(Arc::new).collect();
        let by_name = books.iter().enumerate().map(|(at, book)| (book.name.clone(), at)).collect();
        PriceBooks { books, by_name }
    }

    /// Returns the book of a name.
    #[must_use]
    pub fn find(&self, name: &BookName) -> Option<&Arc<PriceBook>> {
        self.by_name.get(name).and_then(|at| self.books.get(*at))
    }

    /// Returns all books, in order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<PriceBook>> {
        self.books.iter()
    }

    /// Returns how many books there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.books.len()
    }
}

/// What an account pays for the calls of a model: the list price, its factor, or a price of the
/// account's book.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AccountPrice<'a> {
    price: &'a Price,
    /// What the amount at `price` is multiplied by; `None` if it is what the account pays.
    factor: Option<PriceFactor>,
}

impl<'a> AccountPrice<'a> {
    /// Returns what an account with this book pays for a model. Without a book it is the list
    /// price.
    #[must_use]
    pub(crate) fn new(model: &'a Model, book: Option<&'a PriceBook>) -> AccountPrice<'a> {
        let Some(book) = book else { return AccountPrice::list(&model.price) };
        match book.own_price(&model.id) {
            Some(price) => AccountPrice::list(price),
            None => AccountPrice::with_factor(&model.price, book.factor),
        }
    }

    /// Returns a price to which a factor applies.
    #[must_use]
    pub(super) fn with_factor(price: &'a Price, factor: PriceFactor) -> AccountPrice<'a> {
        AccountPrice { price, factor: Some(factor) }
    }

    /// Returns a price to which no factor applies.
    #[must_use]
    pub(crate) fn list(price: &'a Price) -> AccountPrice<'a> {
        AccountPrice { price, factor: None }
    }

    /// Returns the price before the factor.
    #[must_use]
    pub(crate) fn price(&self) -> &'a Price {
        self.price
    }

    /// Returns the factor; `None` if the account pays the price as it is.
    #[must_use]
    pub(crate) fn factor(&self) -> Option<PriceFactor> {
        self.factor
    }

    /// Returns what the account pays for an amount before the factor. The factor is applied once to
    /// a whole amount: parts that are rounded one by one would sum up to more.
    ///
    /// # Errors
    /// [`MoneyError::OutOfRange`] if it does not fit.
    pub(crate) fn apply_factor(&self, amount: Money) -> Result<Money, MoneyError> {
        self.factor.map_or(Ok(amount), |factor| factor.apply(amount))
    }

    /// Returns what the account pays for a call at the prices of the time `at` (unix seconds).
    ///
    /// # Errors
    /// As [`Price::cost`].
    pub(crate) fn amount(&self, units: BilledUnits, at: i64) -> Result<Money, MoneyError> {
        self.apply_factor(self.price.cost(units, at)?)
    }

    /// Returns what the account pays for one unit, in USD, as an exact decimal.
    #[must_use]
    pub(crate) fn rate_usd_string(&self, rate: Rate) -> String {
        self.factor.map_or_else(|| rate.to_usd_string(), |factor| factor.rate_usd_string(rate))
    }

    /// Returns what the account pays for an amount, in USD, as an exact decimal.
    #[must_use]
    pub(crate) fn amount_usd_string(&self, amount: Money) -> String {
        self.factor.map_or_else(|| amount.to_string(), |factor| factor.amount_usd_string(amount))
    }
}
