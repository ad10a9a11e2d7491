//! The first page of operators: what was sold today, where the money is, what does not work.

use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};

use super::page::Page;
use super::routes::list_routes;
use super::state::{Console, SignedIn, Viewer};
use super::views::today as view;

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
    let page = view::draw(overview.as_deref(), &routes);
    Page::new("Today", "/", page).into_response()
}
