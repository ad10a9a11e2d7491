//! From a request to a vendor's answer.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use super::address::{Address, first_segment};
use super::delivery::{self, After, Delivery, EVENTS, Opening};
use super::faults::{Fault, Faults};
use super::record::{Billed, Record, Seen, Ticket};
use super::reply::{Ask, Reply};
use super::script;
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
    let vendor = address.map_or(first_segment(&head.path), |address| address.vendor.name());
    let mut seen = Seen::new(vendor, &head.method, &head.path).with_body(&body);
    seen.faults = address.map_or("", |address| address.faults).to_owned();
    seen.headers = std::mem::take(&mut head.headers);
    let credential = Credential::of(&seen);
    let known_vendor = Vendor::named(vendor);
    if let Some(vendor) = known_vendor {
        record.add_one(vendor);
    }
    let ticket = record.enter(seen);
    let serial = record.next_serial();
    let mut faults = Faults::default();
    let mut message = None;
    let status = match address {
        _ if head.method != "POST" => Some(405),
        None | Some(Address { vendor: Vendor::A, .. }) => Some(404),
        Some(address) => match Faults::parse(address.faults) {
            Ok(parsed) => {
                faults = still_in_force(parsed, record, &head.path);
                (credential != Credential::OfVendor).then_some(401)
            }
            Err(error) => {
                message = Some(error);
                Some(500)
            }
        },
    };
    let vendor = known_vendor.unwrap_or(Vendor::B);
    if let Some(status) = status {
        let faults = Faults::default();
        let mut delivery = Delivery { wire, ticket: &ticket, faults: &faults, sent: 0 };
        return delivery.error((vendor, status, serial), message.as_deref()).await;
    }
    let answer = Answer { vendor, faults: &faults, serial, body };
    let after = answer.give(wire, &ticket).await;
    if after.is_err() {
        ticket.complete(false);
    }
    after
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
    serial: u64,
    body: Bytes,
}

impl Answer<'_> {
    /// Decides what is billed before the first byte leaves, so that no test has to wait for it.
    async fn give(&self, wire: &mut Wire, ticket: &Ticket<'_>) -> io::Result<After> {
        let Answer { vendor, faults, serial, .. } = *self;
        let mut delivery = Delivery { wire, ticket, faults, sent: 0 };
        if let Some(status) = faults.number(Fault::Status) {
            self.delay().await;
            let status = u16::try_from(status).expect("a status has three digits");
            return delivery.error((vendor, status, serial), None).await;
        }
        let ask = match Ask::parse(&self.body, vendor) {
            Ok(ask) => ask,
            Err(message) => {
                self.delay().await;
                return delivery.error((vendor, 400, serial), Some(&message)).await;
            }
        };
        if faults.has(Fault::Garbage) {
            self.delay().await;
            return delivery.garbage(serial, ask.stream).await;
        }
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let reply = Reply::new((vendor, serial, created), &ask, faults, &self.body);
        let content_type = if ask.stream { EVENTS } else { "application/json" };
        let opening = Opening { status: 200, content_type, serial };
        if !ask.stream {
            ticket.bill((faults.number(Fault::Reset) != Some(0)).then_some(reply.billed));
            self.delay().await;
            return delivery.whole(&opening, script::whole(&reply, &ask, faults).as_bytes()).await;
        }
        let events = script::events(&reply, &ask, faults);
        let at_once = [Fault::Gzip, Fault::LengthLong, Fault::LengthShort];
        if at_once.iter().any(|fault| faults.has(*fault)) {
            ticket.bill((faults.number(Fault::Reset) != Some(0)).then_some(reply.billed));
            self.delay().await;
            return delivery.whole(&opening, delivery::joined(&events, faults).as_bytes()).await;
        }
        ticket.bill(billed_of_stream(&reply, &events, faults));
        self.delay().await;
        delivery.stream(&opening, vendor, &events).await
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

fn billed_of_stream(reply: &Reply, events: &[script::Event], faults: &Faults) -> Option<Billed> {
    match delivery::break_off(faults) {
        None => Some(reply.billed),
        Some((Fault::Reset, 0)) => None,
        Some((_, 0)) => Some(reply.billed_for_prompt()),
        Some((_, count)) => events.get(count - 1).or(events.last()).map(|event| event.billed),
    }
}
