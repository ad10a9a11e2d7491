//! The first page of operators.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use maud::{Markup, html};

use super::live::{self, LiveView};
use super::parts::{Column, facts, moment, state, table, usd};
use super::traffic;
use crate::console::overview::Overview;
use crate::console::routes::ShownRoute;
use crate::gateway::traffic::reading::TrafficView;
use crate::money::Money;
use crate::usage::{RollupSums, date_text};

/// Draws the page.
pub(in crate::console) fn draw(
    overview: Option<&Overview>,
    routes: &[ShownRoute],
    traffic: &TrafficView,
    live: &LiveView,
) -> Markup {
    let failing: Vec<&ShownRoute> = routes.iter().filter(|route| !route.is_up).collect();
    html! {
        @match overview {
            Some(overview) => (sums(overview)),
            None => p.empty {
                "The sums of all accounts are being read, or cannot be read at the moment: "
                "reload the page. The log says why they cannot."
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
        (traffic::draw(traffic))
        (live::draw(live))
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
    let knows_costs = all.calls == 0 || all.calls_without_cost < all.calls;
    html! {
        section aria-labelledby="sold" {
            h2 #sold { "Sold on " (date_text(overview.at).unwrap_or_default()) " (UTC)" }
            @if !is_whole { p.error { "The sums are too large to be shown." } }
            (facts(&[
                ("Charged, USD", usd(all.charged)),
                ("Cost at the vendors, USD", if_known(knows_costs, usd(all.cost))),
                ("Margin, USD", if_known(knows_costs, margin(&all))),
                ("Given back, USD", usd(all.corrected)),
                ("Written off, USD", usd(all.written_off)),
                ("Calls", html! { span.number { (all.calls) } }),
            ]))
            @if all.calls_without_cost > 0 && knows_costs {
                p.hint { "The cost of " (all.calls_without_cost) " calls is not known: the margin \
                    counts all that they were charged." }
            }
            p.hint { "As of " (moment(overview.at)) " UTC: reload the page for newer calls." }
            (table(
                "By model",
                &[
                    Column::Text("Model"), Column::Number("Calls"), Column::Number("Input tokens"),
                    Column::Number("Cached"), Column::Number("Output tokens"),
                    Column::Number("Charged, USD"),
                ],
                &overview.today.iter().map(row).collect::<Vec<_>>(),
                "Nothing was charged on this day so far.",
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
                ("Accounts, with deleted ones", html! { (overview.accounts) }),
            ]))
            p.hint { "As of " (moment(overview.at)) " UTC, all accounts together." }
        }
    }
}

fn if_known(is_known: bool, amount: Markup) -> Markup {
    if is_known {
        amount
    } else {
        html! { "not known" }
    }
}

/// Draws what is left of the charges: without what was given back, what the accounts could not pay
/// and what the vendors charge. It may be below zero.
fn margin(sums: &RollupSums) -> Markup {
    let paid = [sums.charged, sums.corrected_written_off];
    let gone = [sums.corrected, sums.written_off, sums.cost];
    let total = |parts: &[Money]| parts.iter().map(|part| i128::from(part.nano())).sum::<i128>();
    let margin = total(&paid) - total(&gone);
    let amount = i64::try_from(margin.unsigned_abs()).ok().and_then(|n| Money::from_nano(n).ok());
    html! {
        @if margin < 0 { "−" }
        @if let Some(amount) = amount { (usd(amount)) }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn nano(nano: i64) -> Money {
        Money::from_nano(nano).expect("an amount")
    }

    #[test]
    fn a_margin_may_be_below_zero_and_counts_what_nobody_paid_once() {
        let shown = |sums: RollupSums| margin(&sums).into_string();
        let of_yesterday = RollupSums {
            charged: nano(1_000_000_000),
            corrected: nano(10_000_000_000),
            cost: nano(500_000_000),
            ..RollupSums::default()
        };
        assert_eq!(shown(of_yesterday), "−<span class=\"usd\">9.50</span>");
        // A charge of 10 that was not paid and is given back, beside one of 20.
        let unpaid = RollupSums {
            charged: nano(30_000_000_000),
            written_off: nano(10_000_000_000),
            corrected: nano(10_000_000_000),
            corrected_written_off: nano(10_000_000_000),
            ..RollupSums::default()
        };
        assert_eq!(shown(unpaid), "<span class=\"usd\">20.00</span>");
    }
}
