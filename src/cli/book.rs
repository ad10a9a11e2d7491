//! `tollgate book`: the price books of the rules.

use clap::Subcommand;
use serde_json::{Value, json};

use super::output::{OutputFormat, print_line};
use super::rules::load_catalogue;
use crate::catalogue::PriceBook;
use crate::conf::Config;
use crate::management::books::find_book;
use crate::management::error::parse_book_name;

#[derive(Debug, Subcommand)]
pub(super) enum BookCommand {
    /// List all price books.
    List,
}

pub(super) fn run(conf: &Config, command: &BookCommand, out: OutputFormat) -> anyhow::Result<()> {
    let BookCommand::List = command;
    for book in load_catalogue(conf)?.books.iter() {
        if out.json {
            print_line(format_args!("{}", book_json(book)))?;
        } else {
            print_line(format_args!("{:<16} {}", book.name.as_str(), sum_up(book)))?;
        }
    }
    Ok(())
}

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

/// Returns a line about a price book.
fn sum_up(book: &PriceBook) -> String {
    let own = match book.own_price_count() {
        0 => String::new(),
        1 => ", and 1 price of its own".to_owned(),
        many => format!(", and {many} prices of its own"),
    };
    let loss = if book.allows_loss { " (loss)" } else { "" };
    format!("list price times {}{own}{loss}", book.factor)
}

fn book_json(book: &PriceBook) -> Value {
    json!({
        "name": book.name,
        "factor": book.factor,
        "prices": book.own_price_count(),
        "loss": book.allows_loss,
    })
}
