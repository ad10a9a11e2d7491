//! Errors as one table: every endpoint, everything that can go wrong with a call to it, and what
//! its client is told. A test goes on after a mismatch, and tells all of them at its end.

mod clients;
mod vendors;

use serde_json::Value;

use crate::world::{Answer, MESSAGES, Offer, World};

/// What a client is told.
#[derive(Clone, Debug, Default)]
struct Expected {
    status: u16,
    code: &'static str,
    /// Status and type in the messages format.
    messages: (u16, &'static str),
    /// The field that is named, where one has to be.
    param: Option<&'static str>,
    /// In the message.
    says: String,
    retry_after: Option<&'static str>,
    no_retry: bool,
}

impl Expected {
    /// The messages format has the same status with another name. What is wrong with a call is
    /// wrong with it the next time too.
    fn new(status: u16, code: &'static str, of_messages: &'static str) -> Expected {
        let messages = (status, of_messages);
        let no_retry = (400..500).contains(&status) && !matches!(status, 408 | 409 | 429);
        Expected { status, code, messages, no_retry, ..Expected::default() }
    }

    fn at(self, param: &'static str) -> Expected {
        Expected { param: Some(param), ..self }
    }

    fn saying(self, says: &str) -> Expected {
        Expected { says: says.to_owned(), ..self }
    }
}

/// What was found wrong, cell by cell.
#[derive(Default)]
struct Table {
    cells: usize,
    wrong: Vec<String>,
}

impl Table {
    /// Holds an answer against what it should be.
    fn judge(&mut self, offer: Offer, what: &str, answer: &Answer, expected: &Expected) {
        self.cells += 1;
        let wrong = mismatches(offer, answer, expected);
        if !wrong.is_empty() {
            let Offer { endpoint, vendor, .. } = offer;
            let body = String::from_utf8_lossy(&answer.body);
            let body: String = body.chars().take(400).collect();
            let (status, wrong) = (answer.status, wrong.join("; "));
            self.wrong
                .push(format!("{endpoint} of {vendor}, {what}: {wrong}\n    {status} {body}"));
        }
    }

    /// One more thing that has to be true.
    fn hold(&mut self, what: &str, is_true: bool) {
        if !is_true {
            self.wrong.push(what.to_owned());
        }
    }

    /// The end: nothing was charged, nothing is held, and nothing was wrong.
    async fn end(self, world: &World, cells: usize) {
        let Table { cells: judged, wrong } = self;
        let all = wrong.join("\n");
        assert!(wrong.is_empty(), "{} of {judged} are wrong:\n{all}", wrong.len());
        assert_eq!(judged, cells, "so many cells has the table");
        world.free_of_charge().await;
    }
}

fn mismatches(offer: Offer, answer: &Answer, expected: &Expected) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut same = |what: &str, found: &str, expected: &str| {
        if found != expected {
            wrong.push(format!("{what} is {found:?}, not {expected:?}"));
        }
    };
    let of_messages = offer == MESSAGES;
    let (status, kind) =
        if of_messages { expected.messages } else { (expected.status, expected.code) };
    let header = |name: &str| answer.header(name).unwrap_or("none");
    same("the status", &answer.status.to_string(), &status.to_string());
    same("content-type", header("content-type"), "application/json");
    same("retry-after", header("retry-after"), expected.retry_after.unwrap_or("none"));
    same(
        "x-should-retry",
        header("x-should-retry"),
        if expected.no_retry { "false" } else { "none" },
    );
    let id = header("x-request-id");
    same("x-request-id", if id == "none" || id.is_empty() { "none" } else { "there" }, "there");
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let error = &body["error"];
    let text = |value: &Value| value.as_str().unwrap_or("none").to_owned();
    if of_messages {
        same("the body's type", &text(&body["type"]), "error");
        same("the error's type", &text(&error["type"]), kind);
        same("request_id", &text(&body["request_id"]), id);
        same("request-id", header("request-id"), id);
    } else {
        let mut names: Vec<&str> =
            error.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        same("the members of the error", &names.join(" "), "code message param type");
        same("the code", &text(&error["code"]), kind);
        same("the type", if error["type"].is_string() { "a text" } else { "none" }, "a text");
        if let Some(param) = expected.param {
            same("the param", &text(&error["param"]), param);
        }
    }
    let message = text(&error["message"]);
    if message.is_empty() || !message.contains(&expected.says) {
        wrong.push(format!("the message {message:?} lacks {:?}", expected.says));
    }
    let all = String::from_utf8_lossy(&answer.body);
    for secret in ["vk-", "sim-account", "req_vendor", "account-secret"] {
        if all.contains(secret) {
            wrong.push(format!("{secret:?} is told"));
        }
    }
    wrong
}
