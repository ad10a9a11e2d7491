//! The scripts on sign-in links and sessions.

use redis::Script;

/// Builds a script from the end of its first line and the parts of its source text.
type MakeScript<'a> = &'a dyn Fn(&str, &[&str]) -> Script;

/// Who is signed out is so when the server's memory is full, too.
const ALLOW_OOM: &str = " flags=allow-oom";

/// The scripts on sign-in links and sessions.
pub(super) struct SessionScripts {
    /// Adds a link or a session.
    pub(super) add: Script,
    /// Deletes all links and sessions of a principal.
    pub(super) end_all: Script,
}

impl SessionScripts {
    pub(super) fn build(make: MakeScript<'_>) -> SessionScripts {
        SessionScripts {
            add: make("", &[include_str!("scripts/sessions/add.lua")]),
            end_all: make(ALLOW_OOM, &[include_str!("scripts/sessions/end_all.lua")]),
        }
    }

    pub(super) fn all(&self) -> [&Script; 2] {
        [&self.add, &self.end_all]
    }
}
