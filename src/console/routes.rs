//! The page of the routes to the vendors.

use axum::extract::State;

use super::page::Page;
use super::state::Console;
use super::views::routes as view;
use crate::clock::unix_ms;
use crate::gateway::upstream::routes::RouteTable;

/// A route to a vendor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShownRoute {
    pub(super) vendor: String,
    pub(super) route: String,
    /// `up`, `blocked` or `unresolved`.
    pub(super) state: &'static str,
    /// Why it is blocked; empty if it is not.
    pub(super) reason: String,
    pub(super) is_up: bool,
}

/// Returns the state of all routes.
pub(super) fn list_routes(routes: &RouteTable) -> Vec<ShownRoute> {
    let now = unix_ms();
    let shown = routes.all().map(|route| {
        let (state, reason) = route.state_at(now);
        ShownRoute {
            vendor: route.vendor.clone(),
            route: route.name.clone(),
            state,
            reason: reason.to_owned(),
            is_up: state == "up",
        }
    });
    shown.collect()
}

/// Shows the page.
pub(super) async fn show(State(console): State<Console>) -> Page {
    let routes = list_routes(&console.api.routes);
    let traffic = console.traffic.look(unix_ms());
    Page::new("Routes and vendors", "/routes", view::draw(&routes, &traffic.routes))
}
