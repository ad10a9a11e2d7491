//! The fixed Lua scripts, which are embedded in the binary. A script that ends or continues
//! existing work, such as a settlement, may also run when the server's memory is full; a script
//! that adds something new may not.

use std::sync::{Arc, LazyLock};

use redis::{Arg, Cmd, Script, ScriptInvocation, ToRedisArgs};

use super::archive_scripts::ArchiveScripts;
use super::deletion_scripts::DeletionScripts;
use super::operator_scripts::OperatorScripts;
use super::session_scripts::SessionScripts;
use super::statement_scripts::StatementScripts;
use super::webhook_scripts::WebhookScripts;
use crate::ledger::Operation;

const ALLOW_OOM: &str = " flags=allow-oom";
const NO_WRITES: &str = " flags=no-writes";

pub(in crate::store) type ScriptSelector = fn(&Scripts) -> &Script;

/// Builds a script from its flags (the end of its first line) and the parts of its source text.
type ScriptBuilder<'a> = &'a dyn Fn(&str, &[&str]) -> Script;

pub(in crate::store) struct Scripts {
    pub(super) money: MoneyScripts,
    pub(super) videos: VideoScripts,
    pub(super) index: IndexScripts,
    pub(super) idempotency: IdempotencyScripts,
    pub(super) storage: StorageScripts,
    pub(super) fleet: FleetScripts,
    pub(super) allotments: AllotmentScripts,
    pub(super) budgets: BudgetScripts,
    pub(super) access: AccessScripts,
    pub(super) operators: OperatorScripts,
    pub(super) sessions: SessionScripts,
    pub(super) statements: StatementScripts,
    pub(super) archive: ArchiveScripts,
    pub(super) deletion: DeletionScripts,
    pub(super) webhooks: WebhookScripts,
    /// Writes sums of usage.
    pub(super) usage_add: Script,
    /// The same without any rows: old ones are deleted. It may run when the memory is full.
    pub(super) usage_purge: Script,
}

/// The scripts without a run id, which any run of a server executes. Their digests take a while, so
/// all connections of a process share them.
static UNSTAMPED: LazyLock<Arc<Scripts>> = LazyLock::new(|| {
    Arc::new(Scripts::build(&|flags, parts| Script::new(&script_source(flags, parts))))
});

impl Scripts {
    /// Returns the scripts without a run id.
    pub(super) fn unstamped() -> Arc<Scripts> {
        UNSTAMPED.clone()
    }

    /// Builds the scripts of one run. Their last line is the run id, so their hashes differ from
    /// those of other runs, and another run of the server refuses these hashes (NOSCRIPT).
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
            storage: StorageScripts::build(make),
            fleet: FleetScripts::build(make),
            allotments: AllotmentScripts::build(make),
            budgets: BudgetScripts::build(make),
            access: AccessScripts::build(make),
            operators: OperatorScripts::build(make),
            sessions: SessionScripts::build(make),
            statements: StatementScripts::build(make),
            archive: ArchiveScripts::build(make),
            deletion: DeletionScripts::build(make, LOTS_LUA),
            webhooks: WebhookScripts::build(make),
            usage_add: make("", &[include_str!("scripts/usage/add.lua")]),
            usage_purge: make(ALLOW_OOM, &[include_str!("scripts/usage/add.lua")]),
        }
    }

    pub(super) fn all(&self) -> Vec<&Script> {
        let MoneyScripts { credit, grant, take, correct, hold, extend, renew, settle, .. } =
            &self.money;
        let MoneyScripts { void, expire, expire_lots, states, search, .. } = &self.money;
        let money = [credit, grant, take, correct, hold, extend, renew, settle];
        let ends = [void, expire, expire_lots, states, search];
        let VideoScripts { place, claim, renew, save, delete, remove, page } = &self.videos;
        let videos = [place, claim, renew, save, delete, remove, page];
        let IndexScripts { add, schedule_recheck, update, remove, due } = &self.index;
        let index = [add, schedule_recheck, update, remove, due];
        let IdempotencyScripts { claim, renew, complete, release } = &self.idempotency;
        let idempotency = [claim, renew, complete, release];
        let StorageScripts { put, measure, evict, report_usage, recount } = &self.storage;
        let storage = [put, measure, evict, report_usage, recount];
        let fleet = [&self.fleet.poll, &self.fleet.ask, &self.fleet.leave];
        let AllotmentScripts { lend, update, expire, balances } = &self.allotments;
        let allotments = [lend, update, expire, balances];
        let budgets = [&self.budgets.set, &self.budgets.raise_version];
        let AccessScripts { set_scope, set_settings, index_suspended, note_use } = &self.access;
        let access = [set_scope, set_settings, index_suspended, note_use];
        let all = money.into_iter().chain(ends).chain(videos).chain(index).chain(idempotency);
        let all = all.chain(storage).chain(fleet).chain(allotments).chain(budgets);
        let all = all.chain(access).chain(self.operators.all()).chain(self.statements.all());
        let all =
            all.chain(self.archive.all()).chain(self.deletion.all()).chain(self.sessions.all());
        all.chain(self.webhooks.all()).chain([&self.usage_add, &self.usage_purge]).collect()
    }
}

/// The scripts on accounts and holds.
pub(super) struct MoneyScripts {
    pub(super) credit: Script,
    pub(super) grant: Script,
    pub(super) take: Script,
    pub(super) correct: Script,
    pub(super) hold: Script,
    pub(super) extend: Script,
    pub(super) renew: Script,
    pub(super) settle: Script,
    pub(super) void: Script,
    pub(super) expire: Script,
    /// Lets credit expire whose time has come.
    pub(super) expire_lots: Script,
    /// Returns the states of holds, and changes nothing.
    pub(super) states: Script,
    /// Looks for the charge of a call in a page of the journal, and changes nothing.
    pub(super) search: Script,
}

impl MoneyScripts {
    /// Returns the script of an operation.
    pub(super) fn for_operation(&self, op: &Operation) -> &Script {
        match op {
            Operation::Credit { .. } => &self.credit,
            Operation::Grant { .. } => &self.grant,
            Operation::Take { .. } => &self.take,
            Operation::Correct { .. } => &self.correct,
            Operation::Hold { .. } => &self.hold,
            Operation::Extend { .. } => &self.extend,
            Operation::Renew { .. } | Operation::Checkpoint { .. } => &self.renew,
            Operation::Settle { .. } => &self.settle,
            Operation::Void { .. } => &self.void,
        }
    }
}

/// The scripts on an account's video jobs.
pub(super) struct VideoScripts {
    pub(super) place: Script,
    pub(super) claim: Script,
    pub(super) renew: Script,
    pub(super) save: Script,
    pub(super) delete: Script,
    pub(super) remove: Script,
    pub(super) page: Script,
}

/// The scripts on the index of all video jobs.
pub(super) struct IndexScripts {
    pub(super) add: Script,
    pub(super) schedule_recheck: Script,
    pub(super) update: Script,
    pub(super) remove: Script,
    pub(super) due: Script,
}

/// The scripts on idempotency keys.
pub(super) struct IdempotencyScripts {
    pub(super) claim: Script,
    pub(super) renew: Script,
    pub(super) complete: Script,
    pub(super) release: Script,
}

/// The scripts on cache entries, and on the count of the bytes that accounts keep in the store
/// besides balances, holds and journals.
pub(super) struct StorageScripts {
    /// Stores a cache entry.
    pub(super) put: Script,
    /// Counts the bytes that an account keeps.
    pub(super) measure: Script,
    /// Evicts some of what an account keeps.
    pub(super) evict: Script,
    /// Records in the fleet-wide index how many bytes accounts keep.
    pub(super) report_usage: Script,
    /// Sets the total of the index to the sum of its accounts.
    pub(super) recount: Script,
}

/// The scripts on the gateways that share the store.
pub(super) struct FleetScripts {
    pub(super) poll: Script,
    pub(super) ask: Script,
    pub(super) leave: Script,
}

/// The scripts on allotments.
pub(super) struct AllotmentScripts {
    /// Does an update that may lend.
    pub(super) lend: Script,
    /// Does an update that lends nothing. It may run when the server's memory is full.
    pub(super) update: Script,
    pub(super) expire: Script,
    /// Returns the balances of an account with what is lent of it, and changes nothing.
    pub(super) balances: Script,
}

/// The scripts on the limits of budgets.
pub(super) struct BudgetScripts {
    /// Sets or removes a limit.
    pub(super) set: Script,
    /// Raises the version of the store's data.
    pub(super) raise_version: Script,
}

/// The scripts on the settings of accounts, and on the records of API keys.
pub(super) struct AccessScripts {
    /// Sets the scope of an API key.
    pub(super) set_scope: Script,
    /// Sets what an operator has set of an account.
    pub(super) set_settings: Script,
    /// Puts an account into the index of suspended accounts, or takes it out.
    pub(super) index_suspended: Script,
    /// Notes when a key was last used.
    pub(super) note_use: Script,
}

/// All scripts, stamped with the run of the server that they are for. No other run of the server
/// has them loaded.
pub(in crate::store) struct RunScripts {
    pub(in crate::store) run_id: Box<str>,
    pub(super) scripts: Scripts,
}

impl RunScripts {
    pub(super) fn for_run(run: &str) -> RunScripts {
        RunScripts { run_id: run.into(), scripts: Scripts::for_run(run) }
    }
}

/// An EVALSHA command has at most this many bytes before its keys.
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

    /// Returns an invocation that loads the script first if the server does not have it.
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

    /// Returns an EVALSHA command. A server that does not have the script refuses it (NOSCRIPT).
    pub(super) fn evalsha(&self, script: &Script) -> Cmd {
        let (keys, args) = (cmd_args(&self.keys), cmd_args(&self.args));
        let count = 3 + keys.len() + args.len();
        let bytes: usize = cmd_args(&self.keys).chain(cmd_args(&self.args)).map(<[u8]>::len).sum();
        let mut call = Cmd::with_capacity(count, EVALSHA_HEADER_BYTES + bytes);
        call.arg("EVALSHA").arg(script.get_hash()).arg(keys.len());
        for value in keys.chain(args) {
            call.arg(value);
        }
        call
    }
}

/// Returns the arguments of a command, which must not contain a SCAN cursor.
fn cmd_args(cmd: &Cmd) -> impl ExactSizeIterator<Item = &[u8]> {
    cmd.args_iter().map(|arg| match arg {
        Arg::Simple(bytes) => bytes,
        _ => &[],
    })
}

const STORAGE_LUA: &str = include_str!("scripts/storage/prelude.lua");
/// Amounts and lots: every script that moves money has both.
const LOTS_LUA: &str =
    concat!(include_str!("scripts/allotments/amounts.lua"), include_str!("scripts/lots.lua"));
const WINDOWS_LUA: &str = include_str!("scripts/windows.lua");
const RATES_LUA: &str = include_str!("scripts/rates.lua");
const PLACES_LUA: &str = include_str!("scripts/places.lua");
const RECALL_LUA: &str = include_str!("scripts/allotments/recall.lua");
const SLICES_LUA: &str = include_str!("scripts/allotments/slices.lua");
const RATE_SLICES_LUA: &str = include_str!("scripts/allotments/rate_slices.lua");
const ALLOTMENT_LUA: &str = include_str!("scripts/allotments/allotment.lua");
const GRANT_LUA: &str = include_str!("scripts/grant.lua");
const EXTEND_LUA: &str = include_str!("scripts/extend.lua");
const EXPIRE_LUA: &str = include_str!("scripts/expire.lua");
const EXPIRE_LOTS_LUA: &str = include_str!("scripts/expire_lots.lua");
const TAKE_LUA: &str = include_str!("scripts/take.lua");
const CORRECT_LUA: &str = include_str!("scripts/correct.lua");
const TRANSFERS_LUA: &str = include_str!("scripts/transfers.lua");
const FORGOTTEN_LUA: &str = include_str!("scripts/forgotten.lua");
const HOLDING_LUA: &str = include_str!("scripts/holding.lua");
/// What the scripts have in common that place a hold.
const HOLD_PARTS: [&str; 6] =
    [LOTS_LUA, WINDOWS_LUA, RECALL_LUA, RATES_LUA, PLACES_LUA, HOLDING_LUA];
/// What the scripts have in common that end a hold.
const END_PARTS: [&str; 4] = [LOTS_LUA, WINDOWS_LUA, RATES_LUA, FORGOTTEN_LUA];
const RECORD_LUA: &str = include_str!("scripts/videos/record.lua");

fn script_source(flags: &str, parts: &[&str]) -> String {
    let prelude = include_str!("scripts/prelude.lua");
    format!("#!lua{flags}\n{prelude}{}", parts.concat())
}

impl MoneyScripts {
    fn build(make: ScriptBuilder<'_>) -> MoneyScripts {
        MoneyScripts {
            credit: make("", &[LOTS_LUA, TRANSFERS_LUA, include_str!("scripts/credit.lua")]),
            grant: make("", &[LOTS_LUA, TRANSFERS_LUA, GRANT_LUA]),
            take: make("", &[LOTS_LUA, RECALL_LUA, TRANSFERS_LUA, TAKE_LUA]),
            correct: make("", &[LOTS_LUA, WINDOWS_LUA, FORGOTTEN_LUA, TRANSFERS_LUA, CORRECT_LUA]),
            hold: make("", &[&HOLD_PARTS.concat(), include_str!("scripts/hold.lua")]),
            extend: make(ALLOW_OOM, &[LOTS_LUA, WINDOWS_LUA, RECALL_LUA, EXTEND_LUA]),
            renew: make(ALLOW_OOM, &[include_str!("scripts/renew.lua")]),
            settle: make(ALLOW_OOM, &[&END_PARTS.concat(), include_str!("scripts/settle.lua")]),
            void: make(ALLOW_OOM, &[&END_PARTS.concat(), include_str!("scripts/void.lua")]),
            expire: make(ALLOW_OOM, &[LOTS_LUA, WINDOWS_LUA, RATES_LUA, EXPIRE_LUA]),
            expire_lots: make(ALLOW_OOM, &[LOTS_LUA, EXPIRE_LOTS_LUA]),
            states: make(NO_WRITES, &[include_str!("scripts/states.lua")]),
            search: make(NO_WRITES, &[FORGOTTEN_LUA, include_str!("scripts/search.lua")]),
        }
    }
}

impl VideoScripts {
    fn build(make: ScriptBuilder<'_>) -> VideoScripts {
        VideoScripts {
            place: make(
                "",
                &[
                    &HOLD_PARTS.concat(),
                    RECORD_LUA,
                    STORAGE_LUA,
                    include_str!("scripts/videos/place.lua"),
                ],
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
            add: make("", &[index, include_str!("scripts/videos/index_add.lua")]),
            schedule_recheck: make(
                ALLOW_OOM,
                &[index, include_str!("scripts/videos/schedule_recheck.lua")],
            ),
            update: make(ALLOW_OOM, &[index, include_str!("scripts/videos/index_update.lua")]),
            remove: make(ALLOW_OOM, &[index, include_str!("scripts/videos/index_remove.lua")]),
            due: make(NO_WRITES, &[index, include_str!("scripts/videos/due.lua")]),
        }
    }
}

impl IdempotencyScripts {
    fn build(make: ScriptBuilder<'_>) -> IdempotencyScripts {
        let prelude = include_str!("scripts/idempotency/prelude.lua");
        IdempotencyScripts {
            claim: make("", &[prelude, include_str!("scripts/idempotency/claim.lua")]),
            renew: make(ALLOW_OOM, &[prelude, include_str!("scripts/idempotency/renew.lua")]),
            complete: make(
                ALLOW_OOM,
                &[prelude, STORAGE_LUA, include_str!("scripts/idempotency/complete.lua")],
            ),
            release: make(ALLOW_OOM, &[prelude, include_str!("scripts/idempotency/release.lua")]),
        }
    }
}

impl FleetScripts {
    fn build(make: ScriptBuilder<'_>) -> FleetScripts {
        let prelude = include_str!("scripts/fleet/prelude.lua");
        FleetScripts {
            poll: make(ALLOW_OOM, &[prelude, include_str!("scripts/fleet/poll.lua")]),
            ask: make(ALLOW_OOM, &[prelude, include_str!("scripts/fleet/ask.lua")]),
            leave: make(ALLOW_OOM, &[prelude, include_str!("scripts/fleet/leave.lua")]),
        }
    }
}

impl StorageScripts {
    fn build(make: ScriptBuilder<'_>) -> StorageScripts {
        StorageScripts {
            put: make("", &[STORAGE_LUA, include_str!("scripts/storage/put.lua")]),
            measure: make(ALLOW_OOM, &[STORAGE_LUA, include_str!("scripts/storage/measure.lua")]),
            evict: make(ALLOW_OOM, &[STORAGE_LUA, include_str!("scripts/storage/evict.lua")]),
            report_usage: make(
                ALLOW_OOM,
                &[STORAGE_LUA, include_str!("scripts/storage/report_usage.lua")],
            ),
            recount: make(ALLOW_OOM, &[STORAGE_LUA, include_str!("scripts/storage/recount.lua")]),
        }
    }
}

impl AllotmentScripts {
    fn build(make: ScriptBuilder<'_>) -> AllotmentScripts {
        let build = |flags, last| {
            make(
                flags,
                &[
                    LOTS_LUA,
                    WINDOWS_LUA,
                    RECALL_LUA,
                    SLICES_LUA,
                    RATES_LUA,
                    RATE_SLICES_LUA,
                    ALLOTMENT_LUA,
                    last,
                ],
            )
        };
        let update = include_str!("scripts/allotments/update.lua");
        let balances = include_str!("scripts/allotments/balances.lua");
        AllotmentScripts {
            lend: build("", update),
            update: build(ALLOW_OOM, update),
            expire: build(ALLOW_OOM, include_str!("scripts/allotments/expire.lua")),
            balances: make(NO_WRITES, &[LOTS_LUA, balances]),
        }
    }
}

impl BudgetScripts {
    fn build(make: ScriptBuilder<'_>) -> BudgetScripts {
        BudgetScripts {
            set: make("", &[include_str!("scripts/budgets/set.lua")]),
            raise_version: make("", &[include_str!("scripts/budgets/raise_version.lua")]),
        }
    }
}

impl AccessScripts {
    fn build(make: ScriptBuilder<'_>) -> AccessScripts {
        AccessScripts {
            set_scope: make("", &[include_str!("scripts/access/set_scope.lua")]),
            set_settings: make("", &[include_str!("scripts/access/set_settings.lua")]),
            index_suspended: make("", &[include_str!("scripts/access/index_suspended.lua")]),
            note_use: make("", &[include_str!("scripts/access/note_use.lua")]),
        }
    }
}
