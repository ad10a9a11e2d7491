//! Replies in formats that pass, with what is known of them once they have passed.

use bytes::Bytes;
use serde_json::Value as Json;
use tollgate::dialect::json::{JsonDocument, JsonValue};
use tollgate::dialect::relay::{Relay, RelayMode, RelayProgress, RetainedData};
use tollgate::dialect::responses::IssuedIds;
use tollgate::money::Usage;

use super::golden::Golden;
use super::requests::same_members;

/// A reply that has passed.
#[derive(Debug)]
pub(super) struct Relayed {
    pub(super) out: Vec<u8>,
    pub(super) progress: RelayProgress,
    pub(super) due: Option<Usage>,
    pub(super) given: IssuedIds,
}

/// Passes a reply in pieces of a size; `input` are the tokens that were counted of the call.
pub(super) fn pass(relay: Relay, reply: &[u8], size: usize, input: u64) -> Relayed {
    let (mut relay, mut out, mut given) = (relay, Vec::new(), IssuedIds::default());
    for piece in reply.chunks(size.min(reply.len().max(1))) {
        out.extend(relay.push(Bytes::copy_from_slice(piece)).unwrap_or_default());
        take_ids(&mut relay, &mut given);
    }
    out.extend(relay.finish().unwrap_or_default());
    take_ids(&mut relay, &mut given);
    let (progress, due) = (relay.progress().clone(), relay.billable_usage(input));
    Relayed { out, progress, due, given }
}

/// The same, of a reply in one body.
pub(super) fn pass_whole(passage: RelayMode, golden: &Golden, size: usize, input: u64) -> Relayed {
    pass(Relay::new(passage, false), &given(golden), size, input)
}

/// The body of a case, as the vendor sends it.
pub(super) fn given(golden: &Golden) -> Vec<u8> {
    match golden.bytes("given") {
        Some(given) => given.to_vec(),
        None => golden.text("given_text").into_bytes(),
    }
}

/// As the gateway does it: whatever is new goes to those that are known.
fn take_ids(relay: &mut Relay, given: &mut IssuedIds) {
    if let Some(RetainedData::IssuedIds(new)) = relay.take_retained() {
        given.response_ids.extend(new.response_ids);
        given.item_ids.extend(new.item_ids);
    }
}

impl Relayed {
    /// Whether a body is what the case expects, or as it was given. What is written anew has its
    /// members in any order; nothing else of it is free.
    pub(super) fn is_made_rightly(&self, golden: &Golden) -> Result<(), String> {
        if self.progress != RelayProgress::Complete {
            return self.is(b"");
        }
        let Some(expected) = golden.bytes("expect") else { return self.is(&given(golden)) };
        let made = JsonDocument::parse(Bytes::from(self.out.clone()));
        let made = made.map_err(|fault| fault.to_string())?;
        same_members(JsonValue::from_validated(&expected), JsonValue::from_validated(made.body()))
    }

    /// The body or the events, as a text.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    /// What is to be paid, as it stands in a journal, with who says so.
    pub(super) fn journal(&self) -> Json {
        let Some(Usage { units, basis }) = self.due else { return Json::Null };
        let mut due = serde_json::to_value(units).expect("units");
        due["basis"] = serde_json::to_value(basis).expect("a basis");
        due
    }

    /// Whether it ended as the case says: for `why`, or complete.
    pub(super) fn ended_rightly(&self, golden: &Golden) -> Result<(), String> {
        let expected = golden.json("why");
        let why = match &self.progress {
            RelayProgress::Failed(why) => {
                let body: Json = serde_json::from_str(&why.chat_body()).expect("an error body");
                body["error"]["message"].clone()
            }
            RelayProgress::Complete => Json::Null,
            RelayProgress::Open => "it has not ended".into(),
        };
        if why == expected { Ok(()) } else { Err(format!("it ended for {why} not {expected}")) }
    }

    /// Whether what is to be paid is what the case says.
    pub(super) fn costs_rightly(&self, golden: &Golden) -> Result<(), String> {
        let (due, expected) = (self.journal(), golden.json("due"));
        if due == expected { Ok(()) } else { Err(format!("due is {due} not {expected}")) }
    }

    /// Whether the client got these bytes.
    pub(super) fn is(&self, expected: &[u8]) -> Result<(), String> {
        if self.out == expected {
            return Ok(());
        }
        let expected = String::from_utf8_lossy(expected);
        Err(format!("\n  is  {}\n  not {expected}", self.text()))
    }
}
