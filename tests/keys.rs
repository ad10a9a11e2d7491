//! Keys: who is let in, how soon a revoked key is not, and how one key takes the place of another.

mod rotation;

use std::time::{Duration, Instant};

use rstest::rstest;

use crate::world::{ACCOUNT, Answer, Store, World, chat_of};

async fn models_with(world: &World, headers: &[(&str, &str)]) -> Answer {
    let url = format!("http://{}/v1/models", world.gateway.http);
    let request = headers.iter().fold(world.client().get(url), |r, (n, v)| r.header(*n, *v));
    Answer::try_read(request).await.expect("an answer")
}

#[rstest]
#[tokio::test]
async fn without_a_key_that_is_known_nothing_is_served(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    let (key, cut) = (world.key.as_str(), &world.key[..world.key.len() - 1]);
    let bearer = |key: &str| format!("Bearer {key}");
    let unknown = (401, "invalid_api_key".to_owned());
    let missing = (401, "missing_api_key".to_owned());
    for (value, expected) in [
        (bearer("sk-nobody"), &unknown),
        (bearer(cut), &unknown),
        (bearer(&format!("{key}x")), &unknown),
        (bearer(&key.to_uppercase()), &unknown),
        (bearer(&format!("{key} {key}")), &unknown),
        (bearer(""), &missing),
        ("Bearer".to_owned(), &missing),
        (key.to_owned(), &missing),
        (format!("Basic {key}"), &missing),
    ] {
        let answer = models_with(&world, &[("authorization", &value)]).await;
        assert_eq!(&answer.refusal(), expected, "{value}");
    }
    assert_eq!(models_with(&world, &[]).await.refusal(), missing);
    let url = format!("http://{}/v1/chat/completions", world.gateway.http);
    let request = world.client().post(url).body(chat_of("lmb-5.5").to_string());
    assert_eq!(Answer::try_read(request).await.expect("an answer").refusal(), missing);
    assert_eq!(world.sim.seen().len(), 0);
}

#[rstest]
#[tokio::test]
async fn both_credential_headers_are_accepted(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let world = World::start(store).run().await;
    let key = world.key.clone();
    for (name, value) in [
        ("authorization", format!("Bearer {key}")),
        ("Authorization", format!("bearer {key}")),
        ("x-api-key", key.clone()),
        ("X-Api-Key", key.clone()),
    ] {
        assert_eq!(models_with(&world, &[(name, &value)]).await.status, 200, "{name}: {value}");
    }
    let url = format!("http://{}/v1/chat/completions", world.gateway.http);
    let request = world.client().post(url).header("x-api-key", &key);
    let answer = Answer::try_read(request.body(chat_of("lmb-5.5").to_string())).await;
    assert_eq!(answer.expect("an answer").status, 200);
    world.settled(1).await;
}

#[rstest]
#[tokio::test]
async fn a_revoked_key_is_refused_for_what_it_is(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    let second = world.command(&["--json", "key", "issue", ACCOUNT]).await.json().remove(0);
    let prefix = second["prefix"].as_str().expect("a prefix");
    world.command(&["key", "revoke", prefix]).await.done();
    let answer = world.get_with("/v1/models", second["key"].as_str().expect("a key")).await;
    assert_eq!(answer.refusal(), (403, "key_revoked".to_owned()));
    assert_eq!(world.get("/v1/models").await.status, 200, "the other key goes on");
}

#[tokio::test]
async fn a_key_in_use_stops_within_a_second_of_its_revocation() {
    let world = World::start(Store::Sqlite).run().await;
    assert_eq!(world.get("/v1/models").await.status, 200);
    let listed = world.command(&["--json", "key", "list", ACCOUNT]).await.json().remove(0);
    world.command(&["key", "revoke", listed["prefix"].as_str().expect("a prefix")]).await.done();
    let end = Instant::now() + Duration::from_secs(2);
    while world.get("/v1/models").await.status == 200 {
        assert!(Instant::now() < end, "it still works");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.refusal(), (403, "key_revoked".to_owned()));
    assert_eq!(world.sim.seen().len(), 0);
}

#[rstest]
#[tokio::test]
async fn a_new_key_works_at_once_and_pays_from_its_own_account(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let mut world = World::start(store).run().await;
    world.command(&["account", "create", "other", "--credit", "1"]).await.done();
    world.key = world.command(&["key", "issue", "other"]).await.done().trim().to_owned();
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    let end = Instant::now() + Duration::from_secs(5);
    let charge = loop {
        let charges = world.command(&["--json", "charges", "other"]).await.json();
        if let [charge] = charges.as_slice() {
            break charge.clone();
        }
        assert!(Instant::now() < end, "{charges:?}");
    };
    world.free_of_charge().await;
    let prefix = charge["key_prefix"].as_str().expect("the key's beginning");
    assert!(world.key.starts_with(prefix) && prefix.len() < world.key.len() / 2, "{prefix}");
}
