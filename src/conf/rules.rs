//! The `[rules]` section: the folders of the rules files.

use std::path::Path;

use crate::toml_reader::{ConfigError, TableReader};

/// The `[rules]` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesSection {
    /// The folder of the rules files.
    pub dir: String,
    /// The folder of files that take the place of those with the same name in `dir`, or are added
    /// to them; `None` if there is none.
    pub local: Option<String>,
}

impl RulesSection {
    /// Parses the section; faults are added to `faults`.
    pub(crate) fn parse(table: &mut TableReader, faults: &mut Vec<ConfigError>) -> RulesSection {
        let location = table.location.clone();
        let dir = table.text("dir", faults).unwrap_or_else(|| "lua-free-rules".to_owned());
        let local = table.text("local", faults).filter(|path| !path.is_empty());
        // Otherwise it would look as if each file stood for itself.
        if local.as_deref().is_some_and(|local| Path::new(local) == Path::new(&dir)) {
            faults.push(location.error("'dir' and 'local' are the same folder; they must differ"));
        }
        RulesSection { dir, local }
    }

    /// Whether a file, as it was found in one of the folders, is in `local`.
    #[must_use]
    pub(crate) fn is_local(&self, file: &str) -> bool {
        let folder = Path::new(file).parent();
        self.local.as_deref().is_some_and(|local| folder == Some(Path::new(local)))
    }
}
