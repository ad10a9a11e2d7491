//! The id of a reply, by which its client may later ask what the call has cost.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::dialect::json::{JsonDocument, JsonValue};
use crate::dialect::translate::reply::chat_id;

/// An id of more than this many bytes is not kept.
const ID_BYTES_MAX: usize = 128;
/// The id of a stream is in its first event, or in one of the next after empty ones.
const EVENTS_MAX: u8 = 4;

/// Whether a text has the form of a reply's id. No other text is kept, or looked up.
#[must_use]
pub(crate) fn is_reply_id(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
    (1..=ID_BYTES_MAX).contains(&text.len()) && text.bytes().all(fits)
}

/// Reads the id of a reply as the client gets it.
#[derive(Debug, Default)]
pub(super) struct ReplyIdReader {
    id: Option<String>,
    /// How many documents were read.
    read: u8,
}

impl ReplyIdReader {
    /// The id, if it has been read.
    pub(super) fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Reads a whole reply, or one of the first events of a stream. The client of a reply that is
    /// translated gets another id than the vendor has sent.
    pub(super) fn read(&mut self, document: &JsonDocument, is_translated: bool) {
        if self.id.is_some() || self.read >= EVENTS_MAX {
            return;
        }
        self.read += 1;
        let inside = |name: &str| document.get(name)?.get("id");
        let id = document.get("id").or_else(|| inside("message")).or_else(|| inside("response"));
        let Some(id) = id.and_then(JsonValue::text) else { return };
        let id = if is_translated { chat_id(&id) } else { id.into_owned() };
        self.id = Some(id).filter(|id| is_reply_id(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The id after these documents.
    fn id_of(documents: &[&str], is_translated: bool) -> Option<String> {
        let mut reader = ReplyIdReader::default();
        for document in documents {
            let bytes = document.as_bytes().to_vec().into();
            let parsed = JsonDocument::parse_from_vendor(bytes).expect("sound JSON");
            reader.read(&parsed, is_translated);
        }
        reader.id().map(str::to_owned)
    }

    #[test]
    fn the_id_is_the_one_that_the_client_gets() {
        for (documents, expected) in [
            (&[r#"{"id":"chatcmpl-1","object":"chat.completion"}"#][..], Some("chatcmpl-1")),
            (&[r#"{"type":"message_start","message":{"id":"msg_1"}}"#], Some("msg_1")),
            (&[r#"{"type":"response.created","response":{"id":"resp_1"}}"#], Some("resp_1")),
            (&[r#"{"id":""}"#, r#"{"id":"c"}"#, r#"{"id":"d"}"#], Some("c")),
            (&["{}", "{}", "{}", "{}", r#"{"id":"late"}"#], None),
            (&[r#"{"id":7,"message":"no"}"#], None),
            (&[r#"{"id":"a b"}"#], None),
        ] {
            assert_eq!(id_of(documents, false).as_deref(), expected, "{documents:?}");
        }
        let translated = id_of(&[r#"{"id":"msg_1","type":"message"}"#], true);
        assert_eq!(translated.as_deref(), Some("chatcmpl-1"));
    }

    #[test]
    fn what_is_long_or_no_plain_text_is_no_id() {
        assert!(is_reply_id("chatcmpl-AbC_1.2:3") && is_reply_id(&"x".repeat(ID_BYTES_MAX)));
        for bad in ["", "a b", "a\"b", "a\\b", "ä", "a\n", &"x".repeat(ID_BYTES_MAX + 1)] {
            assert!(!is_reply_id(bad), "{bad:?}");
        }
    }
}
