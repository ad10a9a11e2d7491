//! Money under fire: gateways that die, a Redis that forgets, disks that are full, files that are
//! deleted, calls that last
//! longer than their leases. No charge is lost, and none is made twice.

mod claims;
mod cluster;
mod died;
mod emptied;
mod forgot;
mod full;
mod kills;
mod leases;
mod lost;
mod node;
mod runs;
mod sentinels;
mod torn;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::world::{Answer, World, chat_of};

/// Nothing that a test waits for takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes calls until one is let in again; gives it.
async fn let_in_again(world: &World) -> Answer {
    let end = Instant::now() + PATIENCE;
    loop {
        let answer = world.chat(chat_of("lmb-5.5")).await;
        if answer.status == 200 {
            return answer;
        }
        assert_eq!(answer.refusal(), (503, "ledger_unavailable".to_owned()));
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert!(Instant::now() < end, "nobody is let in");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What was written into a file; the rest of it is zeros.
fn lines(file: &Path) -> Vec<u8> {
    let mut bytes = std::fs::read(file).expect("the file");
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    bytes.truncate(end);
    bytes
}

/// The files of the outbox that have something in them.
fn written(world: &World) -> Vec<PathBuf> {
    let inside = |folder: PathBuf| {
        let found = std::fs::read_dir(folder).into_iter().flatten();
        found.map(|entry| entry.expect("an entry").path()).collect::<Vec<_>>()
    };
    let shelves = inside(world.path("var/outbox")).into_iter().flat_map(inside);
    let files = shelves.flat_map(inside).filter(|file| file.extension().is_some());
    files.filter(|file| !lines(file).is_empty()).collect()
}
