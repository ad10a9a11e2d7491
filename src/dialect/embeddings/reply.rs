//! Streams a reply: each entry is validated and forwarded as soon as it is complete, so that at
//! most one of them is buffered. What follows the entries is buffered until the end, since only
//! then it is known that the whole reply is valid and what it cost.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};

use super::entries::{EntryListFinder, ObjectEndFinder};
use super::inputs::EmbeddingInputs;
use crate::dialect::json::patch::json_string;
use crate::dialect::json::{JsonDocument, JsonKind, JsonPatch, JsonValue};
use crate::dialect::meter::TOKENS_MAX;
use crate::dialect::vendor_error::VendorError;

/// The maximum length of an entry in bytes: the longest vector, and the members around it.
const ENTRY_BYTES_MAX: usize = 1 << 20;
/// The maximum length in bytes of the part before the entries, and of the part after them.
const ENVELOPE_BYTES_MAX: usize = 1 << 20;
/// The number of objects and lists around an entry.
const OUTER_DEPTH: usize = 2;

/// A complete reply, converted for the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddingsReply {
    /// The body for the client.
    pub body: Bytes,
    /// The input tokens; `None` if the vendor does not report them.
    pub tokens: Option<u64>,
}

/// Why a reply has no embeddings for the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EmbeddingsReplyError {
    /// The reply does not have the format of the dialect.
    #[error("it is no list of embeddings")]
    Malformed,
    /// A part of the reply exceeds its size limit.
    #[error("a part of it is too large")]
    TooLarge,
    /// The vendor reported an error in place of embeddings.
    #[error("the vendor reported an error")]
    VendorFailed(VendorError),
}

/// Converts a vendor's complete reply into the one that the client asked for.
///
/// # Errors
/// [`EmbeddingsReplyError`] if the reply has no valid embeddings.
pub fn convert_reply(
    body: &[u8],
    inputs: EmbeddingInputs,
) -> Result<EmbeddingsReply, EmbeddingsReplyError> {
    let (mut reader, mut out) = (EmbeddingsReader::new(inputs), BytesMut::new());
    reader.push(body, &mut out)?;
    let tokens = reader.finish(&mut out)?;
    Ok(EmbeddingsReply { body: out.freeze(), tokens })
}

/// Converts a reply while it arrives; see the module.
#[derive(Debug)]
pub struct EmbeddingsReader {
    inputs: EmbeddingInputs,
    position: ReadPosition,
    /// The part of the reply before the first entry.
    head: BytesMut,
    /// Bytes that have arrived but are not forwarded yet: of an entry, or after the last one.
    pending: BytesMut,
    /// The usage in the part before the entries.
    usage: HeadUsage,
}

/// Whether the part before the entries has a usage.
#[derive(Debug, Clone, Copy)]
enum HeadUsage {
    Absent,
    /// A usage was forwarded; `tokens` is `None` if the vendor's was invalid and the counted one
    /// was forwarded in its place.
    Forwarded {
        tokens: Option<u64>,
    },
}

/// The position in a reply up to which it was read.
#[derive(Debug)]
enum ReadPosition {
    Head(EntryListFinder),
    /// Before an entry, which may be the first one. If no entry follows, the reply is malformed.
    BeforeEntry,
    InEntry(ObjectEndFinder),
    /// After an entry.
    AfterEntry,
    Tail,
}

impl EmbeddingsReader {
    /// Makes a reader for the reply to a call with these inputs.
    #[must_use]
    pub fn new(inputs: EmbeddingInputs) -> EmbeddingsReader {
        let (head, pending) = (BytesMut::new(), BytesMut::new());
        EmbeddingsReader {
            inputs,
            position: ReadPosition::Head(EntryListFinder::default()),
            head,
            pending,
            usage: HeadUsage::Absent,
        }
    }

    /// Returns how many bytes are buffered.
    #[must_use]
    pub(crate) fn buffered_bytes(&self) -> usize {
        self.head.len() + self.pending.len()
    }

    /// Takes the next bytes of the reply, and appends the part that has been validated to `out`.
    ///
    /// # Errors
    /// [`EmbeddingsReplyError`] if the reply cannot be a valid list of embeddings any more. The
    /// caller must discard what was written to `out` before.
    pub fn push(&mut self, bytes: &[u8], out: &mut BytesMut) -> Result<(), EmbeddingsReplyError> {
        let ReadPosition::Head(finder) = &mut self.position else {
            self.pending.extend_from_slice(bytes);
            return self.read_entries(out);
        };
        let before = self.head.len();
        self.head.extend_from_slice(bytes);
        match finder.find_list_start(&self.head) {
            Some(start) => {
                self.head.truncate(start);
                self.pending.extend_from_slice(&bytes[start - before..]);
                self.position = ReadPosition::BeforeEntry;
                self.read_head(out)?;
                self.read_entries(out)
            }
            None if self.head.len() > ENVELOPE_BYTES_MAX => Err(EmbeddingsReplyError::TooLarge),
            None => Ok(()),
        }
    }

    /// Ends the reply, and appends the rest of it to `out`. Returns the input tokens; `None` if the
    /// vendor reports none.
    ///
    /// # Errors
    /// As of [`EmbeddingsReader::push`].
    pub fn finish(&mut self, out: &mut BytesMut) -> Result<Option<u64>, EmbeddingsReplyError> {
        match self.position {
            ReadPosition::Tail => self.read_tail(out),
            ReadPosition::Head(_) => {
                // The list of entries is absent. If the vendor sent an error in its place, that
                // error is returned, since it gives the reason.
                parse_envelope(self.head.split().freeze())?;
                Err(EmbeddingsReplyError::Malformed)
            }
            _ => Err(EmbeddingsReplyError::Malformed),
        }
    }

    fn read_head(&mut self, out: &mut BytesMut) -> Result<(), EmbeddingsReplyError> {
        // Closes the list, so that the head can be parsed as a document; it is removed again below.
        const CLOSING: &[u8] = b"]}";
        let envelope = parse_envelope(Bytes::from([&self.head[..], CLOSING].concat()))?;
        let Some(usage) = envelope.get("usage") else {
            out.extend_from_slice(&self.head);
            return Ok(());
        };
        let tokens = input_tokens(usage);
        self.usage = HeadUsage::Forwarded { tokens };
        let patched_head = self.with_usage(&envelope, tokens);
        out.extend_from_slice(patched_head.strip_suffix(CLOSING).unwrap_or(&patched_head));
        Ok(())
    }

    fn read_entries(&mut self, out: &mut BytesMut) -> Result<(), EmbeddingsReplyError> {
        loop {
            if let ReadPosition::InEntry(finder) = &mut self.position {
                let Some(end) = finder.find_object_end(&self.pending) else {
                    return check_size(&self.pending, ENTRY_BYTES_MAX);
                };
                let entry = self.pending.split_to(end).freeze();
                self.read_entry(entry, out)?;
                self.position = ReadPosition::AfterEntry;
                continue;
            }
            if let ReadPosition::Tail = self.position {
                return check_size(&self.pending, ENVELOPE_BYTES_MAX);
            }
            let is_space = |b: &u8| matches!(b, b' ' | b'\t' | b'\n' | b'\r');
            let space = self.pending.iter().take_while(|b| is_space(b)).count();
            out.extend_from_slice(&self.pending.split_to(space));
            self.position = match (&self.position, self.pending.first()) {
                (_, None) => return Ok(()),
                (ReadPosition::BeforeEntry, Some(b'{')) => {
                    ReadPosition::InEntry(ObjectEndFinder::default())
                }
                (ReadPosition::AfterEntry, Some(b',')) => {
                    out.extend_from_slice(&self.pending.split_to(1));
                    ReadPosition::BeforeEntry
                }
                (ReadPosition::AfterEntry, Some(b']')) => ReadPosition::Tail,
                // This includes a reply without any entry.
                _ => return Err(EmbeddingsReplyError::Malformed),
            };
        }
    }

    fn read_entry(&self, entry: Bytes, out: &mut BytesMut) -> Result<(), EmbeddingsReplyError> {
        let entry = JsonDocument::parse_from_vendor_within(entry, OUTER_DEPTH)
            .map_err(|_| EmbeddingsReplyError::Malformed)?;
        let vector = entry.get("embedding").ok_or(EmbeddingsReplyError::Malformed)?;
        if self.inputs.base64 && vector.kind() == JsonKind::Array {
            return write_with_base64(&entry, out).ok_or(EmbeddingsReplyError::Malformed);
        }
        if !is_vector(vector) {
            return Err(EmbeddingsReplyError::Malformed);
        }
        out.extend_from_slice(entry.body());
        Ok(())
    }

    fn read_tail(&mut self, out: &mut BytesMut) -> Result<Option<u64>, EmbeddingsReplyError> {
        let envelope = parse_envelope(Bytes::from([&self.head[..], &self.pending].concat()))?;
        if let HeadUsage::Forwarded { tokens } = self.usage {
            out.extend_from_slice(&self.pending);
            return Ok(tokens);
        }
        if let Some(usage) = envelope.get("usage") {
            let tokens = input_tokens(usage);
            out.extend_from_slice(&self.with_usage(&envelope, tokens)[self.head.len()..]);
            return Ok(tokens);
        }
        let brace =
            self.pending.iter().rposition(|b| *b == b'}').ok_or(EmbeddingsReplyError::Malformed)?;
        out.extend_from_slice(&self.pending[..brace]);
        out.extend_from_slice(format!(r#","usage":{}"#, self.estimated_usage_json()).as_bytes());
        out.extend_from_slice(&self.pending[brace..]);
        Ok(None)
    }

    /// Returns the part around the entries, with the counted usage if the vendor reports no valid
    /// one, and with a complete one if it reports only the total.
    fn with_usage(&self, envelope: &JsonDocument, tokens: Option<u64>) -> Vec<u8> {
        let mut patch = JsonPatch::new(envelope);
        match tokens {
            None => patch.set("usage", self.estimated_usage_json()),
            // Clients read the member that this vendor leaves out.
            Some(total) if envelope.get("usage").and_then(prompt_tokens).is_none() => {
                patch.set("usage", usage_json(total));
            }
            Some(_) => {}
        }
        patch.finish().concat()
    }

    fn estimated_usage_json(&self) -> String {
        usage_json(self.inputs.tokens)
    }
}

fn usage_json(tokens: u64) -> String {
    format!(r#"{{"prompt_tokens":{tokens},"total_tokens":{tokens}}}"#)
}

fn check_size(pending: &BytesMut, most: usize) -> Result<(), EmbeddingsReplyError> {
    if pending.len() > most { Err(EmbeddingsReplyError::TooLarge) } else { Ok(()) }
}

/// Parses a reply, or the part around its entries. Fails if it reports an error.
fn parse_envelope(body: Bytes) -> Result<JsonDocument, EmbeddingsReplyError> {
    let document =
        JsonDocument::parse_from_vendor(body).map_err(|_| EmbeddingsReplyError::Malformed)?;
    match VendorError::from_event(&document) {
        Some(error) => Err(EmbeddingsReplyError::VendorFailed(error)),
        None => Ok(document),
    }
}

/// Returns the reported input tokens; `None` if they are absent or implausible.
fn input_tokens(usage: JsonValue<'_>) -> Option<u64> {
    // There is no output, so a total alone says the same.
    let reported = prompt_tokens(usage).or_else(|| usage.get("total_tokens"))?.integer();
    // Every input has tokens, so a report of 0 is not believed.
    reported.filter(|n| (1..=TOKENS_MAX).contains(n))
}

fn prompt_tokens(usage: JsonValue<'_>) -> Option<JsonValue<'_>> {
    usage.get("prompt_tokens").filter(|tokens| !tokens.is_null())
}

fn is_vector(value: JsonValue<'_>) -> bool {
    let mut kinds = value.elements().map(JsonValue::kind).peekable();
    let is_list = kinds.peek().is_some();
    is_base64_vector(value) || (is_list && kinds.all(|kind| kind == JsonKind::Number))
}

/// Whether a vector is in base64 already.
fn is_base64_vector(value: JsonValue<'_>) -> bool {
    value.string_bytes().is_some_and(|text| !text.is_empty())
}

/// Writes an entry with its vector in base64. `None` if the vector is not a list of numbers.
fn write_with_base64(entry: &JsonDocument, out: &mut BytesMut) -> Option<()> {
    let mut opening: &[u8] = b"{";
    for (name, value) in entry.members() {
        out.extend_from_slice(opening);
        out.extend_from_slice(json_string(&name).as_bytes());
        if name == "embedding" {
            out.extend_from_slice(b":\"");
            out.extend_from_slice(STANDARD.encode(encode_f32s(value)?).as_bytes());
            out.extend_from_slice(b"\"");
        } else {
            out.extend_from_slice(b":");
            out.extend_from_slice(value.raw());
        }
        opening = b",";
    }
    out.extend_from_slice(b"}");
    Some(())
}

/// Encodes the numbers of a list as little-endian `f32`s; `None` if the list is empty or has a
/// value that is not a finite number. Each number is parsed directly from its decimal digits: if it
/// were parsed as a longer float first, it would be rounded twice.
fn encode_f32s(list: JsonValue<'_>) -> Option<Vec<u8>> {
    let mut packed = Vec::new();
    for number in list.elements() {
        let text = std::str::from_utf8(number.raw()).ok()?;
        let is_number = number.kind() == JsonKind::Number;
        let nearest = text.parse().ok().filter(|n: &f32| is_number && n.is_finite())?;
        packed.extend_from_slice(&nearest.to_le_bytes());
    }
    (!packed.is_empty()).then_some(packed)
}
