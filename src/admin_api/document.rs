//! The `OpenAPI` document. The handlers describe what is theirs; what all of them share is added
//! here: the token, the roles, the errors and the idempotency key.

use utoipa::OpenApi;
use utoipa::openapi::extensions::Extensions;
use utoipa::openapi::header::Header;
use utoipa::openapi::path::{Operation, Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    Content, OpenApi as Document, Ref, RefOr, Required, Response, ResponseBuilder,
};

use super::access::{ROUTES, RouteRule};
use super::error::{AdminErrorDetail, AdminErrorReply};

const TOKEN: &str = "operatorToken";

/// What the document says of the API as a whole.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "tollgate operator API",
        version = "1",
        description = "Manages the accounts, keys, payments and charges of a gateway. Every \
            request but this document's needs the token of an operator as a bearer token. Amounts \
            are nano-USD as integers (`*_nano`) and USD as decimal texts (`*_usd`). A list is a \
            page: `next` is the `after` of the page that follows. Every POST takes an \
            `idempotency-key`: the same request again gets the stored reply."
    ),
    components(schemas(AdminErrorReply, AdminErrorDetail)),
    tags(
        (name = "accounts", description = "Accounts, their balances, settings and budgets."),
        (name = "payments", description = "Payments, grants, refunds and corrections of charges."),
        (name = "keys", description = "Keys of accounts, with budgets and scopes."),
        (name = "charges", description = "The journal: each charge with its arithmetic."),
        (name = "holds", description = "What is held at the moment."),
        (name = "jobs", description = "Video jobs."),
        (name = "usage", description = "Sums of usage by day, hour, model, key and endpoint."),
        (name = "statements", description = "Monthly statements, sealed once the month is over."),
        (name = "rules", description = "Models, plans, price books and routes in force."),
        (name = "audit", description = "Who changed what."),
        (name = "operators", description = "Who may use this API."),
        (name = "webhooks", description = "Who is told of events, and what was told.")
    )
)]
pub(super) struct AdminDocument;

/// Adds to the document what all operations share.
pub(super) fn complete(document: &mut Document) {
    if let Some(components) = &mut document.components {
        let bearer = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("The token of an operator, `sk-tg-op-` and 64 digits."))
            .build();
        components.add_security_scheme(TOKEN, SecurityScheme::Http(bearer));
    }
    for rule in ROUTES {
        let Some(item) = document.paths.paths.get_mut(rule.path) else { continue };
        let operation = match rule.method {
            "GET" => &mut item.get,
            "POST" => &mut item.post,
            "PATCH" => &mut item.patch,
            _ => &mut item.delete,
        };
        if let Some(operation) = operation {
            complete_operation(operation, &rule);
        }
    }
}

fn complete_operation(operation: &mut Operation, rule: &RouteRule) {
    let Some(least) = rule.role else {
        operation.security = Some(Vec::new());
        return;
    };
    let no_scopes: [&str; 0] = [];
    operation.security = Some(vec![SecurityRequirement::new(TOKEN, no_scopes)]);
    let required = Extensions::builder().add("x-required-role", least.name()).build();
    operation.extensions.get_or_insert_with(Extensions::default).merge(required);
    if rule.method == "POST" {
        operation.parameters.get_or_insert_with(Vec::new).push(idempotency_key());
    }
    let is_of_one = rule.path.contains('{');
    let has_body = matches!(rule.method, "POST" | "PATCH");
    let is_write = rule.method != "GET";
    // An account, a key or a charge that a body or a query names may not exist either.
    let errors = [
        ("400", true, "A field, a parameter or a header is wrong; `param` names it."),
        ("401", true, "The token is missing, unknown or expired."),
        ("403", true, "The operator's role does not allow this; `x-required-role` does."),
        (
            "404",
            is_of_one || rule.method == "POST" || is_listed_of_account(rule.path),
            "What was named does not exist.",
        ),
        ("405", true, "The path takes other methods; the `allow` header lists them."),
        ("408", has_body, "The body came too slowly."),
        (
            "409",
            is_write,
            "It exists already, an id or an idempotency key was used before, or the account is \
             deleted, or is to be deleted and is not empty.",
        ),
        ("413", has_body, "The body is too large."),
        ("415", has_body, "The body is not `application/json`."),
        ("500", true, "Something failed here."),
        ("503", true, "The store cannot be reached; ask again after `retry-after` seconds."),
    ];
    for (status, _, description) in errors.into_iter().filter(|(_, may_happen, _)| *may_happen) {
        let response = RefOr::T(error_response(description, status));
        operation.responses.responses.insert(status.to_owned(), response);
    }
}

/// Whether a path is a list of one account, which may not exist.
fn is_listed_of_account(path: &str) -> bool {
    let lists = ["payments", "keys", "charges", "holds", "jobs", "usage"];
    lists.iter().any(|list| path.ends_with(list))
}

fn error_response(description: &str, status: &str) -> Response {
    let schema = Ref::from_schema_name("AdminErrorReply");
    let content = Content::new(Some(schema));
    let mut response =
        ResponseBuilder::new().description(description).content("application/json", content);
    if status == "503" {
        let seconds = Header::new(ObjectBuilder::new().schema_type(Type::Integer).build());
        response = response.header("retry-after", seconds);
    }
    response.build()
}

fn idempotency_key() -> Parameter {
    ParameterBuilder::new()
        .name("idempotency-key")
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some(
            "A name of this request, for one day: the same request again gets the stored reply, \
             and another request of this name is refused. What has issued a secret answers a \
             repeat with 409 `already_issued`.",
        ))
        .schema(Some(
            ObjectBuilder::new()
                .schema_type(Type::String)
                .min_length(Some(1))
                .max_length(Some(255))
                .pattern(Some("^[!-~]+$"))
                .build(),
        ))
        .build()
}
