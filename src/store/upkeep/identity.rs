//! Whether a shared store is the one that this process knows. One that was emptied under a running
//! gateway is sold nothing from, and knows no key: whoever has one must not be told that it is
//! wrong. What ended is kept in the outbox until the store is back, or until somebody says, by
//! starting a gateway anew, that what is gone is gone.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use crate::ledger::Unavailable;
use crate::store::redis::{Found, Redis, next_id};

/// In one run of the store it is looked at so often.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A store that has its name in some places only is being named by somebody else, for so long.
const NAMING: Duration = Duration::from_secs(2);
/// A name that is younger than this may be lost with the run of the store that has it.
const YOUNG: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Default)]
pub(super) struct Identity {
    known: Option<Box<str>>,
    /// When this process named it.
    named: Option<Instant>,
    /// Since when it has a name in some places only.
    in_part: Option<Instant>,
    /// The run that was looked at last, and when.
    looked: Option<(Box<str>, Instant)>,
    /// The run that had its name.
    had: Option<Box<str>>,
}

/// Why a store is not to be used.
#[derive(Debug)]
pub(super) enum Doubt {
    /// It could not be asked, or has no name yet.
    Away(Unavailable),
    /// It is not the one that is known.
    Other,
}

impl From<Unavailable> for Doubt {
    fn from(why: Unavailable) -> Doubt {
        Doubt::Away(why)
    }
}

/// What follows from what was found.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Known(Box<str>),
    /// It has no name: this process gives it one, or again the one that it had.
    Name(Option<Box<str>>),
    /// Somebody else may be about it.
    Wait,
    /// A part of it is gone, and this process has just begun.
    Rename(BTreeSet<String>),
    Other,
}

impl Identity {
    /// Looks whether it is the known one, if it is time to; what it is called.
    pub(super) async fn check(&mut self, store: &Redis, run: &str) -> Result<Box<str>, Doubt> {
        let is_fresh = |(of, at): &(Box<str>, Instant)| **of == *run && at.elapsed() < LOOK_EVERY;
        if let Some(known) = self.known.clone()
            && self.looked.as_ref().is_some_and(is_fresh)
        {
            return Ok(known);
        }
        self.looked = None;
        let found = store.store_id().await?;
        let known = match self.next(&found, run) {
            Next::Known(id) => id,
            Next::Name(id) => {
                let id = id.unwrap_or_else(|| uuid::Uuid::new_v4().simple().to_string().into());
                store.name_store(&id).await?;
                self.named = Some(Instant::now());
                match store.store_id().await? {
                    Found::Whole(id) => id,
                    _ => return Err(Unavailable("the store is being named".to_owned()).into()),
                }
            }
            Next::Wait => return Err(Unavailable("the store is being named".to_owned()).into()),
            Next::Rename(names) => {
                log::error!(
                    event = "store_partially_replaced", names:?;
                    "a part of the store was emptied, or is another's; it is taken as it is"
                );
                let id = next_id(&names);
                store.rename_store(&id).await?;
                id.into()
            }
            Next::Other => return Err(Doubt::Other),
        };
        self.in_part = None;
        self.looked = Some((run.into(), Instant::now()));
        self.had = Some(run.into());
        Ok(self.known.insert(known).clone())
    }

    fn next(&mut self, found: &Found, run: &str) -> Next {
        let has_had = self.had.as_deref() == Some(run);
        let is_young = |at: &Instant| !has_had && at.elapsed() < YOUNG;
        match (&self.known, found) {
            (None, Found::Whole(id)) => Next::Known(id.clone()),
            (None, Found::Nothing) => Next::Name(None),
            (None, Found::Part(names)) => {
                let since = *self.in_part.get_or_insert_with(Instant::now);
                if since.elapsed() < NAMING { Next::Wait } else { Next::Rename(names.clone()) }
            }
            (Some(known), Found::Whole(id)) if known == id => Next::Known(id.clone()),
            // Acknowledged a moment before that run ended, and so it may be lost with it.
            (Some(known), Found::Nothing) if self.named.as_ref().is_some_and(is_young) => {
                Next::Name(Some(known.clone()))
            }
            (Some(_), _) => Next::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(names: &[&str]) -> Found {
        Found::Part(names.iter().map(|name| (*name).to_owned()).collect())
    }

    #[tokio::test]
    async fn a_known_store_is_never_taken_for_another() {
        let whole = |id: &str| Found::Whole(id.into());
        let ago = |span: Duration| Instant::now().checked_sub(span).expect("a moment");
        let mut identity = Identity::default();
        assert_eq!(identity.next(&Found::Nothing, "r"), Next::Name(None));
        assert_eq!(identity.next(&whole("a"), "r"), Next::Known("a".into()));
        assert_eq!(identity.next(&part(&["a"]), "r"), Next::Wait);
        identity.in_part = Some(ago(NAMING));
        assert!(matches!(identity.next(&part(&["a"]), "r"), Next::Rename(_)));
        identity.known = Some("a".into());
        for other in [Found::Nothing, part(&["a"]), whole("b")] {
            assert_eq!(identity.next(&other, "r"), Next::Other, "{other:?}");
        }
        (identity.named, identity.had) = (Some(Instant::now()), Some("r".into()));
        assert_eq!(identity.next(&Found::Nothing, "r"), Next::Other, "the same run had it");
        assert_eq!(identity.next(&Found::Nothing, "s"), Next::Name(Some("a".into())));
        assert_eq!(identity.next(&part(&["b"]), "s"), Next::Other);
        identity.named = Some(ago(YOUNG));
        assert_eq!(identity.next(&Found::Nothing, "s"), Next::Other, "it had all its time");
    }
}
