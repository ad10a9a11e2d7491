//! The pages and forms of keys: for operators those of all accounts, for a customer those of the
//! own one. Only their paths differ.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Redirect;

use super::error::PageError;
use super::forms::FormBody;
use super::guide::SetupGuide;
use super::key_forms::{self, KeyForm, KeyRotationForm, KeySettingsForm};
use super::page::Page;
use super::state::{Console, SignedIn, Viewer};
use super::views::keys::{self as view, KeyDetail};
use crate::gateway::request::scope_check::ACCOUNT;
use crate::ledger::{AccountName, BudgetOwner, KeyOrder, KeyRange, KeyRecord, KeyScope};
use crate::management::context::ManagementContext;
use crate::management::error::{no_such_key, parse_account};
use crate::management::key_rotation::rotate_key;
use crate::management::key_search::{has_ended, now_s, parse_key_id};
use crate::management::keys;
use crate::operators::NamedRequest;

/// With this many keys, ended ones among them, a customer is given no more: their records stay.
const KEYS_OF_CUSTOMER_MAX: u32 = 1_000;

/// The name that a page gives a form has at most this many bytes.
const REQUEST_BYTES_MAX: usize = 64;

/// Shows a key.
pub(super) async fn show(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    Path(prefix): Path<String>,
) -> Result<Page, PageError> {
    let key = find_key(&console, &signed_in, &prefix).await?;
    let mut budgets = console.api.store.ledger.list_budgets_of(&key.account, &[key.id]).await?;
    budgets.retain(|budget| budget.owner == BudgetOwner::Key(key.id));
    let title = format!("Key {}", key.prefix);
    let place = signed_in.viewer.keys_place();
    Ok(Page::new(title, place, view::draw(&KeyDetail { key, budgets }, &signed_in)))
}

/// Finds a key by its beginning. To a customer there are the own keys only.
async fn find_key(
    console: &Console,
    signed_in: &SignedIn,
    prefix: &str,
) -> Result<KeyRecord, PageError> {
    // To find a key by its id, a store may look through all keys of all accounts.
    if parse_key_id(prefix).is_some() {
        return Err(no_such_key(prefix).into());
    }
    let found = console.api.store.ledger.find_key_by_prefix(prefix).await?;
    let is_seen = |key: &KeyRecord| match &signed_in.viewer {
        Viewer::Operator { .. } => true,
        Viewer::Customer(account) => key.account == *account,
    };
    Ok(found.filter(is_seen).ok_or_else(|| no_such_key(prefix))?)
}

/// Issues a key for an account, by an operator.
pub(super) async fn issue_for(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    Path(name): Path<String>,
    FormBody(form): FormBody<KeyForm>,
) -> Result<Page, PageError> {
    issue(&console, &signed_in, &parse_account(&name)?, form).await
}

/// Issues a key for the own account.
pub(super) async fn issue_own(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    FormBody(form): FormBody<KeyForm>,
) -> Result<Page, PageError> {
    let account = signed_in.viewer.customer()?.clone();
    console.count_change(&signed_in)?;
    require_room(&console, &account).await?;
    issue(&console, &signed_in, &account, form).await
}

async fn issue(
    console: &Console,
    signed_in: &SignedIn,
    account: &AccountName,
    form: KeyForm,
) -> Result<Page, PageError> {
    let request = form.request.clone();
    let (scope, limits) = form.parse(now_s())?;
    let setup = guide_for(console, &scope);
    once(console, signed_in, &request).await?;
    let owner = account.clone();
    let issuing = async move |context: ManagementContext<'_>| {
        Ok(keys::issue_key(context, &owner, &limits, scope).await?)
    };
    let issued = console.change_of(account, signed_in, issuing).await?;
    // Nothing else is read that could fail: no other page shows the key.
    let key = issued.key.reveal();
    let content = view::draw_new(account, key, None, setup.as_deref(), signed_in);
    Ok(Page::new("A new key", signed_in.viewer.keys_place(), content))
}

/// Returns how a client is set up with a key; `None` if the key is for the account's pages alone.
fn guide_for(console: &Console, scope: &KeyScope) -> Option<Arc<SetupGuide>> {
    let is_for_pages =
        !scope.endpoints.is_empty() && scope.endpoints.iter().all(|at| at == ACCOUNT);
    (!is_for_pages).then(|| console.guide.clone())
}

/// Checks that a customer may have another key.
async fn require_room(console: &Console, account: &AccountName) -> Result<(), PageError> {
    let (order, limit) = (KeyOrder::OldestFirst, KEYS_OF_CUSTOMER_MAX);
    let range = KeyRange { order, after: None, limit };
    let count = console.api.store.ledger.list_keys_in(account, range).await?.keys.len();
    if count < KEYS_OF_CUSTOMER_MAX as usize {
        return Ok(());
    }
    let message =
        format!("The account has {count} keys, ended ones among them: ask the operator for more.");
    Err(PageError::new(StatusCode::CONFLICT, message))
}

/// Refuses a form that was sent before: a page that shows a key is reloaded easily.
pub(super) async fn once(
    console: &Console,
    signed_in: &SignedIn,
    request: &str,
) -> Result<(), PageError> {
    if request.len() > REQUEST_BYTES_MAX {
        return Err(PageError::invalid("The form has no such name: open the page again."));
    }
    let operators = &console.api.store.operators;
    let (owner, name) = (key_forms::owner_of(&signed_in.viewer), format!("form {request}"));
    let claimed = operators.claim_request(&owner, &name, [0; 32]).await?;
    if claimed == NamedRequest::New {
        return Ok(());
    }
    let message = "This form was sent before. If it has made a key or a secret, that was shown \
                   once. With this form another one is made.";
    Err(PageError::new(StatusCode::CONFLICT, message))
}

/// Changes what a key may do.
pub(super) async fn set(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    Path(prefix): Path<String>,
    FormBody(form): FormBody<KeySettingsForm>,
) -> Result<Redirect, PageError> {
    let key = find_living(&console, &signed_in, &prefix).await?;
    let (changes, limits) = form.parse()?;
    console.count_change(&signed_in)?;
    let account = key.account.clone();
    let setting = async move |context: ManagementContext<'_>| {
        Ok(keys::set_key(context, &key.prefix, &limits, &changes).await?)
    };
    console.change_of(&account, &signed_in, setting).await?;
    Ok(Redirect::to(&format!("{}/{prefix}", signed_in.viewer.keys_path())))
}

/// Puts a new key in the place of one.
pub(super) async fn rotate(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    Path(prefix): Path<String>,
    FormBody(form): FormBody<KeyRotationForm>,
) -> Result<Page, PageError> {
    let key = find_living(&console, &signed_in, &prefix).await?;
    let overlap = form.overlap_s()?;
    console.count_change(&signed_in)?;
    if let Viewer::Customer(account) = &signed_in.viewer {
        require_room(&console, account).await?;
    }
    once(&console, &signed_in, &form.request).await?;
    let (account, setup) = (key.account.clone(), guide_for(&console, &key.scope));
    let rotating = async move |context: ManagementContext<'_>| {
        Ok(rotate_key(context, &key.prefix, overlap).await?)
    };
    let rotated = console.change_of(&account, &signed_in, rotating).await?;
    let (new, ends_at) = (rotated.issued.key.reveal(), Some(rotated.old_key_ends_at));
    let content = view::draw_new(&account, new, ends_at, setup.as_deref(), &signed_in);
    Ok(Page::new("A new key", signed_in.viewer.keys_place(), content))
}

/// Revokes a key, for good.
pub(super) async fn revoke(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    Path(prefix): Path<String>,
) -> Result<Redirect, PageError> {
    let found = find_key(&console, &signed_in, &prefix).await?;
    let page = format!("{}/{}", signed_in.viewer.keys_path(), found.prefix);
    let KeyRecord { prefix, account, revoked_at, .. } = found;
    if revoked_at.is_some() {
        return Ok(Redirect::to(&page));
    }
    console.count_change(&signed_in)?;
    let revoking =
        async move |context: ManagementContext<'_>| Ok(keys::revoke_key(context, &prefix).await?);
    console.change_of(&account, &signed_in, revoking).await?;
    Ok(Redirect::to(&page))
}

/// Finds a key that has not ended.
async fn find_living(
    console: &Console,
    signed_in: &SignedIn,
    prefix: &str,
) -> Result<KeyRecord, PageError> {
    let key = find_key(console, signed_in, prefix).await?;
    if has_ended(&key, now_s()) {
        let message = "The key is revoked or has expired: issue another one.";
        return Err(PageError::new(StatusCode::CONFLICT, message));
    }
    Ok(key)
}
