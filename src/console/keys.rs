//! The forms of keys.

use axum::Extension;
use axum::extract::{Path, State};
use axum::response::Redirect;

use super::error::PageError;
use super::state::{Console, SignedIn};
use crate::gateway::request::scope_check::ACCOUNT;
use crate::ledger::KeyScope;
use crate::management::context::ManagementContext;
use crate::management::field_patch::FieldPatch;
use crate::management::key_scope::ScopePatch;
use crate::management::{key_search, keys};

/// Returns the scope of a key out of a form. One for the account's own pages is for no calls.
pub(super) fn scope_of(
    name: Option<String>,
    models: Option<&str>,
    is_for_account: bool,
) -> Result<KeyScope, PageError> {
    let patterns = models.unwrap_or_default().split(',').map(str::trim);
    let models: Vec<String> =
        patterns.filter(|pattern| !pattern.is_empty()).map(str::to_owned).collect();
    let changes = ScopePatch {
        name: FieldPatch::set_if_given(name),
        models: Some(models),
        endpoints: is_for_account.then(|| vec![ACCOUNT.to_owned()]),
        ..ScopePatch::default()
    };
    Ok(changes.apply(&KeyScope::default())?)
}

/// Revokes a key, for good.
pub(super) async fn revoke(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    Path(prefix): Path<String>,
) -> Result<Redirect, PageError> {
    let found = key_search::find_keys(&*console.api.store.ledger, &prefix).await?;
    let account = found.newest.account;
    let revoking =
        async move |context: ManagementContext<'_>| Ok(keys::revoke_key(context, &prefix).await?);
    console.change(&signed_in, revoking).await?;
    Ok(Redirect::to(&format!("/accounts/{account}#keys")))
}
