//! Translates the content of chat messages: a string or a list of parts becomes a list of blocks of
//! the messages format.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

use super::dropped_fields::DroppedFields;
use super::writer::{MessagesWriter, SourceBytes};
use crate::dialect::CallError;
use crate::dialect::call::fields::invalid_value;
use crate::dialect::json::patch::json_string;
use crate::dialect::json::{JsonKind, JsonValue};

/// A content block of the messages format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ContentBlock {
    pub(super) kind: BlockKind,
    /// The value of `cache_control` as JSON; `None` if the block has none.
    pub(super) cache_control: Option<Bytes>,
}

/// The type of a block, with its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BlockKind {
    /// Text: a JSON string.
    Text(Bytes),
    /// An image or a document.
    Media(MediaSource),
    /// A tool call: its id, its name as a JSON string, its input as a JSON object.
    ToolUse { id: String, name: Bytes, input: Bytes },
    /// The result of a tool call.
    ToolResult { id: String, content: ToolResultContent },
    /// A block copied unchanged from an answer of the vendor: a JSON object.
    Verbatim(Bytes),
}

/// An image or a document: its type and its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MediaSource {
    kind: &'static str,
    /// The JSON of the source, without its closing brace, is `source_prefix` followed by
    /// `source_value`. The prefix ends before the last string, or after the opening quote of that
    /// string. `title` is written after the source.
    source_prefix: String,
    source_value: Bytes,
    title: Option<Bytes>,
}

/// The content of a tool result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ToolResultContent {
    Empty,
    Text(Bytes),
    Blocks(Vec<ContentBlock>),
}

impl ContentBlock {
    pub(super) fn new(kind: BlockKind) -> ContentBlock {
        ContentBlock { kind, cache_control: None }
    }

    /// Whether this is a saved block of thinking, plain or redacted.
    pub(super) fn is_thinking(&self) -> bool {
        let BlockKind::Verbatim(raw) = &self.kind else { return false };
        let kind = JsonValue::from_validated(raw).get("type").and_then(JsonValue::text);
        kind.is_some_and(|kind| matches!(&*kind, "thinking" | "redacted_thinking"))
    }

    pub(super) fn write(&self, out: &mut MessagesWriter) {
        match &self.kind {
            BlockKind::Text(text) => {
                out.write_str(r#"{"type":"text","text":"#);
                out.write_bytes(text);
            }
            BlockKind::Media(media) => media.write(out),
            BlockKind::ToolUse { id, name, input } => {
                out.write_str(&format!(r#"{{"type":"tool_use","id":{},"name":"#, json_string(id)));
                out.write_bytes(name);
                out.write_str(r#","input":"#);
                out.write_bytes(input);
            }
            BlockKind::ToolResult { id, content } => {
                out.write_str(&format!(
                    r#"{{"type":"tool_result","tool_use_id":{}"#,
                    json_string(id)
                ));
                match content {
                    ToolResultContent::Empty => {}
                    ToolResultContent::Text(text) => {
                        out.write_str(r#","content":"#);
                        out.write_bytes(text);
                    }
                    ToolResultContent::Blocks(blocks) => {
                        out.write_str(r#","content":["#);
                        out.write_list(blocks, |out, block| block.write(out));
                        out.write_str("]");
                    }
                }
            }
            // The saved block is written without its closing brace, which is written below, after
            // `cache_control`.
            BlockKind::Verbatim(raw) => out.write_bytes(&raw.slice(..raw.len().saturating_sub(1))),
        }
        if let Some(cache) = &self.cache_control {
            out.write_str(r#","cache_control":"#);
            out.write_bytes(cache);
        }
        out.write_str("}");
    }
}

impl MediaSource {
    fn write(&self, out: &mut MessagesWriter) {
        out.write_str(&format!(r#"{{"type":"{}","source":{}"#, self.kind, self.source_prefix));
        out.write_bytes(&self.source_value);
        out.write_str("}");
        if let Some(title) = &self.title {
            out.write_str(r#","title":"#);
            out.write_bytes(title);
        }
    }
}

/// At most this many content parts, tool calls and tool results are accepted in one request: each
/// costs the gateway far more than its bytes in the body.
pub(super) const BLOCKS_MAX: usize = 100_000;

/// Returns the error for a conversation with more than [`BLOCKS_MAX`] blocks.
pub(super) fn too_many_blocks() -> CallError {
    CallError::invalid("messages", &format!("of {BLOCKS_MAX} parts, calls and results at most"))
}

/// A function that builds the path of a field inside a part or a tool call from the end of that
/// path. It is called only for error messages.
pub(super) type FieldPath<'a> = &'a dyn Fn(&str) -> String;

/// The path of a part, for the names of its dropped fields.
const PART: &str = "messages[].content[]";

/// Parses the content of one message, and refuses parts of other kinds than the allowed ones.
#[derive(Clone, Copy)]
pub(super) struct ContentParser<'a> {
    pub(super) source: SourceBytes<'a>,
    /// The index of the message in `messages`, for error messages.
    pub(super) message_index: usize,
    /// The kinds of parts that the content may have.
    pub(super) allowed_kinds: &'a [&'a str],
}

impl ContentParser<'_> {
    /// Parses a content: a string or a list of parts. Blank text gives no block. Members of parts
    /// that the messages format does not have are added to `dropped`.
    pub(super) fn parse_content(
        self,
        content: JsonValue<'_>,
        dropped: &mut DroppedFields,
    ) -> Result<Vec<ContentBlock>, CallError> {
        match content.kind() {
            JsonKind::String => Ok(self.text_block(content).into_iter().collect()),
            JsonKind::Array => {
                let mut blocks = Vec::new();
                for (i, part) in content.elements().enumerate() {
                    if i >= BLOCKS_MAX {
                        return Err(too_many_blocks());
                    }
                    blocks.extend(self.parse_part(i, part, dropped)?);
                }
                Ok(blocks)
            }
            _ => {
                let field = format!("messages[{}].content", self.message_index);
                Err(invalid_value(&field, "a string or an array of parts", content))
            }
        }
    }

    fn text_block(self, text: JsonValue<'_>) -> Option<ContentBlock> {
        (!is_blank(text)).then(|| ContentBlock::new(BlockKind::Text(self.source.slice_value(text))))
    }

    fn parse_part(
        self,
        i: usize,
        part: JsonValue<'_>,
        dropped: &mut DroppedFields,
    ) -> Result<Option<ContentBlock>, CallError> {
        // The path is built only for error messages.
        let field_path =
            |rest: &str| format!("messages[{}].content[{i}]{rest}", self.message_index);
        let kind = part.get("type").and_then(JsonValue::text).unwrap_or_default();
        let Some(kind) = self.allowed_kinds.iter().find(|k| **k == kind) else {
            let expected = format!("one of {} here", self.allowed_kinds.join(", "));
            return Err(CallError::invalid(&field_path(".type"), &expected));
        };
        let Some(value) = part.get(kind).filter(|v| !v.is_null()) else {
            return Err(CallError::missing(
                &field_path(&format!(".{kind}")),
                "the content of the part",
            ));
        };
        let block = match *kind {
            "image_url" => {
                let image = self.parse_image(&field_path, value, dropped)?;
                Some(ContentBlock::new(BlockKind::Media(image)))
            }
            "file" => {
                let file = self.parse_file(&field_path, value, dropped)?;
                Some(ContentBlock::new(BlockKind::Media(file)))
            }
            _ if value.kind() == JsonKind::String => self.text_block(value),
            _ => return Err(invalid_value(&field_path(&format!(".{kind}")), "a string", value)),
        };
        let mut cache = None;
        for (name, member) in part.members().filter(|(_, v)| !v.is_null()) {
            match &*name {
                "type" => {}
                "cache_control" => cache = Some(member),
                name if name == *kind => {}
                name => dropped.add(PART, name),
            }
        }
        Ok(block.map(|block| ContentBlock {
            cache_control: cache.map(|c| self.source.slice_value(c)),
            ..block
        }))
    }

    /// Parses an image that is given as a data URI or a URL. The gateway never fetches the URL.
    fn parse_image(
        self,
        field_path: FieldPath<'_>,
        image: JsonValue<'_>,
        dropped: &mut DroppedFields,
    ) -> Result<MediaSource, CallError> {
        let (name, url) = match image.kind() {
            JsonKind::Object => (".image_url.url", image_address(image, dropped)),
            _ => (".image_url", Some(image)),
        };
        let expected = "a data URI or an http or https address";
        let url = url.filter(|u| !u.is_null());
        let url = url.ok_or_else(|| CallError::missing(&field_path(name), expected))?;
        let text =
            url.string_bytes().ok_or_else(|| invalid_value(&field_path(name), expected, url))?;
        // JSON escapes may hide the scheme, so the scheme is checked in the unescaped text.
        let read = if text.contains(&b'\\') { url.text() } else { None };
        let text = read.as_ref().map_or(text, |read| read.as_bytes());
        if has_scheme(text, b"data:") {
            return self.parse_data_uri(field_path, name, url);
        }
        if !has_scheme(text, b"http://") && !has_scheme(text, b"https://") {
            return Err(invalid_value(&field_path(name), expected, url));
        }
        let source = r#"{"type":"url","url":"#.to_owned();
        Ok(MediaSource {
            kind: "image",
            source_prefix: source,
            source_value: self.source.slice_value(url),
            title: None,
        })
    }

    fn parse_file(
        self,
        field_path: FieldPath<'_>,
        file: JsonValue<'_>,
        dropped: &mut DroppedFields,
    ) -> Result<MediaSource, CallError> {
        let name = ".file.file_data";
        let expected = "a data URI such as data:application/pdf;base64,...";
        let Some(data) = file.get("file_data").filter(|v| !v.is_null()) else {
            return Err(CallError::missing(&field_path(name), expected));
        };
        if !data.text().is_some_and(|text| has_scheme(text.as_bytes(), b"data:")) {
            return Err(invalid_value(&field_path(name), expected, data));
        }
        let media = self.parse_data_uri(field_path, name, data)?;
        // Documents have a title, images do not.
        let has_title = media.kind == "document";
        let known: &[&str] = if has_title { &["file_data", "filename"] } else { &["file_data"] };
        dropped.add_unknown("messages[].content[].file", file, known);
        let title = file.get("filename").filter(|v| v.kind() == JsonKind::String && !is_blank(*v));
        let title = title.filter(|_| has_title).map(|t| self.source.slice_value(t));
        Ok(MediaSource { title, ..media })
    }

    /// Parses a data URI into an image or a document.
    fn parse_data_uri(
        self,
        field_path: FieldPath<'_>,
        name: &str,
        uri: JsonValue<'_>,
    ) -> Result<MediaSource, CallError> {
        let text = uri.text().unwrap_or_default();
        let expected = "a data URI of image/jpeg, image/png, image/gif or image/webp in base64";
        let fault = || invalid_value(&field_path(name), expected, uri);
        let (head, data) = text.split_once(',').ok_or_else(fault)?;
        let kind = head.get("data:".len()..).and_then(|h| h.strip_suffix(";base64"));
        // Parameters between the media type and `;base64` are ignored: none of them matters here.
        let kind = kind.and_then(|k| k.split(';').next()).ok_or_else(fault)?.to_ascii_lowercase();
        if !is_base64(data.as_bytes()) {
            let expected = "sound base64, padded and without line breaks";
            return Err(CallError::invalid(&field_path(name), expected));
        }
        let base64 = |kind: &'static str, media_type: &str| {
            let source = format!(r#"{{"type":"base64","media_type":"{media_type}","data":"#);
            // Base64 without JSON escapes is forwarded as a slice of the request body, else it is
            // copied.
            let raw = uri.string_bytes().unwrap_or_default();
            let data = match raw.strip_suffix(data.as_bytes()) {
                Some(_) => self.source.slice(&uri.raw()[uri.raw().len() - data.len() - 1..]),
                None => Bytes::from(format!("{data}\"")),
            };
            MediaSource { kind, source_prefix: source + "\"", source_value: data, title: None }
        };
        match kind.as_str() {
            "image/jpeg" | "image/png" | "image/gif" | "image/webp" => Ok(base64("image", &kind)),
            "image/jpg" => Ok(base64("image", "image/jpeg")),
            "application/pdf" => Ok(base64("document", &kind)),
            "text/plain" if name.ends_with("file_data") => {
                let text = STANDARD.decode(data).ok().and_then(|d| String::from_utf8(d).ok());
                let text =
                    text.ok_or_else(|| CallError::invalid(&field_path(name), "text in UTF-8"))?;
                let source = r#"{"type":"text","media_type":"text/plain","data":"#.to_owned();
                let last = Bytes::from(json_string(&text));
                Ok(MediaSource {
                    kind: "document",
                    source_prefix: source,
                    source_value: last,
                    title: None,
                })
            }
            _ => Err(fault()),
        }
    }
}

/// Returns the address of an image. Its `detail` is dropped: the vendor has no such setting.
fn image_address<'a>(image: JsonValue<'a>, dropped: &mut DroppedFields) -> Option<JsonValue<'a>> {
    let mut url = None;
    for (name, value) in image.members().filter(|(_, v)| !v.is_null()) {
        match &*name {
            "url" => url = Some(value),
            "detail" if value.text().is_some_and(|detail| detail == "auto") => {}
            name => dropped.add("messages[].content[].image_url", name),
        }
    }
    url
}

/// Whether the bytes are valid padded base64 and not empty. They are decoded in chunks into a
/// scratch buffer, since images are large and the gateway does not need the decoded bytes.
fn is_base64(data: &[u8]) -> bool {
    const CHUNK_BYTES: usize = 4 << 10;
    let padding = memchr::memchr(b'=', data).unwrap_or(data.len());
    let mut decoded = [0; CHUNK_BYTES];
    let mut pieces = data.chunks(CHUNK_BYTES);
    let sound = pieces.all(|piece| STANDARD.decode_slice(piece, &mut decoded).is_ok());
    !data.is_empty() && data.len() - padding <= 2 && sound
}

fn has_scheme(text: &[u8], scheme: &[u8]) -> bool {
    text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
}

/// Whether a string is empty or only white space, which the vendor refuses as text.
pub(super) fn is_blank(text: JsonValue<'_>) -> bool {
    match text.string_bytes().unwrap_or_default().first() {
        None => true,
        // Fast path for nearly all text: it begins with a visible ASCII character, not with an
        // escape.
        Some(b'!'..=b'[' | b']'..=b'~') => false,
        Some(_) => text.text().is_none_or(|t| t.trim().is_empty()),
    }
}
