//! Pages as handlers answer them. What all pages have in common is drawn around them at the end.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use maud::Markup;

use super::error::PageError;
use super::state::SignedIn;
use super::views::frame::{self, Frame};

/// A page without its frame.
#[derive(Clone)]
pub(super) struct Page {
    title: String,
    /// The path of the page in the menu to which this one belongs.
    place: &'static str,
    content: String,
}

impl Page {
    /// Makes a page of HTML.
    pub(super) fn new(title: impl Into<String>, place: &'static str, content: Markup) -> Page {
        Page { title: title.into(), place, content: content.into_string() }
    }

    /// Draws the whole page.
    pub(super) fn draw(self, signed_in: Option<&SignedIn>) -> String {
        let frame = frame_of(&self.title, self.place, signed_in);
        frame::draw(&frame, &maud::PreEscaped(self.content)).into_string()
    }
}

/// Draws the page of an error.
pub(super) fn draw_error(error: &PageError, signed_in: Option<&SignedIn>) -> String {
    let title = match error.status {
        StatusCode::FORBIDDEN => "Not allowed",
        status => status.canonical_reason().unwrap_or("Error"),
    };
    let frame = frame_of(title, "", signed_in);
    frame::draw(&frame, &frame::error_message(&error.message)).into_string()
}

fn frame_of<'a>(title: &'a str, place: &'a str, signed_in: Option<&'a SignedIn>) -> Frame<'a> {
    let viewer = signed_in.map(|signed_in| &signed_in.viewer);
    Frame {
        title,
        place,
        name: viewer.map(super::state::Viewer::name),
        role: viewer.and_then(super::state::Viewer::role),
        form_token: signed_in.map_or("", |signed_in| &signed_in.form_token),
    }
}

impl IntoResponse for Page {
    fn into_response(self) -> Response {
        let mut response = StatusCode::OK.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}
