//! New rules while serving: whole or not at all. Requests under way keep what they began with.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

use super::super::rules;
use crate::catalogue::{Catalogue, Naming, Source};
use crate::conf::Conf;

/// The rules that are in use, and what they were read from.
pub(super) struct Rules {
    dir: String,
    naming: Vec<Naming>,
    catalogue: Arc<ArcSwap<Catalogue>>,
    /// What was read last, sound or not, so that a fault is told once.
    seen: Mutex<Vec<Source>>,
}

impl Rules {
    pub(super) fn new(conf: &Conf, catalogue: Arc<ArcSwap<Catalogue>>) -> Rules {
        let seen = Mutex::new(rules::read(&conf.rules_dir).unwrap_or_default());
        Rules { dir: conf.rules_dir.clone(), naming: rules::naming(conf), catalogue, seen }
    }

    /// Takes the rules again if a file changed.
    pub(super) fn reload_if_changed(&self) {
        let Ok(sources) = rules::read(&self.dir) else { return };
        if *self.seen.lock().unwrap_or_else(PoisonError::into_inner) != sources {
            self.take(sources);
        }
    }

    /// Takes the rules again.
    pub(super) fn reload(&self) {
        match rules::read(&self.dir) {
            Ok(sources) => self.take(sources),
            Err(why) => log::error!(why:% = why; "rules not reloaded"),
        }
    }

    fn take(&self, sources: Vec<Source>) {
        match Catalogue::parse(&sources, &self.naming) {
            Ok(catalogue) => {
                let (models, version) = (catalogue.models().len(), catalogue.version.clone());
                self.catalogue.store(Arc::new(catalogue));
                log::info!(models, version:% = version; "rules reloaded");
            }
            Err(faults) => {
                for fault in &faults {
                    log::error!(fault:% = fault; "rules not reloaded, the old ones stay");
                }
            }
        }
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = sources;
    }
}
