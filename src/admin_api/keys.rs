//! `/admin/v1/keys`: keys of accounts, with their budgets and scopes.

use std::collections::BTreeMap;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::amounts::{Moment, parse_account_name};
use super::budgets::{BudgetAmounts, BudgetReply};
use super::error::AdminError;
use super::extract::{JsonBody, JsonReply, PathName, QueryParameters};
use super::idempotency::IssuedSecret;
use super::page::{AccountPageParameters, AdminPage};
use super::state::AdminApi;
use crate::ledger::{
    BudgetOwner, BudgetUse, KeyId, KeyOrder, KeyPlace, KeyRange, KeyRecord, KeyScope, parse_network,
};
use crate::management::actor::Actor;
use crate::management::budgets::unused_budgets;
use crate::management::context::ManagementContext;
use crate::management::field_patch::FieldPatch;
use crate::management::key_rotation::{OVERLAP_S_MAX, rotate_key as rotate};
use crate::management::key_scope::{ScopePatch, check_endpoints};
use crate::management::key_search::{find_keys, last_use, now_s, state_of};
use crate::management::keys;

/// A key that is to be issued.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyBody {
    /// The account.
    #[schema(example = "acme")]
    account: String,
    /// What people call the key.
    #[schema(example = "ci")]
    name: Option<String>,
    /// The budgets of the key.
    budgets: Option<BudgetAmounts>,
    /// Patterns of the models that the key may use, in which `*` stands for any text. None allow
    /// all models.
    #[schema(example = json!(["lmb-*"]))]
    models: Option<Vec<String>>,
    /// The endpoints that the key may use, such as `chat`. None allow all.
    endpoints: Option<Vec<String>>,
    /// The networks from which the key may be used, such as `10.0.0.0/8`. None allow all.
    from: Option<Vec<String>>,
    /// When the key expires.
    expires_at: Option<Moment>,
    /// The plan of the rules that limits the key, beside the plan of its account.
    plan: Option<String>,
    /// What else its owner notes of the key.
    tags: Option<BTreeMap<String, String>>,
}

/// The changes of a key. A member that is missing stays as it is; null takes it away.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyPatchBody {
    /// What people call the key.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    name: FieldPatch<String>,
    /// The budgets of the key. Changing a limit never resets what was spent.
    budgets: Option<BudgetAmounts>,
    /// Patterns of the models that the key may use; null or none allow all models.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>)]
    models: FieldPatch<Vec<String>>,
    /// The endpoints that the key may use; null or none allow all.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>)]
    endpoints: FieldPatch<Vec<String>>,
    /// The networks from which the key may be used; null or none allow all.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>)]
    from: FieldPatch<Vec<String>>,
    /// When the key expires; null if it does not.
    #[serde(default)]
    #[schema(value_type = Option<Moment>)]
    expires_at: FieldPatch<Moment>,
    /// Whether the key is refused until it is enabled again.
    disabled: Option<bool>,
    /// The plan of the rules that limits the key, beside the plan of its account.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    plan: FieldPatch<String>,
    /// The tags that are set; null takes a tag away.
    tags: Option<BTreeMap<String, Option<String>>>,
}

/// How a key is rotated.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyRotationBody {
    /// For how many seconds the old key goes on working; 0, if it is missing, revokes it at once.
    #[schema(minimum = 0, maximum = 31_536_000, example = 3600)]
    overlap_s: Option<u32>,
}

/// A key, without its secret.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct KeyReply {
    /// The beginning of the key, by which it is named.
    #[schema(example = "sk-tg-01234567")]
    prefix: String,
    /// The id, which rotation keeps. Budgets and charges belong to it.
    id: String,
    /// The account.
    account: String,
    /// What people call the key.
    name: Option<String>,
    /// What else its owner notes of the key.
    tags: BTreeMap<String, String>,
    /// Patterns of the models that the key may use. None allow all models.
    models: Vec<String>,
    /// The endpoints that the key may use. None allow all.
    endpoints: Vec<String>,
    /// The networks from which the key may be used. None allow all.
    from: Vec<String>,
    /// When the key expires, in unix seconds; null if it does not.
    expires_at: Option<i64>,
    /// Whether the key is refused until it is enabled again.
    disabled: bool,
    /// The plan of the key, beside that of its account.
    plan: Option<String>,
    /// `valid`, `disabled`, `expired` or `revoked`.
    #[schema(example = "valid")]
    state: &'static str,
    /// When the key was issued, in unix seconds.
    created_at: i64,
    /// When the key was revoked, in unix seconds.
    revoked_at: Option<i64>,
    /// The minute in which the key was last used, in unix seconds.
    last_used_at: Option<i64>,
    /// The budgets of the key.
    budgets: Vec<BudgetReply>,
}

/// A new key, which no other reply shows.
#[derive(Serialize, ToSchema)]
pub(super) struct IssuedKeyReply {
    /// The key itself, which is secret.
    key: String,
    #[serde(flatten)]
    shown: KeyReply,
}

/// A new key in the place of another one.
#[derive(Serialize, ToSchema)]
pub(super) struct RotatedKeyReply {
    /// The key itself, which is secret.
    key: String,
    /// The beginning of the key that was replaced.
    old_prefix: String,
    /// When that key stops working, in unix seconds.
    old_key_ends_at: i64,
    #[serde(flatten)]
    shown: KeyReply,
}

/// What was revoked.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RevokedKeyReply {
    /// The beginning of the newest of the keys.
    prefix: String,
    /// The beginnings of all keys that were revoked: of an id, all its keys are.
    prefixes: Vec<String>,
    /// Always true.
    revoked: bool,
}

type Issued<T> = (StatusCode, Extension<IssuedSecret>, JsonReply<T>);

impl KeyReply {
    fn new(record: &KeyRecord, uses: &[BudgetUse]) -> KeyReply {
        let own = uses.iter().filter(|budget| budget.owner == BudgetOwner::Key(record.id));
        let budgets = own.map(|budget| BudgetReply::new(budget, std::slice::from_ref(record)));
        let KeyScope { name, tags, models, endpoints, from, expires_at, disabled, plan, .. } =
            record.scope.clone();
        KeyReply {
            prefix: record.prefix.clone(),
            id: record.id.0.to_string(),
            account: record.account.to_string(),
            name,
            tags,
            models,
            endpoints,
            from: from.iter().map(ToString::to_string).collect(),
            expires_at,
            disabled,
            plan: plan.map(|plan| plan.to_string()),
            state: state_of(record),
            created_at: record.created_at,
            revoked_at: record.revoked_at,
            last_used_at: last_use(record),
            budgets: budgets.collect(),
        }
    }
}

/// Lists the keys of an account, oldest first.
#[utoipa::path(
    get,
    path = "/admin/v1/keys",
    tag = "keys",
    operation_id = "listKeys",
    params(AccountPageParameters),
    responses((status = 200, description = "Keys.", body = AdminPage<KeyReply>))
)]
pub(super) async fn list_keys(
    State(api): State<AdminApi>,
    QueryParameters(parameters): QueryParameters<AccountPageParameters>,
) -> Result<JsonReply<AdminPage<KeyReply>>, AdminError> {
    let account = parse_account_name("account", &parameters.account)?;
    let range = parameters.parse()?;
    let after = range
        .after
        .as_deref()
        .map(|text| KeyPlace::parse(text).ok_or_else(|| range.unknown_cursor()));
    let (order, after) = (KeyOrder::OldestFirst, after.transpose()?);
    let part = KeyRange { order, after, limit: range.limit };
    let page = keys::list_keys_in(api.ledger(), &account, part).await?;
    let ids: Vec<KeyId> = page.keys.iter().map(|key| key.id).collect();
    let uses = api.ledger().list_budgets_of(&account, &ids).await?;
    let rows = page.keys.iter().map(|record| KeyReply::new(record, &uses)).collect();
    Ok(JsonReply(AdminPage::until(rows, page.next.map(|place| place.to_string()))))
}

/// Issues a key. The reply shows the key this once.
#[utoipa::path(
    post,
    path = "/admin/v1/keys",
    tag = "keys",
    operation_id = "createKey",
    request_body = KeyBody,
    responses((status = 201, description = "The new key.", body = IssuedKeyReply))
)]
pub(super) async fn create_key(
    State(api): State<AdminApi>,
    Extension(actor): Extension<Actor>,
    JsonBody(body): JsonBody<KeyBody>,
) -> Result<Issued<IssuedKeyReply>, AdminError> {
    let account = parse_account_name("account", &body.account)?;
    let limits = body.budgets.unwrap_or_default().parse()?;
    let tags = body.tags.unwrap_or_default().into_iter();
    let changes = KeyPatchBody {
        name: FieldPatch::set_if_given(body.name),
        budgets: None,
        models: FieldPatch::set_if_given(body.models),
        endpoints: FieldPatch::set_if_given(body.endpoints),
        from: FieldPatch::set_if_given(body.from),
        expires_at: FieldPatch::set_if_given(body.expires_at),
        disabled: None,
        plan: FieldPatch::set_if_given(body.plan),
        tags: Some(tags.map(|(name, value)| (name, Some(value))).collect()),
    };
    let scope = parse_scope(&api, changes)?.apply(&KeyScope::default())?;
    let issuing = async move |context: ManagementContext<'_>| {
        let issued = keys::issue_key(context, &account, &limits, scope).await?;
        let uses = unused_budgets(BudgetOwner::Key(issued.record.id), &limits);
        let shown = KeyReply::new(&issued.record, &uses);
        Ok(IssuedKeyReply { key: issued.key.reveal().to_owned(), shown })
    };
    let reply = api.change(actor, issuing).await?;
    Ok(issued_reply(reply.shown.prefix.clone(), reply))
}

/// Shows a key.
#[utoipa::path(
    get,
    path = "/admin/v1/keys/{prefix}",
    tag = "keys",
    operation_id = "getKey",
    params(("prefix" = String, Path, description = "The beginning of the key, or its id.")),
    responses((status = 200, description = "The key.", body = KeyReply))
)]
pub(super) async fn show_key(
    State(api): State<AdminApi>,
    PathName(prefix): PathName,
) -> Result<JsonReply<KeyReply>, AdminError> {
    let record = find_keys(api.ledger(), &prefix).await?.newest;
    let uses = api.ledger().list_budgets(&record.account).await?;
    Ok(JsonReply(KeyReply::new(&record, &uses)))
}

/// Changes the budgets of a key, what it may be used for, and what it is called.
#[utoipa::path(
    patch,
    path = "/admin/v1/keys/{prefix}",
    tag = "keys",
    operation_id = "updateKey",
    params(("prefix" = String, Path, description = "The beginning of the key, or its id, which \
        stands for all keys of the id that work.")),
    request_body = KeyPatchBody,
    responses((status = 200, description = "The key.", body = KeyReply))
)]
pub(super) async fn update_key(
    State(api): State<AdminApi>,
    Extension(actor): Extension<Actor>,
    PathName(prefix): PathName,
    JsonBody(mut body): JsonBody<KeyPatchBody>,
) -> Result<JsonReply<KeyReply>, AdminError> {
    let limits = body.budgets.take().unwrap_or_default().parse()?;
    let changes = parse_scope(&api, body)?;
    if limits.is_empty() && changes.is_empty() {
        let what = "there is nothing to change: give budgets, or a member of the key's scope";
        return Err(AdminError::invalid("body", what));
    }
    let setting = async move |context: ManagementContext<'_>| {
        Ok(keys::set_key(context, &prefix, &limits, &changes).await?)
    };
    let record = api.change(actor, setting).await?;
    let uses = api.ledger().list_budgets(&record.account).await?;
    Ok(JsonReply(KeyReply::new(&record, &uses)))
}

/// Revokes a key, for good.
#[utoipa::path(
    delete,
    path = "/admin/v1/keys/{prefix}",
    tag = "keys",
    operation_id = "revokeKey",
    params(("prefix" = String, Path, description = "The beginning of the key, or its id, which \
        stands for all keys of the id.")),
    responses((status = 200, description = "What was revoked.", body = RevokedKeyReply))
)]
pub(super) async fn revoke_key(
    State(api): State<AdminApi>,
    Extension(actor): Extension<Actor>,
    PathName(prefix): PathName,
) -> Result<JsonReply<RevokedKeyReply>, AdminError> {
    let revoking =
        async move |context: ManagementContext<'_>| Ok(keys::revoke_key(context, &prefix).await?);
    let prefixes = api.change(actor, revoking).await?;
    let prefix = prefixes.last().cloned().unwrap_or_default();
    Ok(JsonReply(RevokedKeyReply { prefix, prefixes, revoked: true }))
}

/// Makes a key with the id, the budgets and the scope of another one, which ends. The reply shows
/// the new key this once.
#[utoipa::path(
    post,
    path = "/admin/v1/keys/{prefix}/rotate",
    tag = "keys",
    operation_id = "rotateKey",
    params(("prefix" = String, Path, description = "The beginning of the old key, or its id, which \
        stands for all keys of the id that work.")),
    request_body = KeyRotationBody,
    responses((status = 201, description = "The new key.", body = RotatedKeyReply))
)]
pub(super) async fn rotate_key(
    State(api): State<AdminApi>,
    Extension(actor): Extension<Actor>,
    PathName(prefix): PathName,
    JsonBody(body): JsonBody<KeyRotationBody>,
) -> Result<Issued<RotatedKeyReply>, AdminError> {
    let overlap = body.overlap_s.unwrap_or_default();
    if overlap > OVERLAP_S_MAX {
        let message = format!("{overlap} is too long: give at most {OVERLAP_S_MAX} seconds");
        return Err(AdminError::invalid("overlap_s", message));
    }
    let rotating = async move |context: ManagementContext<'_>| {
        Ok(rotate(context, &prefix, i64::from(overlap)).await?)
    };
    let rotated = api.change(actor, rotating).await?;
    let record = rotated.issued.record;
    // The old key has ended, so the reply must come even if the store does not tell the budgets.
    let uses = api.ledger().list_budgets(&record.account).await.unwrap_or_default();
    let reply = RotatedKeyReply {
        key: rotated.issued.key.reveal().to_owned(),
        old_prefix: rotated.old_prefix,
        old_key_ends_at: rotated.old_key_ends_at,
        shown: KeyReply::new(&record, &uses),
    };
    Ok(issued_reply(record.prefix, reply))
}

fn issued_reply<T>(prefix: String, reply: T) -> Issued<T> {
    (StatusCode::CREATED, Extension(IssuedSecret { prefix }), JsonReply(reply))
}

/// Parses the changes of a scope.
fn parse_scope(api: &AdminApi, body: KeyPatchBody) -> Result<ScopePatch, AdminError> {
    let endpoints = body.endpoints.into_list();
    check_endpoints(endpoints.as_deref().unwrap_or_default())?;
    let networks = |list: Vec<String>| {
        let parsed = list.iter().map(|text| parse_network(text)).collect::<Result<Vec<_>, _>>();
        parsed.map_err(|why| AdminError::invalid("from", why.to_string()))
    };
    let now = now_s();
    let expires_at = body.expires_at.try_map(|moment| moment.parse_future("expires_at", now))?;
    Ok(ScopePatch {
        name: body.name,
        tags: body.tags.unwrap_or_default(),
        models: body.models.into_list(),
        endpoints,
        from: body.from.into_list().map(networks).transpose()?,
        expires_at,
        disabled: body.disabled,
        plan: body.plan.try_map(|name| api.parse_plan(&name))?,
    })
}
