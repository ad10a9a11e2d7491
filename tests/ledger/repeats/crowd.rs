//! Many at once: one call for one name.

use tokio::task::JoinSet;

use super::*;

const CROWD: usize = 40;

/// Takes a name for as many calls at once, by turns on the one node and the other.
async fn at_once(
    nodes: &[OpenStore; 2],
    name_of_call: &str,
    taking: ClaimMode,
) -> Vec<ClaimResult> {
    let mut tasks = JoinSet::new();
    for number in 0..CROWD {
        let repeats = nodes[number % 2].reply_store.clone();
        let naming = naming(name_of_call, &format!("o{number}"));
        let taking = taking.clone();
        tasks.spawn(async move {
            repeats.claim_key(&name("crowd"), &naming, &taking, LONG_MS).await.expect("an answer")
        });
    }
    tasks.join_all().await
}

fn mine(taken: &[ClaimResult]) -> usize {
    taken.iter().filter(|taken| **taken == ClaimResult::Claimed).count()
}

async fn keeps_its_head(nodes: &[OpenStore; 2]) {
    let account = name("crowd");
    let [one, other] = nodes.each_ref().map(|node| &*node.reply_store);
    let taken = at_once(nodes, "free", ClaimMode::IfFree).await;
    assert_eq!(mine(&taken), 1, "{taken:?}");
    assert_eq!(taken.iter().filter(|taken| **taken == ClaimResult::Running).count(), CROWD - 1);

    let dead = naming("lapsed", "dead");
    assert_eq!(
        one.claim_key(&account, &dead, &ClaimMode::IfFree, 0).await,
        Ok(ClaimResult::Claimed)
    );
    let lapsed = ClaimResult::Expired { owner: "dead".to_owned() };
    assert_eq!(at_once(nodes, "lapsed", ClaimMode::IfFree).await, vec![lapsed; CROWD]);
    let taken = at_once(nodes, "lapsed", ClaimMode::TakeOver("dead".to_owned())).await;
    assert_eq!(mine(&taken), 1, "{taken:?}");
    assert_eq!(other.complete(&account, &dead, Some(reply("late"))).await, Ok(false));

    assert_eq!(mine(&at_once(nodes, "anew", ClaimMode::Replace).await), CROWD);
    let mut ends = JoinSet::new();
    for number in 0..CROWD {
        let repeats = nodes[number % 2].reply_store.clone();
        ends.spawn(async move {
            let naming = naming("anew", &format!("o{number}"));
            let body = Some(reply(number.to_string()));
            repeats.complete(&name("crowd"), &naming, body).await.expect("an answer")
        });
    }
    let ended = ends.join_all().await;
    assert_eq!(ended.iter().filter(|ended| **ended).count(), 1, "the last one's is the name");
    let found = one.claim_key(&account, &naming("anew", "z"), &ClaimMode::IfFree, LONG_MS).await;
    let Ok(ClaimResult::Replied(kept)) = found else { panic!("{found:?}") };
    let said = body(other, &account, &kept.owner).await.concat();
    assert_eq!(format!("o{}", String::from_utf8_lossy(&said)), kept.owner);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sqlite_keeps_its_head_in_a_crowd_of_repeats() {
    let folder = tempfile::tempdir().expect("a folder");
    keeps_its_head(&two(&sqlite_url(folder.path())).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn redis_keeps_its_head_in_a_crowd_of_repeats() {
    keeps_its_head(&two(&RedisServer::shared().fresh_url()).await).await;
}
