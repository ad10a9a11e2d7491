//! The way of an answer onto the wire, with everything that can go wrong there.

use std::io;
use std::time::Duration;

use super::crc::crc32;
use super::errors;
use super::faults::{Fault, Faults};
use super::record::Ticket;
use super::refusal::Refusal;
use super::said::{Habit, Stream};
use super::script::Event;
use super::vendor::Vendor;
use super::wire::Wire;

mod file;

const HOLD_MAX: Duration = Duration::from_secs(30);
/// In which written bytes have surely arrived on the same machine.
const ARRIVAL: Duration = Duration::from_millis(10);
const HUGE_HEADER_BYTES: usize = 512 << 10;
const LENGTH_EXCESS: usize = 100;
const SINGLE_BYTES: usize = 400;
pub(super) const PAGE: &str =
    "<!doctype html>\n<title>Sign in</title><h1>Welcome to the network</h1>\n";
pub(super) const GARBAGE: &[u8] = b"\xff\xfe<html><h1>It works!</h1>\x00\n\n{\"choices\":[{]}\r\n";

/// What happens to the connection next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    Keep,
    Close,
    Reset,
}

/// The first lines of an answer.
pub(super) struct Opening<'a> {
    pub(super) vendor: Vendor,
    pub(super) status: u16,
    pub(super) content_type: &'a str,
    pub(super) serial: u64,
}

/// The delivery of one answer.
pub(super) struct Delivery<'a> {
    pub(super) wire: &'a mut Wire,
    pub(super) ticket: &'a Ticket<'a>,
    pub(super) faults: &'a Faults,
    /// Bytes of the body handed over.
    pub(super) sent: usize,
}

impl Delivery<'_> {
    /// An error of the vendor, which most faults leave alone.
    pub(super) async fn error(
        &mut self,
        vendor: Vendor,
        serial: u64,
        refusal: &Refusal,
    ) -> io::Result<After> {
        if self.faults.number(Fault::Reset) == Some(0) {
            return Ok(After::Reset);
        }
        let (body, status) = (errors::body(vendor, serial, refusal), refusal.status);
        let opening = Opening { vendor, status, content_type: "application/json", serial };
        let retry_after = self.faults.number(Fault::RetryAfter);
        let retry_after =
            retry_after.map_or_else(String::new, |seconds| format!("\r\nretry-after: {seconds}"));
        let advice = match (vendor, status) {
            (Vendor::A, 408 | 409 | 429 | 500..) => "\r\nx-should-retry: true",
            (Vendor::A, _) => "\r\nx-should-retry: false",
            _ => "",
        };
        let length = body.len();
        let head = self.head(&opening, &format!("content-length: {length}{retry_after}{advice}"));
        self.ticket.complete(true);
        self.wire.write(format!("{head}{body}").as_bytes()).await?;
        Ok(After::Keep)
    }

    /// A body that is complete before its first byte is sent.
    pub(super) async fn whole(&mut self, opening: &Opening<'_>, body: &[u8]) -> io::Result<After> {
        let faults = self.faults;
        if faults.number(Fault::Reset) == Some(0) {
            return Ok(After::Reset);
        }
        if faults.number(Fault::Stall) == Some(0) {
            return Ok(self.stall().await);
        }
        if self.wire.peer_is_gone() {
            return Ok(After::Close);
        }
        let packed;
        let (body, encoding) = if faults.has(Fault::Gzip) {
            packed = gzip(body);
            (packed.as_slice(), "\r\ncontent-encoding: gzip")
        } else {
            (body, "")
        };
        let length = if faults.has(Fault::LengthLong) {
            body.len() + LENGTH_EXCESS
        } else if faults.has(Fault::LengthShort) {
            body.len() / 2
        } else {
            body.len()
        };
        let head = self.head(opening, &format!("content-length: {length}{encoding}"));
        self.wire.write(head.as_bytes()).await?;
        let broken = [Fault::Stall, Fault::Cut, Fault::Reset];
        if let Some(fault) = broken.into_iter().find(|fault| faults.has(*fault)) {
            self.body(&body[..body.len() / 2], false).await?;
            return Ok(self.broken(fault).await);
        }
        self.ticket.complete(true);
        self.body(body, false).await?;
        Ok(if faults.has(Fault::LengthLong) { After::Close } else { After::Keep })
    }

    /// A stream of events.
    pub(super) async fn stream(
        &mut self,
        opening: &Opening<'_>,
        stream: &Stream,
    ) -> io::Result<After> {
        if self.faults.number(Fault::Reset) == Some(0) {
            return Ok(After::Reset);
        }
        if self.wire.peer_is_gone() {
            return Ok(After::Close);
        }
        let head = self.head(opening, "cache-control: no-cache\r\ntransfer-encoding: chunked");
        self.wire.write(head.as_bytes()).await?;
        let break_off = break_off(self.faults);
        let limit = break_off.map_or(usize::MAX, |(_, limit)| limit);
        let events = &stream.events;
        for (index, event) in events.iter().enumerate().take(limit) {
            if self.faults.number(Fault::Held) == Some(index as u64) {
                self.ticket.held(self.faults).await;
            }
            if index > 0 && self.pause(Fault::ChunkDelay).await {
                self.hung_up(events, index);
                return Ok(After::Close);
            }
            let text = event_text(event, index, stream.habit, self.faults);
            if let Err(error) = self.body(text.as_bytes(), true).await {
                self.hung_up(events, index);
                return Err(error);
            }
        }
        match break_off {
            Some((Fault::ErrorEvent, _)) => {
                let (name, data) = stream.error(opening.vendor, opening.serial, limit);
                let text = last_text(name, &data, self.faults);
                self.body(text.as_bytes(), true).await?;
                self.wire.write(b"0\r\n\r\n").await?;
                Ok(After::Close)
            }
            Some((fault, _)) => Ok(self.broken(fault).await),
            None => self.stream_end(stream).await,
        }
    }

    /// Bytes that are no events, but come bit by bit like them.
    pub(super) async fn pieces(
        &mut self,
        opening: &Opening<'_>,
        pieces: &[Vec<u8>],
    ) -> io::Result<After> {
        if self.faults.number(Fault::Reset) == Some(0) {
            return Ok(After::Reset);
        }
        if self.wire.peer_is_gone() {
            return Ok(After::Close);
        }
        let head = self.head(opening, "transfer-encoding: chunked");
        self.wire.write(head.as_bytes()).await?;
        let break_off = break_off(self.faults);
        let limit = break_off.map_or(usize::MAX, |(_, limit)| limit);
        for (index, piece) in pieces.iter().enumerate().take(limit) {
            if index > 0 && self.pause(Fault::ChunkDelay).await {
                return Ok(After::Close);
            }
            self.body(piece, true).await?;
        }
        if let Some((fault, _)) = break_off {
            return Ok(self.broken(fault).await);
        }
        self.ticket.complete(true);
        self.pause(Fault::KeepOpen).await;
        self.wire.write(b"0\r\n\r\n").await?;
        Ok(After::Keep)
    }

    /// 200 and nonsense.
    pub(super) async fn garbage(&mut self, opening: &Opening<'_>) -> io::Result<After> {
        if opening.content_type != EVENTS {
            return self.whole(opening, GARBAGE).await;
        }
        let head = self.head(opening, "cache-control: no-cache\r\ntransfer-encoding: chunked");
        self.wire.write(head.as_bytes()).await?;
        self.body(GARBAGE, true).await?;
        self.ticket.complete(true);
        self.wire.write(b"0\r\n\r\n").await?;
        Ok(After::Keep)
    }

    /// 200 and a page, or nothing at all.
    pub(super) async fn no_answer(&mut self, opening: &Opening<'_>) -> io::Result<After> {
        let is_page = self.faults.has(Fault::Page);
        let body = if is_page { PAGE } else { "" };
        let content_type = if is_page { "text/html; charset=utf-8" } else { opening.content_type };
        let opening = Opening { status: 200, content_type, ..*opening };
        let head = self.head(&opening, &format!("content-length: {}", body.len()));
        self.ticket.complete(true);
        self.wire.write(format!("{head}{body}").as_bytes()).await?;
        Ok(After::Keep)
    }

    async fn stream_end(&mut self, stream: &Stream) -> io::Result<After> {
        self.ticket.complete(true);
        let last = async {
            if !self.faults.has(Fault::NoDone) {
                let (name, data) = &stream.end;
                let text = last_text(name, data, self.faults);
                self.body(text.as_bytes(), true).await?;
            }
            self.pause(Fault::KeepOpen).await;
            self.wire.write(b"0\r\n\r\n").await
        };
        last.await?;
        Ok(After::Keep)
    }

    /// Waits as long as the fault says; true when the peer is gone afterwards.
    async fn pause(&mut self, fault: Fault) -> bool {
        let Some(millis) = self.faults.number(fault) else {
            return false;
        };
        tokio::time::sleep(Duration::from_millis(millis)).await;
        self.wire.peer_is_gone()
    }

    async fn broken(&mut self, fault: Fault) -> After {
        match fault {
            Fault::Stall => self.stall().await,
            Fault::Reset => {
                // A reset throws away what the peer did not acknowledge yet.
                tokio::time::sleep(ARRIVAL).await;
                After::Reset
            }
            _ => After::Close,
        }
    }

    async fn stall(&mut self) -> After {
        self.wire.hold(HOLD_MAX).await;
        After::Close
    }

    /// Most vendors do not notice; the one who does bills what he sent.
    fn hung_up(&self, events: &[Event], sent: usize) {
        if self.faults.has(Fault::HangupStops) {
            let last = events.get(sent.saturating_sub(1));
            self.ticket.bill(last.map(|event| event.billed));
        }
    }

    fn head(&self, opening: &Opening<'_>, headers: &str) -> String {
        let Opening { vendor, status, content_type, serial } = opening;
        let padding = if self.faults.has(Fault::HugeHeader) {
            format!("x-vendor-padding: {}\r\n", "p".repeat(HUGE_HEADER_BYTES))
        } else {
            String::new()
        };
        format!(
            "HTTP/1.1 {status} {}\r\ncontent-type: {content_type}\r\n\
             {}: req_vendor_{serial}\r\n{}{padding}{headers}\r\n\r\n",
            errors::reason(*status),
            vendor.request_id_header(),
            vendor.account_headers(),
        )
    }

    /// Writes bytes of the body, `in_chunks` of HTTP or bare.
    async fn body(&mut self, mut bytes: &[u8], in_chunks: bool) -> io::Result<()> {
        while !bytes.is_empty() {
            let size = match self.sent {
                _ if !self.faults.has(Fault::SplitUtf8) => bytes.len(),
                ..SINGLE_BYTES => 1,
                _ => bytes.len().min(3),
            };
            let (piece, rest) = bytes.split_at(size);
            if in_chunks {
                let mut chunk = format!("{size:x}\r\n").into_bytes();
                chunk.extend_from_slice(piece);
                chunk.extend_from_slice(b"\r\n");
                self.wire.write(&chunk).await?;
            } else {
                self.wire.write(piece).await?;
            }
            self.sent += size;
            bytes = rest;
            if !bytes.is_empty() {
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }
}

/// The content type of streams.
pub(super) const EVENTS: &str = "text/event-stream; charset=utf-8";

/// The fault which ends a stream early, and after how many events.
pub(super) fn break_off(faults: &Faults) -> Option<(Fault, usize)> {
    let known = [Fault::Stall, Fault::Cut, Fault::Reset, Fault::ErrorEvent];
    let asked = known.into_iter().filter_map(|fault| Some((fault, faults.number(fault)?)));
    let (fault, count) = asked.min_by_key(|(_, count)| *count)?;
    Some((fault, usize::try_from(count).unwrap_or(usize::MAX)))
}

/// A stream as the one body that it is for those who send it at once.
pub(super) fn joined(stream: &Stream, faults: &Faults) -> String {
    let numbered = stream.events.iter().enumerate();
    let mut text: String =
        numbered.map(|(index, event)| event_text(event, index, stream.habit, faults)).collect();
    if !faults.has(Fault::NoDone) {
        let (name, data) = &stream.end;
        text.push_str(&last_text(name, data, faults));
    }
    text
}

/// An event with what keeps the connection alive in front of it.
fn event_text(event: &Event, index: usize, habit: Habit, faults: &Faults) -> String {
    let mut text = comment(index, faults);
    // One ping at least, and none before the first event.
    if habit == Habit::Messages && (index == 1 || index > 0 && !text.is_empty()) {
        text.push_str(&bare_event("ping", r#"{"type":"ping"}"#, faults));
    }
    text + &bare_event(event.name, &event.data, faults)
}

/// The event after all others.
fn last_text(name: &str, data: &str, faults: &Faults) -> String {
    comment(0, faults) + &bare_event(name, data, faults)
}

fn comment(index: usize, faults: &Faults) -> String {
    if !faults.has(Fault::Comments) || !index.is_multiple_of(2) {
        return String::new();
    }
    let line_end = line_end(faults);
    format!(": keep-alive{line_end}{line_end}")
}

fn bare_event(name: &str, data: &str, faults: &Faults) -> String {
    let line_end = line_end(faults);
    let name = if name.is_empty() { String::new() } else { format!("event: {name}{line_end}") };
    format!("{name}data: {data}{line_end}{line_end}")
}

fn line_end(faults: &Faults) -> &'static str {
    if faults.has(Fault::Crlf) { "\r\n" } else { "\n" }
}

/// The gzip of these bytes, stored without an attempt to make them fewer.
pub(super) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    let mut blocks = bytes.chunks(usize::from(u16::MAX)).peekable();
    while let Some(block) = blocks.next() {
        let length = u16::try_from(block.len()).expect("chunks are no longer than asked");
        packed.push(u8::from(blocks.peek().is_none()));
        packed.extend_from_slice(&length.to_le_bytes());
        packed.extend_from_slice(&(!length).to_le_bytes());
        packed.extend_from_slice(block);
    }
    packed.extend_from_slice(&crc32(&[bytes]).to_le_bytes());
    let length = u32::try_from(bytes.len()).expect("replies are smaller than 4 GiB");
    packed.extend_from_slice(&length.to_le_bytes());
    packed
}

#[cfg(test)]
mod tests {
    use super::super::record::Billed;
    use super::*;

    #[test]
    fn events_with_names_have_pings_between_them() {
        let event = |name| Event { name, data: "{}".to_owned(), billed: Billed::default() };
        let joined = |name: &'static str, faults| {
            let vendor = if name.is_empty() { Vendor::B } else { Vendor::A };
            let faults = Faults::parse(faults).expect("known faults");
            let events = vec![event(name), event(name), event(name)];
            joined(&Stream::of_conversation(vendor, events), &faults)
        };
        let (ping, end) = (r#"{"type":"ping"}"#, r#"{"type":"message_stop"}"#);
        let named = "event: a\ndata: {}\n\n";
        let ping = format!("event: ping\ndata: {ping}\n\n");
        let end = format!("event: message_stop\ndata: {end}\n\n");
        assert_eq!(joined("a", ""), format!("{named}{ping}{named}{named}{end}"));
        assert_eq!(joined("a", "no-done"), format!("{named}{ping}{named}{named}"));
        let quiet = ": keep-alive\n\n";
        let often = format!("{quiet}{named}{ping}{named}{quiet}{ping}{named}{quiet}{end}");
        assert_eq!(joined("a", "comments"), often);
        assert_eq!(joined("a", "comments;crlf"), often.replace('\n', "\r\n"));
        assert_eq!(joined("", ""), "data: {}\n\n".repeat(3) + "data: [DONE]\n\n");
    }
}
