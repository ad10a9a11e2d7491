//! Parses a vendor's replies: to the submission of a video, and to polls for its progress.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::Bytes;

use crate::dialect::json::{JsonDocument, JsonKind, JsonValue};
use crate::dialect::meter;
use crate::dialect::redaction::redact;
use crate::dialect::vendor_error::VendorError;

/// The progress of a video.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VideoProgress {
    /// The vendor is still making the video.
    Pending {
        /// The progress in percent, at most 99; `None` if the vendor does not report it.
        progress: Option<u8>,
    },
    /// The video is finished.
    Done {
        /// The address of the video file.
        url: String,
        /// The cost that the vendor reports, in ticks (10 ticks are 1 nano-USD); `None` if it
        /// reports none or an invalid number.
        ticks: Option<u64>,
    },
    /// The vendor's safety rules do not allow the video.
    Blocked {
        /// The reason as a text for people; never empty.
        message: String,
    },
    /// The video is finished, but the reply has no usable address of the file.
    NoFile {
        /// The same as a text for people; never empty.
        message: String,
    },
    /// The video will not be made.
    Failed {
        /// The reason as a text for people; never empty.
        message: String,
    },
}

/// The reason why a vendor refused to make a video.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VideoRefusal {
    /// Whether the vendor's safety rules do not allow the video.
    pub is_blocked: bool,
    /// The reason as a text for people; never empty.
    pub message: String,
}

/// The maximum length of a vendor's id in bytes.
const ID_BYTES_MAX: usize = 256;
/// The maximum length of a video file's address in bytes.
const URL_BYTES_MAX: usize = 8_192;
/// Messages are cut to this many characters: they are for people, and are stored with the job.
const MESSAGE_CHARS_MAX: usize = 500;

const BLOCKED_MESSAGE: &str = "the vendor's safety rules do not allow this video";
const FAILED_MESSAGE: &str = "the vendor could not make this video";
const EXPIRED_MESSAGE: &str = "the vendor gave this video up, since it took too long";
const NO_FILE_MESSAGE: &str = "the vendor made this video, but does not tell where it is";

/// Returns the vendor's id of a video that it accepted; `None` if the reply has no id that can be
/// part of a URL path as it is.
#[must_use]
pub fn parse_submitted_id(body: &[u8]) -> Option<String> {
    let document = parse_json(body)?;
    let id = document.get("request_id")?.text()?;
    let is_of_id = |b: u8| b.is_ascii_alphanumeric() || b"_-.~:".contains(&b);
    // An id of dots alone, such as `..`, would lead to another path.
    let is_sound = id.len() <= ID_BYTES_MAX && id.bytes().all(is_of_id);
    (is_sound && id.bytes().any(|b| b != b'.')).then(|| id.into_owned())
}

/// Parses the state of a video; `None` if the reply does not have it, so that the vendor must be
/// polled again.
#[must_use]
pub fn parse_progress(status: u16, body: &[u8]) -> Option<VideoProgress> {
    let document = parse_json(body);
    match (status, document) {
        (202, document) => Some(pending(document.as_ref())),
        (200, Some(document)) => parse_final_status(&document),
        _ => None,
    }
}

fn parse_final_status(document: &JsonDocument) -> Option<VideoProgress> {
    let video = document.get("video");
    let url = video.and_then(|video| video.get("url")).and_then(JsonValue::text);
    let url = url.filter(|url| (1..=URL_BYTES_MAX).contains(&url.len()));
    let status = document.get("status").filter(|status| !status.is_null());
    let status = match status {
        Some(status) => status.text()?,
        // A reply with the address of a video needs no status.
        None if url.is_some() => "done".into(),
        None => return None,
    };
    if !matches!(&*status, "done" | "failed" | "expired") {
        return Some(pending(Some(document)));
    }
    let error = VendorError::parse(document.body());
    let verdict = video.and_then(|video| video.get("respect_moderation"));
    let verdict = verdict.or_else(|| document.get("respect_moderation"));
    let is_withheld = verdict.and_then(JsonValue::bool) == Some(false);
    let is_refusal = error.code.as_deref().is_some_and(is_refusal_code) && mentions_policy(&error);
    let message = |fallback| redacted_message(&error, fallback);
    Some(match (&*status, url) {
        _ if is_withheld => VideoProgress::Blocked { message: message(BLOCKED_MESSAGE) },
        ("done", Some(url)) => {
            let ticks = document.get("usage").and_then(meter::read_cost_ticks);
            VideoProgress::Done { url: url.into_owned(), ticks }
        }
        ("done", None) => VideoProgress::NoFile { message: message(NO_FILE_MESSAGE) },
        ("failed", _) if is_refusal => VideoProgress::Blocked { message: message(BLOCKED_MESSAGE) },
        ("failed", _) if is_caller_error(&error) => {
            VideoProgress::Failed { message: message(FAILED_MESSAGE) }
        }
        ("failed", _) => VideoProgress::Failed { message: FAILED_MESSAGE.to_owned() },
        _ => VideoProgress::Failed { message: message(EXPIRED_MESSAGE) },
    })
}

/// Parses the reply with which a vendor refused a video.
#[must_use]
pub fn parse_refusal(status: u16, body: &[u8]) -> VideoRefusal {
    let error = VendorError::parse(body);
    let is_blocked = matches!(status, 400 | 403 | 422) && mentions_policy(&error);
    let message = match status {
        _ if is_blocked => redacted_message(&error, BLOCKED_MESSAGE),
        400 | 413 | 422 => redacted_message(&error, FAILED_MESSAGE),
        // Errors of other statuses are about the gateway's account, or about the request that the
        // gateway built, so the client does not get their message.
        _ => FAILED_MESSAGE.to_owned(),
    };
    VideoRefusal { is_blocked, message }
}

/// Whether the caller can correct the error. Messages of other errors may speak of the gateway's
/// account.
fn is_caller_error(error: &VendorError) -> bool {
    let code = error.code.as_deref().unwrap_or_default();
    code.to_ascii_lowercase().replace('-', "_") == "invalid_argument"
}

fn parse_json(body: &[u8]) -> Option<JsonDocument> {
    JsonDocument::parse_from_vendor(Bytes::copy_from_slice(body)).ok()
}

/// Whether an error code is one that refusals have; `_` and `-` are treated as equal.
fn is_refusal_code(code: &str) -> bool {
    matches!(
        &*code.to_ascii_lowercase().replace('-', "_"),
        "invalid_argument" | "permission_denied"
    )
}

/// Whether an error is about a rule on content, as words in its message or its code show.
fn mentions_policy(error: &VendorError) -> bool {
    let texts = [&error.message, &error.code].into_iter().flatten();
    texts.into_iter().any(|text| {
        let text = text.to_ascii_lowercase();
        let words: Vec<&str> = text.split(|c: char| !c.is_ascii_alphanumeric()).collect();
        words.iter().enumerate().any(|(i, word)| match *word {
            // `content` in a term such as `content-type` is not about a rule.
            "content" => !matches!(words.get(i + 1), Some(&("type" | "length" | "encoding"))),
            _ => matches!(*word, "moderation" | "moderated" | "policy" | "policies" | "safety"),
        })
    })
}

fn pending(document: Option<&JsonDocument>) -> VideoProgress {
    let progress = document.and_then(|document| document.get("progress"));
    VideoProgress::Pending { progress: progress.and_then(parse_percent) }
}

/// Parses the progress of a video that is not finished: a number, cut to a whole percentage from 0
/// to 99. `None` if the value is no plain decimal number.
fn parse_percent(value: JsonValue<'_>) -> Option<u8> {
    let number =
        std::str::from_utf8(value.raw()).ok().filter(|_| value.kind() == JsonKind::Number)?;
    if number.starts_with('-') {
        return Some(0);
    }
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_plain = |digits: &str| digits.bytes().all(|b| b.is_ascii_digit());
    // A number too long for a `u64` is above 99.
    let read = whole.parse::<u64>().unwrap_or(u64::MAX).min(99);
    (is_plain(whole) && is_plain(fraction)).then_some(u8::try_from(read).unwrap_or(99))
}

/// Returns the vendor's message without addresses and without strings that may be a key or an id of
/// the operator; `fallback` if no other words are left.
fn redacted_message(error: &VendorError, fallback: &str) -> String {
    let message = error.message.as_deref().unwrap_or_default();
    let words = message.split(|c: char| c.is_whitespace() || c.is_control());
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    let shown = redact(&words.join(" ")).into_owned();
    let says_nothing = shown.split(' ').all(|word| matches!(word, "" | "[...]"));
    if says_nothing { fallback.to_owned() } else { shown.chars().take(MESSAGE_CHARS_MAX).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case::usual(r#"{"request_id":"9f1c-2b.x~y:z_A"}"#, Some("9f1c-2b.x~y:z_A"))]
    #[case::escaped(r#" {"a":1,"request_id":"\u0061"} "#, Some("a"))]
    #[case::empty(r#"{"request_id":""}"#, None)]
    #[case::here(r#"{"request_id":"."}"#, None)]
    #[case::above(r#"{"request_id":".."}"#, None)]
    #[case::path(r#"{"request_id":"a/b"}"#, None)]
    #[case::query(r#"{"request_id":"a?b"}"#, None)]
    #[case::percent(r#"{"request_id":"a%2fb"}"#, None)]
    #[case::line_break(r#"{"request_id":"a\r\nb"}"#, None)]
    #[case::not_ascii(r#"{"request_id":"ä"}"#, None)]
    #[case::number(r#"{"request_id":7}"#, None)]
    #[case::another_name(r#"{"id":"a"}"#, None)]
    #[case::list(r#"["a"]"#, None)]
    #[case::twice(r#"{"request_id":"a","request_id":"b"}"#, None)]
    #[case::nothing("", None)]
    fn an_id_can_stand_in_a_path(#[case] body: &str, #[case] expected: Option<&str>) {
        assert_eq!(parse_submitted_id(body.as_bytes()).as_deref(), expected);
    }

    #[rstest]
    #[case(256, true)]
    #[case(257, false)]
    fn an_id_is_as_long_as_may_be(#[case] length: usize, #[case] is_taken: bool) {
        let body = format!(r#"{{"request_id":"{}"}}"#, "a".repeat(length));
        assert_eq!(parse_submitted_id(body.as_bytes()).is_some(), is_taken);
    }

    #[rstest]
    #[case::none("0", Some(0))]
    #[case::some("42", Some(42))]
    #[case::all("100", Some(99))]
    #[case::beyond("99999999999999999999999", Some(99))]
    #[case::negative("-3", Some(0))]
    #[case::fraction("45.9", Some(45))]
    #[case::exponent("4e1", None)]
    #[case::exponent_after_a_point("4.0e1", None)]
    #[case::text("\"42\"", None)]
    #[case::null("null", None)]
    fn progress_is_at_most_99(#[case] written: &str, #[case] expected: Option<u8>) {
        for (status, body) in [
            (202, format!(r#"{{"status":"pending","progress":{written}}}"#)),
            (200, format!(r#"{{"status":"pending","progress":{written}}}"#)),
            (200, format!(r#"{{"status":"dreaming","progress":{written}}}"#)),
            (202, format!(r#"{{"progress":{written}}}"#)),
        ] {
            let expected = Some(VideoProgress::Pending { progress: expected });
            assert_eq!(parse_progress(status, body.as_bytes()), expected, "{body}");
        }
    }

    #[rstest]
    #[case::plain("Too  dark.\n", "Too dark.")]
    #[case::address("See https://a.example/k?x=y for more", "See [...] for more")]
    #[case::address_in_brackets("Try (http://a.example)", "Try ([...])")]
    #[case::key("Key 'abc-0123456789abcdefghij' is wrong", "Key '[...]' is wrong")]
    #[case::id("Team 9f1c2b3a-0000-4000-8000-0123456789ab: no", "Team [...]: no")]
    #[case::long_word("Unverhältnismäßigkeitsprinzipien", "Unverhältnismäßigkeitsprinzipien")]
    #[case::ratio("Use 16:9 and 1280x720", "Use 16:9 and 1280x720")]
    #[case::control("a\0b\u{7f}c", "a b c")]
    #[case::only_an_address("https://a.example/", FAILED_MESSAGE)]
    #[case::blank(" \n", FAILED_MESSAGE)]
    fn messages_hold_nothing_of_ours(#[case] message: &str, #[case] expected: &str) {
        let error = VendorError { message: Some(message.to_owned()), ..VendorError::default() };
        assert_eq!(redacted_message(&error, FAILED_MESSAGE), expected);
    }

    #[test]
    fn long_messages_are_cut() {
        let error = VendorError { message: Some("é ".repeat(900)), ..VendorError::default() };
        assert_eq!(redacted_message(&error, FAILED_MESSAGE).chars().count(), MESSAGE_CHARS_MAX);
    }

    #[rstest]
    #[case::moderation("Rejected by content moderation", true)]
    #[case::policy("violates our Policies.", true)]
    #[case::safety("SAFETY_CHECK", true)]
    #[case::content("This content is not allowed", true)]
    #[case::content_type("Unsupported content-type: text/plain", false)]
    #[case::content_length("Content-Length is missing", false)]
    #[case::police("A prompt about the police", false)]
    #[case::contention("resource contention", false)]
    #[case::other("duration must be at most 15", false)]
    #[case::nothing("", false)]
    fn rules_are_told_by_words(#[case] text: &str, #[case] expected: bool) {
        let in_message = VendorError { message: Some(text.to_owned()), ..VendorError::default() };
        let in_code = VendorError { code: Some(text.to_owned()), ..VendorError::default() };
        assert_eq!(mentions_policy(&in_message), expected);
        assert_eq!(mentions_policy(&in_code), expected);
    }

    #[rstest]
    #[case(400, true, "No.")]
    #[case(403, true, "No.")]
    #[case(422, true, "No.")]
    #[case(413, false, "No.")]
    #[case(401, false, FAILED_MESSAGE)]
    #[case(404, false, FAILED_MESSAGE)]
    #[case(429, false, FAILED_MESSAGE)]
    #[case(500, false, FAILED_MESSAGE)]
    fn only_some_refusals_are_those_of_rules(
        #[case] status: u16,
        #[case] is_blocked: bool,
        #[case] message: &str,
    ) {
        let body = br#"{"code":"content_policy_violation","error":"No."}"#;
        assert_eq!(
            parse_refusal(status, body),
            VideoRefusal { is_blocked, message: message.to_owned() }
        );
    }

    /// Returns the message in the result of a poll, if it has one.
    fn polled_message(polled: Option<&VideoProgress>) -> Option<&str> {
        match polled? {
            VideoProgress::Blocked { message }
            | VideoProgress::Failed { message }
            | VideoProgress::NoFile { message } => Some(message),
            VideoProgress::Pending { .. } | VideoProgress::Done { .. } => None,
        }
    }

    fn is_clean_message(message: &str) -> bool {
        let chars = message.chars().count();
        // After `://`, fewer than two letters or digits are too short to be an address.
        let is_short = |rest: &str| rest.chars().take_while(|c| c.is_alphanumeric()).count() < 2;
        (1..=MESSAGE_CHARS_MAX).contains(&chars) && message.split("://").skip(1).all(is_short)
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(status: u16, bytes: Vec<u8>) {
            let id = parse_submitted_id(&bytes);
            prop_assert!(id.is_none_or(|id| !id.is_empty()));
            let polled_202 = parse_progress(202, &bytes);
            let is_pending = matches!(polled_202, Some(VideoProgress::Pending { .. }));
            prop_assert!(is_pending);
            for polled in [parse_progress(200, &bytes), parse_progress(status, &bytes)] {
                prop_assert!(polled_message(polled.as_ref()).is_none_or(is_clean_message));
            }
            prop_assert!(is_clean_message(&parse_refusal(status, &bytes).message));
        }

        #[test]
        fn whatever_a_vendor_says_is_told_in_bounds(
            status in "done|failed|expired|pending|[a-z]{0,3}",
            url in "(https://a.example/)?.{0,5}",
            code in "invalid_argument|permission_denied|internal_error",
            text in "(.{0,9}https://.{0,9}|content|.{0,600})",
            withheld: bool,
        ) {
            let body = serde_json::json!({
                "status": status, "video": {"url": url, "respect_moderation": !withheld},
                "error": {"code": code, "message": text},
            });
            let read = parse_progress(200, body.to_string().as_bytes());
            prop_assert!(polled_message(read.as_ref()).is_none_or(is_clean_message));
            let is_over = matches!(&*status, "done" | "failed" | "expired");
            let is_pending = matches!(read, Some(VideoProgress::Pending { .. }));
            prop_assert_eq!(is_pending, !is_over);
            if is_over {
                let is_blocked = matches!(read, Some(VideoProgress::Blocked { .. }));
                prop_assert!(is_blocked || !withheld);
            }
            let refusal = parse_refusal(400, body.to_string().as_bytes());
            prop_assert!(is_clean_message(&refusal.message));
        }
    }
}
