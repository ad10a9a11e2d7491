//! The page to sign in, with a token or by an identity provider.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use maud::{Markup, html};

use crate::console::access::OIDC_PATH;

/// What is said of a token that is none.
pub(in crate::console) const TOKEN_REFUSED: &str = "This does not sign in. A key must have been \
    issued for the account's own pages: a key for calls is refused here. A token or a key that has \
    ended is refused as well.";

/// Draws the form. `fault` is what was wrong with the token before, `provider` the host of the
/// identity provider, if there is one.
pub(in crate::console) fn draw(
    fault: Option<&str>,
    provider: Option<&str>,
    is_for_customers: bool,
) -> Markup {
    html! {
        p {
            "tollgate sells calls to AI models against prepaid credit. Here "
            @if is_for_customers { "customers" } @else { "operators and customers" }
            " see what was bought and charged."
        }
        @if let Some(fault) = fault { p.error role="alert" #fault { (fault) } }
        @if let Some(provider) = provider {
            // A link and no form: browsers let no form of this page lead to another site.
            p { a.button href=(OIDC_PATH) { "Sign in with " (provider) } }
        }
        form.card method="post" action="/sign-in" {
            div.field {
                label for="token" {
                    @if is_for_customers { "Key of your account" }
                    @else { "Token of an operator, or key of an account" }
                }
                input #token name="token" type="password" required autocomplete="current-password"
                    aria-describedby="token-hint";
                p.hint #token-hint {
                    @if !is_for_customers { "A token of an operator begins with sk-tg-op-. " }
                    "A key begins with sk-tg-, and signs in if it was issued for the account's own \
                     pages; keys for calls do not."
                }
            }
            button type="submit" { "Sign in" }
        }
        (links(is_for_customers))
    }
}

/// Tells how one signs in by a link.
fn links(is_for_customers: bool) -> Markup {
    html! {
        h2 { "Or by a link" }
        @if is_for_customers {
            p { "Ask the operator for one: it works once, within ten minutes." }
        } @else {
            p {
                "A link works once, within ten minutes. A customer gets one from the operator. An \
                 operator makes one on the machine of the gateway:"
            }
            pre tabindex="0" { code { "tollgate --conf FILE console link --operator NAME" } }
        }
    }
}

/// Draws what is said of a link that does not sign in any more.
pub(in crate::console) fn draw_used_link(is_for_customers: bool) -> Markup {
    html! {
        p.error role="alert" { "This link was used, or is older than ten minutes." }
        (links(is_for_customers))
        p { a href="/sign-in" { "To the sign-in page" } }
    }
}
