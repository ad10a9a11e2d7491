//! The scripts on sealed statements.

use redis::Script;

/// Builds a script from the end of its first line and the parts of its source text.
type MakeScript<'a> = &'a dyn Fn(&str, &[&str]) -> Script;

/// A statement that is stored gets its number when the server's memory is full, too.
const ALLOW_OOM: &str = " flags=allow-oom";

/// The scripts on sealed statements.
pub(super) struct StatementScripts {
    /// Stores a statement.
    pub(super) put: Script,
    /// Gives a stored statement its number.
    pub(super) number: Script,
}

impl StatementScripts {
    pub(super) fn build(make: MakeScript<'_>) -> StatementScripts {
        StatementScripts {
            put: make("", &[include_str!("scripts/statements/put.lua")]),
            number: make(ALLOW_OOM, &[include_str!("scripts/statements/number.lua")]),
        }
    }

    pub(super) fn all(&self) -> [&Script; 2] {
        [&self.put, &self.number]
    }
}
