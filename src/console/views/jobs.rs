//! The page of the video jobs.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use maud::{Markup, html};

use super::parts::{Column, encoded, next_page, table, time, usd};
use crate::console::jobs::JobSearch;
use crate::jobs::JobStatus;
use crate::management::jobs::JobView;

/// Draws the page. `next` is the place of the next page.
pub(in crate::console) fn draw(
    search: &JobSearch,
    jobs: &[JobView],
    next: Option<String>,
) -> Markup {
    let account = search.account.as_deref().unwrap_or_default();
    let state = search.state.as_deref().unwrap_or_default();
    let columns = [
        Column::Text("Job"),
        Column::Text("Account"),
        Column::Text("Model"),
        Column::Text("State"),
        Column::Text("Made (UTC)"),
        Column::Number("Held, USD"),
        Column::Number("Charged, USD"),
        Column::Text("Error"),
    ];
    let rows: Vec<_> = jobs.iter().map(row).collect();
    let empty =
        if next.is_some() { "There is none on this page." } else { "There is no such job." };
    let next = next.map(|after| {
        let (account, state, after) = (encoded(account), encoded(state), encoded(&after));
        format!("/jobs?account={account}&state={state}&after={after}")
    });
    html! {
        form.row role="search" method="get" action="/jobs" {
            div.field {
                label for="account" { "Account" }
                input #account name="account" value=(account) autocomplete="off";
            }
            div.field {
                label for="state" { "State" }
                select #state name="state" {
                    option value="" { "all" }
                    @for status in JobStatus::ALL {
                        option value=(status.name()) selected[status.name() == state] {
                            (status.name())
                        }
                    }
                }
            }
            div.field { button type="submit" { "Search" } }
        }
        (table("Jobs by account", &columns, &rows, empty))
        (next_page(next))
    }
}

fn row(view: &JobView) -> Vec<Markup> {
    let job = &view.job;
    vec![
        html! { code { (job.id) } },
        html! { a href={ "/accounts/" (job.account) } { (job.account) } },
        html! { (job.model) },
        html! { (job.status().name()) " (" (view.stage) ")" },
        time(job.created_ms),
        usd(view.held),
        html! { @if let Some(charged) = view.charged { (usd(charged)) } },
        html! { @if let Some((code, message)) = &view.error { code { (code) } " " (message) } },
    ]
}
