//! Who may see and do what: one table of all pages and forms of the console.

use axum::http::Method;

use crate::operators::Role;

/// The path at which a sign-in by the identity provider begins.
pub(super) const OIDC_PATH: &str = "/sign-in/oidc";

/// Whom a page or a form is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Audience {
    /// Everybody, whether signed in or not.
    Anyone,
    /// Everybody who has signed in.
    SignedIn,
    /// Operators with this role, or one that may do more.
    Operator(Role),
    /// Customers, each for the own account.
    Customer,
}

/// A page or a form.
#[derive(Debug, Clone, Copy)]
pub(super) struct PageRule {
    pub(super) method: &'static str,
    /// The path, with the names of its parameters.
    pub(super) path: &'static str,
    pub(super) audience: Audience,
}

const fn open(method: &'static str, path: &'static str) -> PageRule {
    PageRule { method, path, audience: Audience::Anyone }
}

const fn own(path: &'static str) -> PageRule {
    PageRule { method: "GET", path, audience: Audience::Customer }
}

const fn own_form(path: &'static str) -> PageRule {
    PageRule { method: "POST", path, audience: Audience::Customer }
}

const fn page(path: &'static str) -> PageRule {
    PageRule { method: "GET", path, audience: Audience::Operator(Role::Support) }
}

const fn form(path: &'static str) -> PageRule {
    PageRule { method: "POST", path, audience: Audience::Operator(Role::Operator) }
}

/// All pages and forms.
pub(super) const PAGES: [PageRule; 63] = [
    open("GET", "/assets/{name}"),
    open("GET", "/sign-in"),
    open("POST", "/sign-in"),
    open("GET", OIDC_PATH),
    open("GET", "/sign-in/callback"),
    open("GET", "/link/{secret}"),
    PageRule { method: "POST", path: "/sign-out", audience: Audience::SignedIn },
    PageRule { method: "POST", path: "/sign-out-everywhere", audience: Audience::SignedIn },
    PageRule { method: "GET", path: "/", audience: Audience::SignedIn },
    own("/my"),
    own("/my/usage"),
    own("/my/usage.csv"),
    own("/my/charges"),
    own("/my/prices"),
    own("/my/keys"),
    own_form("/my/keys"),
    own("/my/keys/{prefix}"),
    own_form("/my/keys/{prefix}"),
    own_form("/my/keys/{prefix}/rotation"),
    own_form("/my/keys/{prefix}/revocation"),
    own("/my/charges/{seq}"),
    own("/my/statements"),
    own("/my/statements/{month}"),
    own("/my/setup"),
    own("/my/webhooks"),
    own_form("/my/webhooks"),
    own("/my/webhooks/{id}"),
    own_form("/my/webhooks/{id}"),
    own_form("/my/webhooks/{id}/rotation"),
    own_form("/my/webhooks/{id}/test"),
    own_form("/my/webhooks/{id}/resend"),
    own_form("/my/webhooks/{id}/removal"),
    page("/accounts"),
    form("/accounts"),
    page("/accounts/{name}"),
    page("/accounts/{name}/keys"),
    form("/accounts/{name}/payments"),
    form("/accounts/{name}/keys"),
    form("/accounts/{name}/budgets"),
    form("/accounts/{name}/suspension"),
    form("/accounts/{name}/resumption"),
    form("/accounts/{name}/links"),
    page("/accounts/{name}/statements"),
    page("/accounts/{name}/statements/{month}"),
    page("/keys/{prefix}"),
    form("/keys/{prefix}"),
    form("/keys/{prefix}/rotation"),
    form("/keys/{prefix}/revocation"),
    page("/charges"),
    page("/charges/{account}/{seq}"),
    page("/models"),
    page("/routes"),
    page("/jobs"),
    page("/audit"),
    page("/webhooks"),
    form("/webhooks"),
    page("/webhooks/{id}"),
    form("/webhooks/{id}"),
    form("/webhooks/{id}/rotation"),
    form("/webhooks/{id}/test"),
    form("/webhooks/{id}/resend"),
    form("/webhooks/{id}/removal"),
    page("/live"),
];

/// Whether a path of the table is for operators alone.
pub(super) fn is_for_operators(path: &str) -> bool {
    let mut of_path = PAGES.iter().filter(|rule| rule.path == path);
    of_path.any(|rule| matches!(rule.audience, Audience::Operator(_)))
}

/// What is known of a method and a path of the table.
pub(super) enum PageMatch {
    /// There is such a page or form.
    Found(PageRule),
    /// The path takes other methods, which are listed.
    OtherMethods(String),
}

/// Finds the rule of a request whose path is that of the table.
pub(super) fn find_rule(method: &Method, path: &str) -> PageMatch {
    let method = if *method == Method::HEAD { "GET" } else { method.as_str() };
    let of_path = || PAGES.iter().filter(|rule| rule.path == path);
    if let Some(rule) = of_path().find(|rule| rule.method == method) {
        return PageMatch::Found(*rule);
    }
    let methods: Vec<_> = of_path().map(|rule| rule.method).collect();
    PageMatch::OtherMethods(methods.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the roles are for, said once more.
    #[test]
    fn support_reads_an_operator_changes_and_a_customer_sees_the_own_pages() {
        for PageRule { method, path, audience } in PAGES {
            let is_own = path == "/my" || path.starts_with("/my/");
            let expected = match (path, method) {
                ("/assets/{name}" | "/link/{secret}", _) => Audience::Anyone,
                _ if path.starts_with("/sign-in") => Audience::Anyone,
                ("/" | "/sign-out" | "/sign-out-everywhere", _) => Audience::SignedIn,
                _ if is_own => Audience::Customer,
                (_, "GET") => Audience::Operator(Role::Support),
                _ => Audience::Operator(Role::Operator),
            };
            assert_eq!(audience, expected, "{method} {path}");
        }
    }
}
