//! Relays a reply in one body: buffers it until it is complete and validated, then passes it on,
//! byte for byte where the client and the vendor speak the same format.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::{Bytes, BytesMut};

use super::mode::RelayMode;
use super::progress::{RelayError, RelayProgress, RetainedData};
use super::reply_id::ReplyIdReader;
use crate::dialect::images::{self, WithheldImage};
use crate::dialect::json::{JsonDocument, JsonValue};
use crate::dialect::messages::ReportedUsage;
use crate::dialect::meter::bounds::UsageBounds;
use crate::dialect::meter::{ReportQuality, UsageMeter, count_block};
use crate::dialect::moderations;
use crate::dialect::responses::{self, ResponseState};
use crate::dialect::token_counts;
use crate::dialect::translate::reply;
use crate::dialect::translate::thinking::SavedThinking;
use crate::dialect::vendor_error::VendorError;
use crate::money::{BilledUnits, Usage, UsageBasis};

/// A buffered reply may have at most this many bytes.
pub(crate) const BUFFERED_BYTES_MAX: usize = 64 << 20;

/// The relay of a reply in one body, which is buffered until it is complete.
#[derive(Debug)]
pub struct BufferedRelay {
    pub(super) mode: RelayMode,
    chunks: Vec<Bytes>,
    received_bytes: usize,
    /// The length of the whole reply in bytes, if the vendor announced it.
    expected_length: Option<usize>,
    pub(super) meter: UsageMeter,
    pub(super) bounds: UsageBounds,
    pub(super) progress: RelayProgress,
    /// The usage that the vendor reported for an image, if it is within the bounds.
    pub(super) image_usage: Option<Usage>,
    /// The units that the vendor reported for an image, if they exceed the bounds.
    pub(super) rejected_image_units: Option<BilledUnits>,
    /// The ids and the billing state of a reply in the responses format.
    pub(super) response_state: ResponseState,
    saved_thinking: Option<SavedThinking>,
    pub(super) reply_id: ReplyIdReader,
}

impl BufferedRelay {
    pub(super) fn new(mode: RelayMode) -> BufferedRelay {
        BufferedRelay {
            mode,
            chunks: Vec::new(),
            received_bytes: 0,
            expected_length: None,
            meter: UsageMeter::default(),
            bounds: UsageBounds::default(),
            progress: RelayProgress::Open,
            image_usage: None,
            rejected_image_units: None,
            response_state: ResponseState::default(),
            saved_thinking: None,
            reply_id: ReplyIdReader::default(),
        }
    }

    pub(super) fn buffered_bytes(&self) -> usize {
        if self.chunks.is_empty() { 0 } else { self.received_bytes }
    }

    pub(super) fn push(&mut self, bytes: Bytes) {
        self.received_bytes += bytes.len();
        if self.received_bytes > BUFFERED_BYTES_MAX {
            self.chunks.clear();
            self.progress = RelayProgress::Failed(RelayError::TooLarge);
        } else if self.progress == RelayProgress::Open {
            self.chunks.push(bytes);
        }
    }

    pub(super) fn finish(&mut self) -> Option<Bytes> {
        if self.progress != RelayProgress::Open {
            return None;
        }
        let body = concat_chunks(std::mem::take(&mut self.chunks));
        match self.process_body(body) {
            Ok(body) => {
                self.progress = RelayProgress::Complete;
                Some(body)
            }
            Err(why) => {
                self.progress = RelayProgress::Failed(why);
                None
            }
        }
    }

    pub(super) fn set_expected_length(&mut self, bytes: usize) {
        self.expected_length = Some(bytes);
    }

    /// Ends the reply with an error. If the cause is that the account's clients read too slowly,
    /// the gateway has never read the usage report, so it counts the received or the announced
    /// bytes, and the charge is capped at the hold. Other failures count nothing here.
    pub(super) fn fail(&mut self, why: RelayError) {
        if why == RelayError::SlowReader {
            let unread = self.expected_length.unwrap_or(0).max(self.received_bytes);
            self.meter.count_unread_bytes(unread);
        }
        self.chunks.clear();
        self.progress = RelayProgress::Failed(why);
    }

    pub(super) fn take_retained(&mut self) -> Option<RetainedData> {
        match self.mode {
            RelayMode::Responses => {
                Some(RetainedData::IssuedIds(self.response_state.take_issued_ids()))
            }
            _ => self.saved_thinking.take().map(RetainedData::Thinking),
        }
    }

    /// Meters a complete body, and returns the body for the client.
    fn process_body(&mut self, body: Bytes) -> Result<Bytes, RelayError> {
        let document =
            JsonDocument::parse_from_vendor(body.clone()).map_err(|_| RelayError::Malformed)?;
        self.reply_id.read(&document, matches!(self.mode, RelayMode::Translated(_)));
        if let RelayMode::Responses = self.mode {
            // A failed response contains its error, and is passed on as a response all the same.
            if self.response_state.read_reply(&document, &mut self.meter).is_some() {
                return Ok(responses::redact_error(&document).map_or(body, Bytes::from));
            }
        }
        if let Some(error) = VendorError::from_event(&document) {
            return Err(RelayError::Vendor(error));
        }
        match &self.mode {
            RelayMode::Chat { .. } => {
                meter_chat(&document, &mut self.meter);
                Ok(body)
            }
            RelayMode::Messages { .. } => {
                document.get("content").ok_or(RelayError::Malformed)?;
                meter_messages(&document, &mut self.meter);
                Ok(body)
            }
            RelayMode::Translated(metadata) => {
                let reply = reply::translate_reply(&document, metadata, &mut self.meter);
                let reply = reply.ok_or(RelayError::Malformed)?;
                self.saved_thinking = reply.saved_thinking;
                Ok(reply.body)
            }
            RelayMode::Image { created, uses_vendor_cost } => {
                let reply =
                    images::convert_reply(&document, *created).map_err(|why| match why {
                        WithheldImage::Moderated => RelayError::ContentFiltered,
                        WithheldImage::AddressOnly => RelayError::ImageAddress,
                        WithheldImage::Unreadable => RelayError::Malformed,
                    })?;
                let reported = reported_image_usage(&reply, *uses_vendor_cost);
                let is_within_bounds = |usage: &Usage| self.bounds.admits_image(usage.units);
                self.image_usage = reported.filter(is_within_bounds);
                self.rejected_image_units =
                    reported.filter(|t| !is_within_bounds(t)).map(|usage| usage.units);
                Ok(concat_chunks(reply.body))
            }
            RelayMode::Compaction => {
                responses::meter_compaction(&document, &mut self.meter)
                    .ok_or(RelayError::Malformed)?;
                Ok(body)
            }
            RelayMode::Moderation if moderations::is_moderation_result(&document) => Ok(body),
            RelayMode::TokenCount if token_counts::is_token_count(&document) => Ok(body),
            // A moderation, a count or a response gets here only if it does not follow its format.
            // Speech and embeddings have relays of their own.
            RelayMode::Moderation
            | RelayMode::TokenCount
            | RelayMode::Responses
            | RelayMode::Speech { .. }
            | RelayMode::Embeddings(_) => Err(RelayError::Malformed),
        }
    }
}

/// Concatenates chunks; a single chunk is not copied. Each chunk is freed once it is copied, since
/// an image has many.
fn concat_chunks(mut pieces: Vec<Bytes>) -> Bytes {
    if pieces.len() == 1 {
        return pieces.remove(0);
    }
    let mut joined = BytesMut::with_capacity(pieces.iter().map(Bytes::len).sum());
    pieces.into_iter().for_each(|piece| joined.extend_from_slice(&piece));
    joined.freeze()
}

/// Returns the usage that the vendor reported for an image, in the units of the image's price;
/// `None` if the vendor reported none.
fn reported_image_usage(reply: &images::ImagesReply, uses_vendor_cost: bool) -> Option<Usage> {
    let units = if uses_vendor_cost {
        BilledUnits::BilledImages { images: 1, ticks: reply.ticks? }
    } else {
        // A report of no output tokens cannot be right for an image.
        BilledUnits::Tokens(reply.tokens.filter(|tokens| tokens.output > 0)?)
    };
    Some(Usage { units, basis: UsageBasis::Reported })
}

fn meter_chat(document: &JsonDocument, meter: &mut UsageMeter) {
    if let Some(uses) = meter.tool_uses_mut() {
        uses.read_report(|name| document.get(name));
    }
    if let Some(usage) = document.get("usage") {
        meter.record_chat_usage(usage);
    }
    if !meter.has_whole_report()
        && let Some(choices) = document.get("choices")
    {
        meter.count_choices(choices, "message");
    }
}

fn meter_messages(document: &JsonDocument, meter: &mut UsageMeter) {
    let mut usage = ReportedUsage::default();
    let has_usage = document.get("usage").is_some_and(|reported| usage.merge(reported));
    if let (true, Some(tokens)) = (has_usage, usage.tokens()) {
        meter.record_tokens(tokens, ReportQuality::Final);
    }
    if let Some(uses) = meter.tool_uses_mut() {
        uses.see_content(document.get("content"));
        uses.read_report(|name| document.get(name));
    }
    if meter.has_whole_report() {
        return;
    }
    let blocks = document.get("content").into_iter().flat_map(JsonValue::elements);
    for (index, block) in (0..).zip(blocks) {
        count_block(block, index, meter);
    }
}
