//! Reloads the rules while serving, all files or none. Requests under way keep the rules with which
//! they began.
//!
//! The files are not saved at the same moment. So a change is applied only when the next scan finds
//! the same content, and no vendor goes off sale because its file is missing, empty or truncated.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::{ArcSwap, ArcSwapOption};

use super::super::rules;
use crate::catalogue::{Catalogue, RulesSource, VendorModelNames};
use crate::conf::{Config, RulesSection};
use crate::ledger::BookName;
use crate::toml_reader::ConfigError;

/// The result of a scan of the folders: their files, or why they cannot be read.
type FolderScan = Result<Vec<RulesSource>, String>;

/// The rules that are in use, and the scans of their folders.
pub(super) struct RulesReload {
    folders: RulesSection,
    naming: Vec<VendorModelNames>,
    catalogue: Arc<ArcSwap<Catalogue>>,
    /// The catalogue of the version before, if this process has had one.
    pub(super) previous: Arc<ArcSwapOption<Catalogue>>,
    history: Mutex<ScanHistory>,
}

/// The results of the last scans.
struct ScanHistory {
    /// The scan that was last parsed, valid or not, so that a fault is logged only once.
    applied: FolderScan,
    /// The result of the last scan, if it differs from `applied`.
    candidate: Option<FolderScan>,
    /// The local files of the rules that are in use.
    local: Vec<String>,
    /// Whether `applied` was refused, and the rules are older.
    is_refused: bool,
}

impl ScanHistory {
    /// The history at a start, which has taken the rules of this scan.
    fn new(folders: &RulesSection, applied: FolderScan) -> ScanHistory {
        let sources = applied.as_deref().unwrap_or_default();
        let local = rules::local_files(folders, sources);
        ScanHistory { applied, candidate: None, local, is_refused: false }
    }
}

impl RulesReload {
    pub(super) fn new(conf: &Config, catalogue: Arc<ArcSwap<Catalogue>>) -> RulesReload {
        let (folders, naming) = (conf.rules.clone(), rules::vendor_model_names(conf));
        let history = Mutex::new(ScanHistory::new(&folders, scan_folders(&folders)));
        RulesReload { folders, naming, catalogue, previous: Arc::default(), history }
    }

    /// Applies the rules if a file has changed, and has not changed again since the last scan.
    pub(super) fn reload_if_changed(&self) {
        let found = scan_folders(&self.folders);
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        if history.applied == found {
            history.candidate = None;
        } else if history.candidate.as_ref() == Some(&found) {
            self.apply_scan(&mut history, found);
        } else {
            history.candidate = Some(found);
        }
    }

    /// Reads and applies the rules at once.
    pub(super) fn reload(&self) {
        let found = scan_folders(&self.folders);
        self.apply_scan(&mut self.history.lock().unwrap_or_else(PoisonError::into_inner), found);
    }

    /// Whether the files as they are now are refused, and the rules are older.
    pub(super) fn is_refused(&self) -> bool {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).is_refused
    }

    fn apply_scan(&self, history: &mut ScanHistory, found: FolderScan) {
        let mut is_refused = true;
        match &found {
            Ok(sources) => match self.parse_lossless(sources, &history.local) {
                Ok(catalogue) => {
                    history.local = rules::local_files(&self.folders, sources);
                    is_refused = false;
                    log_removed_books(&catalogue.find_removed_books(&self.catalogue.load()));
                    let (models, plans) = (catalogue.models().len(), catalogue.plans.count());
                    let (books, version) = (catalogue.books.count(), catalogue.version.clone());
                    let old = self.catalogue.swap(Arc::new(catalogue));
                    if old.version != version {
                        self.previous.store(Some(old));
                    }
                    log::info!(
                        event = "rules_reloaded", models, plans, books, version:% = version;
                        "rules reloaded"
                    );
                }
                Err(faults) => {
                    for fault in &faults {
                        log::error!(
                            event = "rules_reload_failed", fault:% = fault;
                            "rules not reloaded, the old ones stay"
                        );
                    }
                }
            },
            Err(why) => log::error!(
                event = "rules_reload_failed", error = why;
                "rules not reloaded, the old ones stay"
            ),
        }
        history.applied = found;
        history.candidate = None;
        history.is_refused = is_refused;
    }

    /// Parses the rules. Fails if they lack what those in use have; `local` are the local files of
    /// those in use.
    fn parse_lossless(
        &self,
        sources: &[RulesSource],
        local: &[String],
    ) -> Result<Catalogue, Vec<ConfigError>> {
        let catalogue = rules::parse_catalogue(&self.folders, sources, &self.naming)?;
        let mut losses = catalogue.find_losses(&self.catalogue.load());
        losses.extend(rules::find_uncovered(local, sources));
        if losses.is_empty() { Ok(catalogue) } else { Err(losses) }
    }
}

/// Warns of price books that are gone: whether accounts still have them is not known here.
fn log_removed_books(removed: &[BookName]) {
    for book in removed {
        log::warn!(
            event = "book_removed", book = book.as_str();
            "price book removed, paid calls of accounts that have it are refused"
        );
    }
}

fn scan_folders(folders: &RulesSection) -> FolderScan {
    rules::read_sources(folders).map_err(|why| format!("{why:#}"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn text(model: &str) -> String {
        format!(
            "vendor = \"vendor_y\"\ndialect = \"chat\"\nauth = {{ header = \"x\" }}\n\
             estimate = {{ output_tokens = 1, image_tokens = 1, document_tokens = 1 }}\n\
             [chat]\n\"{model}\" = {{ input = 1, output = 1, context = 1000 }}\n"
        )
    }

    fn rules(folder: &Path) -> RulesReload {
        rules_of(RulesSection { dir: folder.display().to_string(), local: None })
    }

    fn rules_of(folders: RulesSection) -> RulesReload {
        let judged = scan_folders(&folders);
        let naming =
            vec![VendorModelNames { vendor: "vendor_y".to_owned(), ..VendorModelNames::default() }];
        let sources = judged.clone().expect("readable");
        let sold = rules::parse_catalogue(&folders, &sources, &naming).expect("sound rules");
        let history = Mutex::new(ScanHistory::new(&folders, judged));
        let catalogue = Arc::new(ArcSwap::from_pointee(sold));
        RulesReload { folders, naming, catalogue, previous: Arc::default(), history }
    }

    #[test]
    fn a_file_that_was_half_saved_took_models_out_of_sale() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("vendor_y.toml");
        fs::write(&file, text("a")).expect("written");
        let rules = rules(folder.path());
        let is_sold = |model: &str| rules.catalogue.load().find(model).is_some();
        // Each scan finds another partly saved state; none of them is applied.
        let more = format!("{}\"c\" = {{ input = 1, output = 1, context = 9 }}\n", text("b"));
        fs::rename(&file, folder.path().join("vendor_y.bak")).expect("moved");
        rules.reload_if_changed();
        fs::write(&file, "").expect("written");
        rules.reload_if_changed();
        fs::write(&file, text("b")).expect("written");
        rules.reload_if_changed();
        fs::write(&file, &more).expect("written");
        rules.reload_if_changed();
        assert!(is_sold("a") && !is_sold("b"));
        // A state that is found twice is applied.
        rules.reload_if_changed();
        assert!(!is_sold("a") && is_sold("b") && is_sold("c"));
        let previous = rules.previous.load_full().expect("a version before");
        assert!(previous.find("a").is_some());
    }

    #[test]
    fn broken_plans_leave_those_before_them_in_force() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("vendor_y.toml"), text("a")).expect("written");
        let rules = rules(folder.path());
        let file = folder.path().join("plans.toml");
        let in_force = || {
            let catalogue = rules.catalogue.load();
            let calls = catalogue.plans.default_plan().and_then(|plan| plan.limits.calls);
            (catalogue.version.clone(), calls)
        };
        let version = in_force().0;
        fs::write(&file, "[plan.default]\ncalls = 3\n").expect("written");
        rules.reload_if_changed();
        assert_eq!(in_force(), (version.clone(), None), "the file may be half saved");
        rules.reload_if_changed();
        assert_eq!(in_force(), (version.clone(), Some(3)), "plans are no prices");
        for broken in ["[plan.default]\ncalls = -1\n", "[plan.default]\ncalls = 4", "# later\n", ""]
        {
            fs::write(&file, broken).expect("written");
            rules.reload();
            assert_eq!(in_force().1, Some(3), "{broken:?}");
        }
        fs::remove_file(&file).expect("removed");
        rules.reload();
        assert_eq!(in_force().1, Some(3), "a file that is gone");
        fs::write(&file, "[plan.default]\ncalls = 5\n").expect("written");
        rules.reload();
        assert_eq!(in_force(), (version, Some(5)));
    }

    #[test]
    fn what_is_broken_for_good_is_judged_and_changes_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("vendor_y.toml");
        fs::write(&file, text("a")).expect("written");
        let rules = rules(folder.path());
        let broken: [&dyn Fn(); 4] = [
            &|| fs::write(&file, "").expect("written"),
            &|| fs::write(&file, text("b").trim_end()).expect("written"),
            &|| fs::remove_file(&file).expect("removed"),
            &|| fs::rename(folder.path(), folder.path().with_extension("away")).expect("moved"),
        ];
        for (number, break_it) in broken.iter().enumerate() {
            break_it();
            for _ in 0..3 {
                rules.reload_if_changed();
            }
            let judged = rules.history.lock().expect("no panic").applied.clone();
            assert_eq!(judged, scan_folders(&rules.folders), "{number} was judged");
            assert!(rules.is_refused(), "{number} is refused");
            rules.reload();
            assert!(rules.is_refused(), "{number} is still refused");
            assert!(rules.catalogue.load().find("a").is_some(), "{number} changes nothing");
        }
        let away = folder.path().with_extension("away");
        fs::rename(away, folder.path()).expect("moved back");
        fs::write(&file, text("b")).expect("written");
        rules.reload();
        assert!(!rules.is_refused());
        assert!(rules.catalogue.load().find("b").is_some());
    }

    /// Two folders with a file of the same vendor; the local one sells model `l`, the other `d`.
    fn two_folders() -> (tempfile::TempDir, RulesReload) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let folders = RulesSection { dir: path("dir"), local: Some(path("local")) };
        for (name, model) in [("dir", "d"), ("local", "l")] {
            fs::create_dir(path(name)).expect("a folder");
            fs::write(format!("{}/vendor_y.toml", path(name)), text(model)).expect("written");
        }
        (folder, rules_of(folders))
    }

    #[test]
    fn a_local_file_that_is_gone_would_have_left_its_models_to_the_prices_of_the_other() {
        let (folder, rules) = two_folders();
        let local = folder.path().join("local/vendor_y.toml");
        let is_sold = |model: &str| rules.catalogue.load().find(model).is_some();
        assert!(is_sold("l") && !is_sold("d"));
        fs::rename(&local, local.with_extension("old")).expect("moved");
        for _ in 0..2 {
            rules.reload();
            assert!(is_sold("l") && !is_sold("d"), "a file is gone");
        }
        fs::rename(folder.path().join("local"), folder.path().join("away")).expect("moved");
        rules.reload();
        assert!(is_sold("l") && !is_sold("d"), "the folder is gone");
        fs::rename(folder.path().join("away"), folder.path().join("local")).expect("moved");
        fs::write(&local, text("m")).expect("written");
        rules.reload();
        assert!(is_sold("m") && !is_sold("d"), "it is there again");
    }

    #[test]
    fn a_local_file_is_taken_while_serving_and_then_missed_when_it_goes() {
        let (folder, rules) = two_folders();
        let is_sold = |model: &str| rules.catalogue.load().find(model).is_some();
        let plans = |name: &str| folder.path().join(name).join("plans.toml");
        let calls =
            || rules.catalogue.load().plans.default_plan().and_then(|plan| plan.limits.calls);
        fs::write(plans("dir"), "[plan.default]\ncalls = 3\n").expect("written");
        rules.reload();
        assert_eq!(calls(), Some(3));
        fs::write(plans("local"), "[plan.default]\ncalls = 4\n").expect("written");
        rules.reload();
        assert_eq!(calls(), Some(4));
        fs::write(plans("dir"), "[plan.default]\ncalls = 5\n").expect("written");
        rules.reload();
        assert_eq!(calls(), Some(4), "the other file is covered");
        fs::remove_file(plans("local")).expect("removed");
        rules.reload();
        assert_eq!(calls(), Some(4), "the local file is gone");
        assert!(is_sold("l"));
    }
}
