//! Aliases of models: how a call by one is answered and charged, and where aliases are listed.

use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{Answer, Store, VIDEO, World, chat_of, messages_of, quick};

const MODEL: &str = "lmb-4o-mini";
const ALIAS: &str = "brand-mini-2024-07-18";
const ALIASES: &str = "[vendor.vendor_b.aliases]\n\"brand-mini-2024-07-18\" = \"lmb-4o-mini\"";
const HEADER: &str = "x-gateway-model";

#[rstest]
#[tokio::test]
async fn a_call_by_an_alias_is_charged_as_its_model_with_both_names(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
) {
    let vendor = ["prompt=1000;completion=50"];
    let world = World::start(store).vendor("vendor_b", &vendor).conf(ALIASES).run().await;
    let mut call = chat_of(ALIAS);
    call["stream"] = stream.into();
    let answer = world.chat(call).await;
    assert_eq!((answer.status, answer.header(HEADER)), (200, Some(MODEL)));
    assert_eq!(world.sim.seen()[0].json()["model"], MODEL);
    let charge = world.charge().await;
    assert_eq!((charge.model.as_str(), charge.requested_model.as_deref()), (MODEL, Some(ALIAS)));
    assert_eq!(charge.amount_nano, 1_000 * 150 + 50 * 600);
    let names = [format!(" model={MODEL:?}"), format!("requested_model={ALIAS:?}")];
    world.logged(&[r#"event="request_served""#, &names[0], &names[1]]).await;
}

#[tokio::test]
async fn a_call_by_an_id_says_nothing_of_names() {
    let world = World::start(Store::Sqlite).conf(ALIASES).run().await;
    let answer = world.chat(chat_of(MODEL)).await;
    assert_eq!((answer.status, answer.header(HEADER)), (200, None));
    assert_eq!(world.charge().await.requested_model, None);
    let line = world.command(&["--json", "charges", crate::world::ACCOUNT]).await.json().remove(0);
    assert_eq!(line.get("requested_model"), None);
    let name = format!(" model={MODEL:?}");
    world.logged(&[r#"event="request_served""#, &name, r#"requested_model="""#]).await;
}

#[tokio::test]
async fn both_formats_of_a_vendor_take_an_alias() {
    let aliases = "[vendor.vendor_a.aliases]\n\"brand-haiku-20251001\" = \"lma-haiku-4-5\"";
    let world = World::start(Store::Sqlite).conf(aliases).run().await;
    let alias = "brand-haiku-20251001";
    let native = world.post_messages(messages_of(alias).to_string()).await;
    let translated = world.chat(chat_of(alias)).await;
    for answer in [&native, &translated] {
        assert_eq!((answer.status, answer.header(HEADER)), (200, Some("lma-haiku-4-5")));
    }
    // The native answer is the vendor's. The translated one has the name that the client used.
    assert_eq!(native.json()["model"], "lma-haiku-4-5");
    assert_eq!(translated.json()["model"], alias);
    let asked = world.sim.seen();
    assert!(asked.iter().all(|seen| seen.json()["model"] == "lma-haiku-4-5"), "{asked:?}");
    let charges = world.settled(2).await;
    assert!(charges.iter().all(|charge| charge.requested_model.as_deref() == Some(alias)));
}

#[tokio::test]
async fn a_refused_call_by_an_alias_tells_the_model_too() {
    let world =
        World::start(Store::Sqlite).vendor("vendor_b", &["status=400"]).conf(ALIASES).run().await;
    let answer = world.chat(chat_of(ALIAS)).await;
    assert_eq!((answer.status, answer.header(HEADER)), (400, Some(MODEL)));
    world.logged(&["status=400", &format!("requested_model={ALIAS:?}")]).await;
    world.free_of_charge().await;
}

#[tokio::test]
async fn a_repeat_by_an_alias_tells_the_model_too() {
    let world = World::start(Store::Sqlite).conf(ALIASES).run().await;
    let call = chat_of(ALIAS).to_string();
    for is_repeat in [false, true] {
        let request = world.request("/v1/chat/completions").header("idempotency-key", "one");
        let answer = Answer::read(request.body(call.clone())).await;
        assert_eq!((answer.status, answer.header(HEADER)), (200, Some(MODEL)));
        assert_eq!(answer.header("idempotent-replayed").is_some(), is_repeat);
        assert_eq!(world.charge().await.requested_model.as_deref(), Some(ALIAS));
    }
}

#[rstest]
#[tokio::test]
async fn a_video_by_an_alias_is_charged_as_its_model_with_both_names(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let aliases = "[vendor.vendor_d.aliases]\nfilm = \"lmd-imagine-video\"";
    let builder = World::start(store).vendor("vendor_d", &["video-ms=40"]).conf(&quick(&[]));
    let world = builder.conf(aliases).run().await;
    let answer = world.call(VIDEO, json!({ "model": "film" })).await;
    assert_eq!((answer.status, answer.header(HEADER)), (200, Some("lmd-imagine-video")));
    let job = answer.json();
    assert_eq!(job["model"], "lmd-imagine-video");
    let video = world.over(job["id"].as_str().expect("an id")).await;
    assert_eq!(video.outcome(), "completed", "{video:?}");
    let charge = world.charge().await;
    assert_eq!(charge.model, "lmd-imagine-video");
    assert_eq!(charge.requested_model.as_deref(), Some("film"));
}

/// The entries of a listing, in order.
fn entries(listing: &Value) -> &Vec<Value> {
    listing["data"].as_array().expect("a list")
}

#[tokio::test]
async fn aliases_are_listed_after_their_models_as_entries_of_their_own() {
    let names = format!("[vendor.vendor_b.names]\n\"lmb-*\" = \"brand-*\"\n{ALIASES}");
    let builder = World::start(Store::Sqlite).conf(&names);
    let world = builder.env("TOLLGATE__VENDOR__VENDOR_B__VENDOR_NAMES", "true").run().await;
    let listing = world.get("/v1/models").await.json();
    let id_of = |entry: &Value| entry["id"].as_str().map(str::to_owned);
    let at = entries(&listing).iter().position(|entry| entry["id"] == MODEL).expect("the model");
    let found: Vec<_> = entries(&listing)[at..at + 3].iter().filter_map(id_of).collect();
    assert_eq!(found, [MODEL, ALIAS, "brand-4o-mini"]);
    for (distance, name) in [(1, ALIAS), (2, "brand-4o-mini")] {
        let mut expected = entries(&listing)[at].clone();
        assert_eq!(expected.get("alias_of"), None);
        expected["id"] = name.into();
        expected["display_name"] = name.into();
        expected["alias_of"] = MODEL.into();
        assert_eq!(entries(&listing)[at + distance], expected);
        assert_eq!(world.get(&format!("/v1/models/{name}")).await.json(), expected);
    }
    let aliases = entries(&listing).iter().filter(|entry| !entry["alias_of"].is_null());
    assert_eq!(entries(&listing).len() - aliases.count(), 92);
    let speech = world.get("/v1/models?type=speech").await.json();
    assert_eq!(entries(&speech).len(), 2, "these have the vendor's own names");
}

#[tokio::test]
async fn an_unknown_name_is_told_the_closest_alias() {
    let world = World::start(Store::Sqlite).conf(ALIASES).run().await;
    let answer = world.chat(chat_of("brand-mini-2024-07-81")).await;
    assert_eq!(answer.refusal(), (404, "model_not_found".to_owned()));
    assert!(answer.message().contains(&format!("closest: '{ALIAS}'")), "{}", answer.message());
    assert_eq!(answer.header(HEADER), None);
    world.free_of_charge().await;
}
