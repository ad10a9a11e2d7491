//! The frame of all pages: head, menu, who has signed in.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use maud::{DOCTYPE, Markup, Render, html};

use crate::console::assets::STYLE;
use crate::console::forms::TOKEN_FIELD;
use crate::operators::Role;

/// The menu of operators: paths and titles.
const OPERATOR_MENU: [(&str, &str); 8] = [
    ("/", "Today"),
    ("/accounts", "Accounts"),
    ("/charges", "Charges"),
    ("/models", "Models and prices"),
    ("/routes", "Routes and vendors"),
    ("/jobs", "Video jobs"),
    ("/webhooks", "Webhooks"),
    ("/audit", "Audit trail"),
];

/// The menu of customers.
const CUSTOMER_MENU: [(&str, &str); 8] = [
    ("/my", "Balance"),
    ("/my/usage", "Usage"),
    ("/my/keys", "Keys"),
    ("/my/charges", "Charges"),
    ("/my/statements", "Statements"),
    ("/my/prices", "Prices"),
    ("/my/webhooks", "Webhooks"),
    ("/my/setup", "Set-up"),
];

/// What the frame of a page shows.
pub(in crate::console) struct Frame<'a> {
    pub(in crate::console) title: &'a str,
    /// The path of the page in the menu to which this one belongs; empty if to none.
    pub(in crate::console) place: &'a str,
    /// The name of who has signed in; `None` if nobody has.
    pub(in crate::console) name: Option<&'a str>,
    /// The role of an operator; `None` for everybody else.
    pub(in crate::console) role: Option<Role>,
    pub(in crate::console) form_token: &'a str,
}

/// Draws a page with its frame.
pub(in crate::console) fn draw(frame: &Frame<'_>, content: &impl Render) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (frame.title) " · tollgate" }
                link rel="stylesheet" href=(STYLE.path);
                link rel="icon" href="data:,";
            }
            body {
                a.skip href="#content" { "Skip to the content" }
                @if frame.name.is_some() { (head(frame)) }
                main #content tabindex="-1" {
                    h1 { (frame.title) }
                    (content)
                }
            }
        }
    }
}

fn head(frame: &Frame<'_>) -> Markup {
    let menu: &[(&str, &str)] = if frame.role.is_some() { &OPERATOR_MENU } else { &CUSTOMER_MENU };
    html! {
        header {
            p.brand { a href="/" { "tollgate" } }
            nav aria-label="Pages" {
                    ul {
                        @for (path, title) in menu.iter().copied() {
                            li {
                                @let word = if title == frame.title { "page" } else { "true" };
                                @let current = (path == frame.place).then_some(word);
                                a href=(path) aria-current=[current] { (title) }
                            }
                        }
                    }
            }
            div.who {
                span {
                    (frame.name.unwrap_or_default())
                    @if let Some(role) = frame.role { " (" (role.name()) ")" }
                }
                form method="post" action="/sign-out" {
                    (token_field(frame.form_token))
                    button.plain type="submit" { "Sign out" }
                }
                form method="post" action="/sign-out-everywhere" {
                    (token_field(frame.form_token))
                    button.plain type="submit" { "Sign out everywhere" }
                }
            }
        }
    }
}

/// Draws the hidden field that every form has.
pub(in crate::console) fn token_field(token: &str) -> Markup {
    html! { input type="hidden" name=(TOKEN_FIELD) value=(token); }
}

/// Draws what an error page says.
pub(in crate::console) fn error_message(message: &str) -> Markup {
    html! {
        p.error role="alert" { (message) }
        p { a href="/" { "To the first page" } }
    }
}
