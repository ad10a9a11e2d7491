//! What of a request goes into the vendor's cache, or comes out of it.

use serde_json::Value;

use super::super::faults::{Fault, Faults};
use super::super::record::Record;
use super::super::reply::fnv;

/// How long a part is kept; longer is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Life {
    Minutes,
    Hour,
}

/// Tokens of a prompt which were kept, or are from now on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) read: u64,
    pub(super) written: u64,
    /// Of those written, the ones kept for an hour.
    pub(super) for_an_hour: u64,
    /// Whether a fault says so, whatever the prompt holds.
    exact: bool,
}

/// A place up to which a request is kept.
struct Mark {
    life: Life,
    digest: String,
    bytes: usize,
}

impl Kept {
    /// Finds out what was kept of earlier requests, and keeps this one.
    pub(super) fn new(body: &Value, faults: &Faults, record: &Record) -> Kept {
        let (read, written) = (faults.number(Fault::CacheRead), faults.number(Fault::CacheWrite));
        if read.is_some() || written.is_some() {
            let (read, written) = (read.unwrap_or(0), written.unwrap_or(0));
            return Kept { read, written, for_an_hour: 0, exact: true };
        }
        let marks = marks(body);
        let digests: Vec<_> = marks.iter().map(|mark| mark.digest.clone()).collect();
        let known = record.cache(&digests);
        let mut kept = Kept::default();
        let mut before = 0;
        for (at, mark) in marks.iter().enumerate() {
            let tokens = mark.bytes as u64 / 4;
            let added = tokens - before;
            before = tokens;
            if at < known {
                kept.read += added;
            } else {
                kept.written += added;
                kept.for_an_hour += if mark.life == Life::Hour { added } else { 0 };
            }
        }
        kept
    }

    /// The least that the prompt has to be.
    pub(super) fn least(&self) -> u64 {
        if self.exact { self.read.saturating_add(self.written) } else { 0 }
    }

    /// The same in a prompt that may hold less.
    pub(super) fn within(self, prompt: u64) -> Kept {
        let read = self.read.min(prompt);
        let written = self.written.min(prompt - read);
        Kept { read, written, for_an_hour: self.for_an_hour.min(written), ..self }
    }
}

/// How long the marked parts of a request are to be kept, in their order.
pub(super) fn lives(body: &Value) -> Vec<Life> {
    marks(body).iter().map(|mark| mark.life).collect()
}

/// All marks, in the order tools, system, messages; the one at the top stands for the end.
fn marks(body: &Value) -> Vec<Mark> {
    let mut walk = Walk { said: body["model"].to_string(), marks: Vec::new() };
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    for tool in list(&body["tools"]) {
        walk.pass(&tool);
    }
    walk.content(&body["system"]);
    for message in list(&body["messages"]) {
        walk.said.push_str(message["role"].as_str().unwrap_or_default());
        walk.content(&message["content"]);
    }
    walk.mark(&body["cache_control"]);
    walk.marks
}

struct Walk {
    /// All that was passed, the marks left out.
    said: String,
    marks: Vec<Mark>,
}

impl Walk {
    fn content(&mut self, content: &Value) {
        match content.as_array() {
            Some(blocks) => blocks.iter().for_each(|block| self.pass(block)),
            None => self.said.push_str(&content.to_string()),
        }
    }

    fn pass(&mut self, block: &Value) {
        let mut bare = block.clone();
        if let Some(members) = bare.as_object_mut() {
            members.remove("cache_control");
        }
        if let Some(within) = block["content"].as_array() {
            bare["content"] = Value::Null;
            for block in within {
                self.pass(block);
            }
        }
        self.said.push_str(&bare.to_string());
        self.mark(&block["cache_control"]);
    }

    fn mark(&mut self, control: &Value) {
        if control.is_null() {
            return;
        }
        let life = if control["ttl"] == "1h" { Life::Hour } else { Life::Minutes };
        let (digest, bytes) = (fnv(self.said.as_bytes()), self.said.len());
        self.marks.push(Mark { life, digest, bytes });
    }
}
