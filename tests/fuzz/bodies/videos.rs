//! Whatever a client asks a video for, the vendor is told what is paid for and nothing else; and
//! whatever the vendor answers, the client is told something, and no id leads elsewhere.

use bytes::Bytes;
use tollgate::dialect::json::{JsonDocument, JsonKind, JsonValue};
use tollgate::dialect::videos::{self, VideoProgress};

const MEMBERS: [&str; 7] =
    ["model", "prompt", "duration", "aspect_ratio", "resolution", "image", "generate_audio"];

pub(crate) fn run(data: &[u8]) {
    check_answers(data);
    check_request(Bytes::copy_from_slice(data));
    // So that the fields that have to be there need not be found.
    check_request([br#"{"prompt":"p","model":"m","#, data, b"}"].concat().into());
    check_request([br#"{"prompt":"p","image_url":"#, data, b"}"].concat().into());
}

fn check_request(body: Bytes) {
    let Ok(document) = JsonDocument::parse(body) else { return };
    let Ok(request) = videos::parse_request(&document, None) else { return };
    assert!((1..=15).contains(&request.seconds));
    let body = videos::build_body(&document, &request, None);
    let built = JsonDocument::parse(body.clone())
        .unwrap_or_else(|fault| panic!("{fault}: {}", String::from_utf8_lossy(&body)));
    assert!(built.members().all(|(name, _)| MEMBERS.contains(&&*name)));
    assert_eq!(built.get("prompt"), document.get("prompt"));
    assert_eq!(built.get("model"), document.get("model"));
    assert_eq!(built.get("duration").and_then(JsonValue::integer), Some(request.seconds));
    let text = |name: &str| built.get(name).and_then(JsonValue::text);
    assert_eq!(text("resolution").as_deref(), Some(request.resolution.name()));
    assert_eq!(text("aspect_ratio").as_deref(), request.aspect_ratio);
    if let Some(image) = built.get("image") {
        let url = image.get("url").and_then(JsonValue::text).expect("an address");
        let url = url.to_ascii_lowercase();
        assert!(url.starts_with("https://") || url.starts_with("data:image/"));
        assert_eq!((image.kind(), image.members().count()), (JsonKind::Object, 1));
    }
}

fn check_answers(body: &[u8]) {
    if let Some(id) = videos::parse_submitted_id(body) {
        assert!(!matches!(&*id, "" | "." | "..") && !id.contains(['/', '?', '#', '%', '\\']));
    }
    assert!(matches!(videos::parse_progress(202, body), Some(VideoProgress::Pending { .. })));
    match videos::parse_progress(200, body) {
        None => {}
        Some(VideoProgress::Pending { progress }) => {
            assert!(progress.is_none_or(|done| done < 100));
        }
        Some(VideoProgress::Done { url, ticks }) => {
            assert!(!url.is_empty() && ticks.is_none_or(|ticks| ticks > 0));
        }
        Some(
            VideoProgress::Blocked { message }
            | VideoProgress::Failed { message }
            | VideoProgress::NoFile { message },
        ) => check_message(&message),
    }
    check_message(&videos::parse_refusal(400, body).message);
}

fn check_message(message: &str) {
    assert!(!message.trim().is_empty() && message.len() <= 2_000 && !message.contains("://"));
}
