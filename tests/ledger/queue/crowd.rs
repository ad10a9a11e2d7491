//! Many at once: one job for one key, one holder for one job.

use std::collections::BTreeMap;

use tokio::task::JoinSet;

use super::*;

/// Does all at once, by turns on the one node and the other.
async fn at_once(nodes: &[OpenStore; 2], orders: Vec<NewJob>) -> Vec<PlaceResult> {
    let mut tasks = JoinSet::new();
    for (order, node) in orders.into_iter().zip(nodes.iter().cycle()) {
        let queue = node.queue.clone();
        tasks.spawn(async move { place(&*queue, order).await });
    }
    tasks.join_all().await
}

/// Forty requests with one key, each of which has made up a job of its own.
async fn one_job_of_many_with_one_key(nodes: &[OpenStore; 2]) {
    // There is money for one.
    let account = funded(&*nodes[0].ledger, "one-key", COST).await;
    let orders = (0..40).map(|n| keyed(&account, &format!("j{n}"), "k"));
    let answers = at_once(nodes, orders.collect()).await;
    let new = answers.iter().filter(|answer| **answer == PlaceResult::New(Vec::new())).count();
    let claim = claim_one(&*nodes[1].queue, LEASE_MS).await;
    let repeat = PlaceResult::AlreadyPlaced(Box::new(claim.job.clone()));
    let repeats = answers.iter().filter(|answer| **answer == repeat).count();
    assert_eq!((new, repeats), (1, 39), "{answers:?}");
    assert_eq!(counts(&*nodes[0].queue).await, [1, 0, 0, 0]);
    assert_eq!(listed(&*nodes[0].queue, &account, true, 9, None).await, claim.job.id);
    let after = balances(&*nodes[0].ledger, &account).await;
    assert_eq!((after.held, after.available), (nano(COST), Money::ZERO));
    assert_eq!(nodes[0].queue.remove_job(&claim).await, Ok(true));
}

/// One request that is repeated since nobody answers.
async fn one_job_of_one_order(nodes: &[OpenStore; 2]) {
    let account = funded(&*nodes[0].ledger, "one-order", 1_000).await;
    let orders =
        (0..40).map(|n| if n % 2 == 0 { order(&account, "a") } else { order(&account, "b") });
    assert_eq!(at_once(nodes, orders.collect()).await, vec![PlaceResult::New(Vec::new()); 40]);
    assert_eq!(balances(&*nodes[0].ledger, &account).await.held, nano(2 * COST));
    let claims = claim_all(&*nodes[0].queue).await;
    assert_eq!(claims.len(), 2);
    for claim in claims {
        assert_eq!(nodes[1].queue.remove_job(&claim).await, Ok(true));
    }
}

/// As many as there is money and room for.
async fn no_job_without_its_money(nodes: &[OpenStore; 2]) {
    let account = funded(&*nodes[0].ledger, "money", 25 * COST + COST - 1).await;
    let orders = (0..60).map(|n| order(&account, &format!("j{n:02}")));
    let answers = at_once(nodes, orders.collect()).await;
    let new = answers.iter().filter(|answer| **answer == PlaceResult::New(Vec::new())).count();
    let refused = PlaceResult::Insufficient(nano(COST - 1));
    assert_eq!(new, 25);
    assert!(
        answers.iter().all(|answer| matches!(answer, PlaceResult::New(_)) || *answer == refused)
    );
    assert_eq!(balances(&*nodes[0].ledger, &account).await.held, nano(25 * COST));
    let open_max = 30;
    let rich = funded(&*nodes[0].ledger, "rich", 1_000_000).await;
    let orders = (0..60).map(|n| NewJob { open_max, ..order(&rich, &format!("j{n:02}")) });
    let answers = at_once(nodes, orders.collect()).await;
    assert_eq!(
        answers.iter().filter(|answer| **answer == PlaceResult::New(Vec::new())).count(),
        30
    );
    assert_eq!(balances(&*nodes[0].ledger, &rich).await.held, nano(30 * COST));
    let claims = claim_all(&*nodes[0].queue).await;
    assert_eq!(claims.len(), 55);
    for claim in claims {
        assert_eq!(nodes[1].queue.remove_job(&claim).await, Ok(true));
    }
}

/// Workers on both nodes take every job through its life; no two ever have the same one.
async fn each_step_of_a_job_is_one_workers(nodes: &[OpenStore; 2]) {
    let account = funded(&*nodes[0].ledger, "workers", 1_000_000).await;
    let orders: Vec<_> = (0..60).map(|n| order(&account, &format!("j{n:02}"))).collect();
    at_once(nodes, orders).await;
    let mut tasks = JoinSet::new();
    for node in nodes.iter().cycle().take(8) {
        let queue = node.queue.clone();
        tasks.spawn(async move {
            let mut steps = Vec::new();
            loop {
                let claims = queue.claim_due(LEASE_MS, 3).await.expect("claims");
                if claims.is_empty() && counts(&*queue).await == [0; 4] {
                    return steps;
                }
                for mut claim in claims {
                    let next = match claim.job.status() {
                        JobStatus::Queued => JobStatus::InProgress,
                        JobStatus::InProgress => JobStatus::Completed,
                        _ => {
                            assert_eq!(queue.remove_job(&claim).await, Ok(true));
                            continue;
                        }
                    };
                    claim.job.progress += 1;
                    claim.job.stage = stage(next);
                    steps.push((claim.job.id.clone(), claim.job.progress));
                    assert!(save(&*queue, &mut claim, KEEP).await, "it was claimed twice");
                    assert!(save(&*queue, &mut claim, GIVE_BACK).await, "it was claimed twice");
                }
            }
        });
    }
    let mut steps: BTreeMap<(String, u8), u32> = BTreeMap::new();
    for step in tasks.join_all().await.into_iter().flatten() {
        *steps.entry(step).or_default() += 1;
    }
    assert_eq!(steps.len(), 120);
    assert!(steps.values().all(|times| *times == 1), "{steps:?}");
}

async fn keeps_its_head(nodes: &[OpenStore; 2]) {
    one_job_of_many_with_one_key(nodes).await;
    one_job_of_one_order(nodes).await;
    no_job_without_its_money(nodes).await;
    each_step_of_a_job_is_one_workers(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sqlite_keeps_its_head_in_a_crowd_of_jobs() {
    let folder = tempfile::tempdir().expect("a folder");
    keeps_its_head(&two(&sqlite_url(folder.path())).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn redis_keeps_its_head_in_a_crowd_of_jobs() {
    keeps_its_head(&two(&RedisServer::shared().fresh_url()).await).await;
}
