//! The file of the price books: what accounts may pay instead of the list prices.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::sync::Arc;

use super::book::{AccountPrice, PriceBook, PriceBooks};
use super::book_loss::{find_fee_loss, find_loss};
use super::model::Model;
use super::offer::Catalogue;
use super::{named_tables, prices};
use crate::fast_map::FastMap;
use crate::ledger::BookName;
use crate::money::factor::PriceFactor;
use crate::money::price::Price;
use crate::toml_reader::{ConfigError, SourceLocation, SpannedValue, TableReader, TomlValue};

/// The name of the file in the folder of the rules.
const FILE_NAME: &str = "books.toml";

/// Whether a file of the rules is that of the price books, and no vendor's.
#[must_use]
pub(super) fn is_book_file(file: &str) -> bool {
    named_tables::has_name(file, FILE_NAME)
}

/// Parses the file of the price books, and adds every fault to `faults`. A book that is below the
/// cost of a model is a fault as well, unless it says that it may be. Without `catalogue` neither
/// the prices of models nor the costs are checked.
pub(super) fn parse(
    file: &str,
    text: &str,
    catalogue: Option<&Catalogue>,
    faults: &mut Vec<ConfigError>,
) -> PriceBooks {
    let rows = named_tables::parse(file, text, "book", "price books", faults);
    let book = |(name, node): (String, SpannedValue)| parse_book(&name, node, catalogue, faults);
    PriceBooks::new(rows.into_iter().filter_map(book).collect())
}

/// Parses a book; `None` if its name is none.
fn parse_book(
    name: &str,
    node: SpannedValue,
    catalogue: Option<&Catalogue>,
    faults: &mut Vec<ConfigError>,
) -> Option<PriceBook> {
    let is_table = matches!(node.value, TomlValue::Table(_));
    let mut row = TableReader::open(node, faults);
    let location = row.location.clone();
    let book_name = BookName::parse(name);
    if book_name.is_none() {
        let what = "is no name of a price book: it has 1 to 64 letters, digits, '-' and '_'";
        faults.push(location.error(format!("'{name}' {what}")));
    }
    if is_table && !row.has("factor") && !row.has("prices") {
        faults.push(location.error("a price book needs a factor, prices or both"));
    }
    let factor = parse_factor(&mut row, faults);
    let prices = row.members("prices", faults);
    let prices = parse_prices(prices, catalogue, faults);
    let allows_loss = row.bool("loss", faults).unwrap_or(false);
    row.finish(faults);
    let name = book_name?;
    // A factor that cannot be read says nothing of what is below cost.
    let known_factor = factor.unwrap_or(PriceFactor::ONE);
    let book = PriceBook { name, factor: known_factor, prices, allows_loss };
    if let Some(catalogue) = catalogue.filter(|_| factor.is_some() && !allows_loss) {
        refuse_loss(&book, &location, catalogue, faults);
    }
    Some(book)
}

/// Reads the factor, which is 1 if there is none; `None` if it is wrong.
fn parse_factor(row: &mut TableReader, faults: &mut Vec<ConfigError>) -> Option<PriceFactor> {
    let Some(node) = row.take_value("factor") else { return Some(PriceFactor::ONE) };
    let read = match &node.value {
        TomlValue::Text(text) => PriceFactor::parse(text).map_err(|why| why.to_string()),
        other => {
            let kind = other.kind_name();
            Err(format!("'factor' must be a text such as \"0.85\", not {kind}"))
        }
    };
    read.map_err(|why| faults.push(node.location.error(why))).ok()
}

/// Reads the prices of single models. Each is written as in the rules of the model's vendor.
fn parse_prices(
    rows: Vec<(String, SpannedValue)>,
    catalogue: Option<&Catalogue>,
    faults: &mut Vec<ConfigError>,
) -> FastMap<String, Price> {
    let mut prices = FastMap::default();
    let Some(catalogue) = catalogue else { return prices };
    for (id, node) in rows {
        let Some(model) = catalogue.find(&id) else {
            let closest = catalogue.closest_name(&id, None).unwrap_or_default();
            let what = format!("'{id}' is no model on offer; closest is '{closest}'");
            faults.push(node.location.error(what));
            continue;
        };
        if let Some(price) = parse_price(model, node, faults) {
            prices.insert(id, price);
        }
    }
    prices
}

fn parse_price(
    model: &Arc<Model>,
    node: SpannedValue,
    faults: &mut Vec<ConfigError>,
) -> Option<Price> {
    let Model { id, kind, price: list, .. } = &**model;
    let refusal = match list {
        Price::Free => Some("is free"),
        _ if list.is_vendor_billed() => Some("is sold at the vendor's bill: use a factor"),
        _ => None,
    };
    if let Some(why) = refusal {
        faults.push(node.location.error(format!("'{id}' {why}, so a book has no price for it")));
        return None;
    }
    let mut row = TableReader::open(node, faults);
    let location = row.location.clone();
    let price = prices::parse_price(*kind, &mut row, faults);
    row.finish(faults);
    if price.is_vendor_billed() {
        let what = format!("'{id}' is sold by tokens, so its rates must not all be 0");
        faults.push(location.error(what));
        return None;
    }
    if let Some(missing) = find_unpriced_resolution(list, &price) {
        faults.push(location.error(format!("'second' must have a price for {missing}, too")));
    }
    if let Some(unlisted) = find_unpriced_resolution(&price, list) {
        let what = format!("'second' has a price for {unlisted}, which is not on the price list");
        faults.push(location.error(what));
    }
    if has_cache_write_1h(list) && !has_cache_write_1h(&price) {
        faults.push(location.error("'cache_write_1h' is required, since the list price has it"));
    }
    Some(price)
}

/// Returns the name of a resolution that `list` has and `own` has not.
fn find_unpriced_resolution(list: &Price, own: &Price) -> Option<&'static str> {
    let (Price::Video(list), Price::Video(own)) = (list, own) else { return None };
    let is_priced = |resolution| own.iter().any(|(priced, _)| priced == resolution);
    list.iter().find(|(listed, _)| !is_priced(listed)).map(|(resolution, _)| resolution.name())
}

/// Whether a price has a rate for tokens that are cached for an hour. Calls that ask for that are
/// accepted because of the list price.
fn has_cache_write_1h(price: &Price) -> bool {
    matches!(price, Price::Tokens(tokens) if tokens.has_cache_write_1h())
}

/// Adds the fault that a book is below the costs of models or of their vendors' tools, if it is.
fn refuse_loss(
    book: &PriceBook,
    location: &SourceLocation,
    catalogue: &Catalogue,
    faults: &mut Vec<ConfigError>,
) {
    let lost = catalogue.models().iter().filter_map(|model| {
        let price = AccountPrice::new(model, Some(book));
        let own = model.cost.as_ref().and_then(|cost| find_loss(price, cost));
        Some((model, own.or_else(|| find_fee_loss(price, model))?))
    });
    let mut lost = lost.peekable();
    let Some((model, unit)) = lost.next() else { return };
    let (name, id) = (&book.name, &model.id);
    let more = match lost.count() {
        0 => String::new(),
        1 => ", and of 1 more model".to_owned(),
        more => format!(", and of {more} more models"),
    };
    let what = format!(
        "the price book '{name}' is below the cost of '{id}' for {unit}{more}; if that is meant, \
         say loss = true"
    );
    faults.push(location.error(what));
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::money::{BilledUnits, Money, TokenUsage};

    const RULES: &str = "vendor = \"vendor_y\"\ndialect = \"chat\"\nauth = { header = \"x\" }\n\
                         estimate = { output_tokens = 1, image_tokens = 1, document_tokens = 1 }\n\
                         [chat]\n\
                         \"y-1\" = { input = 1, output = 10, cost = { input = 0.8, output = 8 } }\n\
                         \"y-2\" = { input = 2, output = 20 }\n\
                         [speech]\n\"y-say\" = { characters = 15, cost = { characters = 12 } }\n\
                         [video]\n\"y-film\" = { second = { 480p = 0.05, 720p = 0.07 } }\n\
                         [image]\n\"y-draw\" = { input = 0, output = 0, reservation = 0.02 }\n\
                         [moderation]\n\"y-mod\" = {}\n";

    /// Parses the rules of a vendor and, if there is one, a file of price books.
    fn parse_rules(rules: &str, books: Option<&str>) -> Result<Catalogue, Vec<String>> {
        let books = books.map(|text| ("r/books.toml", text));
        let sources = books.into_iter().chain([("r/vendor_y.toml", rules)]);
        let sources = sources.map(|(file, text)| (file.to_owned(), text.to_owned()));
        let messages = |faults: Vec<ConfigError>| faults.iter().map(ToString::to_string).collect();
        Catalogue::parse(&sources.collect::<Vec<_>>(), &[]).map_err(messages)
    }

    fn tokens(input: u64, output: u64) -> BilledUnits {
        BilledUnits::Tokens(TokenUsage { input, output, ..TokenUsage::default() })
    }

    /// The nano-USD that an account with the book `name` pays for 1 token in and 3 tokens out.
    fn amount(catalogue: &Catalogue, name: &str, model: &str) -> i64 {
        let book = catalogue.books.find(&BookName::parse(name).expect("a name")).expect("a book");
        let model = catalogue.find(model).expect("a model");
        let price = AccountPrice::new(model, Some(book));
        price.amount(tokens(1, 3), 0).map(Money::nano).expect("a price")
    }

    #[test]
    fn an_account_pays_the_factor_of_its_book_or_a_price_of_the_book_as_it_is() {
        let text = "[book.gold]\nfactor = \"0.8001\"\n[book.gold.prices]\n\
                    \"y-2\" = { input = 3, output = 30 }\n\
                    [book.dear]\nfactor = \"1.5\"\n\
                    [book.own]\nprices = { \"y-1\" = { input = 7, output = 8 } }\n\
                    [book.loss]\nfactor = \"0.1\"\nloss = true\n";
        let catalogue = parse_rules(RULES, Some(text)).expect("sound books");
        assert_eq!(amount(&catalogue, "gold", "y-1"), 24_804, "31,000 x 0.8001 is 24,803.1");
        assert_eq!(amount(&catalogue, "gold", "y-2"), 93_000);
        assert_eq!(amount(&catalogue, "dear", "y-1"), 46_500);
        assert_eq!(amount(&catalogue, "own", "y-1"), 31_000);
        assert_eq!(amount(&catalogue, "own", "y-2"), 62_000);
        assert_eq!(amount(&catalogue, "loss", "y-1"), 3_100);
        let names: Vec<&str> = catalogue.books.iter().map(|book| book.name.as_str()).collect();
        assert_eq!(names, ["dear", "gold", "loss", "own"]);
        assert_eq!(catalogue.books.find(&BookName::parse("golden").expect("a name")), None);
    }

    #[test]
    fn books_change_the_version_of_the_prices_and_a_file_without_books_does_not() {
        let version = |books: Option<&str>| {
            parse_rules(RULES, books).expect("sound books").version.to_string()
        };
        let without = version(None);
        assert_eq!(version(Some("# later\n")), without);
        assert_eq!(version(Some("[book]\n")), without);
        let (one, two) = ("[book.a]\nfactor = \"0.9\"\n", "[book.a]\nfactor = \"0.91\"\n");
        assert_ne!(version(Some(one)), without);
        assert_ne!(version(Some(one)), version(Some(two)));
    }

    const BELOW: &str = "if that is meant, say loss = true";

    #[rstest]
    #[case::factor(
        "[book.low]\nfactor = \"0.79\"\n",
        &["r/books.toml:1: the price book 'low' is below the cost of 'y-1' for an input token, and \
           of 1 more model; "]
    )]
    #[case::own_price(
        "# a comment\n[book.low]\nprices.\"y-1\" = { input = 1, output = 7.999 }\n",
        &["r/books.toml:2: the price book 'low' is below the cost of 'y-1' for an output token; "]
    )]
    #[case::characters(
        "[book.low.prices]\n\"y-say\" = { characters = 11.999 }\n",
        &["r/books.toml:1: the price book 'low' is below the cost of 'y-say' for a character; "]
    )]
    #[case::each_book(
        "[book.a]\nfactor = \"0.5\"\n[book.b]\nfactor = \"0.5\"\nloss = false\n[book.c]\n\
         factor = \"0.5\"\nloss = true\n[book.d]\nfactor = \"0.8\"\n",
        &[
            "r/books.toml:1: the price book 'a' is below the cost of 'y-1' for an input token, and \
             of 1 more model; ",
            "r/books.toml:3: the price book 'b' is below the cost of 'y-1' for an input token, and \
             of 1 more model; ",
        ]
    )]
    fn a_book_below_cost_is_refused_unless_it_says_so(
        #[case] text: &str,
        #[case] expected: &[&str],
    ) {
        let faults = parse_rules(RULES, Some(text)).expect_err("a loss");
        let expected: Vec<String> =
            expected.iter().map(|fault| format!("{fault}{BELOW}")).collect();
        assert_eq!(faults, expected);
    }

    /// A tool of the vendor is sold in chats: at 0.01 USD a use, of which 0.008 is the cost.
    const FEE: &str = "[[refuse]]\nfield = \"search\"\nbecause = \"it has no price\"\n\
                       [[fee]]\nname = \"search\"\nfield = \"search\"\nper = \"usage.searches\"\n\
                       usd = 0.01\nmost = \"search.most\"\ncost = 0.008\n";

    #[rstest]
    #[case::exactly_cost("factor = \"0.8\"", None)]
    #[case::below("factor = \"0.799999\"", Some("'y-1' for a use of search, and of 1 more model"))]
    #[case::own_prices_leave_the_fee_as_listed(
        "factor = \"0.799999\"\nprices = { \"y-1\" = { input = 1, output = 8 } }",
        Some("'y-2' for a use of search")
    )]
    #[case::meant("factor = \"0.1\"\nloss = true", None)]
    fn a_book_that_sells_a_tool_below_its_cost_is_refused(
        #[case] keys: &str,
        #[case] expected: Option<&str>,
    ) {
        // Of the models no cost is known.
        let models = RULES.replace("cost = { input = 0.8, output = 8 }", "context = 1000");
        let models = models.replace(", cost = { characters = 12 }", "");
        let rules = format!("{models}{FEE}");
        let told = parse_rules(&rules, Some(&format!("\n[book.low]\n{keys}\n"))).err();
        let fault = |what| {
            vec![format!(
                "r/books.toml:2: the price book 'low' is below the cost of {what}; {BELOW}"
            )]
        };
        assert_eq!(told, expected.map(fault));
        let unknown = rules.replace("cost = 0.008\n", "");
        assert!(parse_rules(&unknown, Some("[book.low]\nfactor = \"0.1\"\n")).is_ok());
    }

    const FACTOR: &str = "a factor is a decimal number above 0 and up to 100, with at most 6 \
                          decimals, such as \"0.85\"";

    #[rstest]
    #[case::number(
        "[book.a]\nfactor = 0.85\n",
        "r/books.toml:2: 'factor' must be a text such as \"0.85\", not a number"
    )]
    #[case::nothing("[book.a]\n", "r/books.toml:1: a price book needs a factor, prices or both")]
    #[case::name(
        "[book.\"a b\"]\nfactor = \"1\"\n",
        "r/books.toml:1: 'a b' is no name of a price book: it has 1 to 64 letters, digits, '-' and \
         '_'"
    )]
    #[case::loss(
        "[book.a]\nfactor = \"1\"\nloss = \"yes\"\n",
        "r/books.toml:3: 'loss' must be true or false, not a text"
    )]
    #[case::unknown_key(
        "[book.a]\nfactors = \"1\"\nprices = {}\n",
        "r/books.toml:2: unknown key 'factors'; closest is 'factor'"
    )]
    #[case::other_table(
        "[books.a]\nfactor = \"1\"\n",
        "r/books.toml:1: unknown key 'books'; closest is 'book'"
    )]
    #[case::unknown_model(
        "[book.a.prices]\n\"y-3\" = { input = 1, output = 1 }\n",
        "r/books.toml:2: 'y-3' is no model on offer; closest is 'y-1'"
    )]
    #[case::half_a_price(
        "[book.a.prices]\n\"y-2\" = { input = 1 }\n",
        "r/books.toml:2: 'output' is required"
    )]
    #[case::price_of_another_kind(
        "[book.a.prices]\n\"y-say\" = { characters = 15, input = 1 }\n",
        "r/books.toml:2: unknown key 'input'; known are characters"
    )]
    #[case::fraction_of_a_nano(
        "[book.a.prices]\n\"y-2\" = { input = 2.0001, output = 20 }\n",
        "r/books.toml:2: 'input' = 2.0001: not a whole number of nano-USD per unit"
    )]
    #[case::resolution(
        "[book.a.prices]\n\"y-film\" = { second = { 480p = 0.05 } }\n",
        "r/books.toml:2: 'second' must have a price for 720p, too"
    )]
    #[case::resolution_that_is_not_sold(
        "[book.a.prices]\n\"y-film\" = { second = { 480p = 0.05, 720p = 0.07, 1080p = 0.2 } }\n",
        "r/books.toml:2: 'second' has a price for 1080p, which is not on the price list"
    )]
    #[case::bill(
        "[book.a.prices]\n\"y-draw\" = { input = 1, output = 1, reservation = 0.02 }\n",
        "r/books.toml:2: 'y-draw' is sold at the vendor's bill: use a factor, so a book has no \
         price for it"
    )]
    #[case::free(
        "[book.a.prices]\n\"y-mod\" = {}\n",
        "r/books.toml:2: 'y-mod' is free, so a book has no price for it"
    )]
    #[case::zero("[book.a]\nfactor = \"0\"\n", &format!("r/books.toml:2: {FACTOR}"))]
    #[case::too_many_decimals(
        "[book.a]\nfactor = \"0.1234567\"\n",
        &format!("r/books.toml:2: {FACTOR}")
    )]
    #[case::too_large("[book.a]\nfactor = \"100.1\"\n", &format!("r/books.toml:2: {FACTOR}"))]
    fn a_wrong_book_is_refused_with_file_and_line(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(parse_rules(RULES, Some(text)).expect_err("a fault"), [expected]);
    }

    #[rstest]
    #[case::half("cost = { input = 0.8 }", "r/vendor_y.toml:6: 'output' is required")]
    #[case::number("cost = 3", "r/vendor_y.toml:6: expected a table, found a number")]
    #[case::unknown(
        "cost = { input = 0.8, output = 8, outputs = 1 }",
        "r/vendor_y.toml:6: unknown key 'outputs'; closest is 'output'"
    )]
    fn a_wrong_cost_is_refused_with_file_and_line(#[case] cost: &str, #[case] expected: &str) {
        let rules = RULES.replace("cost = { input = 0.8, output = 8 }", cost);
        assert!(rules.contains(cost));
        let found = parse_rules(&rules, None).expect_err("a fault");
        assert!(found.iter().any(|fault| fault == expected), "{found:?}");
    }

    #[rstest]
    #[case::a_bill_instead_of_rates(
        "\"y-draw\" = { input = 0, output = 0, reservation = 0.02, \
         cost = { input = 1, output = 1, reservation = 0.01 } }"
    )]
    #[case::rates_instead_of_a_bill(
        "\"y-draw\" = { input = 1, output = 1, reservation = 0.02, \
         cost = { input = 0, output = 0, reservation = 0.01 } }"
    )]
    fn a_cost_is_the_vendors_bill_where_the_price_is(#[case] row: &str) {
        let listed = "\"y-draw\" = { input = 0, output = 0, reservation = 0.02 }";
        let rules = RULES.replace(listed, row);
        let found = parse_rules(&rules, None).expect_err("a fault");
        let told = "r/vendor_y.toml:13: the cost must be the vendor's bill, which is input = 0 and \
                    output = 0, if the price is, and only then";
        assert_eq!(found, [told]);
    }
}
