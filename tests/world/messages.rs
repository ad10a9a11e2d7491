//! Calls in the messages format, and what its answers have that others have not.

use serde_json::Value;

use super::{Answer, Opened, Streamed, World};

impl World {
    /// A POST to /v1/messages with the key as that format's clients send it.
    pub(crate) fn messages_request(&self) -> reqwest::RequestBuilder {
        let url = format!("http://{}/v1/messages", self.gateway.http);
        let request = self.client.post(url).header("content-type", "application/json");
        request.header("x-api-key", &self.key).header("vendor_a-version", "2023-06-01")
    }

    /// A messages call that is answered at once.
    pub(crate) async fn messages(&self, body: Value) -> Answer {
        self.post_messages(body.to_string()).await
    }

    /// A messages call with these bytes as its body.
    pub(crate) async fn post_messages(&self, body: impl Into<reqwest::Body>) -> Answer {
        Answer::read(self.messages_request().body(body)).await
    }

    /// A messages call whose answer comes in events, read to its end.
    pub(crate) async fn stream_messages(&self, body: Value) -> Streamed {
        self.open_messages(body).await.rest().await
    }

    /// A messages call whose answer comes in events, none of them read yet.
    pub(crate) async fn open_messages(&self, mut body: Value) -> Opened {
        body["stream"] = true.into();
        Opened::open(self.messages_request().body(body.to_string())).await
    }
}

impl Answer {
    /// The status and the type of an error, which has to be in the shape of messages errors.
    pub(crate) fn messages_refusal(&self) -> (u16, String) {
        let body = self.json();
        assert_eq!(body["type"], "error", "{self:?}");
        assert!(body["error"]["message"].is_string(), "{self:?}");
        let id = body["request_id"].as_str();
        assert!(id.is_some_and(|id| !id.is_empty()), "{self:?}");
        assert_eq!((self.header("request-id"), self.header("x-request-id")), (id, id), "{self:?}");
        (self.status, body["error"]["type"].as_str().expect("a type").to_owned())
    }

    /// The texts of a messages reply.
    pub(crate) fn message_text(&self) -> String {
        let json = self.json();
        let blocks = json["content"].as_array().expect("blocks");
        blocks.iter().filter_map(|block| block["text"].as_str()).collect()
    }
}

impl Streamed {
    /// All events of a messages stream, each of which has to name its type twice.
    pub(crate) fn messages(&self) -> Vec<Value> {
        let raw = String::from_utf8(self.raw.clone()).expect("text").replace("\r\n", "\n");
        let named = raw.split("\n\n").filter(|event| !event.is_empty() && !event.starts_with(':'));
        let read = |event: &str| {
            let parts = event.strip_prefix("event: ").and_then(|e| e.split_once("\ndata: "));
            let (name, data) = parts.unwrap_or_else(|| panic!("no event: {event}"));
            let data: Value = serde_json::from_str(data).expect("an event is JSON");
            assert_eq!(data["type"], name, "{event}");
            data
        };
        named.map(read).collect()
    }

    /// The texts of a messages stream.
    pub(crate) fn message_text(&self) -> String {
        let events = self.messages();
        events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect()
    }

    /// Whether it ended as a messages stream should.
    pub(crate) fn is_stopped(&self) -> bool {
        !self.broken && self.messages().last().is_some_and(|e| e["type"] == "message_stop")
    }

    /// The error that a messages stream ended with.
    pub(crate) fn messages_error(&self) -> Value {
        let events = self.messages();
        assert!(events.iter().all(|event| event["type"] != "message_stop"), "{self:?}");
        let last = events.last().expect("an event");
        assert_eq!(last["type"], "error", "{self:?}");
        assert!(last["error"]["message"].is_string(), "{last}");
        assert_eq!(last["request_id"].as_str(), self.header("request-id"), "{last}");
        last["error"].clone()
    }
}
