//! Random operations: both stores say the same.

use proptest::prelude::*;

use super::*;

/// Few of each, so that operations meet.
const ACCOUNTS: [&str; 2] = ["ada", "bob"];
const IDS: [&str; 4] = ["a", "b", "c", "d"];
const KEYS: [Option<&str>; 4] = [None, None, Some("k"), Some("l")];

#[derive(Debug, Clone)]
enum Step {
    Place {
        account: usize,
        id: usize,
        key: usize,
        cost: i64,
        open_max: u32,
    },
    Find(usize, usize),
    List {
        account: usize,
        ascending: bool,
        limit: usize,
        after: Option<usize>,
    },
    Delete(usize, usize),
    /// Claims all that are due, for long or for no time at all.
    Claim {
        long: bool,
    },
    /// The rest is done to one of the claims that were ever made.
    Renew(usize),
    Save {
        claim: usize,
        status: usize,
        due_ms: Option<u64>,
        forget_body: bool,
    },
    Body(usize),
    Remove(usize),
    Settle(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let (account, id, claim) = (0..ACCOUNTS.len(), 0..IDS.len(), 0..6_usize);
    let due_ms = prop::sample::select(vec![None, Some(0), Some(LEASE_MS)]);
    prop_oneof![
        6 => (account.clone(), id.clone(), 0..KEYS.len(), 5..30i64, 1..5_u32).prop_map(
            |(account, id, key, cost, open_max)| Step::Place { account, id, key, cost, open_max }
        ),
        2 => (account.clone(), id.clone()).prop_map(|(a, id)| Step::Find(a, id)),
        3 => (account.clone(), any::<bool>(), 0..4_usize, prop::option::of(id.clone())).prop_map(
            |(account, ascending, limit, after)| Step::List { account, ascending, limit, after }
        ),
        3 => (account.clone(), id.clone()).prop_map(|(a, id)| Step::Delete(a, id)),
        4 => any::<bool>().prop_map(|long| Step::Claim { long }),
        2 => claim.clone().prop_map(Step::Renew),
        6 => (claim.clone(), 0..4_usize, due_ms, any::<bool>()).prop_map(
            |(claim, status, due_ms, forget_body)| Step::Save { claim, status, due_ms, forget_body }
        ),
        2 => claim.clone().prop_map(Step::Body),
        3 => claim.prop_map(Step::Remove),
        1 => (account, id).prop_map(|(a, id)| Step::Settle(a, id)),
    ]
}

/// A store, and the claims that were made there, the latest first.
struct Place {
    node: OpenStore,
    claims: Vec<JobClaim>,
}

impl Place {
    /// Does a step; tells in words what came of it.
    async fn perform(&mut self, step: &Step) -> String {
        let (queue, names) = (&*self.node.queue, ACCOUNTS.map(name));
        match step {
            Step::Place { account, id, key, cost, open_max } => {
                let order = NewJob {
                    quote: Quote::exactly(nano(*cost)),
                    key: KEYS[*key].map(str::to_owned),
                    open_max: *open_max,
                    ..order(&names[*account], IDS[*id])
                };
                let placed = queue.place_job(order).await;
                placed.map_or_else(|_| "refused".to_owned(), |placed| format!("{placed:?}"))
            }
            Step::Find(account, id) => {
                format!("{:?}", found(queue, &names[*account], IDS[*id]).await)
            }
            Step::List { account, ascending, limit, after } => {
                let after = after.map(|id| IDS[id]);
                listed(queue, &names[*account], *ascending, *limit, after).await
            }
            Step::Delete(account, id) => {
                format!("{:?}", queue.delete_job(&names[*account], IDS[*id]).await)
            }
            Step::Claim { long } => {
                let lease_ms = if *long { LEASE_MS } else { 0 };
                let mut claims = queue.claim_due(lease_ms, 1_000).await.expect("claims");
                // Which came first within one ms nobody knows.
                claims.sort_by_key(|c| (c.job.account.clone(), c.job.id.clone()));
                let told = claims.iter().map(|c| format!("{:?} {}", c.job, c.deleted));
                let told = told.collect::<Vec<_>>().join("\n");
                claims.append(&mut self.claims);
                self.claims = claims;
                told
            }
            Step::Settle(account, id) => {
                let settle = super::super::script::settle(IDS[*id], nano(3));
                format!("{:?}", self.node.ledger.submit(&names[*account], settle).await)
            }
            of_claim => self.work(of_claim).await,
        }
    }

    async fn work(&mut self, step: &Step) -> String {
        let queue = &*self.node.queue;
        let (Step::Renew(at) | Step::Save { claim: at, .. } | Step::Body(at) | Step::Remove(at)) =
            step
        else {
            return String::new();
        };
        let Some(claim) = self.claims.get_mut(*at) else { return "no such claim".to_owned() };
        match step {
            Step::Renew(_) => format!("{:?}", queue.renew_claim(claim, LEASE_MS).await),
            Step::Body(_) => format!("{:?}", queue.read_body(claim).await),
            Step::Remove(_) => format!("{:?}", queue.remove_job(claim).await),
            Step::Save { status, due_ms, forget_body, .. } => {
                claim.job.stage = stage(JobStatus::ALL[*status]);
                claim.job.progress += 1;
                let next = ClaimUpdate { due_ms: *due_ms, forget_body: *forget_body };
                let before = claim.revision;
                let saved = queue.save_claim(claim, next).await;
                format!("{saved:?} {} {}", claim.deleted, claim.revision > before)
            }
            _ => String::new(),
        }
    }

    /// All that there is.
    async fn state(&self) -> String {
        let mut state = vec![format!("{:?}", counts(&*self.node.queue).await)];
        for account in ACCOUNTS.map(name) {
            let page = listed(&*self.node.queue, &account, true, 9, None).await;
            let balances = balances(&*self.node.ledger, &account).await;
            state.push(format!("{page} {balances:?}"));
        }
        state.join("\n")
    }
}

async fn same_on_both(places: &mut [Place; 2], steps: &[Step]) -> Result<(), TestCaseError> {
    for place in &*places {
        for account in ACCOUNTS {
            funded(&*place.node.ledger, account, 60).await;
        }
    }
    for step in steps {
        let [one, other] = &mut *places;
        let (came, expected) = (one.perform(step).await, other.perform(step).await);
        prop_assert_eq!(came, expected, "{:?}", step);
        prop_assert_eq!(one.state().await, other.state().await, "after {:?}", step);
    }
    Ok(())
}

#[test]
fn random_operations_on_jobs_end_the_same_on_both_stores() {
    let server = RedisServer::shared();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let bounds = ProptestConfig {
        cases: 48,
        max_shrink_iters: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(bounds, |(steps in prop::collection::vec(step(), 1..=60))| {
        let folder = tempfile::tempdir().expect("a folder");
        runtime.block_on(async {
            let sqlite = opened(&sqlite_url(folder.path())).await;
            let redis = opened(&server.fresh_url()).await;
            let mut places = [sqlite, redis].map(|node| Place { node, claims: Vec::new() });
            same_on_both(&mut places, &steps).await
        })?;
    });
}
