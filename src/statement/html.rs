//! A statement as one HTML page that prints on A4. It has no script and loads nothing.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::document::usd_text;
use super::view::{StatementItem, StatementView};

const HEAD: &str = "<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<meta http-equiv=\"Content-Security-Policy\"
 content=\"default-src 'none'; style-src 'unsafe-inline'\">
";
const STYLE: &str = "<style>
@page { size: A4; margin: 18mm 16mm; }
body { font: 10.5pt/1.45 system-ui, sans-serif; color: #1a1a1a; max-width: 178mm;
       margin: 2em auto; padding: 0 1em; }
h1 { font-size: 17pt; margin: 0 0 .4em; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1em 1.2em; margin: 0 0 1.6em; }
dt { color: #555; }
dd { margin: 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; }
caption { text-align: left; color: #555; padding-bottom: .5em; }
th, td { text-align: left; vertical-align: top; padding: .35em .6em .35em 0;
         border-bottom: .5pt solid #ccc; overflow-wrap: anywhere; }
thead th { border-bottom: 1pt solid #1a1a1a; }
tbody th { font-weight: normal; white-space: nowrap; }
.amount { text-align: right; padding-right: 0; white-space: nowrap;
          font-variant-numeric: tabular-nums; }
.sum th, .sum td { font-weight: 600; }
tr { break-inside: avoid; }
thead { display: table-header-group; }
.draft { border: 1pt solid #b45309; padding: .5em .8em; margin: 0 0 1.2em; }
@media print { body { margin: 0; padding: 0; max-width: none; } }
</style>
";

const TABLE_HEAD: &str = "</dl>
<table>
<caption>All amounts are in USD.</caption>
<thead>
<tr><th scope=\"col\">Item</th><th scope=\"col\">Model</th><th scope=\"col\">Usage</th>
<th scope=\"col\">Prices</th><th scope=\"col\" class=\"amount\">Amount</th></tr>
</thead>
<tbody>";

/// Writes a statement.
pub(crate) fn write_html(view: &StatementView) -> String {
    let statement = &view.statement;
    let title = escape(&format!("Statement {} of {}", statement.month, statement.account));
    let mut page = vec![
        format!("<!doctype html>\n<html lang=\"en\">\n<head>\n{HEAD}<title>{title}</title>"),
        format!("{STYLE}</head>\n<body>\n<main>\n<h1>{title}</h1>"),
    ];
    if view.seal.is_none() {
        let state = escape(&view.state());
        page.push(format!("<p class=\"draft\">This month is not over: {state}.</p>"));
    }
    page.push("<dl>".to_owned());
    page.extend(terms_of(view));
    page.push(TABLE_HEAD.to_owned());
    page.extend(view.items().iter().map(row_of));
    page.push("</tbody>\n</table>\n</main>\n</body>\n</html>\n".to_owned());
    page.join("\n")
}

/// Returns what the statement is about, as terms and their values.
fn terms_of(view: &StatementView) -> Vec<String> {
    let statement = &view.statement;
    let days = format!("{} until {}, UTC", statement.from, statement.to);
    let mut terms = vec![("Account", statement.account.clone()), ("Period", days)];
    if let Some(seal) = &view.seal {
        terms.push(("Number", seal.number.to_string()));
        terms.push(("State", view.state()));
        terms.push(("SHA-256", seal.sha256.clone()));
    }
    let term =
        |(name, value): &(&str, String)| format!("<dt>{name}</dt><dd>{}</dd>", escape(value));
    terms.iter().map(term).collect()
}

fn row_of(item: &StatementItem<'_>) -> String {
    let is_sum = matches!(item.name, "opening" | "closing");
    let class = if is_sum { " class=\"sum\"" } else { "" };
    let cells = [item.model_name(), &item.usage(), &item.price_versions()];
    let cells = cells.map(|cell| format!("<td>{}</td>", escape(cell))).concat();
    let (name, usd) = (escape(item.name), usd_text(item.nano));
    format!("<tr{class}><th scope=\"row\">{name}</th>{cells}<td class=\"amount\">{usd}</td></tr>")
}

/// Escapes a text for the content of an element, and for a value in double or single quotes.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(' '),
            c if c.is_control() => escaped.push(char::REPLACEMENT_CHARACTER),
            c => escaped.push(c),
        }
    }
    escaped
}
