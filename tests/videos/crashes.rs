//! The node that has a job is killed, at every stage; another one, or the same one after a
//! restart, brings the job to its end. Every case tells its row of the table of crashes.

mod redis;
mod sqlite;

use serde_json::json;

use super::{SHORT, proven};
use crate::world::{Process, Store, World};

/// What came of a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fate {
    /// The status, with the code of a failure.
    outcome: &'static str,
    /// How often the vendor was sent the job.
    submissions: usize,
    /// How many charges there are, each of what the vendor bills.
    charges: usize,
}

/// The vendor has it, and the client pays for it.
const DELIVERED: Fate = Fate { outcome: "completed", submissions: 1, charges: 1 };
/// Nobody knows whether the vendor has it, who does.
const LOST: Fate = Fate { outcome: "failed vendor_failed", submissions: 1, charges: 0 };
/// Nobody knows whether the vendor has it, who has not.
const NEVER_SENT: Fate = Fate { outcome: "failed vendor_failed", submissions: 0, charges: 0 };
/// The vendor has failed.
const FAILED: Fate = Fate { outcome: "failed vendor_failed", submissions: 1, charges: 0 };

/// How a test knows that a job is at its stage, where the vendor or the client can tell.
#[derive(Clone, Copy, Debug)]
enum Sign {
    Status(&'static str),
    Submitted,
    Asked,
    Fetched,
}

impl Sign {
    async fn comes(self, world: &World, id: &str) {
        match self {
            Sign::Status(status) => {
                world.video_becomes(id, |video| video.status() == status).await;
            }
            Sign::Submitted => {
                world.vendor_hears("the job", |world| !world.submissions().is_empty()).await;
            }
            Sign::Asked => {
                world.vendor_hears("a question", |world| !world.polls().is_empty()).await;
            }
            Sign::Fetched => {
                world.vendor_hears("the file", |world| !world.fetches().is_empty()).await;
                // Some of it is there then, and not all.
                tokio::time::sleep(std::time::Duration::from_millis(150)).await;
            }
        }
    }
}

/// Kills the gateway, and puts another one into its place.
async fn give_way(world: &mut World, next: Process) {
    std::mem::replace(&mut world.gateway, next).kill();
}

/// Waits for the end, proves the books, and tells the row.
async fn judge(world: &World, store: Store, stage: &str, id: &str, fate: Fate) {
    let video = world.over(id).await;
    let charges = proven(world, &[id.to_owned()]).await;
    let submissions = world.submissions().len();
    let outcome = video.outcome();
    let paid: i64 = charges.iter().map(|charge| charge.amount_nano).sum();
    println!("| {stage} | {store:?} | {outcome} | {submissions} | {} | {paid} |", charges.len());
    let found = (outcome.as_str(), submissions, charges.len());
    assert_eq!(found, (fate.outcome, fate.submissions, fate.charges), "{stage}");
    assert_eq!(world.balances().await.available, 5_000_000_000 - paid);
    assert!(charges.iter().all(|charge| charge.amount_nano == SHORT), "{charges:?}");
    assert_eq!(super::files(world), fate.charges, "one file of each video");
    let list = world.get("/v1/videos").await.json();
    assert_eq!(list["data"], json!([video.json]), "one job");
    // Whoever came late would come soon.
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(world.submissions().len(), submissions);
    world.settled(charges.len()).await;
}
