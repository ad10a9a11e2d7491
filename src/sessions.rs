//! Sign-ins of the web console: who has signed in, until when, and the secrets that tell it.
//!
//! Somebody who may sign in gets a link with a secret, which can be used once. Who uses it gets a
//! session with another secret, which the browser sends with each request.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use async_trait::async_trait;

use self::bounds::TTL_MS_MAX;
use crate::ledger::Unavailable;

pub mod bounds;
mod principal;
mod secret;

pub use principal::Principal;
pub(crate) use secret::SecretKind;
pub use secret::{SecretHash, SessionSecret};

/// What a store knows of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Who has signed in.
    pub principal: Principal,
    /// When the session was added, in unix seconds.
    pub created_at: i64,
    /// When it expires, in unix seconds, rounded down.
    pub expires_at: i64,
}

/// The sign-in links and the sessions of a store, by the digests of their secrets. All times are
/// those of the store's clock.
///
/// An embedded store acknowledges these writes when they are on disk. A server that restarts may
/// forget those of the last second. A caller that must not lose one runs it within the store's
/// `DurabilityScope`, which may run it again: the same again changes nothing, but a link that was
/// used before is none.
///
/// A secret is random, so each is added for one principal only. Adding it again replaces what was
/// added. What is beyond the [`bounds`], or is no principal, is not written: [`Unavailable`].
#[async_trait]
pub trait SessionStore: Send + Sync {
    /// Adds a link by which a principal can sign in once within `ttl_ms`. The oldest unused link of
    /// the principal makes room, if there are [`bounds::LINKS_MAX`].
    async fn add_link(
        &self,
        hash: SecretHash,
        principal: &Principal,
        ttl_ms: u32,
    ) -> Result<(), Unavailable>;
    /// Returns for whom a link is, and leaves it as it is; `None` as of [`SessionStore::use_link`].
    /// This writes nothing.
    async fn find_link(&self, hash: SecretHash) -> Result<Option<Principal>, Unavailable>;
    /// Uses a link up, and returns for whom it was; `None` if there is none, it was used, or it has
    /// expired. Of several callers that use the same link, one gets the principal.
    async fn use_link(&self, hash: SecretHash) -> Result<Option<Principal>, Unavailable>;
    /// Adds a session of a principal, which expires after `ttl_ms`. The oldest session of the
    /// principal makes room, if there are [`bounds::SESSIONS_MAX`].
    async fn add_session(
        &self,
        hash: SecretHash,
        principal: &Principal,
        ttl_ms: u32,
    ) -> Result<(), Unavailable>;
    /// Returns a session; `None` if there is none, it was ended, or it has expired.
    async fn find_session(&self, hash: SecretHash) -> Result<Option<Session>, Unavailable>;
    /// Ends a session, if there is one.
    async fn end_session(&self, hash: SecretHash) -> Result<(), Unavailable>;
    /// Ends all sessions of a principal and removes all its unused links, in one step: what is
    /// added meanwhile comes before it, and is ended, or after it. An identity is the same whatever
    /// its role, so the sessions of all its roles end. Returns how many sessions there were.
    async fn end_sessions_of(&self, principal: &Principal) -> Result<u32, Unavailable>;
}

/// Checks a link or a session that is to be added.
///
/// # Errors
/// [`Unavailable`] if the store cannot keep it.
pub(crate) fn check_sign_in(principal: &Principal, ttl_ms: u32) -> Result<(), Unavailable> {
    if !principal.is_sound() {
        let text = principal.to_string();
        return Err(Unavailable(format!("'{text:.300}' is nobody who can sign in")));
    }
    if !(1..=TTL_MS_MAX).contains(&ttl_ms) {
        return Err(Unavailable(format!("a sign-in lasts from 1 to {TTL_MS_MAX} ms")));
    }
    Ok(())
}
