//! The scripts on operators, on the record of their changes, and on the requests that they have
//! named.

use redis::Script;

/// Builds a script from the end of its first line and the parts of its source text.
type MakeScript<'a> = &'a dyn Fn(&str, &[&str]) -> Script;

const PRELUDE: &str = include_str!("scripts/operators/prelude.lua");

/// What takes a right away, or tells what was done, works when the server's memory is full, too.
const ALLOW_OOM: &str = " flags=allow-oom";
const NO_WRITES: &str = " flags=no-writes";

/// The scripts on operators.
pub(super) struct OperatorScripts {
    pub(super) add: Script,
    pub(super) replace_token: Script,
    pub(super) remove: Script,
    pub(super) append_audit: Script,
    /// Returns lines of the record of changes, and changes nothing.
    pub(super) read_audit: Script,
    pub(super) claim_request: Script,
    pub(super) answer_request: Script,
    pub(super) release_request: Script,
}

impl OperatorScripts {
    pub(super) fn build(make: MakeScript<'_>) -> OperatorScripts {
        let build = |flags, last| make(flags, &[PRELUDE, last]);
        OperatorScripts {
            add: build("", include_str!("scripts/operators/add.lua")),
            replace_token: build(ALLOW_OOM, include_str!("scripts/operators/replace_token.lua")),
            remove: build(ALLOW_OOM, include_str!("scripts/operators/remove.lua")),
            append_audit: build(ALLOW_OOM, include_str!("scripts/operators/append_audit.lua")),
            read_audit: build(NO_WRITES, include_str!("scripts/operators/read_audit.lua")),
            claim_request: build("", include_str!("scripts/operators/claim_request.lua")),
            answer_request: build(ALLOW_OOM, include_str!("scripts/operators/answer_request.lua")),
            release_request: build(
                ALLOW_OOM,
                include_str!("scripts/operators/release_request.lua"),
            ),
        }
    }

    pub(super) fn all(&self) -> [&Script; 8] {
        [
            &self.add,
            &self.replace_token,
            &self.remove,
            &self.append_audit,
            &self.read_audit,
            &self.claim_request,
            &self.answer_request,
            &self.release_request,
        ]
    }
}
