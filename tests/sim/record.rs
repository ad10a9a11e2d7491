//! What the simulator remembers of the requests it received.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::timeout;

use super::faults::{Fault, Faults};
use super::tls::Protocol;
use super::vendor::Vendor;
use super::videos::Shelf;

const REQUESTS_MAX: usize = 10_000;
const PREFIXES_MAX: usize = 100_000;
const RESPONSES_MAX: usize = 100_000;
const BODY_BYTES_MAX: usize = 32 << 20;
/// Of all bodies kept; the oldest are forgotten first, their requests are not.
const BODIES_BYTES_MAX: usize = 256 << 20;

/// What is held goes on after this at the latest.
const HELD_MAX: Duration = Duration::from_secs(100);

/// A request that arrived, and what became of it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// The first segment of the path, even if no vendor has that name.
    pub(crate) vendor: String,
    /// The faults as written in the path.
    pub(crate) faults: String,
    /// What it was sent in.
    pub(crate) protocol: Option<Protocol>,
    /// The method of the request.
    pub(crate) method: String,
    /// The whole path, with its query.
    pub(crate) path: String,
    /// The headers, in their order, with names as they came.
    pub(crate) headers: Vec<(String, String)>,
    /// The body, decoded; empty when larger than 32 MiB or long ago.
    pub(crate) body: Bytes,
    /// The length of the body, kept or not.
    pub(crate) body_len: usize,
    /// The files in it, of a request that was understood.
    pub(crate) files: Vec<SentFile>,
    /// The other parts of a form, by their names.
    pub(crate) fields: Vec<(String, String)>,
    /// What the vendor bills; known before the first byte of the answer is sent.
    pub(crate) billed: Option<Billed>,
    /// Whether the whole answer, as the vendor meant it, was handed to the socket.
    pub(crate) completed: bool,
}

/// A file that came with a request, in a form or as a data URI.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct SentFile {
    /// The part or the member that it came in.
    pub(crate) part: String,
    /// How the sender calls it.
    pub(crate) name: Option<String>,
    /// Its media type.
    pub(crate) content_type: String,
    /// Its length in bytes.
    pub(crate) len: usize,
    /// Its SHA-256 in hexadecimal digits.
    pub(crate) sha256: String,
}

/// What the vendor puts on its bill.
///
/// Tokens are as the vendor counts them: what it charges as output is `total - prompt`, for all
/// vendors. What an endpoint does not charge by is zero, and left out where it is told as JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Billed {
    /// The prompt's.
    pub(crate) prompt: u64,
    /// The reply's, with or without reasoning, as is the vendor's habit.
    pub(crate) completion: u64,
    /// Spent on thought.
    pub(crate) reasoning: u64,
    /// The prompt's and all output's.
    pub(crate) total: u64,
    /// Of the prompt's, those of images.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) prompt_images: u64,
    /// Images made.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) images: u64,
    /// Characters spoken.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) characters: u64,
    /// Seconds of video.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) seconds: u64,
    /// Searches of the vendor's own.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) searches: u64,
    /// The price itself, in dollars times 10^10, where the vendor tells nothing else.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) ticks: u64,
}

impl Seen {
    pub(super) fn new(vendor: &str, method: &str, path: &str) -> Seen {
        Seen {
            vendor: vendor.to_owned(),
            faults: String::new(),
            protocol: None,
            method: method.to_owned(),
            path: path.to_owned(),
            headers: Vec::new(),
            body: Bytes::new(),
            body_len: 0,
            files: Vec::new(),
            fields: Vec::new(),
            billed: None,
            completed: false,
        }
    }

    pub(super) fn with_body(mut self, body: &Bytes) -> Seen {
        self.body_len = body.len();
        if body.len() <= BODY_BYTES_MAX {
            self.body = body.clone();
        }
        self
    }

    /// The first header of that name, in whatever case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The first part of a form that has this name and is no file.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.fields.iter();
        fields.find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The body as JSON; panics when it is not.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("the body of the request is JSON")
    }

    fn summary(&self) -> Value {
        let mut summary = json!({
            "vendor": self.vendor,
            "faults": self.faults,
            "method": self.method,
            "path": self.path,
            "billed": self.billed,
            "completed": self.completed,
        });
        if !self.files.is_empty() {
            summary["files"] = json!(self.files);
        }
        summary
    }

    /// Where it went and what it brought, as JSON. A body of JSON stands there as it came, to
    /// the byte; any other as a text.
    fn contents(&self) -> String {
        let mut headers = BTreeMap::new();
        for (name, value) in &self.headers {
            let known: &mut String = headers.entry(name.to_ascii_lowercase()).or_default();
            known.push_str(if known.is_empty() { "" } else { ", " });
            known.push_str(value);
        }
        let body = match (std::str::from_utf8(&self.body), self.is_json()) {
            (Ok(text), true) => text.to_owned(),
            _ => Value::from(String::from_utf8_lossy(&self.body)).to_string(),
        };
        let (vendor, path, headers) = (json!(self.vendor), json!(self.path), json!(headers));
        format!(r#"{{"vendor":{vendor},"path":{path},"headers":{headers},"body":{body}}}"#)
    }

    fn is_json(&self) -> bool {
        serde_json::from_slice::<serde::de::IgnoredAny>(&self.body).is_ok()
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature is the serializer's")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The memory of a simulator, shared by its connections.
#[derive(Default)]
pub(super) struct Record {
    requests: Mutex<Requests>,
    counts: [AtomicU64; Vendor::ALL.len()],
    arrivals: Mutex<HashMap<String, u64>>,
    serial: AtomicU64,
    /// Connections that were made to it.
    pub(super) connections: AtomicU64,
    /// Questions for the list of models.
    pub(super) probes: AtomicU64,
    /// Digests of the beginnings of requests that a vendor keeps in its cache.
    prefixes: Mutex<HashSet<String>>,
    /// The ids of responses that can be gone on from.
    responses: Mutex<HashSet<String>>,
    pub(super) videos: Shelf,
    /// Whether what is held may go on.
    gone_on: watch::Sender<bool>,
}

#[derive(Default)]
struct Requests {
    list: VecDeque<Seen>,
    /// The number of the first in the list; numbers are never used again.
    first: u64,
    kept_bytes: usize,
    open: u64,
}

impl Record {
    pub(super) fn seen(&self) -> Vec<Seen> {
        lock(&self.requests).list.iter().cloned().collect()
    }

    pub(super) fn take_seen(&self) -> Vec<Seen> {
        let mut requests = lock(&self.requests);
        requests.first += requests.list.len() as u64;
        requests.kept_bytes = 0;
        std::mem::take(&mut requests.list).into()
    }

    /// The last requests as JSON, without their bodies.
    pub(super) fn summaries(&self, count_max: usize) -> Value {
        let requests = lock(&self.requests);
        let skipped = requests.list.len().saturating_sub(count_max);
        requests.list.iter().skip(skipped).map(Seen::summary).collect()
    }

    /// The last requests with their headers and bodies, a list in JSON.
    pub(super) fn contents(&self, count_max: usize) -> String {
        let requests = lock(&self.requests);
        let skipped = requests.list.len().saturating_sub(count_max);
        let last: Vec<_> = requests.list.iter().skip(skipped).map(Seen::contents).collect();
        format!("[{}]", last.join(","))
    }

    pub(super) fn count(&self, vendor: &str) -> u64 {
        Vendor::named(vendor)
            .map_or(0, |vendor| self.counts[vendor as usize].load(Ordering::Relaxed))
    }

    pub(super) fn add_one(&self, vendor: Vendor) {
        self.counts[vendor as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Lets go of what is held, and of what comes later, or holds it from now on.
    pub(super) fn let_go(&self, gone_on: bool) {
        self.gone_on.send_replace(gone_on);
    }

    /// How many requests are being answered.
    pub(super) fn open(&self) -> u64 {
        lock(&self.requests).open
    }

    /// A number that no other reply has.
    pub(super) fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// How many requests came to this path, this one included.
    pub(super) fn arrivals(&self, path: &str) -> u64 {
        let mut arrivals = lock(&self.arrivals);
        let count = arrivals.entry(path.to_owned()).or_default();
        *count += 1;
        *count
    }

    /// Puts these beginnings into the cache; tells how many of the first were there already,
    /// counted up to the last that was.
    pub(super) fn cache(&self, prefixes: &[String]) -> usize {
        let mut known = lock(&self.prefixes);
        let found = prefixes.iter().rposition(|prefix| known.contains(prefix));
        if known.len() > PREFIXES_MAX {
            known.clear();
        }
        known.extend(prefixes.iter().cloned());
        found.map_or(0, |last| last + 1)
    }

    /// Keeps a response, to go on from it.
    pub(super) fn keep_response(&self, id: &str) {
        let mut responses = lock(&self.responses);
        if responses.len() > RESPONSES_MAX {
            responses.clear();
        }
        responses.insert(id.to_owned());
    }

    /// Whether a response of this id is kept.
    pub(super) fn has_response(&self, id: &str) -> bool {
        lock(&self.responses).contains(id)
    }

    /// Writes a request down.
    pub(super) fn enter(&self, seen: Seen) -> Ticket<'_> {
        let mut requests = lock(&self.requests);
        if requests.list.len() == REQUESTS_MAX {
            let oldest = requests.list.pop_front().expect("a full list has a first");
            requests.kept_bytes -= oldest.body.len();
            requests.first += 1;
        }
        requests.open += 1;
        requests.kept_bytes += seen.body.len();
        requests.list.push_back(seen);
        requests.forget_bodies();
        let number = requests.first + requests.list.len() as u64 - 1;
        drop(requests);
        Ticket { record: self, number }
    }
}

impl Requests {
    fn forget_bodies(&mut self) {
        let mut oldest = self.list.iter_mut();
        while self.kept_bytes > BODIES_BYTES_MAX {
            let Some(seen) = oldest.next() else { return };
            self.kept_bytes -= seen.body.len();
            seen.body = Bytes::new();
        }
    }
}

/// The way back to a request in the record, while it is being answered.
pub(super) struct Ticket<'a> {
    record: &'a Record,
    number: u64,
}

impl Ticket<'_> {
    pub(super) fn bill(&self, billed: Option<Billed>) {
        self.change(|seen| seen.billed = billed);
    }

    /// Waits where a fault says so.
    pub(super) async fn held(&self, faults: &Faults) {
        if faults.has(Fault::Held) {
            let mut gone_on = self.record.gone_on.subscribe();
            let _ = timeout(HELD_MAX, gone_on.wait_for(|gone_on| *gone_on)).await;
        }
    }

    /// Writes down what was found in the body.
    pub(super) fn found(&self, files: &[SentFile], fields: &[(String, String)]) {
        self.change(|seen| {
            seen.files = files.to_vec();
            seen.fields = fields.to_vec();
        });
    }

    pub(super) fn complete(&self, completed: bool) {
        self.change(|seen| seen.completed = completed);
    }

    fn change(&self, change: impl FnOnce(&mut Seen)) {
        let mut requests = lock(&self.record.requests);
        // It may have been taken, or have given way to later ones.
        let Some(index) = self.number.checked_sub(requests.first) else {
            return;
        };
        let index = usize::try_from(index).expect("the list is short");
        requests.list.get_mut(index).map(change);
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        lock(&self.record.requests).open -= 1;
    }
}

/// A panic elsewhere must not hide behind a second one here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_tells_only_what_there_is() {
        let mut seen = Seen::new("vendor_b", "POST", "/p");
        seen.billed = Some(Billed { prompt: 2, total: 2, ..Billed::default() });
        let tokens = json!({"prompt": 2, "completion": 0, "reasoning": 0, "total": 2});
        assert_eq!(seen.summary()["billed"], tokens);
        assert!(seen.summary().get("files").is_none());
        seen.billed = Some(Billed { images: 1, ..Billed::default() });
        assert_eq!(seen.summary()["billed"]["images"], 1);
    }

    #[test]
    fn contents_are_told_to_the_byte() {
        let record = Record::default();
        for body in [&br#"{"b": 1.50, "a":{}}"#[..], b"no \"JSON\"", b""] {
            let mut seen = Seen::new("vendor_a", "POST", "/p").with_body(&Bytes::from(body));
            seen.headers = [("X-A", "1"), ("b", "2"), ("x-a", "3")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into();
            record.enter(seen);
        }
        let told = record.contents(2);
        let headers = r#"{"b":"2","x-a":"1, 3"}"#;
        let one = |body: &str| {
            format!(r#"{{"vendor":"vendor_a","path":"/p","headers":{headers},"body":{body}}}"#)
        };
        assert_eq!(told, format!("[{},{}]", one(r#""no \"JSON\"""#), one(r#""""#)));
        assert!(record.contents(9).contains(r#""body":{"b": 1.50, "a":{}}}"#));
    }
}
