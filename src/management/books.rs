//! The price books of the rules, by their names.

use super::error::{ManagementError, parse_book_name};
use crate::catalogue::{PriceBook, PriceBooks};
use crate::toml_reader::closest_word;

/// Finds a price book by its name.
pub(crate) fn find_book<'a>(
    books: &'a PriceBooks,
    name: &str,
) -> Result<&'a PriceBook, ManagementError> {
    if let Some(book) = books.find(&parse_book_name(name)?) {
        return Ok(book);
    }
    let names: Vec<&str> = books.iter().map(|book| book.name.as_str()).collect();
    let hint = if names.is_empty() {
        ": the rules have no price books".to_owned()
    } else {
        match closest_word(name, names.iter().copied()) {
            Some(closest) => format!("; closest is '{closest}'"),
            None => format!("; the price books are {}", names.join(", ")),
        }
    };
    let message = format!("there is no price book '{name}'{hint}");
    Err(ManagementError::Invalid { field: "book", message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_book_is_refused_with_what_would_be_right() {
        let told = |name| find_book(&PriceBooks::default(), name).expect_err("no book").to_string();
        assert_eq!(told("gold"), "there is no price book 'gold': the rules have no price books");
        assert!(told("a b").contains("'a b' is no name of a price book"));
    }
}
