//! Video jobs, from the call to the file: what is charged for them, and that every one ends,
//! whatever dies in between.

mod budgets;
mod content;
mod crashes;
mod cut_off;
mod deletes;
mod failures;
mod fields;
mod kills;
mod life;
mod listing;
mod losses;
mod money;
mod outages;
mod owners;
mod references;
mod repeats;
mod retention;
mod sizes;
mod stops;
mod submission;
mod words;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::world::{Builder, Charge, Store, World, quick};

/// What four seconds of the cheapest model cost at 720p, which is a short call's: in nano-USD, and
/// in the ticks of the vendor's bill.
const SHORT: i64 = 280_000_000;
const SHORT_TICKS: u64 = 2_800_000_000;

/// A world whose vendor makes videos in no time.
fn swift(store: Store) -> Builder {
    World::start(store).vendor("vendor_d", &["video-ms=40"]).conf(&quick(&[]))
}

/// What a bill in ticks is in nano-USD, a begun one counted.
fn nano(ticks: u64) -> i64 {
    i64::try_from(ticks.div_ceil(10)).expect("a small bill")
}

/// Waits until all of these jobs are over, and proves what has to be true of them whatever
/// happened: each was ordered once at most, and all that was charged is what the vendor bills for
/// those that are completed, once. Gives the charges.
async fn proven(world: &World, ids: &[String]) -> Vec<Charge> {
    let mut completed = BTreeSet::new();
    for id in ids {
        let video = world.over(id).await;
        if video.status() == "completed" {
            completed.insert(id.clone());
        } else {
            assert_eq!(video.cost_nano(), 0, "{video:?}");
        }
    }
    let charges = world.settled(completed.len()).await;
    let ordered = world.sim.videos();
    let prompts: BTreeSet<_> = ordered.iter().map(|video| video.prompt.as_str()).collect();
    assert!(prompts.len() == ordered.len(), "one was ordered twice: {ordered:#?}");
    let paid: BTreeSet<_> = charges.iter().map(|charge| charge.request_id.clone()).collect();
    assert_eq!(paid, completed, "{charges:#?}");
    for charge in &charges {
        let id = charge.vendor_request_id.as_deref().expect("the vendor's id");
        let made = ordered.iter().find(|video| video.id == id).expect("a video that was ordered");
        assert_eq!(charge.amount_nano, nano(made.billed.expect("a bill")), "{charge:?} {made:?}");
        assert_eq!(world.video(&charge.request_id).await.cost_nano(), charge.amount_nano);
    }
    charges
}

/// How many videos the gateways keep.
fn files(world: &World) -> usize {
    kept(world).iter().filter(|path| path.extension().is_some_and(|kind| kind == "mp4")).count()
}

/// All files that the gateways keep, with what killed ones have left unfinished.
fn kept(world: &World) -> Vec<PathBuf> {
    let mut folders = vec![world.path("files")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.expect("an entry of a folder").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path);
            }
        }
    }
    files
}

/// Waits until nothing is kept.
async fn nothing_kept(world: &World) {
    let end = Instant::now() + Duration::from_secs(15);
    while !kept(world).is_empty() {
        assert!(Instant::now() < end, "{:?} are still there", kept(world));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
