//! The page of the routes to the vendors.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use maud::{Markup, html};

use super::parts::{Column, state, table};
use crate::console::routes::ShownRoute;

/// Draws the page.
pub(in crate::console) fn draw(routes: &[ShownRoute]) -> Markup {
    let row = |route: &ShownRoute| {
        vec![
            html! { (route.route) },
            html! { (route.vendor) },
            state(route.is_up, &route.state),
            html! { (route.reason) },
        ]
    };
    let columns = ["Route", "Vendor", "State", "Reason"].map(Column::Text);
    let rows: Vec<_> = routes.iter().map(row).collect();
    html! {
        p {
            "A route that fails several times in a row gets no calls for a while: they go to the "
            "next route of their model. Each gateway of a fleet judges for itself; this is how the "
            "one that draws this page sees its routes."
        }
        (table("Routes to the vendors", &columns, &rows, "The configuration has no route."))
    }
}
