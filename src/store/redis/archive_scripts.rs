//! The scripts on journals that are archived, and on the archive.

use redis::Script;

/// Builds a script from the end of its first line and the parts of its source text.
type MakeScript<'a> = &'a dyn Fn(&str, &[&str]) -> Script;

/// What leads to less memory in use works when the server's memory is full, too.
const ALLOW_OOM: &str = " flags=allow-oom";
const NO_WRITES: &str = " flags=no-writes";

/// The scripts on journals that are archived, and on the archive.
pub(super) struct ArchiveScripts {
    /// Returns lines of a journal with their true numbers, and changes nothing.
    pub(super) read: Script,
    /// Tells how far a journal is archived, and changes nothing.
    pub(super) state: Script,
    /// Notes an archived day.
    pub(super) mark: Script,
    /// Raises the version of the store's data. Unlike for other features this may run when the
    /// memory is full.
    pub(super) raise_version: Script,
    /// Deletes lines that are archived.
    pub(super) trim: Script,
    pub(super) take_turn: Script,
}

impl ArchiveScripts {
    pub(super) fn build(make: MakeScript<'_>) -> ArchiveScripts {
        ArchiveScripts {
            read: make(NO_WRITES, &[include_str!("scripts/archive/read.lua")]),
            state: make(NO_WRITES, &[include_str!("scripts/archive/state.lua")]),
            mark: make(ALLOW_OOM, &[include_str!("scripts/archive/mark.lua")]),
            raise_version: make(ALLOW_OOM, &[include_str!("scripts/budgets/raise_version.lua")]),
            trim: make(ALLOW_OOM, &[include_str!("scripts/archive/trim.lua")]),
            take_turn: make(ALLOW_OOM, &[include_str!("scripts/archive/take_turn.lua")]),
        }
    }

    pub(super) fn all(&self) -> [&Script; 6] {
        [&self.read, &self.state, &self.mark, &self.raise_version, &self.trim, &self.take_turn]
    }
}
