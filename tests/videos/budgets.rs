//! Budgets of accounts and of keys bound jobs as they bound calls.

use rstest::rstest;
use serde_json::json;

use super::{SHORT, proven, swift};
use crate::world::{ACCOUNT, Store, VIDEO, usd};

#[rstest]
#[tokio::test]
async fn a_job_that_a_budget_does_not_cover_is_refused(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values("account", "key")] owner: &str,
) {
    let world = swift(store).run().await;
    let name = if owner == "account" { ACCOUNT } else { &world.key[..14] };
    let set = async |nano: i64| {
        let budget = format!("total={}", usd(nano));
        world.command(&[owner, "set", name, "--budget", &budget]).await.done();
    };
    set(SHORT - 1).await;
    let code = format!("{owner}_budget_exceeded");
    let refused = world.ask(VIDEO).await;
    assert_eq!(refused.refusal(), (402, code.clone()));
    assert_eq!(refused.header("x-should-retry"), Some("false"));
    assert_eq!(world.get("/v1/videos").await.json()["data"], json!([]));
    set(SHORT).await;
    let id = world.place(json!({ "prompt": "the first [slow 1500]" })).await;
    let held = world.ask(VIDEO).await;
    assert_eq!(held.refusal(), (429, "credit_in_use".to_owned()));
    assert_eq!(held.header("retry-after"), Some("1"));
    let charge = proven(&world, &[id]).await.remove(0);
    assert_eq!(charge.amount_nano, SHORT);
    assert_eq!(world.ask(VIDEO).await.refusal(), (402, code));
    assert_eq!(world.submissions().len(), 1, "the vendor heard of no other");
    let key = world.command(&["--json", "key", "show", &world.key[..14]]).await.json().remove(0);
    let line = world.command(&["--json", "charges", ACCOUNT]).await.json().remove(0);
    assert_eq!(line["key_id"], key["id"]);
}

/// What a failed job held of a budget is there for the next one.
#[rstest]
#[tokio::test]
async fn a_job_that_fails_gives_its_part_of_the_budget_back(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = swift(store).run().await;
    let budget = format!("total={}", usd(SHORT));
    world.command(&["account", "set", ACCOUNT, "--budget", &budget]).await.done();
    for number in 0..2 {
        let id = world.place(json!({ "prompt": format!("{number} [fails]") })).await;
        assert_eq!(world.over(&id).await.outcome(), "failed vendor_failed");
        world.nothing_held().await;
    }
    let id = world.place(json!({})).await;
    let charge = proven(&world, &[id]).await.remove(0);
    assert_eq!(charge.amount_nano, SHORT);
}
