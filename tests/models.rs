//! The model listing, against the price list of the specification.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::world::{Answer, Store, World};

const PRICES: &str = include_str!("golden/spec_prices.tsv");

/// A row of the price list by the names of its columns.
type Row = BTreeMap<&'static str, &'static str>;

fn rows() -> Vec<Row> {
    let mut lines = PRICES.lines();
    let names: Vec<_> = lines.next().expect("a head").split('\t').collect();
    lines.map(|line| names.iter().copied().zip(line.split('\t')).collect()).collect()
}

fn number(row: &Row, column: &str) -> Option<u64> {
    let text = row[column];
    (text != "-").then(|| text.parse().expect("a number or a dash"))
}

/// Nano-USD as exact decimal USD, with at least so many decimals.
fn usd(nano: u64, decimals_min: usize) -> Value {
    let digits = format!("{nano:010}");
    let (whole, fraction) = digits.split_at(digits.len() - 9);
    let kept = fraction.trim_end_matches('0').len().max(decimals_min);
    let point = if kept == 0 { "" } else { "." };
    format!("{whole}{point}{}", &fraction[..kept]).into()
}

fn rates(row: &Row, input: &str, output: &str) -> Option<Map<String, Value>> {
    let input = usd(number(row, input)?, 0);
    let output = usd(number(row, output)?, 0);
    Some(Map::from_iter([("prompt".to_owned(), input), ("completion".to_owned(), output)]))
}

fn tiers(row: &Row) -> Vec<Value> {
    let above = rates(row, "above_input_nano", "above_output_nano").map(|mut tier| {
        let over = number(row, "above_tokens").expect("a tier has its threshold");
        tier.insert("above_input_tokens".to_owned(), over.into());
        Value::from(tier)
    });
    let from = rates(row, "from_input_nano", "from_output_nano").map(|mut tier| {
        tier.insert("from_date".to_owned(), row["from_date"].into());
        Value::from(tier)
    });
    above.into_iter().chain(from).collect()
}

fn pricing(row: &Row) -> Value {
    match row["kind"] {
        "video" => {
            let second = |label: &str| {
                let nano = number(row, &format!("second_{label}_nano"))?;
                Some((label.to_owned(), usd(nano, 0)))
            };
            let seconds = ["480p", "720p", "1080p"].into_iter().filter_map(second);
            json!({ "second": seconds.collect::<Map<_, _>>() })
        }
        "speech" => json!({ "character": usd(number(row, "character_nano").expect("a price"), 0) }),
        "moderation" => json!({ "prompt": "0", "completion": "0" }),
        _ => {
            // Of dated prices those of today are told.
            let began = number(row, "from_input_nano").is_some() && row["from_date"] <= &*today();
            let [input, output] = if began {
                ["from_input_nano", "from_output_nano"]
            } else {
                ["input_nano", "output_nano"]
            };
            let mut pricing = rates(row, input, output).expect("token prices");
            let tiers = tiers(row);
            if !tiers.is_empty() {
                pricing.insert("tiers".to_owned(), tiers.into());
            }
            if let Some(nano) = number(row, "reservation_nano") {
                pricing.insert("image_reservation".to_owned(), usd(nano, 2));
            }
            pricing.into()
        }
    }
}

/// Today in UTC, as the price list writes days.
fn today() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%d").to_string()
}

fn endpoints(row: &Row) -> &'static [&'static str] {
    match (row["kind"], row["vendor"]) {
        ("chat", "vendor_a") => &["/v1/chat/completions", "/v1/messages"],
        ("chat", "vendor_b") => &["/v1/chat/completions", "/v1/responses"],
        ("chat", _) => &["/v1/chat/completions"],
        ("responses", _) => &["/v1/responses"],
        ("image", _) => &["/v1/images/generations", "/v1/images/edits"],
        ("video", _) => &["/v1/videos"],
        ("speech", _) => &["/v1/audio/speech"],
        ("embedding", _) => &["/v1/embeddings"],
        ("moderation", _) => &["/v1/moderations"],
        (other, _) => panic!("{other} is no kind"),
    }
}

#[tokio::test]
async fn every_model_is_listed_with_exactly_its_prices() {
    let world = World::start(Store::Sqlite).run().await;
    let listing = world.get("/v1/models").await.json();
    assert_eq!(listing["object"], "list");
    let data = listing["data"].as_array().expect("a list");
    let by_id: BTreeMap<_, _> =
        data.iter().map(|m| (m["id"].as_str().expect("an id"), m)).collect();
    assert_eq!((data.len(), by_id.len(), rows().len()), (92, 92, 92));
    for row in rows() {
        let model =
            by_id.get(row["model"]).unwrap_or_else(|| panic!("{} is missing", row["model"]));
        let effort = &model["supports_effort"];
        assert!(effort.is_boolean(), "{model}");
        let (context, output_max) = (number(&row, "context_tokens"), &model["max_output_tokens"]);
        assert!(output_max.is_u64() || output_max.is_null(), "{model}");
        let expected = json!({
            "id": row["model"],
            "object": "model",
            "created": model["created"].as_i64().expect("a moment"),
            "display_name": row["model"],
            "created_at": "1970-01-01T00:00:00Z",
            "owned_by": row["vendor"],
            "type": row["kind"],
            "endpoints": endpoints(&row),
            "supports_effort": effort,
            "context_length": context,
            "max_output_tokens": output_max,
            "max_input_tokens": context,
            "max_tokens": output_max,
            "top_provider": { "context_length": context, "max_completion_tokens": output_max },
            "pricing": pricing(&row),
        });
        assert_eq!(**model, expected);
    }
    assert_eq!(by_id["lmb-5.5"]["supports_effort"], true);
    assert_eq!(by_id["lmb-4o"]["supports_effort"], false);
    assert_eq!(by_id["lmb-4o"]["max_output_tokens"], 16_384);
    assert_eq!(by_id["tts-1"]["max_output_tokens"], Value::Null);
}

#[tokio::test]
async fn one_model_is_told_by_its_id_with_its_slash_escaped_or_not() {
    let world = World::start(Store::Sqlite).run().await;
    let listing = world.get("/v1/models").await.json();
    for model in listing["data"].as_array().expect("a list") {
        let id = model["id"].as_str().expect("an id");
        assert_eq!(world.get(&format!("/v1/models/{id}")).await.json(), *model);
        let escaped = id.replace('/', "%2F");
        assert_eq!(world.get(&format!("/v1/models/{escaped}")).await.json(), *model);
    }
    assert_eq!(world.get("/v1/models/orgA%2ffamA-V3.2").await.json()["id"], "orgA/famA-V3.2");
}

#[tokio::test]
async fn an_unknown_model_names_the_closest_one() {
    let world = World::start(Store::Sqlite).run().await;
    for (asked, closest) in [
        ("lma-opus-5-20260131", "lma-opus-5"),
        ("lmb-5-mini-2026-01-31", "lmb-5-mini"),
        ("lmb-5.4-minni", "lmb-5.4-mini"),
        ("lmb-5.6-lunar", "lmb-5.6-luna"),
        ("LMB-5.5", "lmb-5.5"),
        ("orgA/famA-v3.2", "orgA/famA-V3.2"),
        ("lma-sonet-5", "lma-sonnet-5"),
        ("lma-opus-5-5", "lma-opus-5"),
    ] {
        let answer = world.get(&format!("/v1/models/{asked}")).await;
        assert_eq!(answer.refusal(), (404, "model_not_found".to_owned()));
        assert!(answer.message().contains(&format!("'{closest}'")), "{}", answer.message());
    }
    for (asked, closest) in [
        ("x".repeat(4_000), ""),
        ("lmb-oss-120b".to_owned(), "orgH/lmb-oss-120b"),
        ("brand/famA-V3.2".to_owned(), "orgA/famA-V3.2"),
        ("somebody/lma-opus-5-20260131".to_owned(), "lma-opus-5"),
        ("famA-v4-flash".to_owned(), "orgA/famA-V4-Flash"),
        ("lmb-5.5".repeat(40), ""),
    ] {
        let answer = world.get(&format!("/v1/models/{asked}")).await;
        assert_eq!(answer.refusal(), (404, "model_not_found".to_owned()));
        let named = answer.message().rsplit("closest: ").next().map(str::to_owned);
        assert!(named.is_some_and(|named| named.contains('\'')), "{}", answer.message());
        if asked.len() < 100 {
            assert!(answer.message().contains(&format!("'{closest}'")), "{}", answer.message());
        }
    }
    for wild in ["", "%zz", "%ff", "%00", "a%2", "../../etc/passwd", &"x".repeat(4_000)] {
        let answer = world.get(&format!("/v1/models/{wild}")).await;
        assert_eq!(answer.status, 404, "{wild}");
        assert!(answer.body.len() < 1_000, "{}", answer.body.len());
    }
}

#[tokio::test]
async fn the_closest_name_is_one_of_the_endpoint_that_was_asked() {
    let world = World::start(Store::Sqlite).run().await;
    for (path, asked, closest) in [
        // A tier of its own, which chat has not.
        ("chat/completions", "lmb-5.2-pr", "lmb-5.2"),
        ("responses", "lmb-5.2-pr", "lmb-5.2-pro"),
        // A chat model that is no speech.
        ("audio/speech", "tts-2", "tts-1"),
        // An embedding that is asked for as chat.
        ("chat/completions", "text-embedding-3-smal", "text-embedding-3-small"),
    ] {
        let body = json!({ "model": asked }).to_string();
        let answer = Answer::read(world.request(&format!("/v1/{path}")).body(body)).await;
        assert_eq!(answer.status, 404, "{asked} at {path}: {answer:?}");
        let named = answer.json()["error"]["message"].to_string();
        let told = format!("closest: '{closest}'");
        assert!(named.contains(&told), "{asked} at {path}: {named}");
    }
}

#[tokio::test]
async fn the_listing_needs_a_key_but_no_money() {
    let world = World::start(Store::Sqlite).credit("0").run().await;
    assert_eq!(world.get_with("/v1/models", "sk-nobody").await.status, 401);
    assert_eq!(world.get_with("/v1/models/lmb-5.5", "sk-nobody").await.status, 401);
    assert_eq!(world.get("/v1/models").await.status, 200);
    world.free_of_charge().await;
}

#[tokio::test]
async fn a_vendors_own_names_work_where_aliases_are_allowed() {
    let names = "[vendor.vendor_b.names]\n\"lmb-*\" = \"brand-*\"";
    let world = World::start(Store::Sqlite).conf(names).run().await;
    let closed = world.chat(crate::world::chat_of("brand-5.5")).await;
    assert_eq!(closed.status, 404, "vendor_b allows no aliases");
    let file = world.path("tollgate.toml");
    let conf = std::fs::read_to_string(&file).expect("the configuration");
    let open = conf.replace("[vendor.vendor_b]\n", "[vendor.vendor_b]\naliases = true\n");
    std::fs::write(&file, open).expect("another configuration");
    let mut world = world;
    world.kill_and_start_again().await;
    assert_eq!(world.chat(crate::world::chat_of("brand-5.5")).await.status, 200);
    assert_eq!(world.sim.seen()[0].json()["model"], "brand-5.5");
    assert_eq!(world.charge().await.model, "lmb-5.5");
}
