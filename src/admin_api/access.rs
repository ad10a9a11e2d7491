//! Who may do what: one table of all routes, with the role that each needs.

use axum::http::Method;

use crate::operators::Role;

/// What a route is, and who may use it.
#[derive(Debug, Clone, Copy)]
pub(super) struct RouteRule {
    pub(super) method: &'static str,
    /// The path, with the names of its parameters.
    pub(super) path: &'static str,
    /// The least role that may use the route; `None` if no token is needed.
    pub(super) role: Option<Role>,
    /// Whether the same request again is harmless if it is not known what came of the first one.
    pub(super) is_repeatable: bool,
}

impl RouteRule {
    /// Whether the route takes query parameters: a list does, and the charge of a request.
    pub(super) fn has_query(&self) -> bool {
        let others = ["/admin/v1/charges/{request_id}", "/admin/v1/webhooks/{id}/messages"];
        self.method == "GET" && (!self.path.contains('{') || others.contains(&self.path))
    }
}

const fn open(path: &'static str) -> RouteRule {
    RouteRule { method: "GET", path, role: None, is_repeatable: true }
}

const fn read(path: &'static str) -> RouteRule {
    RouteRule { method: "GET", path, role: Some(Role::Support), is_repeatable: true }
}

const fn write(method: &'static str, path: &'static str) -> RouteRule {
    RouteRule { method, path, role: Some(Role::Operator), is_repeatable: true }
}

const fn own(method: &'static str, path: &'static str) -> RouteRule {
    RouteRule { method, path, role: Some(Role::Owner), is_repeatable: true }
}

/// A rule of a route that issues a secret.
const fn once(rule: RouteRule) -> RouteRule {
    RouteRule { is_repeatable: false, ..rule }
}

/// All routes.
pub(super) const ROUTES: [RouteRule; 42] = [
    open("/admin/v1/openapi.json"),
    read("/admin/v1/accounts"),
    write("POST", "/admin/v1/accounts"),
    read("/admin/v1/accounts/{name}"),
    write("PATCH", "/admin/v1/accounts/{name}"),
    own("DELETE", "/admin/v1/accounts/{name}"),
    read("/admin/v1/payments"),
    write("POST", "/admin/v1/payments"),
    write("POST", "/admin/v1/grants"),
    write("POST", "/admin/v1/refunds"),
    write("POST", "/admin/v1/corrections"),
    read("/admin/v1/keys"),
    once(write("POST", "/admin/v1/keys")),
    read("/admin/v1/keys/{prefix}"),
    write("PATCH", "/admin/v1/keys/{prefix}"),
    write("DELETE", "/admin/v1/keys/{prefix}"),
    once(write("POST", "/admin/v1/keys/{prefix}/rotate")),
    read("/admin/v1/charges"),
    read("/admin/v1/charges/{request_id}"),
    read("/admin/v1/holds"),
    read("/admin/v1/jobs"),
    read("/admin/v1/usage"),
    read("/admin/v1/statements"),
    read("/admin/v1/models"),
    read("/admin/v1/plans"),
    read("/admin/v1/books"),
    read("/admin/v1/routes"),
    read("/admin/v1/audit"),
    read("/admin/v1/operators"),
    once(own("POST", "/admin/v1/operators")),
    read("/admin/v1/operators/{name}"),
    once(own("POST", "/admin/v1/operators/{name}/rotate")),
    own("DELETE", "/admin/v1/operators/{name}"),
    read("/admin/v1/webhooks"),
    once(write("POST", "/admin/v1/webhooks")),
    read("/admin/v1/webhooks/{id}"),
    write("PATCH", "/admin/v1/webhooks/{id}"),
    write("DELETE", "/admin/v1/webhooks/{id}"),
    once(write("POST", "/admin/v1/webhooks/{id}/rotate")),
    write("POST", "/admin/v1/webhooks/{id}/test"),
    write("POST", "/admin/v1/webhooks/{id}/resend"),
    read("/admin/v1/webhooks/{id}/messages"),
];

/// What is known of a method and a path.
pub(super) enum RouteMatch {
    Found(RouteRule),
    /// The path exists, with these methods.
    OtherMethods(String),
}

/// Finds the rule of a route. `path` is that of the table.
pub(super) fn find_rule(method: &Method, path: &str) -> RouteMatch {
    let method = if *method == Method::HEAD { "GET" } else { method.as_str() };
    let of_path = || ROUTES.iter().filter(|rule| rule.path == path);
    if let Some(rule) = of_path().find(|rule| rule.method == method) {
        return RouteMatch::Found(*rule);
    }
    let methods: Vec<_> = of_path().map(|rule| rule.method).collect();
    RouteMatch::OtherMethods(methods.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the roles are for, said once more.
    #[test]
    fn support_reads_an_operator_writes_and_only_an_owner_deletes_and_manages_operators() {
        for RouteRule { method, path, role, .. } in ROUTES {
            let expected = match (path, method) {
                ("/admin/v1/openapi.json", _) => None,
                (_, "GET") => Some(Role::Support),
                (path, _) if path.starts_with("/admin/v1/operators") => Some(Role::Owner),
                ("/admin/v1/accounts/{name}", "DELETE") => Some(Role::Owner),
                _ => Some(Role::Operator),
            };
            assert_eq!(role, expected, "{method} {path}");
        }
    }

    #[test]
    fn a_path_with_another_method_names_the_right_ones() {
        let found = find_rule(&Method::HEAD, "/admin/v1/keys");
        assert!(matches!(found, RouteMatch::Found(rule) if rule.method == "GET"));
        let other = find_rule(&Method::PUT, "/admin/v1/keys");
        assert!(matches!(other, RouteMatch::OtherMethods(methods) if methods == "GET, POST"));
    }
}
