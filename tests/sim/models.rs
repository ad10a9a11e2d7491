//! The list of a vendor's models, which costs nothing. It fails as everything at its address does,
//! and is counted apart from the calls.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::delivery::{After, GARBAGE, PAGE, gzip};
use super::errors;
use super::faults::{Fault, Faults};
use super::record::Record;
use super::refusal::Refusal;
use super::vendor::Vendor;
use super::wire::{Head, Wire};

const LIST: &str = r#"{"object":"list","data":[{"id":"m","object":"model","created":1}]}"#;
const HOLD_MAX: Duration = Duration::from_secs(30);

/// A question for the list.
pub(super) struct List {
    vendor: Vendor,
    faults: Faults,
    has_key: bool,
}

impl List {
    /// The question, if a request is one.
    pub(super) fn asked(head: &Head, record: &Record) -> Option<List> {
        let path = head.path.strip_prefix('/').filter(|_| head.method == "GET")?;
        let (vendor, rest) = path.split_once('/')?;
        let vendor = Vendor::named(vendor)?;
        let rest = rest.strip_suffix("/models")?.strip_suffix(vendor.version())?;
        let faults = Faults::parse(rest.strip_suffix('/').unwrap_or(rest)).ok()?;
        record.probes.fetch_add(1, Ordering::Relaxed);
        let is_over = |times| record.arrivals(&head.path) > times;
        let faults = match faults.number(Fault::Times) {
            Some(times) if is_over(times) => faults.after_their_times(),
            _ => faults,
        };
        let has_key = ["authorization", "x-api-key"].iter().any(|name| head.header(name).is_some());
        Some(List { vendor, faults, has_key })
    }

    pub(super) async fn answer(self, wire: &mut Wire) -> io::Result<After> {
        let faults = &self.faults;
        if let Some(millis) = faults.number(Fault::Delay) {
            tokio::time::sleep(Duration::from_millis(millis)).await;
        }
        if faults.number(Fault::Reset) == Some(0) {
            return Ok(After::Reset);
        }
        if faults.number(Fault::Stall) == Some(0) {
            wire.hold(HOLD_MAX).await;
            return Ok(After::Close);
        }
        let status = faults.number(Fault::Status).map(|status| u16::try_from(status).expect("one"));
        let status = status.or((!self.has_key).then_some(401)).unwrap_or(200);
        let is_refused = faults.has(Fault::Status) || !self.has_key;
        let mut body = match () {
            () if is_refused => errors::body(self.vendor, 0, &Refusal::usual(status)).into_bytes(),
            () if faults.has(Fault::Garbage) => GARBAGE.to_vec(),
            () if faults.has(Fault::Page) => PAGE.as_bytes().to_vec(),
            () if faults.has(Fault::Empty) => Vec::new(),
            () => LIST.as_bytes().to_vec(),
        };
        let coding = if faults.has(Fault::Gzip) {
            body = gzip(&body);
            "content-encoding: gzip\r\n"
        } else {
            ""
        };
        let wait = faults.number(Fault::RetryAfter).map(|s| format!("retry-after: {s}\r\n"));
        let more = format!("{coding}{}", wait.unwrap_or_default());
        let kind = if faults.has(Fault::Page) { "text/html" } else { "application/json" };
        let head = format!(
            "HTTP/1.1 {status} {}\r\ncontent-type: {kind}\r\n{more}content-length: {}\r\n\r\n",
            errors::reason(status),
            body.len()
        );
        wire.write(head.as_bytes()).await?;
        let broken = [Fault::Stall, Fault::Cut, Fault::Reset];
        let Some(fault) = broken.into_iter().find(|fault| faults.has(*fault)) else {
            wire.write(&body).await?;
            return Ok(After::Keep);
        };
        wire.write(&body[..body.len() / 2]).await?;
        match fault {
            Fault::Stall => wire.hold(HOLD_MAX).await,
            Fault::Reset => return Ok(After::Reset),
            _ => {}
        }
        Ok(After::Close)
    }
}
