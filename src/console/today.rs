//! The first page of operators: what was sold today, where the money is, what does not work, how
//! calls go.

use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};

use super::page::Page;
use super::routes::list_routes;
use super::state::{Console, SignedIn, Viewer};
use super::views::live::LiveView;
use super::views::today as view;
use crate::clock::unix_ms;

/// Shows the page.
pub(super) async fn show(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
) -> Response {
    if let Viewer::Customer(_) = signed_in.viewer {
        return Redirect::to("/my").into_response();
    }
    let overview = console.overview.look(&console.api.store).await;
    let routes = list_routes(&console.api.routes);
    let now = unix_ms();
    let was_watched = console.live.watch(now);
    let (events, newest) = console.live.recent();
    let live = LiveView { events, newest, was_watched };
    let traffic = console.traffic.look(now);
    let page = view::draw(overview.as_deref(), &routes, &traffic, &live);
    Page::new("Today", "/", page).into_response()
}
