//! A statement as CSV (RFC 4180, with line feeds): a row for each item, for spreadsheets and
//! accounting programs.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::document::usd_text;
use super::view::{StatementItem, StatementView};

const HEADER: &str = "account,month,state,number,item,model,calls,prompt_tokens,\
    completion_tokens,cached_tokens,characters,images,seconds,price_versions,amount_nano,\
    amount_usd\n";

/// Writes a statement.
pub(crate) fn write_csv(view: &StatementView) -> String {
    let mut csv = HEADER.to_owned();
    for item in view.items() {
        let row: Vec<String> = fields(view, &item);
        csv.push_str(&row.join(","));
        csv.push('\n');
    }
    csv
}

fn fields(view: &StatementView, item: &StatementItem<'_>) -> Vec<String> {
    let number = view.seal.as_ref().map(|seal| seal.number.to_string()).unwrap_or_default();
    let state = if view.seal.is_some() { "sealed" } else { "so far" };
    let mut row = vec![
        text_field(&view.statement.account),
        text_field(&view.statement.month),
        text_field(state),
        number,
        text_field(item.name),
        text_field(item.model_name()),
    ];
    match item.model {
        Some(model) => row.extend(model.counts().map(|(_, count)| count.to_string())),
        None => row.extend([const { String::new() }; 7]),
    }
    row.push(text_field(&item.price_versions()));
    row.extend([item.nano.to_string(), usd_text(item.nano)]);
    row
}

/// Writes a text in quotes if it needs them. A text that a spreadsheet would take for a formula
/// gets an apostrophe before it: names come from outside.
pub(super) fn text_field(text: &str) -> String {
    let is_alone = text == "-";
    let first = text.trim_start().chars().next();
    let is_formula = !is_alone
        && (first.is_some_and(|c| "=+-@＝＋－＠|%".contains(c))
            || text.starts_with(char::is_control));
    let defused = if is_formula { format!("'{text}") } else { text.to_owned() };
    let needs_quotes = |c: char| matches!(c, ',' | '"' | ';') || c.is_control();
    let has_edge = defused.trim() != defused;
    if defused.contains(needs_quotes) || has_edge {
        return format!("\"{}\"", defused.replace('"', "\"\""));
    }
    defused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_one_field_and_no_formula() {
        for (text, field) in [
            ("", ""),
            ("-", "-"),
            ("lmb-5.5", "lmb-5.5"),
            ("a,b", "\"a,b\""),
            ("a\"b", "\"a\"\"b\""),
            ("a\nb", "\"a\nb\""),
            ("=1+1", "'=1+1"),
            ("=HYPERLINK(\"x\",1)", "\"'=HYPERLINK(\"\"x\"\",1)\""),
            ("+1", "'+1"),
            ("-1", "'-1"),
            ("@SUM(A1)", "'@SUM(A1)"),
            (" =1", "' =1"),
            ("\t=1", "\"'\t=1\""),
            ("\r", "\"'\r\""),
            ("＝1", "'＝1"),
        ] {
            assert_eq!(text_field(text), field, "{text:?}");
        }
    }
}
