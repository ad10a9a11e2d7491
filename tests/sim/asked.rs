//! A request that is admitted, on its way to the endpoint it asks for.

use bytes::Bytes;
use serde_json::{Value, json};

use super::endpoint::Endpoint;
use super::errors;
use super::faults::{Fault, Faults};
use super::messages::{Call, Terms};
use super::record::{Billed, Record};
use super::refusal::Refusal;
use super::reply::{Ask, Reply};
use super::said::{Said, Stream, Words};
use super::script;
use super::vendor::Vendor;
use super::{embeddings, images, moderations, responses, speech, videos};

/// A request, and the circumstances of its answer.
pub(super) struct Asked {
    pub(super) vendor: Vendor,
    pub(super) endpoint: Endpoint,
    pub(super) faults: Faults,
    pub(super) place: Place,
    pub(super) terms: Terms,
    pub(super) serial: u64,
    /// When it came, in seconds since 1970.
    pub(super) created: u64,
    pub(super) content_type: String,
    pub(super) body: Bytes,
}

/// Where a request went, and whose it is, as far as the next one depends on it.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// The scheme and the host, as the client calls them.
    pub(super) origin: String,
    /// The faults as written.
    pub(super) faults: String,
    /// The id of a job at the end of the path.
    pub(super) job: String,
    /// The key that came with it.
    pub(super) key: String,
}

impl Asked {
    /// The answer, or why there is none.
    pub(super) fn say(&self, record: &Record) -> Result<Said, Refusal> {
        if self.faults.has(Fault::BadKey) {
            return Err(errors::of_key(self.vendor));
        }
        match self.endpoint {
            Endpoint::Messages => self.say_message(record),
            Endpoint::Chat => self.say_chat(),
            Endpoint::Responses => responses::answer(self, record),
            Endpoint::Generations | Endpoint::Edits => images::answer(self),
            Endpoint::Speech => speech::answer(self),
            Endpoint::Embeddings => embeddings::answer(self),
            Endpoint::Moderations => moderations::answer(self),
            Endpoint::CountTokens => self.count_message(),
            Endpoint::InputTokens => responses::count(self, record),
            Endpoint::Compact => responses::compact(self, record),
            Endpoint::Submit | Endpoint::Poll | Endpoint::File => videos::answer(self, record),
        }
    }

    /// The body, which has to be an object in JSON and to be called so.
    pub(super) fn json(&self) -> Result<Value, Refusal> {
        let given = &self.content_type;
        let media = given.split(';').next().unwrap_or_default().trim();
        if !media.eq_ignore_ascii_case("application/json") {
            return Err(if self.vendor == Vendor::D {
                Refusal::new(415, "Expected request with `Content-Type: application/json`")
            } else {
                Refusal::new(
                    400,
                    format!(
                        "Unsupported content type: '{given}'. This API method only accepts \
                         'application/json' requests, but you specified the header \
                         'Content-Type: {given}'. Please try again with a supported content type."
                    ),
                )
                .coded("unsupported_content_type")
            });
        }
        let unreadable = |why: &str| {
            Refusal::new(400, format!("We could not parse the JSON body of your request: {why}"))
        };
        let body: Value =
            serde_json::from_slice(&self.body).map_err(|error| unreadable(&error.to_string()))?;
        if body.is_object() { Ok(body) } else { Err(unreadable("it is no object")) }
    }

    fn say_message(&self, record: &Record) -> Result<Said, Refusal> {
        let call = Call::read(&self.body, &self.terms)?;
        let turn = call.turn(self.serial, &self.faults, &self.body, record);
        let words = if call.stream() {
            Words::Streamed(Stream::of_conversation(self.vendor, turn.events()))
        } else {
            Words::Whole(turn.whole())
        };
        Ok(Said::new(turn.billed(), turn.billed_for_prompt(), words))
    }

    fn count_message(&self) -> Result<Said, Refusal> {
        let call = Call::read_to_count(&self.body, &self.terms)?;
        let tokens = call.input_tokens(self.serial, &self.faults, &self.body);
        Ok(Said::whole(Billed::default(), json!({ "input_tokens": tokens }).to_string()))
    }

    fn say_chat(&self) -> Result<Said, Refusal> {
        let Asked { vendor, ref faults, serial, created, .. } = *self;
        let ask = Ask::parse(&self.body, vendor).map_err(|message| Refusal::new(400, message))?;
        let reply = Reply::new(vendor, serial, created, &ask, faults, &self.body);
        let words = if ask.stream {
            let events = script::events(&reply, &ask, faults);
            Words::Streamed(Stream::of_conversation(vendor, events))
        } else {
            Words::Whole(script::whole(&reply, &ask, faults))
        };
        Ok(Said::new(reply.billed, reply.billed_for_prompt(), words))
    }
}

/// Whom a request asks, and for what.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) vendor: Vendor,
    pub(super) endpoint: Endpoint,
}

#[cfg(test)]
impl Asked {
    /// A request of JSON, as it arrives without faults of the way.
    pub(super) fn for_test(target: Target, faults: &str, body: &Value) -> Asked {
        let Target { vendor, endpoint } = target;
        Asked {
            vendor,
            endpoint,
            faults: Faults::aimed(faults, endpoint.aim()).expect("known faults"),
            place: Place {
                origin: "http://sim:99".into(),
                faults: faults.into(),
                ..Place::default()
            },
            terms: Terms::default(),
            serial: 7,
            created: 1_795_219_200,
            content_type: "application/json".to_owned(),
            body: Bytes::from(body.to_string()),
        }
    }

    /// The reply that is JSON, and its bill.
    pub(super) fn reply(&self) -> Result<(Value, Option<Billed>), Refusal> {
        let said = self.say(&Record::default())?;
        let Words::Whole(body) = said.words else { panic!("the reply does not come at once") };
        Ok((serde_json::from_str(&body).expect("a reply is JSON"), said.billed))
    }
}

/// Every line: what is changed in a body, where null takes a member away, and a part of what the
/// vendor says to it; nothing if it is fine.
#[cfg(test)]
pub(super) fn judge(target: Target, body: &Value, table: &[(Value, &str)]) {
    for (changes, expected) in table {
        let mut body = body.clone();
        for (name, value) in changes.as_object().expect("members") {
            let members = body.as_object_mut().expect("a body is an object");
            match value {
                Value::Null => drop(members.remove(name)),
                value => drop(members.insert(name.clone(), value.clone())),
            }
        }
        let said = Asked::for_test(target, "", &body).say(&Record::default());
        let said = said.err().and_then(|refusal| refusal.message).unwrap_or_default();
        let fits = if expected.is_empty() { said.is_empty() } else { said.contains(expected) };
        assert!(fits, "{changes} is answered with {said:?}");
    }
}
