//! The pages of statements.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use maud::{Markup, html};

use super::parts::{Column, facts, state, table, time};
use crate::statement::{SealedStatement, StatementMonth, StatementView, usd_text};

/// Draws the list of the statements of an account, below whose path `root` they are.
pub(in crate::console) fn draw_list(
    root: &str,
    current: StatementMonth,
    sealed: &[SealedStatement],
) -> Markup {
    let columns = [Column::Text("Month"), Column::Number("Number"), Column::Text("Sealed (UTC)")];
    let link = |month: StatementMonth| {
        html! { a href={ (root) "/" (month.to_string()) } { (month.to_string()) } }
    };
    let rows = sealed
        .iter()
        .rev()
        .map(|one| vec![link(one.month), html! { (one.number) }, time(one.sealed_at)]);
    let rows: Vec<_> = rows.collect();
    html! {
        p { "The month that runs, so far: " (link(current)) "." }
        (table("Sealed statements", &columns, &rows, "No statement was asked for and sealed yet."))
        form.row method="get" action=(root) {
            div.field {
                label for="month" { "Month" }
                input #month type="month" name="month" placeholder="2026-11" required
                    aria-describedby="month-hint";
            }
            div.field { button type="submit" { "Show" } }
        }
        p.hint #month-hint {
            "A statement is sealed when it is asked for after the end of its month: then it has a "
            "number and never changes."
        }
    }
}

/// Draws a statement.
pub(in crate::console) fn draw(root: &str, view: &StatementView) -> Markup {
    let statement = &view.statement;
    let month = &statement.month;
    let columns = [
        Column::Text("Item"),
        Column::Text("Model"),
        Column::Text("Usage"),
        Column::Text("Prices"),
        Column::Number("Amount, USD"),
    ];
    let rows: Vec<_> = view
        .items()
        .iter()
        .map(|item| {
            vec![
                html! { (item.name) },
                html! { (item.model_name()) },
                html! { (item.usage()) },
                html! { (item.price_versions()) },
                html! { span.usd { (usd_text(item.nano)) } },
            ]
        })
        .collect();
    html! {
        p { a href=(root) { "All statements" } }
        (facts(&[
            ("From", html! { (statement.from) }),
            ("Until", html! { (statement.to) " (UTC)" }),
            ("State", state(view.seal.is_some(), &view.state())),
        ]))
        (table("What changed the balance", &columns, &rows, ""))
        @if let Some(seal) = &view.seal {
            p { "Number " (seal.number) ", SHA-256 of its JSON: " code { (seal.sha256) } }
        }
        p {
            "As a file: "
            a href={ (root) "/" (month) "?as=csv" } download { "CSV" } ", "
            a href={ (root) "/" (month) "?as=json" } download { "JSON" }
        }
    }
}
