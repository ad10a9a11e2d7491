//! Random steps: the yardstick and both stores say the same.

use proptest::prelude::*;

use super::yardstick::Yardstick;
use super::*;

/// Few of each, so that steps meet.
const ACCOUNTS: [&str; 2] = ["ada", "bob"];
const NAMES: [&str; 2] = ["n", "{m} :*"];
const OWNERS: usize = 3;

#[derive(Debug, Clone)]
struct Drawn {
    verb: usize,
    account: usize,
    name: usize,
    owner: usize,
    from: usize,
    content: u8,
    life: bool,
    lease: bool,
    text: Option<String>,
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let places = (0..ACCOUNTS.len(), 0..NAMES.len(), 0..OWNERS, 0..OWNERS);
    let often = || prop::bool::weighted(0.85);
    let content = prop_oneof![6 => Just(1), 1 => Just(2)];
    let text = prop::option::weighted(0.7, "[a-zä]{0,4}");
    (0..14_usize, places, content, often(), often(), text).prop_map(
        |(verb, (account, name, owner, from), content, life, lease, text)| Drawn {
            verb,
            account,
            name,
            owner,
            from,
            content,
            life,
            lease,
            text,
        },
    )
}

/// A step, given how many calls have ended: no call that has ended takes its name again.
fn step(drawn: &Drawn, ended: &[usize]) -> Step {
    let Drawn { verb, account, name: place, owner, from, content, life, lease, text } = drawn;
    let call = |owner: usize| format!("{place}-{owner}-{}", ended[owner]);
    let lease_ms = if *lease { LONG_MS } else { 0 };
    let life_ms = if *life { LONG_MS } else { 0 };
    let done = match verb {
        0..=2 => Done::Take { taking: ClaimMode::IfFree, lease_ms },
        3 | 4 => Done::Take { taking: ClaimMode::TakeOver(call(*from)), lease_ms },
        5 => Done::Take { taking: ClaimMode::Replace, lease_ms },
        6 | 7 => Done::Renew { lease_ms },
        8..=10 => Done::End(text.clone().map(reply)),
        11 => Done::Free,
        _ => Done::Body,
    };
    let naming = IdempotencyKey {
        name: NAMES[*place].to_owned(),
        content: [*content; 32],
        owner: call(*owner),
        life_ms,
    };
    Step { account: name(ACCOUNTS[*account]), naming, done }
}

async fn same_on_all(
    subjects: &mut [Box<dyn Subject>; 3],
    all: &[Drawn],
) -> Result<(), TestCaseError> {
    let mut ended = [0; OWNERS];
    let probe = Drawn {
        verb: 0,
        account: 0,
        name: 0,
        owner: 0,
        from: 0,
        content: 1,
        life: true,
        lease: true,
        text: None,
    };
    let probes = (0..ACCOUNTS.len()).flat_map(|account| {
        let probe = &probe;
        (0..NAMES.len()).map(move |name| Drawn { account, name, ..probe.clone() })
    });
    let last: Vec<Drawn> = probes.collect();
    for drawn in all.iter().chain(&last) {
        let step = step(drawn, &ended);
        let mut came = Vec::new();
        for subject in &mut *subjects {
            came.push(subject.perform(&step).await);
        }
        prop_assert!(came[0] == came[1] && came[1] == came[2], "{:?} {:?}", step, came);
        if matches!(step.done, Done::End(_)) {
            ended[drawn.owner] += 1;
        }
    }
    Ok(())
}

#[test]
fn random_steps_on_names_end_the_same_everywhere() {
    let server = RedisServer::shared();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let bounds = ProptestConfig {
        cases: 48,
        max_shrink_iters: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(bounds, |(steps in prop::collection::vec(drawn(), 1..=60))| {
        let folder = tempfile::tempdir().expect("a folder");
        runtime.block_on(async {
            let sqlite = opened(&sqlite_url(folder.path())).await;
            let redis = opened(&server.fresh_url()).await;
            let mut subjects: [Box<dyn Subject>; 3] =
                [Box::new(Yardstick::default()), Box::new(sqlite), Box::new(redis)];
            same_on_all(&mut subjects, &steps).await
        })?;
    });
}
