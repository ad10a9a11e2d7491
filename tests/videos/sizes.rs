//! Sizes: what the vendor is asked for, and what the job says of it.

use std::collections::BTreeMap;

use rstest::rstest;
use serde_json::{Value, json};

use super::proven;
use crate::world::{Store, VIDEO, Video, World, quick};

/// Given; then what the vendor gets (resolution, ratio) and what the job says.
const GIVEN: [(&str, &str, &str, &str); 27] = [
    ("{}", "720p", "16:9", "1280x720"),
    (r#"{"size":null,"resolution":null,"aspect_ratio":null}"#, "720p", "16:9", "1280x720"),
    (r#"{"size":"1280x720"}"#, "720p", "16:9", "1280x720"),
    (r#"{"size":"720x1280"}"#, "720p", "9:16", "720x1280"),
    (r#"{"size":"720x720"}"#, "720p", "1:1", "720x720"),
    (r#"{"size":"854x480"}"#, "480p", "16:9", "854x480"),
    (r#"{"size":"480x854"}"#, "480p", "9:16", "480x854"),
    (r#"{"size":"480x480"}"#, "480p", "1:1", "480x480"),
    (r#"{"size":"1920x1080"}"#, "1080p", "16:9", "1920x1080"),
    (r#"{"size":"1080x1920"}"#, "1080p", "9:16", "1080x1920"),
    (r#"{"size":"1080x1080"}"#, "1080p", "1:1", "1080x1080"),
    (r#"{"resolution":"480p"}"#, "480p", "16:9", "854x480"),
    (r#"{"resolution":"720p"}"#, "720p", "16:9", "1280x720"),
    (r#"{"resolution":"1080p"}"#, "1080p", "16:9", "1920x1080"),
    (r#"{"aspect_ratio":"16:9"}"#, "720p", "16:9", "1280x720"),
    (r#"{"aspect_ratio":"9:16"}"#, "720p", "9:16", "720x1280"),
    (r#"{"aspect_ratio":"1:1"}"#, "720p", "1:1", "720x720"),
    (r#"{"aspect_ratio":"4:3"}"#, "720p", "4:3", "960x720"),
    (r#"{"aspect_ratio":"3:4"}"#, "720p", "3:4", "720x960"),
    (r#"{"aspect_ratio":"3:2"}"#, "720p", "3:2", "1080x720"),
    (r#"{"aspect_ratio":"2:3"}"#, "720p", "2:3", "720x1080"),
    (r#"{"resolution":"480p","aspect_ratio":"9:16"}"#, "480p", "9:16", "480x854"),
    (r#"{"resolution":"480p","aspect_ratio":"4:3"}"#, "480p", "4:3", "640x480"),
    (r#"{"resolution":"1080p","aspect_ratio":"2:3"}"#, "1080p", "2:3", "1080x1620"),
    (r#"{"size":"480x480","resolution":"1080p"}"#, "480p", "1:1", "480x480"),
    (r#"{"size":"720x1280","aspect_ratio":"4:3"}"#, "720p", "9:16", "720x1280"),
    (r#"{"size":"1280x720","resolution":"480p","aspect_ratio":"1:1"}"#, "720p", "16:9", "1280x720"),
];

#[rstest]
#[tokio::test]
async fn every_size_and_ratio_reaches_the_vendor_in_his_words_and_the_client_in_pixels(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values("lmd-imagine-video", "lmd-imagine-video-1.5")] model: &str,
) {
    // Many at once: a busy machine is late with the leases of some, and those are never sent.
    let patient = quick(&[("lease_ms", 20_000)]);
    let builder = World::start(store).vendor("vendor_d", &["video-ms=40"]).conf(&patient);
    let world = builder.credit("100").run().await;
    let mut expected = BTreeMap::new();
    let mut ids = Vec::new();
    for (number, (given, resolution, ratio, size)) in (100..).zip(GIVEN) {
        if resolution == "1080p" && model == VIDEO.model {
            continue;
        }
        let mut members: Value = serde_json::from_str(given).expect("members");
        let prompt = format!("number {number}");
        (members["model"], members["prompt"]) = (model.into(), prompt.clone().into());
        let answer = world.call(VIDEO, members).await;
        let video = Video::of(&answer);
        assert_eq!(video.json["size"], size, "{given}");
        ids.push(video.id().to_owned());
        expected.insert(prompt, (given, resolution, ratio, size));
    }
    proven(&world, &ids).await;
    let posts = world.submissions();
    assert_eq!(posts.len(), expected.len());
    for post in posts {
        let mut body = post.json();
        let prompt = body["prompt"].as_str().expect("a prompt").to_owned();
        let (given, resolution, ratio, _) = expected[&prompt];
        let name = body["model"].take();
        assert!(name.as_str().is_some_and(|name| name.ends_with(&model[4..])), "{name}");
        let sent = json!({
            "model": null, "prompt": prompt, "duration": 4,
            "resolution": resolution, "aspect_ratio": ratio,
        });
        assert_eq!(body, sent, "{given}");
    }
    for (id, (.., resolution, _, size)) in ids.iter().zip(expected.values()) {
        let video = world.video(id).await;
        assert_eq!((&video.json["size"], &video.json["seconds"]), (&(*size).into(), &"4".into()));
        assert_eq!(video.json["usage"]["resolution"], *resolution);
    }
}
