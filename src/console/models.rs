//! The page of the models and their prices.

use axum::extract::State;

use super::page::Page;
use super::state::Console;
use super::views::models as view;
use crate::clock::timestamp;

/// Shows the page.
pub(super) async fn show(State(console): State<Console>) -> Page {
    let catalogue = console.api.catalogue.load_full();
    let previous = console.previous_catalogue.load_full();
    let content = view::draw(&catalogue, previous.as_deref(), timestamp().as_second());
    Page::new("Models and prices", "/models", content)
}
