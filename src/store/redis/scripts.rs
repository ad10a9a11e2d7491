//! The fixed scripts, embedded. What ends or goes on with something is allowed when the server's
//! memory is full.

use redis::Script;

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

fn script(flags: &str, parts: &[&str]) -> Script {
    let prelude = include_str!("scripts/prelude.lua");
    Script::new(&format!("#!lua{flags}\n{prelude}{}", parts.concat()))
}

impl Default for MoneyScripts {
    fn default() -> MoneyScripts {
        let holding = include_str!("scripts/holding.lua");
        MoneyScripts {
            credit: script("", &[include_str!("scripts/credit.lua")]),
            hold: script("", &[holding, include_str!("scripts/hold.lua")]),
            extend: script(WHEN_FULL, &[include_str!("scripts/extend.lua")]),
            renew: script(WHEN_FULL, &[include_str!("scripts/renew.lua")]),
            settle: script(WHEN_FULL, &[include_str!("scripts/settle.lua")]),
            void: script(WHEN_FULL, &[include_str!("scripts/void.lua")]),
            expire: script(WHEN_FULL, &[include_str!("scripts/expire.lua")]),
        }
    }
}

impl Default for VideoScripts {
    fn default() -> VideoScripts {
        let holding = include_str!("scripts/holding.lua");
        let record = include_str!("scripts/videos/record.lua");
        let place = include_str!("scripts/videos/place.lua");
        VideoScripts {
            place: script("", &[holding, record, place]),
            claim: script(WHEN_FULL, &[record, include_str!("scripts/videos/claim.lua")]),
            renew: script(WHEN_FULL, &[record, include_str!("scripts/videos/renew.lua")]),
            save: script(WHEN_FULL, &[record, include_str!("scripts/videos/save.lua")]),
            delete: script(WHEN_FULL, &[record, include_str!("scripts/videos/delete.lua")]),
            remove: script(WHEN_FULL, &[record, include_str!("scripts/videos/remove.lua")]),
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
