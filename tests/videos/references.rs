//! The image that a video begins with: a file, an address, or a data URI.

use rstest::rstest;
use serde_json::{Value, json};

use super::{proven, swift};
use crate::sim::picture;
use crate::world::{ACCOUNT, Answer, Form, Store, VIDEO, Video, World};

const FILE_BYTES_MAX: usize = 4 << 20;

async fn world() -> World {
    swift(Store::Sqlite).run().await
}

/// What the vendor was told of the image, after its job is done.
async fn image_of(world: &World, answer: &Answer) -> Value {
    proven(world, &[Video::of(answer).id().to_owned()]).await;
    world.submissions()[0].json()["image"].clone()
}

fn form() -> Form {
    Form::new().field("model", VIDEO.model).field("prompt", "It moves.")
}

#[rstest]
#[case::png("image/png", &picture(0))]
#[case::jpeg("image/jpeg", b"\xff\xd8\xff\xe0and so on")]
#[case::webp("image/webp", b"RIFF\x10\x00\x00\x00WEBPVP8 and so on")]
#[tokio::test]
async fn a_file_reaches_the_vendor_as_a_data_uri(#[case] media: &str, #[case] file: &[u8]) {
    let world = world().await;
    let sent = form().file("input_reference", media, file).sent();
    let image = image_of(&world, &world.send(VIDEO.path, &sent).await).await;
    let url = image["url"].as_str().expect("an address");
    assert!(url.starts_with(&format!("data:{media};base64,")), "{url}");
    assert_eq!(image.as_object().map(serde_json::Map::len), Some(1), "{image}");
    let files = &world.submissions()[0].files;
    assert_eq!((files.len(), files[0].len), (1, file.len()));
}

#[rstest]
#[case::address("https://a.test/first%20frame.png?b=c&d=%22#e")]
#[case::data("data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAAB")]
#[tokio::test]
async fn an_address_reaches_the_vendor_as_it_came_and_nobody_fetches_it(
    #[values("json", "an object", "a form", "a part of an object")] way: &str,
    #[case] url: &str,
) {
    let world = world().await;
    let sent = match way {
        "json" => VIDEO.sent(&json!({ "image_url": url })),
        "an object" => VIDEO.sent(&json!({ "input_reference": { "image_url": url } })),
        "a form" => form().field("image_url", url).sent(),
        _ => form().field("input_reference[image_url]", url).sent(),
    };
    let image = image_of(&world, &world.send(VIDEO.path, &sent).await).await;
    assert_eq!(image, json!({ "url": url }));
}

/// The files below a folder of the world.
fn waiting(world: &World) -> usize {
    super::kept(world).iter().filter(|path| path.to_string_lossy().contains("/requests/")).count()
}

#[rstest]
#[tokio::test]
async fn an_image_that_no_vendor_has_yet_lay_in_the_ledgers_store(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let builder = swift(store).env("TOLLGATE__VIDEOS__WORKER", "false");
    let mut world = builder.own_redis().run().await;
    let file: Vec<u8> = [&picture(0)[..], &vec![7; 300_000]].concat();
    let sent = form().file("input_reference", "image/png", &file).sent();
    let answer = world.send(VIDEO.path, &sent).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(waiting(&world), 1);
    if store == Store::Sqlite {
        let file = rusqlite::Connection::open(world.path("tollgate.db")).expect("the file");
        let all = "SELECT sum(length(body)) FROM video_body";
        assert_eq!(file.query_row(all, [], |row| row.get(0)), Ok(0_i64));
    } else {
        let id = Video::of(&answer).id().to_owned();
        let key = format!("tollgate:{{{ACCOUNT}}}:video-body:{id}");
        assert_eq!(world.redis().command(&["STRLEN", &key]), redis::Value::Int(0));
    }
    // Another node has the worker.
    let _worker = world.gateway_with("worker", &[]).await;
    let image = image_of(&world, &answer).await;
    assert!(image["url"].as_str().is_some_and(|url| url.len() > 400_000), "it is not whole");
    assert_eq!(waiting(&world), 0);
}

/// Nothing was promised yet.
#[tokio::test]
async fn an_image_that_cannot_be_kept_is_refused_and_holds_nothing() {
    let world = swift(Store::Sqlite).run().await;
    let bodies = world.path("files/bodies");
    std::fs::remove_dir_all(&bodies).expect("removed");
    std::fs::write(&bodies, "a file where the folder should be").expect("written");
    let file: Vec<u8> = [&picture(0)[..], &vec![7; 300_000]].concat();
    let sent = form().file("input_reference", "image/png", &file).sent();
    let answer = world.send(VIDEO.path, &sent).await;
    assert_eq!(answer.refusal(), (503, "overloaded".to_owned()));
    world.free_of_charge().await;
}

/// Whoever cannot pay leaves nothing behind.
#[tokio::test]
async fn an_image_of_an_account_without_balance_is_not_kept() {
    let world = swift(Store::Sqlite).credit("0.01").run().await;
    let file: Vec<u8> = [&picture(0)[..], &vec![7; 300_000]].concat();
    let sent = form().file("input_reference", "image/png", &file).sent();
    assert_eq!(world.send(VIDEO.path, &sent).await.status, 402);
    assert_eq!(waiting(&world), 0);
}

/// With a ratio the vendor would stretch the image.
#[rstest]
#[case::not_told(json!({}), None, "720p", "1280x720")]
#[case::a_resolution(json!({ "resolution": "480p" }), None, "480p", "854x480")]
#[case::a_ratio(json!({ "aspect_ratio": "1:1" }), Some("1:1"), "720p", "720x720")]
#[case::a_size(json!({ "size": "480x854" }), Some("9:16"), "480p", "480x854")]
#[tokio::test]
async fn a_video_follows_its_image_unless_told_otherwise(
    #[case] mut members: Value,
    #[case] ratio: Option<&str>,
    #[case] resolution: &str,
    #[case] size: &str,
) {
    let world = world().await;
    members["image_url"] = "https://a.test/b.png".into();
    let answer = world.call(VIDEO, members).await;
    assert_eq!(answer.json()["size"], size);
    image_of(&world, &answer).await;
    let body = world.submissions()[0].json();
    assert_eq!(body.get("aspect_ratio"), ratio.map(Value::from).as_ref(), "{body}");
    assert_eq!(body["resolution"], resolution);
}

/// What is no image, the members that are such, and the field that is named.
fn wrong_images() -> Vec<(&'static str, Value, &'static str)> {
    let url = |url: &str| json!({ "image_url": url });
    let long = format!("https://a.test/{}", "b".repeat(8_192));
    let no_text = json!({ "image_url": { "url": "https://a.test" } });
    let vendors = json!({ "input_reference": { "file_id": "file_1" } });
    let two = json!({
        "image_url": "https://a.test/b.png",
        "input_reference": { "image_url": "https://a.test/c.png" },
    });
    vec![
        ("an unsafe address", url("http://a.test/b.png"), "image_url"),
        ("another scheme", url("file:///etc/passwd"), "image_url"),
        ("no address", url("b.png"), "image_url"),
        ("nothing", url(""), "image_url"),
        ("no text", no_text, "image_url"),
        ("a page", url("data:text/html;base64,QUJD"), "image_url"),
        ("not encoded", url("data:image/png,QUJD"), "image_url"),
        ("too long", url(&long), "image_url"),
        ("a text for a file", json!({ "input_reference": "QUJD" }), "input_reference"),
        ("a file of the vendor's", vendors, "input_reference"),
        ("two", two, ""),
    ]
}

#[tokio::test]
async fn what_is_no_image_is_refused_and_costs_nothing() {
    let world = world().await;
    for (what, members, param) in wrong_images() {
        let answer = world.call(VIDEO, members).await;
        assert_eq!(answer.refusal_of(what).0, 400, "{what}: {answer:?}");
        let named = answer.json()["error"]["param"].as_str().unwrap_or_default().to_owned();
        assert!(named.starts_with(param), "{what}: {answer:?}");
        assert_eq!(world.sim.count("vendor_d"), 0, "{what}");
    }
    world.free_of_charge().await;
    assert_eq!(world.sim.count("vendor_d"), 0);
}

#[tokio::test]
async fn a_form_with_a_wrong_file_is_refused_and_costs_nothing() {
    let world = world().await;
    let name = "input_reference";
    let whole = form().file(name, "image/png", &picture(0));
    for (what, form) in [
        ("a text", form().field(name, "QUJD")),
        ("a page", form().file(name, "text/html", b"<html>")),
        ("an address too", whole.clone().field("image_url", "https://a.test")),
        ("two files", whole.file(name, "image/png", &picture(0))),
        ("an empty file", form().file(name, "image/png", b"")),
    ] {
        let answer = world.send(VIDEO.path, &form.sent()).await;
        assert_eq!(answer.refusal_of(what).0, 400, "{what}: {answer:?}");
        assert_eq!(world.sim.count("vendor_d"), 0, "{what}");
    }
    world.free_of_charge().await;
    assert_eq!(world.sim.count("vendor_d"), 0);
}

#[rstest]
#[tokio::test]
async fn the_largest_file_passes_and_a_byte_more_does_not(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] in_chunks: bool,
) {
    let world = swift(store).run().await;
    let mut ids = Vec::new();
    for (length, status) in [(FILE_BYTES_MAX, 200), (FILE_BYTES_MAX + 1, 413)] {
        let mut file = vec![7; length];
        file[..8].copy_from_slice(b"\x89PNG\r\n\x1a\n");
        let sent = form().file("input_reference", "image/png", &file).sent();
        let request = world.sending(VIDEO.path, &sent.media, Some(&world.key));
        let body = if in_chunks { sent.in_chunks() } else { sent.bytes.into() };
        match Answer::try_read(request.body(body)).await {
            Ok(answer) if status == 200 => ids.push(Video::of(&answer).id().to_owned()),
            Ok(answer) => {
                assert_eq!(answer.refusal(), (413, "request_too_large".to_owned()));
                assert_eq!(answer.json()["error"]["param"], "input_reference");
            }
            // A server may close before it has read what it does not want.
            Err(error) => assert_eq!(status, 413, "{error}"),
        }
    }
    proven(&world, &ids).await;
    let posts = world.submissions();
    assert_eq!(posts.len(), 1);
    assert_eq!((posts[0].files.len(), posts[0].files[0].len), (1, FILE_BYTES_MAX));
}

/// A data URI may be as long as a file of the largest size makes it.
#[tokio::test]
async fn the_longest_data_uri_passes_and_a_longer_one_does_not() {
    let world = world().await;
    let url = |length: usize| format!("data:image/png;base64,{}", "A".repeat(length));
    let longest = world.call(VIDEO, json!({ "image_url": url(5_592_408) })).await;
    let image = image_of(&world, &longest).await;
    assert_eq!(image["url"].as_str().map(str::len), Some(url(5_592_408).len()));
    let longer = world.call(VIDEO, json!({ "image_url": url(5_593_000) })).await;
    assert!([400, 413].contains(&longer.refusal().0), "{}", longer.status);
    assert_eq!(world.submissions().len(), 1);
    world.settled(1).await;
}
