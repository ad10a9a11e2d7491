//! From a request to a vendor's answer.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use super::address::{Address, first_segment};
use super::asked::{Asked, Place};
use super::delivery::{self, After, Delivery, EVENTS, Opening};
use super::endpoint::Endpoint;
use super::faults::{Fault, Faults};
use super::messages::Terms;
use super::record::{Billed, Record, Seen, Ticket};
use super::refusal::Refusal;
use super::said::{Said, Words};
use super::script::Event;
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
    seen.protocol = Some(wire.protocol());
    seen.faults = address.map_or("", |address| address.faults).to_owned();
    seen.headers = std::mem::take(&mut head.headers);
    let known_vendor = Vendor::named(named);
    if let Some(vendor) = known_vendor {
        record.add_one(vendor);
    }
    if let Some(address) = address.filter(|address| address.endpoint.method() == head.method) {
        record.videos.count(address.endpoint, address.job);
    }
    let place = Place {
        origin: format!(
            "{}://{}",
            wire.protocol().scheme(),
            seen.header("host").unwrap_or_default()
        ),
        faults: seen.faults.clone(),
        job: address.map_or("", |address| address.job).to_owned(),
        key: keys(&seen).next().unwrap_or_default().to_owned(),
    };
    let admitted = admit(&head, address, &seen, record);
    let content_type = seen.header("content-type").unwrap_or_default().to_owned();
    let ticket = record.enter(seen);
    let serial = record.next_serial();
    let vendor = known_vendor.unwrap_or(Vendor::B);
    let Admitted { endpoint, faults, terms } = match admitted {
        Ok(admitted) => admitted,
        Err(refusal) => {
            let faults = Faults::default();
            let mut delivery = Delivery { wire, ticket: &ticket, faults: &faults, sent: 0 };
            return delivery.error(vendor, serial, &refusal).await;
        }
    };
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let asked =
        Asked { vendor, endpoint, faults, place, terms, serial, created, content_type, body };
    let after = give(&asked, wire, &ticket, record).await;
    if after.is_err() {
        ticket.complete(false);
    }
    after
}

/// On what terms a request comes.
struct Admitted {
    endpoint: Endpoint,
    faults: Faults,
    terms: Terms,
}

/// The terms of a request, or why it is refused before it is read.
fn admit(
    head: &Head,
    address: Option<Address<'_>>,
    seen: &Seen,
    record: &Record,
) -> Result<Admitted, Refusal> {
    if head.method != address.map_or("POST", |address| address.endpoint.method()) {
        return Err(Refusal::usual(405));
    }
    let address = address.ok_or_else(|| Refusal::usual(404))?;
    let faults = Faults::aimed(address.faults, address.endpoint.aim());
    let faults = faults.map_err(|error| Refusal::new(500, error))?;
    let faults = still_in_force(faults, record, &head.path);
    let terms = match Credential::of(seen) {
        _ if address.endpoint == Endpoint::File => terms_of_file(seen)?,
        _ if address.vendor == Vendor::A => Terms::of(&seen.headers)?,
        Credential::OfVendor => Terms::default(),
        _ => return Err(Refusal::usual(401)),
    };
    Ok(Admitted { endpoint: address.endpoint, faults, terms })
}

/// The host of files takes no key, as one whose addresses are signed themselves: it is no business
/// of that host's.
fn terms_of_file(seen: &Seen) -> Result<Terms, Refusal> {
    match seen.header("authorization").or(seen.header("x-api-key")) {
        None => Ok(Terms::default()),
        Some(_) => Err(Refusal::new(400, "Only one way of authorization is allowed.")),
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
        if keys(seen).any(|key| key.starts_with("sk-")) {
            return Credential::OfClient;
        }
        if keys(seen).next().is_some() { Credential::OfVendor } else { Credential::Missing }
    }
}

/// The keys that came with a request, but for empty ones.
fn keys(seen: &Seen) -> impl Iterator<Item = &str> {
    let bearer = seen.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
    let keys = [bearer, seen.header("x-api-key")].into_iter().flatten();
    keys.map(str::trim).filter(|key| !key.is_empty())
}

/// Decides what is billed before the first byte leaves, so that no test has to wait for it.
async fn give(
    asked: &Asked,
    wire: &mut Wire,
    ticket: &Ticket<'_>,
    record: &Record,
) -> io::Result<After> {
    let Asked { vendor, ref faults, serial, .. } = *asked;
    let mut delivery = Delivery { wire, ticket, faults, sent: 0 };
    if let Some(status) = faults.number(Fault::Status) {
        delay(faults).await;
        let status = u16::try_from(status).expect("a status has three digits");
        return delivery.error(vendor, serial, &Refusal::usual(status)).await;
    }
    let said = match asked.say(record) {
        Ok(said) => said,
        Err(refusal) => {
            delay(faults).await;
            return delivery.error(vendor, serial, &refusal).await;
        }
    };
    ticket.found(&said.form.files, &said.form.fields);
    if asked.endpoint == Endpoint::Submit {
        // It is made, and paid for, whatever becomes of this answer.
        ticket.bill(said.billed);
    }
    let content_type = match said.words {
        Words::Whole(_) => "application/json",
        Words::Streamed(_) => EVENTS,
        Words::Pieces(content_type, _) | Words::File(content_type, _) => content_type,
        Words::Moved(_) => "text/plain",
    };
    let opening = Opening { vendor, status: said.status, content_type, serial };
    if faults.has(Fault::Page) || faults.has(Fault::Empty) {
        delay(faults).await;
        return delivery.no_answer(&opening).await;
    }
    if faults.has(Fault::Garbage) {
        delay(faults).await;
        ticket.held(faults).await;
        return delivery.garbage(&Opening { status: 200, ..opening }).await;
    }
    let at_once = [Fault::Gzip, Fault::LengthLong, Fault::LengthShort];
    let at_once = at_once.iter().any(|fault| faults.has(*fault));
    let unsaid = faults.number(Fault::Reset) == Some(0) && asked.endpoint != Endpoint::Submit;
    let billed = said.billed.filter(|_| !unsaid);
    let body = match said.words {
        Words::Whole(body) => body.into_bytes(),
        Words::Streamed(stream) if at_once => delivery::joined(&stream, faults).into_bytes(),
        Words::Pieces(_, pieces) if at_once => pieces.concat(),
        Words::File(_, bytes) if at_once => bytes,
        Words::File(_, bytes) => {
            delay(faults).await;
            return delivery.file(&opening, &bytes).await;
        }
        Words::Moved(location) => {
            delay(faults).await;
            return delivery.moved(&opening, &location).await;
        }
        Words::Streamed(ref stream) => {
            ticket.bill(billed_of_stream(&said, &stream.events, faults));
            delay(faults).await;
            return delivery.stream(&opening, stream).await;
        }
        Words::Pieces(_, pieces) => {
            ticket.bill(billed);
            delay(faults).await;
            ticket.held(faults).await;
            return delivery.pieces(&opening, &pieces).await;
        }
    };
    ticket.bill(billed);
    delay(faults).await;
    ticket.held(faults).await;
    delivery.whole(&opening, &body).await
}

async fn delay(faults: &Faults) {
    if let Some(millis) = faults.number(Fault::Delay) {
        tokio::time::sleep(Duration::from_millis(millis)).await;
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
        None => said.billed,
        Some((Fault::Reset, 0)) => None,
        Some((_, 0)) => Some(said.billed_for_prompt),
        Some((_, count)) => events.get(count - 1).or(events.last()).map(|event| event.billed),
    }
}
