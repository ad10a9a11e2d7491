//! What metrics and the log tell of the endpoints.

use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{OFFERS, Store, World};

#[rstest]
#[tokio::test]
async fn every_endpoint_is_counted_by_its_name(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    let mut lines = Vec::new();
    for offer in OFFERS {
        assert_eq!(world.ask(offer).await.status, 200, "{offer:?}");
        let labels = format!("endpoint={:?},model={:?}", offer.endpoint, offer.model);
        lines.push(format!(r#"tollgate_requests_total{{{labels},status="200"}} 1"#));
        lines.push(format!("tollgate_request_seconds_count{{endpoint={:?}}}", offer.endpoint));
    }
    let charges = world.settled(OFFERS.len() - 1).await;
    for charge in &charges {
        let model = format!("endpoint={:?},model={:?}", charge.endpoint, charge.model);
        let labels = format!("{model},vendor={:?}", charge.vendor);
        let nano = charge.amount_nano;
        lines.push(format!("tollgate_charged_nanousd_total{{{labels}}} {nano}"));
    }
    lines.push(r"tollgate_holds_open 0".to_owned());
    let lines: Vec<_> = lines.iter().map(String::as_str).collect();
    world.scraped(&lines).await;
    let metrics = world.metrics().await;
    let charged = metrics.lines().filter(|l| l.starts_with("tollgate_charged_nanousd_total"));
    assert!(charged.clone().all(|line| !line.contains("moderations")), "{metrics}");
    assert_eq!(charged.count(), charges.len());
}

#[tokio::test]
async fn every_call_is_a_line_of_the_log() {
    let world = World::start(Store::Sqlite).conf("[log]\nformat = \"json\"").run().await;
    for offer in OFFERS {
        let members = json!({ "user": "a canary of a user" });
        let answer = world.call(offer, members).await;
        let id = answer.header("x-request-id").expect("an id").to_owned();
        let line: Value =
            serde_json::from_str(&world.logged(&["served", &id]).await).expect("JSON");
        assert_eq!(line["endpoint"], offer.endpoint, "{line}");
        assert_eq!(line["status"], answer.status, "{line}");
        assert_eq!(line["model"], offer.model, "{line}");
    }
    assert!(!world.log().contains("canary"), "what a client says is nobody's business");
}
