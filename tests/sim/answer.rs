//! From a request to a vendor's answer.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use super::address::{Address, first_segment};
use super::delivery::{self, After, Delivery, EVENTS, Opening};
use super::faults::{Fault, Faults};
use super::messages::{Call, Terms};
use super::record::{Billed, Record, Seen, Ticket};
use super::reply::{Ask, Reply};
use super::script::{self, Event};
use super::vendor::Vendor;
use super::wire::{Head, Wire};

/// Answers a request to a vendor, and writes it down.
pub(super) async fn answer(
    wire: &mut Wire,
    record: &Record,
    mut head: Head,
    body: Bytes,
) -> io::Result<After> {
    let address = Address::parse(&head.path);
    let named = address.map_or(first_segment(&head.path), |address| address.vendor.name());
    let mut seen = Seen::new(named, &head.method, &head.path).with_body(&body);
    seen.faults = address.map_or("", |address| address.faults).to_owned();
    seen.headers = std::mem::take(&mut head.headers);
    let known_vendor = Vendor::named(named);
    if let Some(vendor) = known_vendor {
        record.add_one(vendor);
    }
    let admitted = admit(&head, address, &seen, record);
    let ticket = record.enter(seen);
    let serial = record.next_serial();
    let vendor = known_vendor.unwrap_or(Vendor::B);
    let (faults, terms) = match admitted {
        Ok(admitted) => admitted,
        Err((status, message)) => {
            let faults = Faults::default();
            let mut delivery = Delivery { wire, ticket: &ticket, faults: &faults, sent: 0 };
            return delivery.error((vendor, status, serial), message.as_deref()).await;
        }
    };
    let answer = Answer { vendor, faults: &faults, terms: &terms, serial, body };
    let after = answer.give(wire, &ticket, record).await;
    if after.is_err() {
        ticket.complete(false);
    }
    after
}

/// The faults of a request, and on what terms it comes; otherwise the status it is refused with.
fn admit(
    head: &Head,
    address: Option<Address<'_>>,
    seen: &Seen,
    record: &Record,
) -> Result<(Faults, Terms), (u16, Option<String>)> {
    if head.method != "POST" {
        return Err((405, None));
    }
    let address = address.ok_or((404, None))?;
    let faults = Faults::parse(address.faults).map_err(|error| (500, Some(error)))?;
    let faults = still_in_force(faults, record, &head.path);
    if address.vendor == Vendor::A {
        return Ok((faults, Terms::of(&seen.headers)?));
    }
    match Credential::of(seen) {
        Credential::OfVendor => Ok((faults, Terms::default())),
        _ => Err((401, None)),
    }
}

/// Whose key came with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Credential {
    Missing,
    /// A client's, which must never leave the gateway.
    OfClient,
    OfVendor,
}

impl Credential {
    fn of(seen: &Seen) -> Credential {
        let bearer = seen.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
        let keys = [bearer, seen.header("x-api-key")];
        if keys.iter().flatten().any(|key| key.trim().starts_with("sk-")) {
            return Credential::OfClient;
        }
        if keys.iter().flatten().any(|key| !key.trim().is_empty()) {
            Credential::OfVendor
        } else {
            Credential::Missing
        }
    }
}

struct Answer<'a> {
    vendor: Vendor,
    faults: &'a Faults,
    terms: &'a Terms,
    serial: u64,
    body: Bytes,
}

/// What a vendor says, complete before the first byte of it is sent.
struct Said {
    billed: Billed,
    billed_for_prompt: Billed,
    words: Words,
}

enum Words {
    Whole(String),
    Streamed(Vec<Event>),
}

impl Answer<'_> {
    /// Decides what is billed before the first byte leaves, so that no test has to wait for it.
    async fn give(
        &self,
        wire: &mut Wire,
        ticket: &Ticket<'_>,
        record: &Record,
    ) -> io::Result<After> {
        let Answer { vendor, faults, serial, .. } = *self;
        let mut delivery = Delivery { wire, ticket, faults, sent: 0 };
        if let Some(status) = faults.number(Fault::Status) {
            self.delay().await;
            let status = u16::try_from(status).expect("a status has three digits");
            return delivery.error((vendor, status, serial), None).await;
        }
        let said = match self.say(record) {
            Ok(said) => said,
            Err((status, message)) => {
                self.delay().await;
                return delivery.error((vendor, status, serial), Some(&message)).await;
            }
        };
        let content_type = match said.words {
            Words::Whole(_) => "application/json",
            Words::Streamed(_) => EVENTS,
        };
        let opening = Opening { vendor, status: 200, content_type, serial };
        if faults.has(Fault::Garbage) {
            self.delay().await;
            return delivery.garbage(&opening).await;
        }
        let at_once = [Fault::Gzip, Fault::LengthLong, Fault::LengthShort];
        let body = match &said.words {
            Words::Whole(body) => body.clone(),
            Words::Streamed(events) if at_once.iter().any(|fault| faults.has(*fault)) => {
                delivery::joined(vendor, events, faults)
            }
            Words::Streamed(events) => {
                ticket.bill(billed_of_stream(&said, events, faults));
                self.delay().await;
                return delivery.stream(&opening, events).await;
            }
        };
        ticket.bill((faults.number(Fault::Reset) != Some(0)).then_some(said.billed));
        self.delay().await;
        delivery.whole(&opening, body.as_bytes()).await
    }

    /// The answer, or a status and a message that refuse the request.
    fn say(&self, record: &Record) -> Result<Said, (u16, String)> {
        let Answer { vendor, faults, serial, .. } = *self;
        if vendor == Vendor::A {
            let call = Call::read(&self.body, self.terms)?;
            let turn = call.turn(serial, faults, &self.body, record);
            let words = if call.stream() {
                Words::Streamed(turn.events())
            } else {
                Words::Whole(turn.whole())
            };
            let (billed, billed_for_prompt) = (turn.billed(), turn.billed_for_prompt());
            return Ok(Said { billed, billed_for_prompt, words });
        }
        let ask = Ask::parse(&self.body, vendor).map_err(|message| (400, message))?;
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let reply = Reply::new((vendor, serial, created), &ask, faults, &self.body);
        let words = if ask.stream {
            Words::Streamed(script::events(&reply, &ask, faults))
        } else {
            Words::Whole(script::whole(&reply, &ask, faults))
        };
        Ok(Said { billed: reply.billed, billed_for_prompt: reply.billed_for_prompt(), words })
    }

    async fn delay(&self) {
        if let Some(millis) = self.faults.number(Fault::Delay) {
            tokio::time::sleep(Duration::from_millis(millis)).await;
        }
    }
}

fn still_in_force(faults: Faults, record: &Record, path: &str) -> Faults {
    match faults.number(Fault::Times) {
        Some(times) if record.arrivals(path) > times => faults.after_their_times(),
        _ => faults,
    }
}

fn billed_of_stream(said: &Said, events: &[Event], faults: &Faults) -> Option<Billed> {
    match delivery::break_off(faults) {
        None => Some(said.billed),
        Some((Fault::Reset, 0)) => None,
        Some((_, 0)) => Some(said.billed_for_prompt),
        Some((_, count)) => events.get(count - 1).or(events.last()).map(|event| event.billed),
    }
}
