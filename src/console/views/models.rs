//! The page of the models and their prices.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use maud::{Markup, html};
use serde_json::Value;

use super::parts::{Column, table};
use crate::catalogue::{Catalogue, PriceBook};
use crate::console::price_changes::compare_prices;

/// Draws the page. `now` is in unix seconds.
pub(in crate::console) fn draw(
    catalogue: &Catalogue,
    previous: Option<&Catalogue>,
    now: i64,
) -> Markup {
    html! {
        p {
            "The version in force is " code { (catalogue.version) } ". "
            "Each charge names the version by which it was made."
        }
        section aria-labelledby="changes" {
            h2 #changes { "Changes" }
            @match previous {
                Some(previous) => (changes(catalogue, previous, now)),
                None => p { "No other version was in force since this gateway started." },
            }
        }
        (model_table(catalogue, now, None))
        section aria-labelledby="books" {
            h2 #books { "Price books" }
            (table(
                "What accounts pay that have one",
                &[
                    Column::Text("Book"), Column::Number("Factor"),
                    Column::Number("Prices of its own"),
                ],
                &catalogue.books.iter().map(|book| vec![
                    html! { (book.name.to_string()) },
                    html! { (book.factor.to_string()) },
                    html! { (book.own_price_count()) },
                ]).collect::<Vec<_>>(),
                "The rules have no price book: all accounts pay the list prices.",
            ))
        }
        section aria-labelledby="plans" {
            h2 #plans { "Plans" }
            (table(
                "Limits of accounts and keys",
                &[
                    Column::Text("Plan"), Column::Number("Requests a minute"),
                    Column::Number("Tokens a minute"), Column::Number("Calls at a time"),
                ],
                &catalogue.plans.iter().map(|plan| vec![
                    html! { (plan.name.to_string()) },
                    limit(plan.limits.requests_per_minute),
                    limit(plan.limits.tokens_per_minute),
                    limit(plan.limits.calls),
                ]).collect::<Vec<_>>(),
                "The rules have no plan.",
            ))
        }
    }
}

/// Draws what is different from the version before.
fn changes(catalogue: &Catalogue, previous: &Catalogue, now: i64) -> Markup {
    let columns = ["Model", "Price", "Before", "Now"].map(Column::Text);
    let rows: Vec<_> = compare_prices(previous, catalogue, now)
        .into_iter()
        .map(|change| {
            let shown = |price: Option<String>| {
                html! { @match price { Some(price) => code { (price) }, None => "–" } }
            };
            vec![
                html! { (change.model) },
                html! { (change.name) },
                shown(change.before),
                shown(change.after),
            ]
        })
        .collect();
    let caption = "List prices in USD that are not as in the version before";
    html! {
        p { "Before it, " code { (previous.version) } " was in force." }
        (table(caption, &columns, &rows, "Its list prices were the same."))
    }
}

/// Draws the models with what an account with this price book pays; the list prices without one.
pub(in crate::console) fn model_table(
    catalogue: &Catalogue,
    now: i64,
    book: Option<&PriceBook>,
) -> Markup {
    let columns = ["Model", "Kind", "Vendor", "Price, USD a unit", "Context"].map(Column::Text);
    let mut rows: Vec<_> =
        catalogue.names().map(|(name, model)| (name, model.listing(name, now, book))).collect();
    rows.sort_by(|one, other| one.0.cmp(other.0));
    let rows: Vec<_> = rows.iter().map(|(name, listing)| row(name, listing)).collect();
    table("Models on sale", &columns, &rows, "The rules have no model.")
}

fn limit(limit: Option<i64>) -> Markup {
    html! { @match limit { Some(limit) => (limit), None => "no limit" } }
}

fn row(name: &str, listing: &Value) -> Vec<Markup> {
    let text = |name: &str| listing[name].as_str().unwrap_or_default().to_owned();
    let alias = listing["alias_of"].as_str();
    vec![
        html! { (name) @if let Some(of) = alias { span.hint { " = " (of) } } },
        html! { (text("type")) },
        html! { (text("owned_by")) },
        prices(&listing["pricing"]),
        html! { (listing["context_length"].as_u64().map(|n| n.to_string()).unwrap_or_default()) },
    ]
}

/// Draws prices, whatever they are of, with those above a number of tokens.
fn prices(pricing: &Value) -> Markup {
    let members = pricing.as_object().into_iter().flatten();
    html! {
        ul.plain {
            @for (name, value) in members {
                li {
                    (name) ": "
                    @match value {
                        Value::String(text) => code { (text) },
                        other => code { (other.to_string()) },
                    }
                }
            }
        }
    }
}
