//! Checks by its id whether a shared store is the one that this process knows. If the store was
//! emptied or replaced under a running gateway, no paid call is admitted, and a missing API key
//! proves nothing: a client with a valid key must not be told that it is wrong. Settlements stay in
//! the outbox until the known store is back, or until the operator restarts a gateway, which gives
//! up what the store had.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use crate::ledger::Unavailable;
use crate::store::redis::{RedisStore, StoredIds, derive_next_id};

/// Within one run of the store, its id is checked this often.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// A store that has an id in some places only is taken for this long as a store to which another
/// gateway is assigning an id.
const ID_ASSIGN_TIMEOUT: Duration = Duration::from_secs(2);
/// An id that this process assigned less than this long ago may be lost together with the run of
/// the store that has it.
const NEW_ID_AGE_MAX: Duration = Duration::from_secs(30);

/// The id by which this process knows the store, and what the last checks found.
#[derive(Default)]
pub(super) struct StoreIdentity {
    known: Option<Box<str>>,
    /// When this process assigned the id; `None` if it found an id.
    id_assigned_at: Option<Instant>,
    /// Since when the store has an id in some places only.
    partial_since: Option<Instant>,
    /// The run in which the id was last checked, and when that was.
    last_check: Option<(Box<str>, Instant)>,
    /// The run in which the id was last found.
    identified_run: Option<Box<str>>,
}

/// Why a store must not be used.
#[derive(Debug)]
pub(super) enum IdentityError {
    /// The store did not answer, or has no id yet.
    Unavailable(Unavailable),
    /// The store is not the one that this process knows.
    Replaced,
}

impl From<Unavailable> for IdentityError {
    fn from(why: Unavailable) -> IdentityError {
        IdentityError::Unavailable(why)
    }
}

/// What to do after the ids in the store were read.
#[derive(Debug, PartialEq, Eq)]
enum IdentityStep {
    Known(Box<str>),
    /// The store has no id: this process assigns this one, which it had before, or a new one for
    /// `None`.
    AssignId(Option<Box<str>>),
    /// Another gateway may be assigning an id at the moment.
    Wait,
    /// A part of the store was emptied or replaced, and this process knows no id yet. It writes an
    /// id that follows from these over all of them.
    OverwriteId(BTreeSet<String>),
    Replaced,
}

impl StoreIdentity {
    /// Checks that the store is the known one, unless that was checked shortly before in the same
    /// run. Returns the id of the store.
    ///
    /// # Errors
    /// [`IdentityError`] if the store must not be used.
    pub(super) async fn check(
        &mut self,
        store: &RedisStore,
        run: &str,
    ) -> Result<Box<str>, IdentityError> {
        let is_fresh =
            |(of, at): &(Box<str>, Instant)| **of == *run && at.elapsed() < CHECK_INTERVAL;
        if let Some(known) = self.known.clone()
            && self.last_check.as_ref().is_some_and(is_fresh)
        {
            return Ok(known);
        }
        self.last_check = None;
        let found = store.read_store_ids().await?;
        let known = match self.next_step(&found, run) {
            IdentityStep::Known(id) => id,
            IdentityStep::AssignId(id) => {
                let id = id.unwrap_or_else(|| uuid::Uuid::new_v4().simple().to_string().into());
                store.set_store_id_if_absent(&id).await?;
                self.id_assigned_at = Some(Instant::now());
                match store.read_store_ids().await? {
                    StoredIds::Consistent(id) => id,
                    _ => return Err(Unavailable("the store is being named".to_owned()).into()),
                }
            }
            IdentityStep::Wait => {
                return Err(Unavailable("the store is being named".to_owned()).into());
            }
            IdentityStep::OverwriteId(names) => {
                log::error!(
                    event = "store_partially_replaced", names:?;
                    "part of the store was emptied or replaced; it is used as it is"
                );
                let id = derive_next_id(&names);
                store.overwrite_store_id(&id).await?;
                id.into()
            }
            IdentityStep::Replaced => return Err(IdentityError::Replaced),
        };
        self.partial_since = None;
        self.last_check = Some((run.into(), Instant::now()));
        self.identified_run = Some(run.into());
        Ok(self.known.insert(known).clone())
    }

    fn next_step(&mut self, found: &StoredIds, run: &str) -> IdentityStep {
        let was_identified_in_run = self.identified_run.as_deref() == Some(run);
        let is_within_grace =
            |at: &Instant| !was_identified_in_run && at.elapsed() < NEW_ID_AGE_MAX;
        match (&self.known, found) {
            (None, StoredIds::Consistent(id)) => IdentityStep::Known(id.clone()),
            (None, StoredIds::Missing) => IdentityStep::AssignId(None),
            (None, StoredIds::Inconsistent(names)) => {
                let since = *self.partial_since.get_or_insert_with(Instant::now);
                if since.elapsed() < ID_ASSIGN_TIMEOUT {
                    IdentityStep::Wait
                } else {
                    IdentityStep::OverwriteId(names.clone())
                }
            }
            (Some(known), StoredIds::Consistent(id)) if known == id => {
                IdentityStep::Known(id.clone())
            }
            // This process assigned the id shortly before that run ended, so the id may be lost
            // with the run. In a cluster it is lost with the run of one master.
            (Some(known), found)
                if found.lacks_only(known)
                    && self.id_assigned_at.as_ref().is_some_and(is_within_grace) =>
            {
                IdentityStep::AssignId(Some(known.clone()))
            }
            (Some(_), _) => IdentityStep::Replaced,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(names: &[&str]) -> StoredIds {
        StoredIds::Inconsistent(names.iter().map(|name| (*name).to_owned()).collect())
    }

    #[tokio::test]
    async fn a_known_store_is_never_taken_for_another() {
        let whole = |id: &str| StoredIds::Consistent(id.into());
        let ago = |span: Duration| Instant::now().checked_sub(span).expect("a moment");
        let mut identity = StoreIdentity::default();
        assert_eq!(identity.next_step(&StoredIds::Missing, "r"), IdentityStep::AssignId(None));
        assert_eq!(identity.next_step(&whole("a"), "r"), IdentityStep::Known("a".into()));
        assert_eq!(identity.next_step(&part(&["a"]), "r"), IdentityStep::Wait);
        identity.partial_since = Some(ago(ID_ASSIGN_TIMEOUT));
        assert!(matches!(identity.next_step(&part(&["a"]), "r"), IdentityStep::OverwriteId(_)));
        identity.known = Some("a".into());
        for other in [StoredIds::Missing, part(&["a"]), whole("b")] {
            assert_eq!(identity.next_step(&other, "r"), IdentityStep::Replaced, "{other:?}");
        }
        (identity.id_assigned_at, identity.identified_run) =
            (Some(Instant::now()), Some("r".into()));
        assert_eq!(
            identity.next_step(&StoredIds::Missing, "r"),
            IdentityStep::Replaced,
            "the same run had it"
        );
        assert_eq!(
            identity.next_step(&StoredIds::Missing, "s"),
            IdentityStep::AssignId(Some("a".into()))
        );
        for other in [part(&["b"]), part(&["a", "b"]), whole("b")] {
            assert_eq!(identity.next_step(&other, "s"), IdentityStep::Replaced, "{other:?}");
        }
        identity.id_assigned_at = Some(ago(NEW_ID_AGE_MAX));
        assert_eq!(
            identity.next_step(&StoredIds::Missing, "s"),
            IdentityStep::Replaced,
            "it had all its time"
        );
    }

    #[tokio::test]
    async fn a_cluster_that_lost_a_new_id_with_one_master_was_refused_for_good() {
        let mut identity = StoreIdentity { known: Some("a".into()), ..Default::default() };
        (identity.id_assigned_at, identity.identified_run) =
            (Some(Instant::now()), Some("r".into()));
        let assigned = IdentityStep::AssignId(Some("a".into()));
        assert_eq!(identity.next_step(&part(&["a"]), "s"), assigned);
        assert_eq!(identity.next_step(&part(&["a"]), "r"), IdentityStep::Replaced);
    }
}
