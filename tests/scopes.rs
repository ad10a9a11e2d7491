//! Scopes of keys, as clients and operators meet them: what a key is for, from where, until when,
//! and whether it is for anything at all.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{
    ACCOUNT, Answer, CHAT, COMPACT, COUNT_TOKENS, EMBEDDING_B, INPUT_TOKENS, MESSAGES, MODERATION,
    Offer, RESPONSES, SPEECH, Sent, Store, VIDEO, World, chat_of, quick,
};

/// Within this a change of a key is noticed, as is promised, and some more for a busy machine.
const NOTICED: Duration = Duration::from_secs(2);

async fn issue(world: &World, options: &[&str]) -> String {
    let words: Vec<_> = ["key", "issue", ACCOUNT].iter().chain(options).copied().collect();
    world.command(&words).await.done().trim().to_owned()
}

/// The beginning of a key, as it is listed.
fn prefix_of(key: &str) -> &str {
    &key[..14]
}

async fn set(world: &World, key: &str, options: &[&str]) {
    let words: Vec<_> = ["key", "set", prefix_of(key)].iter().chain(options).copied().collect();
    world.command(&words).await.done();
}

async fn ask(world: &World, offer: Offer, key: &str) -> Answer {
    let Sent { media, bytes } = offer.sent(&json!({}));
    Answer::read(world.sending(offer.path, &media, Some(key)).body(bytes)).await
}

/// Panics unless the answer is this refusal, in the format of its endpoint.
fn refused(answer: &Answer, offer: Offer, status: u16, code: &str, told: &str) {
    assert_eq!(answer.status, status, "{answer:?}");
    assert_eq!(answer.header("x-should-retry"), Some("false"), "{answer:?}");
    assert_eq!(answer.header("retry-after"), None, "{answer:?}");
    let error = &answer.json()["error"];
    if offer == MESSAGES {
        let kind = if status == 401 { "authentication_error" } else { "permission_error" };
        assert_eq!(error["type"], kind, "{answer:?}");
    } else {
        assert_eq!(error["code"], code, "{answer:?}");
    }
    assert!(answer.message().contains(told), "{told}: {answer:?}");
}

#[rstest]
#[tokio::test]
async fn a_key_is_refused_for_what_it_is_not_for_and_no_vendor_hears_of_it(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(CHAT, MESSAGES, SPEECH, MODERATION, VIDEO)] offer: Offer,
) {
    let world = World::start(store).run().await;
    for (options, code, told) in [
        (["--models", "other-*,more"], "model_not_allowed", "it may use other-*, more"),
        (["--endpoints", "embeddings"], "endpoint_not_allowed", "it may use embeddings"),
        (["--from", "192.0.2.0/24"], "address_not_allowed", "may not be used from 127.0.0.1"),
    ] {
        let key = issue(&world, &options).await;
        refused(&ask(&world, offer, &key).await, offer, 403, code, told);
    }
    let key = issue(&world, &["--name", "off"]).await;
    set(&world, &key, &["--disable"]).await;
    refused(&ask(&world, offer, &key).await, offer, 401, "key_disabled", "is disabled");
    assert_eq!(world.sim.seen().len(), 0);
    world.free_of_charge().await;
}

/// Whoever had the key alone was told what it is for.
#[rstest]
#[tokio::test]
async fn a_refusal_from_elsewhere_does_not_say_what_the_key_is_for(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(CHAT, VIDEO)] offer: Offer,
) {
    let world = World::start(store).run().await;
    let key = issue(&world, &["--endpoints", "embeddings", "--from", "192.0.2.0/24"]).await;
    let answer = ask(&world, offer, &key).await;
    refused(&answer, offer, 403, "address_not_allowed", "may not be used from 127.0.0.1");
    assert!(!answer.message().contains("embeddings"), "{answer:?}");
}

/// A body that no key pays for was read to its end first.
#[tokio::test]
async fn a_key_for_other_endpoints_is_refused_before_the_body_comes() {
    let mut world = World::start(Store::Sqlite).run().await;
    world.key = issue(&world, &["--endpoints", "embeddings"]).await;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: tollgate\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: 200000\r\n\r\n",
        world.key
    );
    let answers = world.raw(head.as_bytes()).await;
    let answer = answers.first().expect("an answer");
    assert_eq!(answer.status, 403);
    assert!(String::from_utf8_lossy(&answer.body).contains("endpoint_not_allowed"));
}

#[rstest]
#[tokio::test]
async fn what_a_key_is_for_passes(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let world = World::start(store).run().await;
    let options = ["--models", "orgA/*,lmb-*", "--endpoints", "chat,speech", "--expires", "90d"];
    let options = [&options[..], &["--from", "192.0.2.0/24,127.0.0.0/8", "--name", "ci"]].concat();
    let key = issue(&world, &options).await;
    assert_eq!(ask(&world, CHAT, &key).await.status, 200);
    let speech = ask(&world, SPEECH, &key).await;
    refused(&speech, SPEECH, 403, "model_not_allowed", "model 'tts-1'; it may use orgA/*, lmb-*");
    set(&world, &key, &["--no-models"]).await;
    let end = Instant::now() + NOTICED;
    while ask(&world, SPEECH, &key).await.status != 200 {
        assert!(Instant::now() < end, "it is not noticed");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    world.settled(2).await;
}

#[rstest]
#[tokio::test]
async fn an_endpoint_is_allowed_with_what_serves_it(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    let messages = issue(&world, &["--endpoints", "messages"]).await;
    let responses = issue(&world, &["--endpoints", "responses"]).await;
    let counts = issue(&world, &["--endpoints", "messages_count_tokens"]).await;
    for (key, offer, status) in [
        (&messages, MESSAGES, 200),
        (&messages, COUNT_TOKENS, 200),
        (&messages, RESPONSES, 403),
        (&responses, RESPONSES, 200),
        (&responses, COMPACT, 200),
        (&responses, INPUT_TOKENS, 200),
        (&responses, CHAT, 403),
        (&counts, COUNT_TOKENS, 200),
        (&counts, MESSAGES, 403),
    ] {
        assert_eq!(ask(&world, offer, key).await.status, status, "{offer:?}");
    }
    world.settled(3).await;
}

#[rstest]
#[tokio::test]
async fn a_model_is_judged_by_its_id_whatever_it_is_called(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let aliases = "[vendor.vendor_b.aliases]\n\"brand-mini\" = \"lmb-4o-mini\"";
    let world = World::start(store).conf(aliases).run().await;
    let by_id = issue(&world, &["--models", "lmb-4o-*"]).await;
    let by_alias = issue(&world, &["--models", "brand-*"]).await;
    let call = Sent::json(&chat_of("brand-mini"));
    let ask = async |key: &str| {
        let request = world.sending(CHAT.path, &call.media, Some(key));
        Answer::read(request.body(call.bytes.clone())).await
    };
    assert_eq!(ask(&by_id).await.status, 200);
    let told = "may not use model 'lmb-4o-mini'; it may use brand-*";
    refused(&ask(&by_alias).await, CHAT, 403, "model_not_allowed", told);
    let none = world.get_with("/v1/models/brand-mini", &by_alias).await;
    assert_eq!(none.refusal(), (403, "model_not_allowed".to_owned()));
    assert_eq!(world.get_with("/v1/models/brand-mini", &by_id).await.status, 200);
    let nothing = world.get_with("/v1/models/no-such-model", &by_id).await;
    assert_eq!(nothing.refusal(), (404, "model_not_found".to_owned()));
    world.settled(1).await;
}

/// The ids that a key is shown.
async fn listed(world: &World, key: &str, query: &str) -> BTreeSet<String> {
    let answer = world.get_with(&format!("/v1/models{query}"), key).await;
    let listing = answer.json();
    let data = listing["data"].as_array().expect("a list");
    data.iter().map(|model| model["id"].as_str().expect("an id").to_owned()).collect()
}

#[rstest]
#[tokio::test]
async fn a_key_is_shown_the_models_that_it_may_use(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    let all = listed(&world, &world.key, "").await;
    let some = issue(&world, &["--models", "lmb-*,tts-1"]).await;
    let expected = all.iter().filter(|id| id.starts_with("lmb-") || *id == "tts-1").cloned();
    let expected: BTreeSet<String> = expected.collect();
    assert!(!expected.is_empty() && expected.len() < all.len());
    assert_eq!(listed(&world, &some, "").await, expected);
    assert_eq!(listed(&world, &some, "?type=speech").await, BTreeSet::from(["tts-1".to_owned()]));
    assert_eq!(listed(&world, &world.key, "").await, all, "the listing of all is another one");
    let embedding = issue(&world, &["--endpoints", "embeddings,models"]).await;
    let embeddings = listed(&world, &embedding, "").await;
    assert!(embeddings.contains(EMBEDDING_B.model) && !embeddings.contains(CHAT.model));
    let chat = issue(&world, &["--endpoints", "chat"]).await;
    let answer = world.get_with("/v1/models", &chat).await;
    refused(&answer, CHAT, 403, "endpoint_not_allowed", "may not use 'models'; it may use chat");
}

#[rstest]
#[tokio::test]
async fn a_key_expires_while_it_is_in_use(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(CHAT, MESSAGES)] offer: Offer,
) {
    let world = World::start(store).run().await;
    let key = issue(&world, &["--expires", "4s"]).await;
    let mut served = 0;
    let end = Instant::now() + Duration::from_secs(5);
    let answer = loop {
        let answer = ask(&world, offer, &key).await;
        if answer.status != 200 {
            break answer;
        }
        served += 1;
        assert!(Instant::now() < end, "it works on");
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    refused(&answer, offer, 401, "key_expired", "the key expired at 2");
    assert!(served > 0, "it worked until then");
    world.settled(served).await;
    let shown = world.command(&["key", "show", prefix_of(&key)]).await.done();
    assert!(shown.contains("state        expired"), "{shown}");
    set(&world, &key, &["--no-expiry"]).await;
    let end = Instant::now() + NOTICED;
    while ask(&world, offer, &key).await.status != 200 {
        assert!(Instant::now() < end, "it is not noticed");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[rstest]
#[tokio::test]
async fn a_key_in_use_is_disabled_and_enabled_at_once(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    let key = issue(&world, &[]).await;
    let becomes = async |status: u16| {
        let end = Instant::now() + NOTICED;
        loop {
            let answer = world.get_with("/v1/models", &key).await;
            if answer.status == status {
                break answer;
            }
            assert!(Instant::now() < end, "{answer:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    becomes(200).await;
    set(&world, &key, &["--disable"]).await;
    refused(&becomes(401).await, CHAT, 401, "key_disabled", "its owner can enable it");
    let shown = world.command(&["key", "show", prefix_of(&key)]).await.done();
    assert!(shown.contains("state        disabled"), "{shown}");
    set(&world, &key, &["--enable"]).await;
    becomes(200).await;
}

#[rstest]
#[tokio::test]
async fn a_key_is_for_the_clients_of_a_network_behind_a_proxy(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let listen = "[listen]\nproxy = \"header\"\ntrusted = [\"127.0.0.0/8\"]";
    let world = World::start(store).conf(listen).run().await;
    let key = issue(&world, &["--from", "192.0.2.0/24,2001:db8::/32"]).await;
    let call = Sent::json(&CHAT.call());
    for (name, value, from) in [
        ("x-forwarded-for", "192.0.2.7", None),
        ("x-forwarded-for", "::ffff:192.0.2.7", None),
        ("x-forwarded-for", "198.51.100.1, 192.0.2.7", None),
        ("forwarded", "for=\"[2001:db8::7]:99\"", None),
        ("x-forwarded-for", "198.51.100.1", Some("198.51.100.1")),
        ("x-forwarded-for", "192.0.2.7, 198.51.100.1", Some("198.51.100.1")),
        ("forwarded", "for=\"[2001:db9::7]\"", Some("2001:db9::7")),
        ("x-other", "192.0.2.7", Some("127.0.0.1")),
    ] {
        let request = world.sending(CHAT.path, &call.media, Some(&key)).header(name, value);
        let answer = Answer::read(request.body(call.bytes.clone())).await;
        match from {
            None => assert_eq!(answer.status, 200, "{value}: {answer:?}"),
            Some(from) => refused(&answer, CHAT, 403, "address_not_allowed", from),
        }
    }
    world.settled(4).await;
}

/// A repeated call was answered before anybody looked what its key is for.
#[rstest]
#[tokio::test]
async fn a_key_got_the_reply_of_another_one_by_its_idempotency_key(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    let other = issue(&world, &["--models", "other-*"]).await;
    let call = Sent::json(&CHAT.call());
    let repeated = async |key: &str| {
        let request = world.sending(CHAT.path, &call.media, Some(key));
        let request = request.header("idempotency-key", "one").body(call.bytes.clone());
        Answer::read(request).await
    };
    assert_eq!(repeated(&world.key).await.status, 200);
    refused(&repeated(&other).await, CHAT, 403, "model_not_allowed", "it may use other-*");
    assert_eq!(repeated(&world.key).await.status, 200);
    assert_eq!(world.sim.seen().len(), 1);
    world.settled(1).await;
}

#[rstest]
#[tokio::test]
async fn video_jobs_are_for_the_keys_that_are_for_videos(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).vendor("vendor_d", &["video-ms=40"]).conf(&quick(&[]));
    let world = world.run().await;
    let videos = issue(&world, &["--endpoints", "videos", "--models", "lmd-*"]).await;
    let chat = issue(&world, &["--endpoints", "chat"]).await;
    let placed = ask(&world, VIDEO, &videos).await;
    assert_eq!(placed.status, 200, "{placed:?}");
    let id = placed.json()["id"].as_str().expect("an id").to_owned();
    for path in ["/v1/videos".to_owned(), format!("/v1/videos/{id}")] {
        assert_eq!(world.get_with(&path, &videos).await.status, 200, "{path}");
        let answer = world.get_with(&path, &chat).await;
        refused(&answer, VIDEO, 403, "endpoint_not_allowed", "may not use 'videos'");
    }
    world.settled(1).await;
}

/// The first object that a command prints.
async fn shown(world: &World, words: &[&str]) -> Value {
    let words: Vec<_> = ["--json"].iter().chain(words).copied().collect();
    world.command(&words).await.json().remove(0)
}

#[rstest]
#[tokio::test]
async fn a_scope_is_shown_changed_and_told_in_the_audit_trail(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    let words = ["key", "issue", ACCOUNT, "--name", "ci", "--models", "lmb-*", "--tag", "team=a"];
    let issued = shown(&world, &words).await;
    let prefix = issued["prefix"].as_str().expect("a prefix").to_owned();
    let scope_of = |shown: &Value| {
        let names = ["name", "tags", "models", "endpoints", "from", "expires_at", "disabled"];
        names.map(|name| shown[name].clone())
    };
    let expected = |from: Value, disabled: bool| {
        let (tags, models) = (json!({ "team": "a" }), json!(["lmb-*"]));
        [json!("ci"), tags, models, json!([]), from, Value::Null, json!(disabled)]
    };
    assert_eq!(scope_of(&issued), expected(json!([]), false));
    let changed = ["key", "set", prefix.as_str(), "--from", "10.1.2.3/8", "--disable"];
    let after = expected(json!(["10.0.0.0/8"]), true);
    assert_eq!(scope_of(&shown(&world, &changed).await), after);
    assert_eq!(scope_of(&shown(&world, &["key", "show", prefix.as_str()]).await), after);
    let listed = world.command(&["--json", "key", "list", ACCOUNT]).await.json();
    let listed = listed.iter().find(|key| key["prefix"] == *prefix).expect("the key");
    assert_eq!(scope_of(listed), after);
    let plain = world.command(&["key", "list", ACCOUNT]).await.done();
    for line in ["disabled", "  name  ci", "  tag  team=a", "  models  lmb-*", "  from  10.0.0.0/8"]
    {
        assert!(plain.contains(line), "{line}: {plain}");
    }
    let text = std::fs::read_to_string(world.path("var/audit.jsonl")).expect("the audit trail");
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line"));
    let lines: Vec<_> = lines.filter(|line| line["key_prefix"] == *prefix).collect();
    let first = json!({ "name": "ci", "tags": { "team": "a" }, "models": ["lmb-*"] });
    let mut second = first.clone();
    second["from"] = json!(["10.0.0.0/8"]);
    second["disabled"] = json!(true);
    let [issue_begun, issue_ended, set_begun, set_ended] = &lines[..] else {
        panic!("four lines: {lines:?}");
    };
    assert_eq!((&issue_begun["scope"], &issue_ended["scope_after"]), (&first, &first));
    assert_eq!((&set_begun["scope_before"], &set_begun["scope"]), (&first, &second));
    assert_eq!(set_ended["scope_after"], second);
}

#[tokio::test]
async fn what_is_no_scope_is_refused_and_nothing_is_changed() {
    let world = World::start(Store::Sqlite).run().await;
    let prefix = prefix_of(&world.key).to_owned();
    for (options, told) in [
        (&["--endpoints", "chat,completions"][..], "'completions' is no endpoint"),
        (&["--expires", "2020-01-01"], "not in the future"),
        (&["--from", "here"], "as in 10.0.0.0/8"),
        (&["--models", "a b"], "no pattern of models"),
        (&["--tag", "team"], "as in team=search"),
    ] {
        for words in [["key", "issue", ACCOUNT], ["key", "set", prefix.as_str()]] {
            let words: Vec<_> = words.iter().chain(options).copied().collect();
            let run = world.command(&words).await;
            assert_ne!(run.code, 0, "{words:?}");
            assert!(run.err.contains(told), "{words:?}: {}", run.err);
            assert_eq!(run.out, "", "{words:?}");
        }
    }
    assert_eq!(world.command(&["--json", "key", "list", ACCOUNT]).await.json().len(), 1);
    assert_eq!(ask(&world, CHAT, &world.key).await.status, 200);
}
