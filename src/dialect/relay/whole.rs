//! A reply in one body: kept until it is complete and proved sound, then passed on, byte for byte
//! where the client speaks what the vendor speaks.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::{Bytes, BytesMut};

use super::{RelayError, RelayMode, RelayProgress, Remember};
use crate::dialect::images::{self, WithheldImage};
use crate::dialect::json::{JsonDocument, JsonValue};
use crate::dialect::messages::ReportedUsage;
use crate::dialect::meter::UsageMeter;
use crate::dialect::meter::bounds::UsageBounds;
use crate::dialect::moderations;
use crate::dialect::responses::{self, ResponseState};
use crate::dialect::translate::reply;
use crate::dialect::translate::thinking::SavedThinking;
use crate::dialect::vendor_error::VendorError;
use crate::money::{BilledUnits, Usage, UsageBasis};

/// A reply that is kept until it is complete has so many bytes, at most.
pub const WHOLE_BYTES_MAX: usize = 64 << 20;

/// See the module.
#[derive(Debug)]
pub struct BufferedRelay {
    pub(super) passage: RelayMode,
    pieces: Vec<Bytes>,
    bytes: usize,
    /// What it has in all, if its vendor told.
    length: Option<usize>,
    pub(super) meter: UsageMeter,
    pub(super) bounds: UsageBounds,
    pub(super) progress: RelayProgress,
    /// What the vendor says that an image comes to.
    pub(super) image: Option<Usage>,
    /// The same, if that cannot be.
    pub(super) image_rejected: Option<BilledUnits>,
    /// What a response says of itself.
    pub(super) told: ResponseState,
    kept: Option<SavedThinking>,
}

impl BufferedRelay {
    pub(super) fn new(passage: RelayMode) -> BufferedRelay {
        BufferedRelay {
            passage,
            pieces: Vec::new(),
            bytes: 0,
            length: None,
            meter: UsageMeter::default(),
            bounds: UsageBounds::default(),
            progress: RelayProgress::Open,
            image: None,
            image_rejected: None,
            told: ResponseState::default(),
            kept: None,
        }
    }

    pub(super) fn held(&self) -> usize {
        if self.pieces.is_empty() { 0 } else { self.bytes }
    }

    pub(super) fn push(&mut self, bytes: Bytes) {
        self.bytes += bytes.len();
        if self.bytes > WHOLE_BYTES_MAX {
            self.pieces.clear();
            self.progress = RelayProgress::Broken(RelayError::TooLarge);
        } else if self.progress == RelayProgress::Open {
            self.pieces.push(bytes);
        }
    }

    pub(super) fn finish(&mut self) -> Option<Bytes> {
        if self.progress != RelayProgress::Open {
            return None;
        }
        let body = join(std::mem::take(&mut self.pieces));
        match self.read(body) {
            Ok(body) => {
                self.progress = RelayProgress::Complete;
                Some(body)
            }
            Err(why) => {
                self.progress = RelayProgress::Broken(why);
                None
            }
        }
    }

    pub(super) fn note_length(&mut self, bytes: usize) {
        self.length = Some(bytes);
    }

    /// Ends it. Of what its account left no room for nobody knows what it says of its usage, so
    /// what came, or was to come, is counted: up to what is held, and so for no other end.
    pub(super) fn fail(&mut self, why: RelayError) {
        if why == RelayError::Unread {
            self.meter.count_bytes(self.length.unwrap_or(0).max(self.bytes));
        }
        self.pieces.clear();
        self.progress = RelayProgress::Broken(why);
    }

    pub(super) fn keep(&mut self) -> Option<Remember> {
        match self.passage {
            RelayMode::Responses => Some(Remember::Given(self.told.given())),
            _ => self.kept.take().map(Remember::Thinking),
        }
    }

    /// Meters a body, and gives what the client is to have of it.
    fn read(&mut self, body: Bytes) -> Result<Bytes, RelayError> {
        let document = JsonDocument::received(body.clone()).map_err(|_| RelayError::Garbage)?;
        if let RelayMode::Responses = self.passage {
            // One that failed says why, and is a response all the same.
            if self.told.whole(&document, &mut self.meter).is_some() {
                return Ok(responses::without_secrets(&document).map_or(body, Bytes::from));
            }
        }
        if let Some(error) = VendorError::in_event(&document) {
            return Err(RelayError::Told(error));
        }
        match &self.passage {
            RelayMode::Chat { .. } => {
                meter_chat(&document, &mut self.meter);
                Ok(body)
            }
            RelayMode::Messages { .. } => {
                document.get("content").ok_or(RelayError::Garbage)?;
                meter_messages(&document, &mut self.meter);
                Ok(body)
            }
            RelayMode::Translated(stamp) => {
                let reply = reply::translate(&document, stamp, &mut self.meter);
                let reply = reply.ok_or(RelayError::Garbage)?;
                self.kept = reply.kept;
                Ok(reply.body)
            }
            RelayMode::Image { created, billed } => {
                let reply = images::reply(&document, *created).map_err(|why| match why {
                    WithheldImage::Moderated => RelayError::Withheld,
                    WithheldImage::Unreadable => RelayError::Garbage,
                })?;
                let told = image(&reply, *billed);
                let is_believed = |usage: &Usage| self.bounds.admit_image(usage.units);
                self.image = told.filter(is_believed);
                self.image_rejected = told.filter(|t| !is_believed(t)).map(|usage| usage.units);
                Ok(join(reply.body))
            }
            RelayMode::Verdict if moderations::is_verdict(&document) => Ok(body),
            // What is not given whole has a relay of its own.
            RelayMode::Verdict
            | RelayMode::Responses
            | RelayMode::Speech { .. }
            | RelayMode::Embeddings(_) => Err(RelayError::Garbage),
        }
    }
}

/// Pieces as one; a single one is not copied. Each goes as soon as it is copied: an image has many.
fn join(mut pieces: Vec<Bytes>) -> Bytes {
    if pieces.len() == 1 {
        return pieces.remove(0);
    }
    let mut joined = BytesMut::with_capacity(pieces.iter().map(Bytes::len).sum());
    pieces.into_iter().for_each(|piece| joined.extend_from_slice(&piece));
    joined.freeze()
}

/// What an image comes to, if the vendor says so in the units of its price.
fn image(reply: &images::ImagesReply, billed: bool) -> Option<Usage> {
    let units = if billed {
        BilledUnits::Billed { images: 1, ticks: reply.ticks? }
    } else {
        // No image is made of nothing.
        BilledUnits::Tokens(reply.tokens.filter(|tokens| tokens.output > 0)?)
    };
    Some(Usage { units, basis: UsageBasis::Reported })
}

fn meter_chat(document: &JsonDocument, meter: &mut UsageMeter) {
    if let Some(usage) = document.get("usage") {
        meter.report(usage);
    }
    if !meter.is_reported()
        && let Some(choices) = document.get("choices")
    {
        meter.count(choices, "message");
    }
}

fn meter_messages(document: &JsonDocument, meter: &mut UsageMeter) {
    let mut usage = ReportedUsage::default();
    let counts = document.get("usage").is_some_and(|reported| usage.merge(reported));
    if let (true, Some(tokens)) = (counts, usage.tokens()) {
        meter.take(tokens, false);
    }
    if meter.is_reported() {
        return;
    }
    for block in document.get("content").into_iter().flat_map(JsonValue::elements) {
        for name in ["text", "thinking", "input"] {
            meter.count_bytes(block.get(name).map_or(0, |value| value.raw().len()));
        }
    }
}
