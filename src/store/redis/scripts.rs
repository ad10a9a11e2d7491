//! The fixed scripts, embedded. Settling and voiding are allowed when the server's memory is full.

use redis::Script;

/// One of each.
pub(super) struct Scripts {
    pub(super) credit: Script,
    pub(super) hold: Script,
    pub(super) extend: Script,
    pub(super) settle: Script,
    pub(super) void: Script,
    pub(super) expire: Script,
}

impl Scripts {
    pub(super) fn all(&self) -> [&Script; 6] {
        [&self.credit, &self.hold, &self.extend, &self.settle, &self.void, &self.expire]
    }
}

impl Default for Scripts {
    fn default() -> Scripts {
        let prelude = include_str!("scripts/prelude.lua");
        let script =
            |flags: &str, body: &str| Script::new(&format!("#!lua{flags}\n{prelude}{body}"));
        let when_full = " flags=allow-oom";
        Scripts {
            credit: script("", include_str!("scripts/credit.lua")),
            hold: script("", include_str!("scripts/hold.lua")),
            extend: script(when_full, include_str!("scripts/extend.lua")),
            settle: script(when_full, include_str!("scripts/settle.lua")),
            void: script(when_full, include_str!("scripts/void.lua")),
            expire: script(when_full, include_str!("scripts/expire.lua")),
        }
    }
}
