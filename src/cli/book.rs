//! The price books that commands are given.

use super::rules::load_catalogue;
use crate::conf::Config;
use crate::management::books::find_book;
use crate::management::error::parse_book_name;

/// Checks that the rules have the price book that a command is given. If they cannot be read here,
/// the command goes on: its machine need not be that of the gateway.
pub(super) fn check_book(conf: &Config, name: Option<&str>) -> anyhow::Result<()> {
    let Some(name) = name else { return Ok(()) };
    parse_book_name(name)?;
    match load_catalogue(conf) {
        Ok(catalogue) => Ok(find_book(&catalogue.books, name).map(drop)?),
        Err(why) => {
            eprintln!("tollgate: whether there is a price book '{name}' is not known: {why:#}");
            Ok(())
        }
    }
}
