//! The scripts on the rows of webhooks.

use redis::Script;

/// Builds a script from the end of its first line and the parts of its source text.
type MakeScript<'a> = &'a dyn Fn(&str, &[&str]) -> Script;

/// What is noted of a message, and its removal, need no memory to speak of.
const ALLOW_OOM: &str = " flags=allow-oom";
const NO_WRITES: &str = " flags=no-writes";

/// What scripts share that change when a row is due.
const DUE_LUA: &str = include_str!("scripts/webhooks/due.lua");

/// The scripts on the rows of webhooks.
pub(super) struct WebhookScripts {
    /// Adds a row.
    pub(super) add: Script,
    /// Replaces a row.
    pub(super) replace: Script,
    /// Removes a row.
    pub(super) remove: Script,
    /// Lists rows.
    pub(super) list: Script,
    /// Lists what is due.
    pub(super) list_due: Script,
}

impl WebhookScripts {
    pub(super) fn build(make: MakeScript<'_>) -> WebhookScripts {
        WebhookScripts {
            add: make("", &[DUE_LUA, include_str!("scripts/webhooks/add.lua")]),
            replace: make(ALLOW_OOM, &[DUE_LUA, include_str!("scripts/webhooks/replace.lua")]),
            remove: make(ALLOW_OOM, &[DUE_LUA, include_str!("scripts/webhooks/remove.lua")]),
            list: make(NO_WRITES, &[include_str!("scripts/webhooks/list.lua")]),
            list_due: make(NO_WRITES, &[include_str!("scripts/webhooks/list_due.lua")]),
        }
    }

    pub(super) fn all(&self) -> [&Script; 5] {
        [&self.add, &self.replace, &self.remove, &self.list, &self.list_due]
    }
}
