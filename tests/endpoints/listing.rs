//! The model listing as both official clients read it, and its filters.

use serde_json::{Value, json};

use crate::world::{Store, World};

#[tokio::test]
async fn the_listing_has_what_both_kinds_of_clients_read() {
    let world = World::start(Store::Sqlite).run().await;
    let listing = world.get("/v1/models").await.json();
    let data = listing["data"].as_array().expect("a list");
    assert_eq!((&listing["object"], &listing["has_more"]), (&json!("list"), &json!(false)));
    assert_eq!(listing["first_id"], data[0]["id"]);
    assert_eq!(listing["last_id"], data[data.len() - 1]["id"]);
    for model in data {
        assert_eq!((&model["object"], &model["display_name"]), (&json!("model"), &model["id"]));
        assert_eq!(model["created_at"], "1970-01-01T00:00:00Z");
        assert!(model["created"].is_i64() && model["owned_by"].is_string(), "{model}");
    }
    let one = world.get("/v1/models/tts-1").await.json();
    assert_eq!((&one["display_name"], &one["id"]), (&json!("tts-1"), &json!("tts-1")));
}

/// Queries, and how many models they let through.
const FILTERS: [(&str, usize); 9] = [
    ("?type=image", 7),
    ("?type=image&type=speech", 9),
    ("?owned_by=vendor_a", 9),
    ("?owned_by=vendor_a&owned_by=vendor_d", 20),
    ("?type=image&owned_by=vendor_d", 3),
    ("?owned_by=vendor_d&type=image", 3),
    ("?type=%69mage", 7),
    ("?type=image&owned_by=vendor_a", 0),
    ("", 92),
];

#[tokio::test]
async fn a_listing_holds_what_all_filters_let_through() {
    let world = World::start(Store::Sqlite).run().await;
    for (query, count) in FILTERS {
        let answer = world.get(&format!("/v1/models{query}")).await;
        assert_eq!(answer.status, 200, "{query}: {answer:?}");
        let listing = answer.json();
        let data = listing["data"].as_array().expect("a list");
        assert_eq!(data.len(), count, "{query}");
        let id = |model: Option<&Value>| model.map_or(Value::Null, |model| model["id"].clone());
        let ends = (&listing["first_id"], &listing["last_id"]);
        assert_eq!(ends, (&id(data.first()), &id(data.last())), "{query}");
        for model in data {
            for (name, member) in [("type=image", "type"), ("owned_by=vendor_d", "owned_by")] {
                let asked = query.matches(member).count();
                let value = name.split_once('=').map_or("", |(_, value)| value);
                if asked == 1 && query.contains(name) {
                    assert_eq!(model[member], value, "{query}: {model}");
                }
            }
        }
    }
}

#[tokio::test]
async fn an_unknown_value_of_a_filter_names_the_known_ones() {
    let world = World::start(Store::Sqlite).run().await;
    for (query, param, known) in [
        ("?type=song", "type", "speech"),
        ("?type=", "type", "speech"),
        ("?type=image&type=song", "type", "speech"),
        ("?owned_by=vendor_z", "owned_by", "vendor_a"),
    ] {
        let answer = world.get(&format!("/v1/models{query}")).await;
        assert_eq!(answer.refusal_of(query), (400, "invalid_value".to_owned()), "{query}");
        assert_eq!(answer.json()["error"]["param"], param, "{query}");
        assert!(answer.message().contains(known), "{query}: {}", answer.message());
    }
}
