//! The first page of operators.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use maud::{Markup, html};

use super::parts::{Column, facts, moment, state, table, usd};
use crate::console::overview::Overview;
use crate::console::routes::ShownRoute;
use crate::usage::RollupSums;

/// Draws the page.
pub(in crate::console) fn draw(overview: Option<&Overview>, routes: &[ShownRoute]) -> Markup {
    let failing: Vec<&ShownRoute> = routes.iter().filter(|route| !route.is_up).collect();
    html! {
        @match overview {
            Some(overview) => (sums(overview)),
            None => p.empty {
                "The sums of all accounts are being read: reload the page in a moment."
            },
        }
        section aria-labelledby="routes" {
            h2 #routes { "Routes that do not work" }
            @if failing.is_empty() {
                p { (state(true, &"all routes are up")) }
            } @else {
                ul {
                    @for route in failing {
                        li {
                            (state(false, &route.state)) " " (route.vendor) " / " (route.route)
                            @if !route.reason.is_empty() { ": " (route.reason) }
                        }
                    }
                }
            }
            p { a href="/routes" { "All routes" } }
        }
    }
}

fn sums(overview: &Overview) -> Markup {
    let mut all = RollupSums::default();
    let mut is_whole = true;
    for (_, sums) in &overview.today {
        match all.checked_add(sums) {
            Ok(sum) => all = sum,
            Err(_) => is_whole = false,
        }
    }
    let balances = &overview.balances;
    html! {
        section aria-labelledby="sold" {
            h2 #sold { "Sold today" }
            @if !is_whole { p.error { "The sums are too large to be shown." } }
            (facts(&[
                ("Charged, USD", usd(all.charged)),
                ("Cost at the vendors, USD", usd(all.cost)),
                ("Margin, USD", margin(&all)),
                ("Given back, USD", usd(all.corrected)),
                ("Written off, USD", usd(all.written_off)),
                ("Calls", html! { span.number { (all.calls) } }),
            ]))
            @if all.calls_without_cost > 0 {
                p.hint { "The cost of " (all.calls_without_cost) " calls is not known: the margin \
                    counts all that they were charged." }
            }
            (table(
                "Today by model (UTC)",
                &[
                    Column::Text("Model"), Column::Number("Calls"), Column::Number("Input tokens"),
                    Column::Number("Cached"), Column::Number("Output tokens"),
                    Column::Number("Charged, USD"),
                ],
                &overview.today.iter().map(row).collect::<Vec<_>>(),
                "Nothing was charged today.",
            ))
        }
        section aria-labelledby="money" {
            h2 #money { "Where the money is" }
            (facts(&[
                ("Paid in and granted, USD", usd(balances.credit)),
                ("Available, USD", usd(balances.available)),
                ("Held for running calls, USD", usd(balances.held)),
                ("Charged, USD", usd(balances.posted)),
                ("Written off, USD", usd(balances.written_off)),
                ("Accounts", html! { a href="/accounts" { (overview.accounts) } }),
            ]))
            p.hint { "As of " (moment(overview.at)) " UTC, all accounts together." }
        }
    }
}

fn margin(sums: &RollupSums) -> Markup {
    // What was given back is no income any more.
    let paid = sums.charged.saturating_sub(sums.corrected).saturating_sub(sums.written_off);
    let sign = if paid < sums.cost { "−" } else { "" };
    let amount = paid.saturating_sub(sums.cost).max(sums.cost.saturating_sub(paid));
    html! { (sign) (usd(amount)) }
}

fn row(of_model: &(String, RollupSums)) -> Vec<Markup> {
    let (model, sums) = of_model;
    let name = if model.is_empty() { "no model" } else { model };
    vec![
        html! { (name) },
        html! { (sums.calls) },
        html! { (sums.prompt_tokens) },
        html! { (sums.cached_tokens) },
        html! { (sums.completion_tokens) },
        usd(sums.charged),
    ]
}
