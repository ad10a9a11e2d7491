//! Calls to every endpoint, as JSON or as a form whose bytes are put together here.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use super::{Answer, Opened, World, chat_of, messages_of, with};
use crate::sim::picture;

const BOUNDARY: &str = "tollgate-7d9f1c0b";
/// What a chunk of a body without a length brings.
const CHUNK_BYTES: usize = 1_400;

/// An endpoint, with a model of a vendor that serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// How the journal and the metrics call the endpoint.
    pub(crate) endpoint: &'static str,
    pub(crate) path: &'static str,
    pub(crate) vendor: &'static str,
    pub(crate) model: &'static str,
}

const fn offer(
    endpoint: &'static str,
    path: &'static str,
    vendor: &'static str,
    model: &'static str,
) -> Offer {
    Offer { endpoint, path, vendor, model }
}

const IMAGES: &str = "/v1/images/generations";
const EDITS: &str = "/v1/images/edits";

pub(crate) const CHAT: Offer = offer("chat", "/v1/chat/completions", "vendor_b", "lmb-5.5");
pub(crate) const MESSAGES: Offer = offer("messages", "/v1/messages", "vendor_a", "lma-sonnet-4-6");
pub(crate) const RESPONSES: Offer = offer("responses", "/v1/responses", "vendor_b", "lmb-5.5");
pub(crate) const COMPACT: Offer =
    offer("responses_compact", "/v1/responses/compact", "vendor_b", "lmb-5.5");
pub(crate) const IMAGE_B: Offer = offer("images", IMAGES, "vendor_b", "lmb-image-1");
pub(crate) const IMAGE_D: Offer = offer("images", IMAGES, "vendor_d", "lmd-imagine-image");
pub(crate) const EDIT_B: Offer = offer("image_edits", EDITS, "vendor_b", "lmb-image-1");
pub(crate) const EDIT_D: Offer = offer("image_edits", EDITS, "vendor_d", "lmd-imagine-image");
pub(crate) const SPEECH: Offer = offer("speech", "/v1/audio/speech", "vendor_b", "tts-1");
pub(crate) const EMBEDDING_B: Offer =
    offer("embeddings", "/v1/embeddings", "vendor_b", "text-embedding-3-small");
pub(crate) const EMBEDDING_C: Offer =
    offer("embeddings", "/v1/embeddings", "vendor_c", "lmc-embedding-2");
pub(crate) const MODERATION: Offer =
    offer("moderations", "/v1/moderations", "vendor_b", "omni-moderation-latest");
/// Free as well, and with the rules of others, so they stand beside them.
pub(crate) const COUNT_TOKENS: Offer =
    offer("messages_count_tokens", "/v1/messages/count_tokens", "vendor_a", "lma-sonnet-4-6");
pub(crate) const INPUT_TOKENS: Offer =
    offer("responses_input_tokens", "/v1/responses/input_tokens", "vendor_b", "lmb-5.5");
/// Answered before a vendor hears of it, so it stands beside the others.
pub(crate) const VIDEO: Offer = offer("videos", "/v1/videos", "vendor_d", "lmd-imagine-video");

/// Every endpoint, with every vendor whose way it is another one.
pub(crate) const OFFERS: [Offer; 12] = [
    CHAT,
    MESSAGES,
    RESPONSES,
    COMPACT,
    IMAGE_B,
    IMAGE_D,
    EDIT_B,
    EDIT_D,
    SPEECH,
    EMBEDDING_B,
    EMBEDDING_C,
    MODERATION,
];

impl Offer {
    /// A short call. Of an edit it stands for a form, in which `image` is a file.
    pub(crate) fn call(self) -> Value {
        let Offer { model, .. } = self;
        match self.endpoint {
            "chat" => chat_of(model),
            "messages" => messages_of(model),
            "messages_count_tokens" => with(messages_of(model), &json!({ "max_tokens": null })),
            "responses" | "responses_compact" | "responses_input_tokens" => {
                json!({ "model": model, "input": "How much is 2 + 2?" })
            }
            "images" | "videos" => json!({ "model": model, "prompt": "A red dot." }),
            "image_edits" => json!({ "model": model, "prompt": "Redder.", "image": "a file" }),
            "speech" => json!({ "model": model, "input": "hello", "voice": "alloy" }),
            _ => json!({ "model": model, "input": "hello" }),
        }
    }

    /// That call with these members in the place of those it had, as its bytes.
    pub(crate) fn sent(self, members: &Value) -> Sent {
        let call = with(self.call(), members);
        if self.endpoint != "image_edits" {
            return Sent::json(&call);
        }
        let mut form = Form::new();
        for (name, value) in call.as_object().expect("a call is an object") {
            form = match value.as_str() {
                Some(_) if name == "image" => form.file(name, "image/png", &picture(0)),
                Some(text) => form.field(name, text),
                None => form.field(name, &value.to_string()),
            };
        }
        form.sent()
    }
}

/// A body on its way.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    /// The content type.
    pub(crate) media: String,
    pub(crate) bytes: Bytes,
}

impl Sent {
    /// A body of JSON.
    pub(crate) fn json(body: &Value) -> Sent {
        Sent { media: "application/json".to_owned(), bytes: body.to_string().into() }
    }

    /// The same bytes, which do not tell their number before they come.
    pub(crate) fn in_chunks(&self) -> reqwest::Body {
        let bytes = self.bytes.clone();
        let starts = (0..bytes.len()).step_by(CHUNK_BYTES);
        let chunks: Vec<_> = starts
            .map(|at| bytes.slice(at..bytes.len().min(at + CHUNK_BYTES)))
            .map(Ok::<_, Infallible>)
            .collect();
        reqwest::Body::wrap_stream(futures_util::stream::iter(chunks))
    }
}

/// A form of several parts, in the order in which they are added.
#[derive(Clone, Debug, Default)]
pub(crate) struct Form(Vec<u8>);

impl Form {
    pub(crate) fn new() -> Form {
        Form::default()
    }

    /// A part that is a text.
    pub(crate) fn field(self, name: &str, value: &str) -> Form {
        self.part(&format!("; name=\"{name}\""), value.as_bytes())
    }

    /// A part that is a file.
    pub(crate) fn file(self, name: &str, media: &str, bytes: &[u8]) -> Form {
        let head = format!("; name=\"{name}\"; filename=\"mine.bin\"\r\nContent-Type: {media}");
        self.part(&head, bytes)
    }

    /// A part with this behind `form-data` in its headers.
    pub(crate) fn part(mut self, head: &str, bytes: &[u8]) -> Form {
        let head = format!("--{BOUNDARY}\r\nContent-Disposition: form-data{head}\r\n\r\n");
        self.0.extend_from_slice(head.as_bytes());
        self.0.extend_from_slice(bytes);
        self.0.extend_from_slice(b"\r\n");
        self
    }

    /// The body, complete.
    pub(crate) fn sent(&self) -> Sent {
        let bytes = [&self.0, format!("--{BOUNDARY}--\r\n").as_bytes()].concat().into();
        Sent { media: format!("multipart/form-data; boundary={BOUNDARY}"), bytes }
    }
}

impl World {
    /// A POST with the content type of a body, and with a key if there is one.
    pub(crate) fn sending(&self, path: &str, media: &str, key: Option<&str>) -> Request {
        let url = format!("http://{}{path}", self.gateway.http);
        let request = self.client.post(url).header("content-type", media);
        key.iter().fold(request, reqwest::RequestBuilder::bearer_auth)
    }

    /// Sends a body with the key of the world.
    pub(crate) async fn send(&self, path: &str, sent: &Sent) -> Answer {
        let request = self.sending(path, &sent.media, Some(&self.key));
        Answer::read(request.body(sent.bytes.clone())).await
    }

    /// A short call, with these members in the place of those it has.
    pub(crate) async fn call(&self, offer: Offer, members: Value) -> Answer {
        self.send(offer.path, &offer.sent(&members)).await
    }

    /// A short call.
    pub(crate) async fn ask(&self, offer: Offer) -> Answer {
        self.call(offer, json!({})).await
    }

    /// A call whose answer comes in events, none of them read yet.
    pub(crate) async fn open_call(&self, offer: Offer, mut members: Value) -> Opened {
        members["stream"] = true.into();
        let Sent { media, bytes } = offer.sent(&members);
        Opened::open(self.sending(offer.path, &media, Some(&self.key)).body(bytes)).await
    }

    /// A call to a vendor who takes his time, and what was held meanwhile.
    pub(crate) async fn held_during(&self, offer: Offer, members: Value) -> (Answer, i64) {
        let before = self.sim.count(offer.vendor);
        let held = async {
            while self.sim.count(offer.vendor) == before {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            self.balances().await.held
        };
        tokio::join!(self.call(offer, members), held)
    }

    /// The key of another account with this credit.
    pub(crate) async fn another_account(&self, name: &str, usd: &str) -> String {
        self.command(&["account", "create", name, "--credit", usd]).await.done();
        self.command(&["key", "issue", name]).await.done().trim().to_owned()
    }
}

type Request = reqwest::RequestBuilder;

/// Nano-USD as the command line takes them.
pub(crate) fn usd(nano: i64) -> String {
    format!("{}.{:09}", nano / 1_000_000_000, nano % 1_000_000_000)
}
