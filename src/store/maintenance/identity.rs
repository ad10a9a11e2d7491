//! Whether a shared store is the one that this process knows. One that was emptied under a running
//! gateway is sold nothing from, and knows no key: whoever has one must not be told that it is
//! wrong. What ended is kept in the outbox until the store is back, or until somebody says, by
//! starting a gateway anew, that what is gone is gone.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use crate::ledger::Unavailable;
use crate::store::redis::{RedisStore, StoredIds, derive_next_id};

/// In one run of the store it is looked at so often.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// For this long, a store with its id in some places only is taken as being named by a peer.
const NAMING_TIMEOUT: Duration = Duration::from_secs(2);
/// A name that is younger than this may be lost with the run of the store that has it.
const NEW_ID_AGE_MAX: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Default)]
pub(super) struct StoreIdentity {
    known: Option<Box<str>>,
    /// When this process named it.
    named_at: Option<Instant>,
    /// Since when it has a name in some places only.
    partial_since: Option<Instant>,
    /// The run that was looked at last, and when.
    last_check: Option<(Box<str>, Instant)>,
    /// The run that had its name.
    identified_run: Option<Box<str>>,
}

/// Why a store is not to be used.
#[derive(Debug)]
pub(super) enum IdentityError {
    /// It could not be asked, or has no name yet.
    Unavailable(Unavailable),
    /// It is not the one that is known.
    Replaced,
}

impl From<Unavailable> for IdentityError {
    fn from(why: Unavailable) -> IdentityError {
        IdentityError::Unavailable(why)
    }
}

/// What follows from what was found.
#[derive(Debug, PartialEq, Eq)]
enum IdentityStep {
    Known(Box<str>),
    /// It has no name: this process gives it one, or again the one that it had.
    AssignId(Option<Box<str>>),
    /// Somebody else may be about it.
    Wait,
    /// A part of it is gone, and this process has just begun.
    OverwriteId(BTreeSet<String>),
    Replaced,
}

impl StoreIdentity {
    /// Looks whether it is the known one, if it is time to; what it is called.
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
                self.named_at = Some(Instant::now());
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
        let has_had = self.identified_run.as_deref() == Some(run);
        let is_young = |at: &Instant| !has_had && at.elapsed() < NEW_ID_AGE_MAX;
        match (&self.known, found) {
            (None, StoredIds::Consistent(id)) => IdentityStep::Known(id.clone()),
            (None, StoredIds::Missing) => IdentityStep::AssignId(None),
            (None, StoredIds::Inconsistent(names)) => {
                let since = *self.partial_since.get_or_insert_with(Instant::now);
                if since.elapsed() < NAMING_TIMEOUT {
                    IdentityStep::Wait
                } else {
                    IdentityStep::OverwriteId(names.clone())
                }
            }
            (Some(known), StoredIds::Consistent(id)) if known == id => {
                IdentityStep::Known(id.clone())
            }
            // Acknowledged a moment before that run ended, and so it may be lost with it; in a
            // cluster it is lost with the run of one master.
            (Some(known), found)
                if found.lacks_only(known) && self.named_at.as_ref().is_some_and(is_young) =>
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
        identity.partial_since = Some(ago(NAMING_TIMEOUT));
        assert!(matches!(identity.next_step(&part(&["a"]), "r"), IdentityStep::OverwriteId(_)));
        identity.known = Some("a".into());
        for other in [StoredIds::Missing, part(&["a"]), whole("b")] {
            assert_eq!(identity.next_step(&other, "r"), IdentityStep::Replaced, "{other:?}");
        }
        (identity.named_at, identity.identified_run) = (Some(Instant::now()), Some("r".into()));
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
        identity.named_at = Some(ago(NEW_ID_AGE_MAX));
        assert_eq!(
            identity.next_step(&StoredIds::Missing, "s"),
            IdentityStep::Replaced,
            "it had all its time"
        );
    }

    #[tokio::test]
    async fn a_cluster_that_lost_a_new_id_with_one_master_was_refused_for_good() {
        let mut identity = StoreIdentity { known: Some("a".into()), ..Default::default() };
        (identity.named_at, identity.identified_run) = (Some(Instant::now()), Some("r".into()));
        let assigned = IdentityStep::AssignId(Some("a".into()));
        assert_eq!(identity.next_step(&part(&["a"]), "s"), assigned);
        assert_eq!(identity.next_step(&part(&["a"]), "r"), IdentityStep::Replaced);
    }
}
