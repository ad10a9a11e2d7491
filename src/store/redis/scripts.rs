//! The fixed scripts, embedded. What ends or goes on with something is allowed when the server's
//! memory is full.

use redis::{Arg, Cmd, Script, ScriptInvocation, ToRedisArgs};

use crate::ledger::Operation;

const ALLOW_OOM: &str = " flags=allow-oom";
const NO_WRITES: &str = " flags=no-writes";

pub(in crate::store) type ScriptSelector = fn(&Scripts) -> &Script;

/// Makes a script of what it may do and the parts of its text.
type ScriptBuilder<'a> = &'a dyn Fn(&str, &[&str]) -> Script;

pub(in crate::store) struct Scripts {
    pub(super) money: MoneyScripts,
    pub(super) videos: VideoScripts,
    pub(super) index: IndexScripts,
    pub(super) idempotency: IdempotencyScripts,
    pub(super) kept: KeptScripts,
}

impl Default for Scripts {
    /// Those that any run of a server does.
    fn default() -> Scripts {
        Scripts::build(&|flags, parts| Script::new(&script_source(flags, parts)))
    }
}

impl Scripts {
    /// Those that one run does, and no other: its name is their last line.
    fn for_run(run: &str) -> Scripts {
        Scripts::build(&|flags, parts| {
            Script::new(&format!("{}\n-- {run}\n", script_source(flags, parts)))
        })
    }

    fn build(make: ScriptBuilder<'_>) -> Scripts {
        Scripts {
            money: MoneyScripts::build(make),
            videos: VideoScripts::build(make),
            index: IndexScripts::build(make),
            idempotency: IdempotencyScripts::build(make),
            kept: KeptScripts::build(make),
        }
    }

    pub(super) fn all(&self) -> Vec<&Script> {
        let MoneyScripts { credit, hold, extend, renew, settle, void, expire, states } =
            &self.money;
        let videos = &self.videos;
        let IndexScripts { announce, hasten, note, drop, due } = &self.index;
        let money = [credit, hold, extend, renew, settle, void, expire, states];
        let VideoScripts { place, claim, renew, save, delete, remove, page } = videos;
        let videos = [place, claim, renew, save, delete, remove, page];
        let index = [announce, hasten, note, drop, due];
        let IdempotencyScripts { take, renew, end, free } = &self.idempotency;
        let idempotency = [take, renew, end, free];
        let KeptScripts { put, weigh, evict, tell, recount } = &self.kept;
        let kept = [put, weigh, evict, tell, recount];
        money.into_iter().chain(videos).chain(index).chain(idempotency).chain(kept).collect()
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
    /// How holds stand; moves nothing.
    pub(super) states: Script,
}

impl MoneyScripts {
    /// That of an operation.
    pub(super) fn for_operation(&self, op: &Operation) -> &Script {
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
pub(super) struct IdempotencyScripts {
    pub(super) take: Script,
    pub(super) renew: Script,
    pub(super) end: Script,
    pub(super) free: Script,
}

/// On what is kept beside the books.
pub(super) struct KeptScripts {
    /// Keeps a cache entry.
    pub(super) put: Script,
    /// Counts what an account keeps.
    pub(super) weigh: Script,
    /// Drops some of it.
    pub(super) evict: Script,
    /// Takes in what accounts keep.
    pub(super) tell: Script,
    /// Adds it up anew.
    pub(super) recount: Script,
}

/// All of them, stamped with the run of the server that they are for: no other run knows them.
pub(in crate::store) struct RunScripts {
    pub(in crate::store) run_id: Box<str>,
    pub(super) scripts: Scripts,
}

impl RunScripts {
    pub(super) fn for_run(run: &str) -> RunScripts {
        RunScripts { run_id: run.into(), scripts: Scripts::for_run(run) }
    }
}

/// The most bytes of a command before its keys, if it names a script by its hash.
const EVALSHA_HEADER_BYTES: usize = 64;

/// The keys and arguments of a script that is about to run.
#[derive(Default)]
pub(super) struct ScriptCall {
    keys: Cmd,
    args: Cmd,
}

impl ScriptCall {
    pub(super) fn key(&mut self, key: impl AsRef<str>) -> &mut ScriptCall {
        self.keys.arg(key.as_ref());
        self
    }

    pub(super) fn arg(&mut self, arg: impl ToRedisArgs) -> &mut ScriptCall {
        self.args.arg(arg);
        self
    }

    /// Of a script that is loaded where the server does not have it.
    pub(super) fn invocation<'a>(&self, script: &'a Script) -> ScriptInvocation<'a> {
        let mut call = script.prepare_invoke();
        for key in cmd_args(&self.keys) {
            call.key(key);
        }
        for arg in cmd_args(&self.args) {
            call.arg(arg);
        }
        call
    }

    /// Of a script that the server has, or else refuses to run.
    pub(super) fn evalsha(&self, script: &Script) -> Cmd {
        let (keys, args) = (cmd_args(&self.keys), cmd_args(&self.args));
        let count = 3 + keys.len() + args.len();
        let bytes: usize = cmd_args(&self.keys).chain(cmd_args(&self.args)).map(<[u8]>::len).sum();
        let mut call = Cmd::with_capacity(count, EVALSHA_HEADER_BYTES + bytes);
        call.arg("EVALSHA").arg(script.get_hash()).arg(keys.len());
        for word in keys.chain(args) {
            call.arg(word);
        }
        call
    }
}

/// The words of a command that has no cursor.
fn cmd_args(cmd: &Cmd) -> impl ExactSizeIterator<Item = &[u8]> {
    cmd.args_iter().map(|arg| match arg {
        Arg::Simple(word) => word,
        _ => &[],
    })
}

const KEPT_LUA: &str = include_str!("scripts/kept/kept.lua");
const HOLDING_LUA: &str = include_str!("scripts/holding.lua");
const RECORD_LUA: &str = include_str!("scripts/videos/record.lua");

fn script_source(flags: &str, parts: &[&str]) -> String {
    let prelude = include_str!("scripts/prelude.lua");
    format!("#!lua{flags}\n{prelude}{}", parts.concat())
}

impl MoneyScripts {
    fn build(make: ScriptBuilder<'_>) -> MoneyScripts {
        MoneyScripts {
            credit: make("", &[include_str!("scripts/credit.lua")]),
            hold: make("", &[HOLDING_LUA, include_str!("scripts/hold.lua")]),
            extend: make(ALLOW_OOM, &[include_str!("scripts/extend.lua")]),
            renew: make(ALLOW_OOM, &[include_str!("scripts/renew.lua")]),
            settle: make(ALLOW_OOM, &[include_str!("scripts/settle.lua")]),
            void: make(ALLOW_OOM, &[include_str!("scripts/void.lua")]),
            expire: make(ALLOW_OOM, &[include_str!("scripts/expire.lua")]),
            states: make(NO_WRITES, &[include_str!("scripts/states.lua")]),
        }
    }
}

impl VideoScripts {
    fn build(make: ScriptBuilder<'_>) -> VideoScripts {
        VideoScripts {
            place: make(
                "",
                &[HOLDING_LUA, RECORD_LUA, KEPT_LUA, include_str!("scripts/videos/place.lua")],
            ),
            claim: make(ALLOW_OOM, &[RECORD_LUA, include_str!("scripts/videos/claim.lua")]),
            renew: make(ALLOW_OOM, &[RECORD_LUA, include_str!("scripts/videos/renew.lua")]),
            save: make(ALLOW_OOM, &[RECORD_LUA, include_str!("scripts/videos/save.lua")]),
            delete: make(ALLOW_OOM, &[RECORD_LUA, include_str!("scripts/videos/delete.lua")]),
            remove: make(ALLOW_OOM, &[RECORD_LUA, include_str!("scripts/videos/remove.lua")]),
            page: make(NO_WRITES, &[include_str!("scripts/videos/page.lua")]),
        }
    }
}

impl IndexScripts {
    fn build(make: ScriptBuilder<'_>) -> IndexScripts {
        let index = include_str!("scripts/videos/index.lua");
        IndexScripts {
            announce: make("", &[index, include_str!("scripts/videos/announce.lua")]),
            hasten: make(ALLOW_OOM, &[index, include_str!("scripts/videos/hasten.lua")]),
            note: make(ALLOW_OOM, &[index, include_str!("scripts/videos/note.lua")]),
            drop: make(ALLOW_OOM, &[index, include_str!("scripts/videos/drop.lua")]),
            due: make(NO_WRITES, &[index, include_str!("scripts/videos/due.lua")]),
        }
    }
}

impl IdempotencyScripts {
    fn build(make: ScriptBuilder<'_>) -> IdempotencyScripts {
        let name = include_str!("scripts/repeats/name.lua");
        IdempotencyScripts {
            take: make("", &[name, include_str!("scripts/repeats/take.lua")]),
            renew: make(ALLOW_OOM, &[name, include_str!("scripts/repeats/renew.lua")]),
            end: make(ALLOW_OOM, &[name, KEPT_LUA, include_str!("scripts/repeats/end.lua")]),
            free: make(ALLOW_OOM, &[name, include_str!("scripts/repeats/free.lua")]),
        }
    }
}

impl KeptScripts {
    fn build(make: ScriptBuilder<'_>) -> KeptScripts {
        KeptScripts {
            put: make("", &[KEPT_LUA, include_str!("scripts/kept/note.lua")]),
            weigh: make(ALLOW_OOM, &[KEPT_LUA, include_str!("scripts/kept/weigh.lua")]),
            evict: make(ALLOW_OOM, &[KEPT_LUA, include_str!("scripts/kept/evict.lua")]),
            tell: make(ALLOW_OOM, &[KEPT_LUA, include_str!("scripts/kept/tell.lua")]),
            recount: make(ALLOW_OOM, &[KEPT_LUA, include_str!("scripts/kept/recount.lua")]),
        }
    }
}
