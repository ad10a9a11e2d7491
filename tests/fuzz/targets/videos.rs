//! Whatever a client asks a video for, the vendor is told what is paid for and nothing else; and
//! whatever the vendor answers, the client is told something, and no id leads elsewhere.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tollgate::dialect::json::{Document, Kind, Value};
use tollgate::dialect::videos::{self, Polled};

const MEMBERS: [&str; 7] =
    ["model", "prompt", "duration", "aspect_ratio", "resolution", "image", "generate_audio"];

fuzz_target!(|data: &[u8]| {
    answered(data);
    asked(Bytes::copy_from_slice(data));
    // So that the fields that have to be there need not be found.
    asked([br#"{"prompt":"p","model":"m","#, data, b"}"].concat().into());
    asked([br#"{"prompt":"p","image_url":"#, data, b"}"].concat().into());
});

fn asked(body: Bytes) {
    let Ok(document) = Document::parse(body) else { return };
    let Ok(ask) = videos::parse_request(&document, None) else { return };
    assert!((1..=15).contains(&ask.seconds));
    let body = videos::build_body(&document, &ask, None);
    let made = Document::parse(body.clone())
        .unwrap_or_else(|fault| panic!("{fault}: {}", String::from_utf8_lossy(&body)));
    assert!(made.members().all(|(name, _)| MEMBERS.contains(&&*name)));
    assert_eq!(made.get("prompt"), document.get("prompt"));
    assert_eq!(made.get("model"), document.get("model"));
    assert_eq!(made.get("duration").and_then(Value::whole), Some(ask.seconds));
    let text = |name: &str| made.get(name).and_then(Value::text);
    assert_eq!(text("resolution").as_deref(), Some(ask.resolution.name()));
    assert_eq!(text("aspect_ratio").as_deref(), ask.aspect_ratio);
    if let Some(image) = made.get("image") {
        let url = image.get("url").and_then(Value::text).expect("an address");
        let url = url.to_ascii_lowercase();
        assert!(url.starts_with("https://") || url.starts_with("data:image/"));
        assert_eq!((image.kind(), image.members().count()), (Kind::Object, 1));
    }
}

fn answered(body: &[u8]) {
    if let Some(id) = videos::parse_submitted_id(body) {
        assert!(!matches!(&*id, "" | "." | "..") && !id.contains(['/', '?', '#', '%', '\\']));
    }
    assert!(matches!(videos::parse_progress(202, body), Some(Polled::Pending { .. })));
    match videos::polled(200, body) {
        None => {}
        Some(Polled::Pending { progress }) => assert!(progress.is_none_or(|done| done < 100)),
        Some(Polled::Done { url, ticks }) => {
            assert!(!url.is_empty() && ticks.is_none_or(|ticks| ticks > 0));
        }
        Some(
            Polled::Blocked { message } | Polled::Failed { message } | Polled::NoFile { message },
        ) => is_told(&message),
    }
    is_told(&videos::parse_refusal(400, body).message);
}

fn is_told(message: &str) {
    assert!(!message.trim().is_empty() && message.len() <= 2_000 && !message.contains("://"));
}
