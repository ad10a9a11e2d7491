//! The page to sign in, with a token or by an identity provider.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use maud::{Markup, html};

use crate::console::access::OIDC_PATH;

/// What is said of a token that is none.
pub(in crate::console) const TOKEN_REFUSED: &str = "Nobody has this token, or it has expired. Of \
    the keys of an account, those sign in that were issued for the endpoint 'account'.";

/// Draws the form. `fault` is what was wrong with the token before, `provider` the host of the
/// identity provider, if there is one.
pub(in crate::console) fn draw(fault: Option<&str>, provider: Option<&str>) -> Markup {
    html! {
        @if let Some(fault) = fault { p.error role="alert" #fault { (fault) } }
        @if let Some(provider) = provider {
            // A link and no form: browsers let no form of this page lead to another site.
            p { a.button href=(OIDC_PATH) { "Sign in with " (provider) } }
        }
        form.card method="post" action="/sign-in" {
            div.field {
                label for="token" { "Token of an operator, or key of an account" }
                input #token name="token" type="password" required autocomplete="current-password"
                    aria-describedby="token-hint";
                p.hint #token-hint {
                    "It begins with sk-tg-. Or open a link that was made by "
                    code { "tollgate console link" } "."
                }
            }
            button type="submit" { "Sign in" }
        }
    }
}
