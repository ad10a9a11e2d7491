//! What a vendor says, before the first byte of it is sent.

use super::errors;
use super::record::{Billed, SentFile};
use super::refusal::Refusal;
use super::script::Event;
use super::vendor::Vendor;

/// An answer, complete.
pub(super) struct Said {
    pub(super) status: u16,
    pub(super) billed: Option<Billed>,
    /// The bill when nothing was generated yet.
    pub(super) billed_for_prompt: Billed,
    pub(super) words: Words,
    pub(super) form: Form,
}

/// An answer in the form in which it is sent.
pub(super) enum Words {
    /// JSON.
    Whole(String),
    Streamed(Stream),
    /// A content type, and bytes that come in pieces.
    Pieces(&'static str, Vec<Vec<u8>>),
    /// A content type, and bytes whose number is told first.
    File(&'static str, Vec<u8>),
    /// Nothing but another address.
    Moved(String),
}

/// What was found in the body of a request beside JSON.
#[derive(Debug, Default)]
pub(super) struct Form {
    pub(super) files: Vec<SentFile>,
    pub(super) fields: Vec<(String, String)>,
}

impl Said {
    /// An answer of JSON to a request that had nothing else in it.
    pub(super) fn whole(billed: Billed, body: String) -> Said {
        Said::new(billed, billed, Words::Whole(body))
    }

    /// An answer that costs nothing.
    pub(super) fn free(status: u16, words: Words) -> Said {
        let nothing = Billed::default();
        Said { status, billed: None, ..Said::new(nothing, nothing, words) }
    }

    pub(super) fn new(billed: Billed, billed_for_prompt: Billed, words: Words) -> Said {
        let billed = Some(billed);
        Said { status: 200, billed, billed_for_prompt, words, form: Form::default() }
    }
}

/// The habits of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Habit {
    Chat,
    /// Events have names, and pings between them.
    Messages,
    /// Events have names and numbers.
    Responses,
}

/// The events of a stream.
pub(super) struct Stream {
    /// All but the last.
    pub(super) events: Vec<Event>,
    /// The name and the data of the last.
    pub(super) end: (&'static str, String),
    pub(super) habit: Habit,
}

impl Stream {
    /// The stream of a chat or messages endpoint.
    pub(super) fn of_conversation(vendor: Vendor, events: Vec<Event>) -> Stream {
        let (name, data) = vendor.last_event();
        let habit = if vendor == Vendor::A { Habit::Messages } else { Habit::Chat };
        Stream { events, end: (name, data.to_owned()), habit }
    }

    /// The name and the data of an error after at most so many events.
    pub(super) fn error(
        &self,
        vendor: Vendor,
        serial: u64,
        limit: usize,
    ) -> (&'static str, String) {
        let refusal = Refusal::usual(vendor.status_within_stream());
        match self.habit {
            Habit::Chat => ("", errors::body(vendor, serial, &refusal)),
            Habit::Messages => ("error", errors::body(vendor, serial, &refusal)),
            Habit::Responses => ("error", errors::within_response(limit.min(self.events.len()))),
        }
    }
}
