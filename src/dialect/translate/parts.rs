//! The contents of messages: strings and parts become blocks.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

use super::writer::{MessagesWriter, SourceBytes};
use crate::dialect::CallError;
use crate::dialect::call::wrong;
use crate::dialect::json::draft::quoted;
use crate::dialect::json::{JsonKind, JsonValue};

/// A block of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ContentBlock {
    pub(super) what: BlockKind,
    /// The value of `cache_control`.
    pub(super) cache: Option<Bytes>,
}

/// What a block is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BlockKind {
    /// Text: a JSON string.
    Text(Bytes),
    /// An image or a document.
    Media(MediaSource),
    /// A tool call: its id, its name as a JSON string, its input as a JSON object.
    Use { id: String, name: Bytes, input: Bytes },
    /// The result of a tool call.
    Result { id: String, content: ToolResultContent },
    /// A block as the vendor sent it: an object in JSON.
    Kept(Bytes),
}

/// An image or a document: its type and its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MediaSource {
    kind: &'static str,
    /// The source up to its last string, that string, and a title to come after it.
    source: String,
    last: Bytes,
    title: Option<Bytes>,
}

/// The content of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ToolResultContent {
    None,
    Text(Bytes),
    Blocks(Vec<ContentBlock>),
}

impl ContentBlock {
    pub(super) fn of(what: BlockKind) -> ContentBlock {
        ContentBlock { what, cache: None }
    }

    /// Whether it is a kept block of thinking.
    pub(super) fn is_thinking(&self) -> bool {
        let BlockKind::Kept(raw) = &self.what else { return false };
        let kind = JsonValue::trusted(raw).get("type").and_then(JsonValue::text);
        kind.is_some_and(|kind| matches!(&*kind, "thinking" | "redacted_thinking"))
    }

    pub(super) fn write(&self, out: &mut MessagesWriter) {
        match &self.what {
            BlockKind::Text(text) => {
                out.text(r#"{"type":"text","text":"#);
                out.bytes(text);
            }
            BlockKind::Media(media) => media.write(out),
            BlockKind::Use { id, name, input } => {
                out.text(&format!(r#"{{"type":"tool_use","id":{},"name":"#, quoted(id)));
                out.bytes(name);
                out.text(r#","input":"#);
                out.bytes(input);
            }
            BlockKind::Result { id, content } => {
                out.text(&format!(r#"{{"type":"tool_result","tool_use_id":{}"#, quoted(id)));
                match content {
                    ToolResultContent::None => {}
                    ToolResultContent::Text(text) => {
                        out.text(r#","content":"#);
                        out.bytes(text);
                    }
                    ToolResultContent::Blocks(blocks) => {
                        out.text(r#","content":["#);
                        out.list(blocks, |out, block| block.write(out));
                        out.text("]");
                    }
                }
            }
            // What was kept is whole but for its last brace, which follows below.
            BlockKind::Kept(raw) => out.bytes(&raw.slice(..raw.len().saturating_sub(1))),
        }
        if let Some(cache) = &self.cache {
            out.text(r#","cache_control":"#);
            out.bytes(cache);
        }
        out.text("}");
    }
}

impl MediaSource {
    fn write(&self, out: &mut MessagesWriter) {
        out.text(&format!(r#"{{"type":"{}","source":{}"#, self.kind, self.source));
        out.bytes(&self.last);
        out.text("}");
        if let Some(title) = &self.title {
            out.text(r#","title":"#);
            out.bytes(title);
        }
    }
}

/// Parts, calls and results of one call, at most: each costs far more here than its bytes.
pub(super) const BLOCKS_MAX: usize = 100_000;

/// A conversation has more than [`BLOCKS_MAX`].
pub(super) fn too_many() -> CallError {
    CallError::invalid("messages", &format!("of {BLOCKS_MAX} parts, calls and results at most"))
}

/// The path of something inside a part or a call, made when it has to be said.
pub(super) type FieldPath<'a> = &'a dyn Fn(&str) -> String;

/// Where parts stand, and which kinds may stand there.
#[derive(Clone, Copy)]
pub(super) struct PartPosition<'a> {
    pub(super) source: SourceBytes<'a>,
    /// Whose content it is, among the messages.
    pub(super) message: usize,
    /// The kinds of parts that make sense there.
    pub(super) kinds: &'a [&'a str],
}

impl PartPosition<'_> {
    /// Reads a content: a string, or a list of parts. What is empty gives no block.
    pub(super) fn blocks(self, content: JsonValue<'_>) -> Result<Vec<ContentBlock>, CallError> {
        match content.kind() {
            JsonKind::Text => Ok(self.text(content).into_iter().collect()),
            JsonKind::List => {
                let mut blocks = Vec::new();
                for (i, part) in content.elements().enumerate() {
                    if i >= BLOCKS_MAX {
                        return Err(too_many());
                    }
                    blocks.extend(self.part(i, part)?);
                }
                Ok(blocks)
            }
            _ => {
                let field = format!("messages[{}].content", self.message);
                Err(wrong(&field, "a string or an array of parts", content))
            }
        }
    }

    fn text(self, text: JsonValue<'_>) -> Option<ContentBlock> {
        (!is_blank(text)).then(|| ContentBlock::of(BlockKind::Text(self.source.keep(text))))
    }

    fn part(self, i: usize, part: JsonValue<'_>) -> Result<Option<ContentBlock>, CallError> {
        // Said only when something is wrong.
        let at = |rest: &str| format!("messages[{}].content[{i}]{rest}", self.message);
        let kind = part.get("type").and_then(JsonValue::text).unwrap_or_default();
        let Some(kind) = self.kinds.iter().find(|k| **k == kind) else {
            let right = format!("one of {} here", self.kinds.join(", "));
            return Err(CallError::invalid(&at(".type"), &right));
        };
        let Some(value) = part.get(kind).filter(|v| !v.is_null()) else {
            return Err(CallError::missing(&at(&format!(".{kind}")), "the content of the part"));
        };
        let block = match *kind {
            "image_url" => Some(ContentBlock::of(BlockKind::Media(self.image(&at, value)?))),
            "file" => Some(ContentBlock::of(BlockKind::Media(self.file(&at, value)?))),
            _ if value.kind() == JsonKind::Text => self.text(value),
            _ => return Err(wrong(&at(&format!(".{kind}")), "a string", value)),
        };
        let cache = part.get("cache_control").filter(|v| !v.is_null());
        Ok(block.map(|block| ContentBlock { cache: cache.map(|c| self.source.keep(c)), ..block }))
    }

    /// An image by its address: inside a data URI, or elsewhere, which is never fetched from here.
    fn image(self, at: FieldPath<'_>, image: JsonValue<'_>) -> Result<MediaSource, CallError> {
        let (name, url) = match image.kind() {
            JsonKind::Object => (".image_url.url", image.get("url")),
            _ => (".image_url", Some(image)),
        };
        let right = "a data URI or an http or https address";
        let url = url.filter(|u| !u.is_null());
        let url = url.ok_or_else(|| CallError::missing(&at(name), right))?;
        let text = url.inside().ok_or_else(|| wrong(&at(name), right, url))?;
        // An escape may hide the scheme, so the text is looked at as it reads.
        let read = if text.contains(&b'\\') { url.text() } else { None };
        let text = read.as_ref().map_or(text, |read| read.as_bytes());
        if starts_with(text, b"data:") {
            return self.data(at, name, url);
        }
        if !starts_with(text, b"http://") && !starts_with(text, b"https://") {
            return Err(wrong(&at(name), right, url));
        }
        let source = r#"{"type":"url","url":"#.to_owned();
        Ok(MediaSource { kind: "image", source, last: self.source.keep(url), title: None })
    }

    fn file(self, at: FieldPath<'_>, file: JsonValue<'_>) -> Result<MediaSource, CallError> {
        let name = ".file.file_data";
        let right = "a data URI such as data:application/pdf;base64,...";
        let Some(data) = file.get("file_data").filter(|v| !v.is_null()) else {
            return Err(CallError::missing(&at(name), right));
        };
        if !data.text().is_some_and(|text| starts_with(text.as_bytes(), b"data:")) {
            return Err(wrong(&at(name), right, data));
        }
        let media = self.data(at, name, data)?;
        let title = file.get("filename").filter(|v| v.kind() == JsonKind::Text && !is_blank(*v));
        let title = title.filter(|_| media.kind == "document").map(|t| self.source.keep(t));
        Ok(MediaSource { title, ..media })
    }

    /// What a data URI holds.
    fn data(
        self,
        at: FieldPath<'_>,
        name: &str,
        uri: JsonValue<'_>,
    ) -> Result<MediaSource, CallError> {
        let text = uri.text().unwrap_or_default();
        let right = "a data URI of image/jpeg, image/png, image/gif or image/webp in base64";
        let fault = || wrong(&at(name), right, uri);
        let (head, data) = text.split_once(',').ok_or_else(fault)?;
        let kind = head.get("data:".len()..).and_then(|h| h.strip_suffix(";base64"));
        // Parameters between the type and the encoding say nothing that matters here.
        let kind = kind.and_then(|k| k.split(';').next()).ok_or_else(fault)?.to_ascii_lowercase();
        if !is_base64(data.as_bytes()) {
            let right = "sound base64, padded and without line breaks";
            return Err(CallError::invalid(&at(name), right));
        }
        let base64 = |kind: &'static str, media_type: &str| {
            let source = format!(r#"{{"type":"base64","media_type":"{media_type}","data":"#);
            // Base64 without escapes goes on as it stands.
            let raw = uri.inside().unwrap_or_default();
            let data = match raw.strip_suffix(data.as_bytes()) {
                Some(_) => self.source.slice(&uri.raw()[uri.raw().len() - data.len() - 1..]),
                None => Bytes::from(format!("{data}\"")),
            };
            MediaSource { kind, source: source + "\"", last: data, title: None }
        };
        match kind.as_str() {
            "image/jpeg" | "image/png" | "image/gif" | "image/webp" => Ok(base64("image", &kind)),
            "image/jpg" => Ok(base64("image", "image/jpeg")),
            "application/pdf" => Ok(base64("document", &kind)),
            "text/plain" if name.ends_with("file_data") => {
                let text = STANDARD.decode(data).ok().and_then(|d| String::from_utf8(d).ok());
                let text = text.ok_or_else(|| CallError::invalid(&at(name), "text in UTF-8"))?;
                let source = r#"{"type":"text","media_type":"text/plain","data":"#.to_owned();
                let last = Bytes::from(quoted(&text));
                Ok(MediaSource { kind: "document", source, last, title: None })
            }
            _ => Err(fault()),
        }
    }
}

/// Whether bytes are base64, padded, of at least one byte. Checked by the piece, since images are
/// large and nobody here needs what is in them.
fn is_base64(data: &[u8]) -> bool {
    const PIECE: usize = 4 << 10;
    let padding = memchr::memchr(b'=', data).unwrap_or(data.len());
    let mut decoded = [0; PIECE];
    let mut pieces = data.chunks(PIECE);
    let sound = pieces.all(|piece| STANDARD.decode_slice(piece, &mut decoded).is_ok());
    !data.is_empty() && data.len() - padding <= 2 && sound
}

fn starts_with(text: &[u8], scheme: &[u8]) -> bool {
    text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
}

/// Whether a string is nothing but white space, which the vendor refuses as text.
pub(super) fn is_blank(text: JsonValue<'_>) -> bool {
    match text.inside().unwrap_or_default().first() {
        None => true,
        // The quick way for nearly all text.
        Some(b'!'..=b'[' | b']'..=b'~') => false,
        Some(_) => text.text().is_none_or(|t| t.trim().is_empty()),
    }
}
