//! The fixed scripts, embedded. What ends or goes on with something is allowed when the server's
//! memory is full.

use redis::{Cmd, Script, ScriptInvocation, ToRedisArgs};

use crate::ledger::Operation;

const WHEN_FULL: &str = " flags=allow-oom";
const READING: &str = " flags=no-writes";

/// One of each.
#[derive(Default)]
pub(super) struct Scripts {
    pub(super) money: MoneyScripts,
    pub(super) videos: VideoScripts,
    pub(super) index: IndexScripts,
    pub(super) repeats: RepeatScripts,
}

impl Scripts {
    pub(super) fn all(&self) -> Vec<&Script> {
        let MoneyScripts { credit, hold, extend, renew, settle, void, expire } = &self.money;
        let videos = &self.videos;
        let IndexScripts { announce, hasten, note, drop, due } = &self.index;
        let money = [credit, hold, extend, renew, settle, void, expire];
        let VideoScripts { place, claim, renew, save, delete, remove, page } = videos;
        let videos = [place, claim, renew, save, delete, remove, page];
        let index = [announce, hasten, note, drop, due];
        let RepeatScripts { take, renew, end, free } = &self.repeats;
        let repeats = [take, renew, end, free];
        money.into_iter().chain(videos).chain(index).chain(repeats).collect()
    }
}

/// On accounts and holds.
pub(super) struct MoneyScripts {
    pub(super) credit: Script,
    pub(super) hold: Script,
    pub(super) extend: Script,
    pub(super) renew: Script,
    pub(super) settle: Script,
    pub(super) void: Script,
    pub(super) expire: Script,
}

impl MoneyScripts {
    /// That of an operation.
    pub(super) fn of(&self, op: &Operation) -> &Script {
        match op {
            Operation::Credit { .. } => &self.credit,
            Operation::Hold { .. } => &self.hold,
            Operation::Extend { .. } => &self.extend,
            Operation::Renew { .. } | Operation::Checkpoint { .. } => &self.renew,
            Operation::Settle { .. } => &self.settle,
            Operation::Void { .. } => &self.void,
        }
    }
}

/// On an account's jobs.
pub(super) struct VideoScripts {
    pub(super) place: Script,
    pub(super) claim: Script,
    pub(super) renew: Script,
    pub(super) save: Script,
    pub(super) delete: Script,
    pub(super) remove: Script,
    pub(super) page: Script,
}

/// On the index of all jobs.
pub(super) struct IndexScripts {
    pub(super) announce: Script,
    pub(super) hasten: Script,
    pub(super) note: Script,
    pub(super) drop: Script,
    pub(super) due: Script,
}

/// On names of calls.
pub(super) struct RepeatScripts {
    pub(super) take: Script,
    pub(super) renew: Script,
    pub(super) end: Script,
    pub(super) free: Script,
}

/// What moves money, stamped with the run of the server that it is for: no other run knows them.
pub(in crate::store) struct Stamped {
    /// The run.
    pub(in crate::store) run: Box<str>,
    pub(super) hold: Script,
    pub(super) extend: Script,
    pub(super) settle: Script,
    pub(super) void: Script,
    pub(super) place: Script,
    /// How holds stand; moves nothing, but only this run is to tell.
    pub(super) states: Script,
}

impl Stamped {
    pub(super) fn for_run(run: &str) -> Stamped {
        Stamped {
            run: run.into(),
            hold: stamped(HOLD, run),
            extend: stamped(EXTEND, run),
            settle: stamped(SETTLE, run),
            void: stamped(VOID, run),
            place: stamped(PLACE, run),
            states: stamped(STATES, run),
        }
    }

    pub(super) fn all(&self) -> [&Script; 6] {
        let Stamped { run: _, hold, extend, settle, void, place, states } = self;
        [hold, extend, settle, void, place, states]
    }
}

/// The keys and arguments of a script that is about to run.
#[derive(Default)]
pub(super) struct Call {
    keys: Vec<String>,
    args: Vec<Vec<u8>>,
}

impl Call {
    pub(super) fn key(&mut self, key: impl Into<String>) -> &mut Call {
        self.keys.push(key.into());
        self
    }

    pub(super) fn arg(&mut self, arg: impl ToRedisArgs) -> &mut Call {
        arg.write_redis_args(&mut self.args);
        self
    }

    /// Of a script that is loaded where the server does not have it.
    pub(super) fn of<'a>(&self, script: &'a Script) -> ScriptInvocation<'a> {
        let mut call = script.prepare_invoke();
        call.key(&self.keys[..]);
        for arg in &self.args {
            call.arg(&arg[..]);
        }
        call
    }

    /// Of a script that the server has, or else refuses to run.
    pub(super) fn of_known(&self, script: &Script) -> Cmd {
        let mut call = redis::cmd("EVALSHA");
        call.arg(script.get_hash()).arg(self.keys.len()).arg(&self.keys).arg(&self.args);
        call
    }
}

/// What a script may do, and the parts of its text.
type Source = (&'static str, &'static [&'static str]);

const HOLDING: &str = include_str!("scripts/holding.lua");
const RECORD: &str = include_str!("scripts/videos/record.lua");

const HOLD: Source = ("", &[HOLDING, include_str!("scripts/hold.lua")]);
const EXTEND: Source = (WHEN_FULL, &[include_str!("scripts/extend.lua")]);
const SETTLE: Source = (WHEN_FULL, &[include_str!("scripts/settle.lua")]);
const VOID: Source = (WHEN_FULL, &[include_str!("scripts/void.lua")]);
const STATES: Source = (READING, &[include_str!("scripts/states.lua")]);
const PLACE: Source = ("", &[HOLDING, RECORD, include_str!("scripts/videos/place.lua")]);

fn text(flags: &str, parts: &[&str]) -> String {
    let prelude = include_str!("scripts/prelude.lua");
    format!("#!lua{flags}\n{prelude}{}", parts.concat())
}

fn script(flags: &str, parts: &[&str]) -> Script {
    Script::new(&text(flags, parts))
}

fn plain((flags, parts): Source) -> Script {
    script(flags, parts)
}

fn stamped((flags, parts): Source, run: &str) -> Script {
    Script::new(&format!("{}\n-- {run}\n", text(flags, parts)))
}

impl Default for MoneyScripts {
    fn default() -> MoneyScripts {
        MoneyScripts {
            credit: script("", &[include_str!("scripts/credit.lua")]),
            hold: plain(HOLD),
            extend: plain(EXTEND),
            renew: script(WHEN_FULL, &[include_str!("scripts/renew.lua")]),
            settle: plain(SETTLE),
            void: plain(VOID),
            expire: script(WHEN_FULL, &[include_str!("scripts/expire.lua")]),
        }
    }
}

impl Default for VideoScripts {
    fn default() -> VideoScripts {
        VideoScripts {
            place: plain(PLACE),
            claim: script(WHEN_FULL, &[RECORD, include_str!("scripts/videos/claim.lua")]),
            renew: script(WHEN_FULL, &[RECORD, include_str!("scripts/videos/renew.lua")]),
            save: script(WHEN_FULL, &[RECORD, include_str!("scripts/videos/save.lua")]),
            delete: script(WHEN_FULL, &[RECORD, include_str!("scripts/videos/delete.lua")]),
            remove: script(WHEN_FULL, &[RECORD, include_str!("scripts/videos/remove.lua")]),
            page: script(READING, &[include_str!("scripts/videos/page.lua")]),
        }
    }
}

impl Default for IndexScripts {
    fn default() -> IndexScripts {
        let index = include_str!("scripts/videos/index.lua");
        IndexScripts {
            announce: script("", &[index, include_str!("scripts/videos/announce.lua")]),
            hasten: script(WHEN_FULL, &[index, include_str!("scripts/videos/hasten.lua")]),
            note: script(WHEN_FULL, &[index, include_str!("scripts/videos/note.lua")]),
            drop: script(WHEN_FULL, &[index, include_str!("scripts/videos/drop.lua")]),
            due: script(READING, &[index, include_str!("scripts/videos/due.lua")]),
        }
    }
}

impl Default for RepeatScripts {
    fn default() -> RepeatScripts {
        let name = include_str!("scripts/repeats/name.lua");
        RepeatScripts {
            take: script("", &[name, include_str!("scripts/repeats/take.lua")]),
            renew: script(WHEN_FULL, &[name, include_str!("scripts/repeats/renew.lua")]),
            end: script(WHEN_FULL, &[name, include_str!("scripts/repeats/end.lua")]),
            free: script(WHEN_FULL, &[name, include_str!("scripts/repeats/free.lua")]),
        }
    }
}
