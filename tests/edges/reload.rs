//! What the gateway shows of itself, replaced while it serves.

use std::path::Path;
use std::process::{Command, Stdio};

use super::many;
use crate::world::{Canned, Store, World, chat_of, http};

/// The certificate that a new connection is shown.
fn shown(address: &str) -> String {
    let made = Command::new("openssl")
        .args(["s_client", "-connect", address])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let text = String::from_utf8(made.expect("openssl").stdout).expect("text");
    let begin = text.find("-----BEGIN CERTIFICATE-----").expect("a certificate");
    let end = text.find("-----END CERTIFICATE-----").expect("a certificate");
    text[begin..end].to_owned()
}

#[tokio::test]
async fn a_renewed_certificate_was_shown_only_after_a_restart() {
    let (world, folder) = many::encrypted("").await;
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| folder.path().join(name));
    let address = world.gateway.http.clone();
    let before = shown(&address);
    let client = many::client(false);
    let url = format!("https://{address}/v1/models");
    let ask = || client.get(&url).bearer_auth(&world.key).send();
    assert_eq!(ask().await.expect("an answer").status(), 200);

    many::make_certificate(&cert, &key);
    world.gateway.signal("HUP");
    world.logged(&["certificate_reloaded", "is_other=true"]).await;
    let after = shown(&address);
    assert_ne!(after, before);
    assert_eq!(ask().await.expect("an answer").status(), 200, "a connection that stands goes on");

    // Half of a pair changes nothing.
    let text = std::fs::read_to_string(&key).expect("a key");
    many::make_certificate(Path::new(&cert), &folder.path().join("other.pem"));
    std::fs::write(&key, text).expect("a key");
    world.gateway.signal("HUP");
    world.logged(&["certificate_reload_failed", "is not the key of"]).await;
    assert_eq!(shown(&address), after);
}

#[tokio::test]
async fn a_vendor_key_that_was_rotated_needed_a_restart() {
    let reply = r#"{"id":"c","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}"#;
    let vendor = Canned::start(http(reply), usize::MAX).await;
    let folder = tempfile::TempDir::new().expect("a folder");
    let file = folder.path().join("key");
    std::fs::write(&file, "vk-first\n").expect("a key");
    let (url, path) = (&vendor.url, file.display());
    let routes = format!("[{{ name = \"r0\", base_url = \"{url}\", key = \"file:{path}\" }}]");
    let variable = "TOLLGATE__VENDOR__VENDOR_B__ROUTES";
    let world = World::start(Store::Sqlite).env(variable, routes.leak()).run().await;
    world.chat(chat_of("lmb-5.5")).await;
    assert!(vendor.request(0).contains("Bearer vk-first"));

    std::fs::write(&file, "vk-second\n").expect("a key");
    world.gateway.signal("HUP");
    world.logged(&["vendor_key_reloaded", "r0"]).await;
    world.chat(chat_of("lmb-5.5")).await;
    assert!(vendor.request(1).contains("Bearer vk-second"));

    // A key that is gone, or empty, is not taken for a new one.
    std::fs::write(&file, "").expect("a key");
    world.gateway.signal("HUP");
    world.logged(&["vendor_key_missing", "r0"]).await;
    world.chat(chat_of("lmb-5.5")).await;
    assert!(vendor.request(2).contains("Bearer vk-second"));
    assert!(!world.log().contains("vk-"));
}

#[tokio::test]
async fn a_key_was_told_by_a_call_that_had_begun_before_it_was_replaced() {
    let said = r#"{"error":{"message":"no such thing as vk-first-0001 or vk-second-002"}}"#;
    let head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n";
    let reply = format!("{head}content-length: {}\r\n\r\n{said}", said.len()).into_bytes();
    let vendor = Canned::start(reply, usize::MAX).await;
    let folder = tempfile::TempDir::new().expect("a folder");
    let file = folder.path().join("key");
    std::fs::write(&file, "vk-first-0001\n").expect("a key");
    let (url, path) = (&vendor.url, file.display());
    let routes = format!("[{{ name = \"r0\", base_url = \"{url}\", key = \"file:{path}\" }}]");
    let variable = "TOLLGATE__VENDOR__VENDOR_B__ROUTES";
    let world = World::start(Store::Sqlite).env(variable, routes.leak()).run().await;
    std::fs::write(&file, "vk-second-002\n").expect("a key");
    world.gateway.signal("HUP");
    world.logged(&["vendor_key_reloaded", "r0"]).await;

    // Neither has a shape that the filter of words knows.
    let answer = world.chat(chat_of("lmb-5.5")).await;
    assert!(vendor.request(0).contains("Bearer vk-second-002"));
    let told = answer.message();
    assert!(told.contains("no such thing as"), "{told}");
    assert!(!told.contains("vk-"), "{told}");
}

#[tokio::test]
async fn a_plan_holds_as_soon_as_it_is_saved_and_broken_ones_change_nothing() {
    let world = World::start(Store::Sqlite).own_rules();
    let world = world.vendor("vendor_b", &["prompt=1;completion=1"]).run().await;
    let file = world.path("rules/plans.toml");
    let save = |text: &str| {
        std::fs::write(&file, text).expect("plans");
        world.gateway.signal("HUP");
    };
    let call = async || world.chat(chat_of("lmb-5.5")).await;
    assert_eq!(call().await.status, 200);

    save("[plan.default]\nrequests_per_minute = 2\n");
    world.logged(&["rules reloaded", "plans=1"]).await;
    assert_eq!([call().await.status, call().await.status], [200, 200]);
    let limited = (429, "rate_limit_exceeded".to_owned());
    assert_eq!(call().await.refusal(), limited);

    save("[plan.default]\nrequests_per_minute = \"many\"\n");
    let fault = "plans.toml:2: 'requests_per_minute' must be a whole number";
    world.logged(&["rules not reloaded", fault]).await;
    assert_eq!(call().await.refusal(), limited, "the plan before it stays");

    std::fs::remove_file(&file).expect("no file");
    world.gateway.signal("HUP");
    world.logged(&["rules not reloaded", "plans.toml: its 1 plans would be gone"]).await;
    assert_eq!(call().await.refusal(), limited, "a file that is gone takes no limit away");

    save("[plan.default]\nrequests_per_minute = 1000\n[plan.other]\ncalls = 1\n");
    world.logged(&["rules reloaded", "plans=2"]).await;
    assert_eq!(call().await.status, 200);
    let charges = world.settled(4).await;
    let is_same = |version: &str| charges.iter().all(|charge| charge.price_version == version);
    assert!(is_same(&charges[0].price_version), "plans are no prices");
}
