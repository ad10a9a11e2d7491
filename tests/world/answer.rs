//! Answers of the gateway: whole, or in events as they come.

use std::time::Instant;

use bytes::Bytes;
use reqwest::header::{HeaderMap, HeaderName};
use serde_json::Value;

/// An answer that is complete.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    /// Sends a request and reads its answer.
    pub(crate) async fn read(request: reqwest::RequestBuilder) -> Answer {
        Answer::try_read(request).await.expect("a whole answer")
    }

    /// The same, of a request that may fail.
    pub(crate) async fn try_read(request: reqwest::RequestBuilder) -> reqwest::Result<Answer> {
        let answer = request.send().await?;
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        Ok(Answer { status, headers, body: answer.bytes().await? })
    }

    /// The body; panics when it is no JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// A header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }

    /// The names of its headers, sorted. How a body is framed, and the connection's own headers,
    /// are between the two ends of it, so those are left out.
    pub(crate) fn header_names(&self) -> Vec<&str> {
        let framing = ["connection", "content-length", "date", "transfer-encoding"];
        let names = self.headers.keys().map(HeaderName::as_str);
        let mut names: Vec<_> = names.filter(|name| !framing.contains(name)).collect();
        names.sort_unstable();
        names
    }

    /// The text of the first choice.
    pub(crate) fn text(&self) -> String {
        let json = self.json();
        json["choices"][0]["message"]["content"].as_str().expect("a text").to_owned()
    }

    /// The code of an error.
    pub(crate) fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }

    /// The message of an error.
    pub(crate) fn message(&self) -> String {
        self.json()["error"]["message"].as_str().unwrap_or_default().to_owned()
    }

    /// The status and the code of an error, which has to be in the shape of chat errors.
    pub(crate) fn refusal(&self) -> (u16, String) {
        self.refusal_of("the call")
    }

    /// The same of one case among many, which is named if it is no such error.
    pub(crate) fn refusal_of(&self, case: &str) -> (u16, String) {
        assert!(self.status >= 400, "{case} is not refused: {self:?}");
        let error = &self.json()["error"];
        assert!(error["message"].is_string() && error["type"].is_string(), "{case}: {self:?}");
        assert!(error["param"].is_string() || error["param"].is_null(), "{case}: {self:?}");
        assert!(self.header("x-request-id").is_some(), "{case}: {self:?}");
        (self.status, self.code())
    }

    /// Whether the credit does not cover the call: there is none, or other calls hold it.
    pub(crate) fn is_short_of_credit(&self) -> bool {
        match self.status {
            402 => self.code() == "insufficient_credits",
            429 => self.code() == "credit_in_use",
            _ => false,
        }
    }
}

/// An answer in events of which some may have come.
pub(crate) struct Opened {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    answer: reqwest::Response,
    raw: Vec<u8>,
    /// How much of `raw` was given out in events.
    given: usize,
    broken: bool,
}

impl Opened {
    /// Sends a request and reads the head of its answer.
    pub(crate) async fn open(request: reqwest::RequestBuilder) -> Opened {
        let answer = request.send().await.expect("the head of an answer");
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        Opened { status, headers, answer, raw: Vec::new(), given: 0, broken: false }
    }

    /// Waits for the next event and gives its data, comments left out; none at the end.
    pub(crate) async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(event) = self.event() {
                match data(&event) {
                    Some(data) => return Some(data),
                    None => continue,
                }
            }
            match self.answer.chunk().await {
                Ok(Some(bytes)) => self.raw.extend_from_slice(&bytes),
                Ok(None) => return None,
                Err(_) => {
                    self.broken = true;
                    return None;
                }
            }
        }
    }

    /// Reads so many events, and gives when each came.
    pub(crate) async fn take(&mut self, count: usize) -> Vec<Instant> {
        let mut moments = Vec::new();
        for _ in 0..count {
            self.next().await.expect("an event");
            moments.push(Instant::now());
        }
        moments
    }

    /// Reads to the end.
    pub(crate) async fn rest(mut self) -> Streamed {
        let mut data = Vec::new();
        while let Some(event) = self.next().await {
            data.push(event);
        }
        let Opened { status, headers, raw, broken, .. } = self;
        Streamed { status, headers, raw, data, broken }
    }

    /// The first whole event that was not given out.
    fn event(&mut self) -> Option<Vec<u8>> {
        let rest = &self.raw[self.given..];
        let end = (1..=rest.len()).find(|end| {
            [&b"\n\n"[..], b"\r\n\r\n"].iter().any(|blank| rest[..*end].ends_with(blank))
        })?;
        self.given += end;
        Some(rest[..end].to_vec())
    }
}

/// An answer in events, read to its end.
#[derive(Debug)]
pub(crate) struct Streamed {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// All bytes.
    pub(crate) raw: Vec<u8>,
    /// The data of the events, comments left out.
    pub(crate) data: Vec<String>,
    /// Whether the connection failed before the end of the answer.
    pub(crate) broken: bool,
}

impl Streamed {
    /// A header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }

    /// The events that are JSON.
    pub(crate) fn events(&self) -> Vec<Value> {
        let json = self.data.iter().filter(|data| *data != "[DONE]");
        json.map(|data| serde_json::from_str(data).expect("an event is JSON")).collect()
    }

    /// The text of the first choice.
    pub(crate) fn text(&self) -> String {
        let events = self.events();
        let deltas = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str());
        deltas.collect()
    }

    /// Whether it ended as a stream should.
    pub(crate) fn is_done(&self) -> bool {
        !self.broken && self.data.last().is_some_and(|data| data == "[DONE]")
    }

    /// The error that it ended with, if it did.
    pub(crate) fn error(&self) -> Option<Value> {
        assert!(!self.data.iter().any(|data| data == "[DONE]"), "{self:?}");
        let error = self.events().last()?.get("error")?.clone();
        assert!(error["message"].is_string() && error["type"].is_string(), "{self:?}");
        Some(error)
    }

    /// The values of `usage` in its events, in order.
    pub(crate) fn usages(&self) -> Vec<Value> {
        self.events().iter().filter_map(|event| event.get("usage").cloned()).collect()
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().expect("a header is text"))
}

/// The data of an event.
fn data(event: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(event).expect("an event is whole and is text");
    let lines: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}
