//! The page of the routes to the vendors.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::parts::{Column, state, table};
use crate::console::routes::ShownRoute;
use crate::gateway::traffic::counts::{RouteCounts, RouteName};

/// Draws the page. `counts` has what happened on the routes in the last hour.
pub(in crate::console) fn draw(
    routes: &[ShownRoute],
    counts: &BTreeMap<RouteName, RouteCounts>,
) -> Markup {
    let row = |route: &ShownRoute| {
        let name = RouteName { vendor: route.vendor.clone(), route: route.route.clone() };
        let counts = counts.get(&name).copied().unwrap_or_default();
        vec![
            html! { (route.route) },
            html! { (route.vendor) },
            state(route.is_up, &route.state),
            html! { (route.reason) },
            html! { (counts.attempts) },
            html! { (counts.failed) },
            html! { (counts.lost) },
        ]
    };
    let columns = [
        Column::Text("Route"),
        Column::Text("Vendor"),
        Column::Text("State"),
        Column::Text("Reason"),
        Column::Number("Attempts"),
        Column::Number("Failed"),
        Column::Number("Lost"),
    ];
    let rows: Vec<_> = routes.iter().map(row).collect();
    html! {
        p {
            "A route that fails several times in a row gets no calls for a while: they go to the "
            "next route of their model. Each gateway of a fleet judges for itself; this is how the "
            "one that draws this page sees its routes."
        }
        (table("Routes to the vendors", &columns, &rows, "The configuration has no route."))
        p.hint {
            "Attempts of calls in the last hour; those that failed, so that the next route was "
            "tried; and those that were lost: the vendor may have begun work that it bills. Steps "
            "of video jobs count where they fail or are lost, but not as attempts."
        }
        p.hint {
            "How long a vendor takes to its first byte is not measured by route. The first page "
            "has the times of all calls of this gateway."
        }
    }
}
