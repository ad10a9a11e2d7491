//! All routes with their handlers, and the document that is made of them.

use std::sync::Arc;

use axum::Router;
use axum::http::header;
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use axum::routing::get;
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi as Document;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::admit::admit;
use super::document::{AdminDocument, complete};
use super::state::AdminApi;
use super::{
    accounts, audit, catalogue, charges, holds, jobs, keys, operators, payments, statements, usage,
    webhooks,
};

const DOCUMENT_PATH: &str = "/admin/v1/openapi.json";

/// Builds the router.
pub(crate) fn build(api: AdminApi) -> Router {
    let (router, document) = describe();
    let text: Arc<str> = document.to_json().unwrap_or_default().into();
    let document = move || {
        let text = text.to_string();
        async { ([(header::CONTENT_TYPE, "application/json")], text).into_response() }
    };
    router
        .route(DOCUMENT_PATH, get(document))
        .layer(from_fn_with_state(api.clone(), admit))
        .with_state(api)
}

/// Returns the routes of all handlers that describe themselves, and the document.
fn describe() -> (Router<AdminApi>, Document) {
    let (router, mut document) = OpenApiRouter::with_openapi(AdminDocument::openapi())
        .routes(routes!(accounts::list_accounts, accounts::create_account))
        .routes(routes!(accounts::show_account, accounts::update_account, accounts::delete_account))
        .routes(routes!(payments::list_payments, payments::create_payment))
        .routes(routes!(payments::create_grant))
        .routes(routes!(payments::create_refund))
        .routes(routes!(payments::create_correction))
        .routes(routes!(keys::list_keys, keys::create_key))
        .routes(routes!(keys::show_key, keys::update_key, keys::revoke_key))
        .routes(routes!(keys::rotate_key))
        .routes(routes!(charges::list_charges))
        .routes(routes!(charges::show_charge))
        .routes(routes!(holds::list_holds))
        .routes(routes!(jobs::list_jobs))
        .routes(routes!(usage::list_usage))
        .routes(routes!(statements::show_statement))
        .routes(routes!(catalogue::list_models))
        .routes(routes!(catalogue::list_plans))
        .routes(routes!(catalogue::list_books))
        .routes(routes!(catalogue::list_routes))
        .routes(routes!(audit::list_audit))
        .routes(routes!(operators::list_operators, operators::create_operator))
        .routes(routes!(operators::show_operator, operators::remove_operator))
        .routes(routes!(operators::rotate_operator))
        .routes(routes!(webhooks::list_webhooks, webhooks::create_webhook))
        .routes(routes!(webhooks::show_webhook, webhooks::update_webhook, webhooks::remove_webhook))
        .routes(routes!(webhooks::rotate_webhook))
        .routes(routes!(webhooks::test_webhook))
        .routes(routes!(webhooks::resend_message))
        .routes(routes!(webhooks::list_messages))
        .split_for_parts();
    complete(&mut document);
    (router, document)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;
    use crate::admin_api::access::ROUTES;

    fn document() -> Value {
        serde_json::to_value(describe().1).expect("JSON")
    }

    /// The routes of the document, each as its method and its path.
    fn described(document: &Value) -> BTreeSet<(String, String)> {
        let paths = document["paths"].as_object().expect("paths");
        let of_path = |(path, item): (&String, &Value)| {
            let methods = item.as_object().expect("methods").keys();
            methods.map(|method| (method.to_uppercase(), path.clone())).collect::<Vec<_>>()
        };
        paths.iter().flat_map(of_path).collect()
    }

    #[test]
    fn the_document_has_the_routes_of_the_table() {
        let listed = ROUTES.iter().filter(|rule| rule.path != DOCUMENT_PATH);
        let listed = listed.map(|rule| (rule.method.to_owned(), rule.path.to_owned()));
        assert_eq!(described(&document()), listed.collect());
    }

    #[test]
    fn each_operation_tells_its_role_its_errors_and_its_token() {
        let document = document();
        assert_eq!(document["openapi"], "3.1.0");
        for rule in ROUTES.iter().filter(|rule| rule.path != DOCUMENT_PATH) {
            let operation = &document["paths"][rule.path][rule.method.to_lowercase()];
            let told = operation["x-required-role"].as_str();
            assert_eq!(told, rule.role.map(crate::operators::Role::name), "{rule:?}");
            assert!(operation["security"][0]["operatorToken"].is_array(), "{rule:?}");
            for status in ["400", "401", "403", "503"] {
                let schema =
                    &operation["responses"][status]["content"]["application/json"]["schema"];
                assert_eq!(schema["$ref"], "#/components/schemas/AdminErrorReply", "{rule:?}");
            }
            assert!(operation["operationId"].is_string(), "{rule:?}");
        }
    }

    #[test]
    fn every_schema_that_is_named_is_there() {
        let document = document();
        let text = document.to_string();
        for (at, start) in text.match_indices("#/components/schemas/") {
            let name = text[at + start.len()..].split('"').next().unwrap_or_default();
            assert!(document["components"]["schemas"][name].is_object(), "{name}");
        }
    }
}
