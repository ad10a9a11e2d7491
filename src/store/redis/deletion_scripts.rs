//! The scripts on the deletion of accounts.

use redis::Script;

/// Builds a script from the end of its first line and the parts of its source text.
type ScriptMaker<'a> = &'a dyn Fn(&str, &[&str]) -> Script;

/// An account is deleted when the server's memory is full, too.
const ALLOW_OOM: &str = " flags=allow-oom";
const NO_WRITES: &str = " flags=no-writes";

/// The scripts on the deletion of accounts.
pub(super) struct DeletionScripts {
    /// Marks an account as deleted, if it has nothing left.
    pub(super) mark: Script,
    /// Looks for keys of an account.
    pub(super) find_keys: Script,
}

impl DeletionScripts {
    /// Builds the scripts. `lots` is the source of what all scripts have that move money.
    pub(super) fn build(make: ScriptMaker<'_>, lots: &str) -> DeletionScripts {
        DeletionScripts {
            mark: make(ALLOW_OOM, &[lots, include_str!("scripts/deletion/mark.lua")]),
            find_keys: make(NO_WRITES, &[include_str!("scripts/deletion/find_keys.lua")]),
        }
    }

    pub(super) fn all(&self) -> [&Script; 2] {
        [&self.mark, &self.find_keys]
    }
}
