//! `/admin/v1/operators`: the people and programs that use this API.

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::amounts::Moment;
use super::catalogue::NoParameters;
use super::error::AdminError;
use super::extract::{JsonBody, JsonReply, PathName, QueryParameters};
use super::idempotency::IssuedSecret;
use super::page::AdminPage;
use super::state::AdminApi;
use crate::management::actor::Actor;
use crate::management::context::ManagementContext;
use crate::management::key_search::now_s;
use crate::management::operators::{self, IssuedToken, parse_operator_name, parse_role};
use crate::operators::OperatorRecord;

/// An operator who is to be added.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OperatorBody {
    /// The name: 1 to 64 letters, digits, `-`, `_` and `.`.
    #[schema(example = "ada", pattern = "^[A-Za-z0-9._-]{1,64}$")]
    name: String,
    /// `support` reads, `operator` manages accounts, keys and payments, `owner` manages operators
    /// too.
    #[schema(example = "operator")]
    role: String,
    /// When the token expires.
    expires_at: Option<Moment>,
}

/// How a token is replaced.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenRotationBody {
    /// When the new token expires. If it is missing, it does not, whenever the earlier one did.
    expires_at: Option<Moment>,
}

/// An operator, without the token.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct OperatorReply {
    /// The name.
    #[schema(example = "ada")]
    name: String,
    /// `support`, `operator` or `owner`.
    #[schema(example = "operator")]
    role: &'static str,
    /// The beginning of the token.
    prefix: String,
    /// When the operator was added, in unix seconds.
    created_at: i64,
    /// When the token expires, in unix seconds; null if it does not.
    expires_at: Option<i64>,
}

/// An operator with a new token, which no other reply shows.
#[derive(Serialize, ToSchema)]
pub(super) struct IssuedTokenReply {
    /// The token itself, which is secret.
    token: String,
    #[serde(flatten)]
    shown: OperatorReply,
}

/// What was removed.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RemovedOperatorReply {
    /// The name.
    name: String,
    /// Always true.
    removed: bool,
}

type Issued = (StatusCode, Extension<IssuedSecret>, JsonReply<IssuedTokenReply>);

impl OperatorReply {
    fn new(record: &OperatorRecord) -> OperatorReply {
        OperatorReply {
            name: record.name.clone(),
            role: record.role.name(),
            prefix: record.prefix.clone(),
            created_at: record.created_at,
            expires_at: record.expires_at,
        }
    }
}

/// Lists all operators, by name.
#[utoipa::path(
    get,
    path = "/admin/v1/operators",
    tag = "operators",
    operation_id = "listOperators",
    responses((status = 200, description = "Operators.", body = AdminPage<OperatorReply>))
)]
pub(super) async fn list_operators(
    State(api): State<AdminApi>,
    QueryParameters(NoParameters {}): QueryParameters<NoParameters>,
) -> Result<JsonReply<AdminPage<OperatorReply>>, AdminError> {
    let all = api.store.operators.list_operators().await?;
    let data = all.iter().map(OperatorReply::new).collect();
    Ok(JsonReply(AdminPage { data, has_more: false, next: None }))
}

/// Adds an operator. The reply shows the token this once.
#[utoipa::path(
    post,
    path = "/admin/v1/operators",
    tag = "operators",
    operation_id = "createOperator",
    request_body = OperatorBody,
    responses((status = 201, description = "The operator and the token.", body = IssuedTokenReply))
)]
pub(super) async fn create_operator(
    State(api): State<AdminApi>,
    Extension(actor): Extension<Actor>,
    JsonBody(body): JsonBody<OperatorBody>,
) -> Result<Issued, AdminError> {
    let (name, role) = (parse_operator_name(&body.name)?, parse_role(&body.role)?);
    let parse = |moment: Moment| moment.parse_future("expires_at", now_s());
    let expires_at = body.expires_at.map(parse).transpose()?;
    let adding = async move |context: ManagementContext<'_>| {
        Ok(operators::add_operator(context, name, role, expires_at).await?)
    };
    let issued = api.change(actor, adding).await?;
    Ok(issued_reply(&issued))
}

/// Shows an operator.
#[utoipa::path(
    get,
    path = "/admin/v1/operators/{name}",
    tag = "operators",
    operation_id = "getOperator",
    params(("name" = String, Path, description = "The name of the operator.")),
    responses((status = 200, description = "The operator.", body = OperatorReply))
)]
pub(super) async fn show_operator(
    State(api): State<AdminApi>,
    PathName(name): PathName,
) -> Result<JsonReply<OperatorReply>, AdminError> {
    let record = operators::find_operator(&api.store, &name).await?;
    Ok(JsonReply(OperatorReply::new(&record)))
}

/// Replaces the token of an operator. The earlier token does not work any more, and the reply shows
/// the new one this once.
#[utoipa::path(
    post,
    path = "/admin/v1/operators/{name}/rotate",
    tag = "operators",
    operation_id = "rotateOperator",
    params(("name" = String, Path, description = "The name of the operator.")),
    request_body = TokenRotationBody,
    responses((status = 201, description = "The operator and the token.", body = IssuedTokenReply))
)]
pub(super) async fn rotate_operator(
    State(api): State<AdminApi>,
    Extension(actor): Extension<Actor>,
    PathName(name): PathName,
    JsonBody(body): JsonBody<TokenRotationBody>,
) -> Result<Issued, AdminError> {
    let parse = |moment: Moment| moment.parse_future("expires_at", now_s());
    let expires_at = body.expires_at.map(parse).transpose()?;
    let rotating = async move |context: ManagementContext<'_>| {
        Ok(operators::rotate_operator(context, &name, expires_at).await?)
    };
    let issued = api.change(actor, rotating).await?;
    Ok(issued_reply(&issued))
}

/// Removes an operator. The last owner whose token does not expire has to stay.
#[utoipa::path(
    delete,
    path = "/admin/v1/operators/{name}",
    tag = "operators",
    operation_id = "removeOperator",
    params(("name" = String, Path, description = "The name of the operator.")),
    responses((status = 200, description = "Who was removed.", body = RemovedOperatorReply))
)]
pub(super) async fn remove_operator(
    State(api): State<AdminApi>,
    Extension(actor): Extension<Actor>,
    PathName(name): PathName,
) -> Result<JsonReply<RemovedOperatorReply>, AdminError> {
    let removing = async move |context: ManagementContext<'_>| {
        operators::remove_operator(context, &name).await?;
        Ok(RemovedOperatorReply { name, removed: true })
    };
    Ok(JsonReply(api.change(actor, removing).await?))
}

fn issued_reply(issued: &IssuedToken) -> Issued {
    let prefix = issued.record.prefix.clone();
    let shown = OperatorReply::new(&issued.record);
    let reply = IssuedTokenReply { token: issued.token.reveal().to_owned(), shown };
    (StatusCode::CREATED, Extension(IssuedSecret { prefix }), JsonReply(reply))
}
