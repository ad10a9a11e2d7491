//! What comes before a request is one: connections, heads, and how fast and how many.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::world::{RawAnswer, World, chat_of, parse};

mod admin;
mod chunks;
mod cors;
mod crowds;
mod cut_off;
mod fine;
mod heads;
mod load;
mod many;
mod proxies;
mod reload;
mod reuse;
mod routes;
mod slow;
mod staying;
mod stop;
mod systemd;
mod takeover;
mod tenants;
mod unread;

/// What does not happen within this does not happen, however much the machine has to do. What has
/// to end sooner than something else is tested with that far beyond this.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection of a client that sends what it likes.
struct Client {
    stream: TcpStream,
    /// What came and was not given out yet.
    heard: Vec<u8>,
}

impl Client {
    async fn of(world: &World) -> Client {
        Client::at(&world.gateway.http).await
    }

    async fn at(address: &str) -> Client {
        let stream = TcpStream::connect(address).await.expect("a connection");
        stream.set_nodelay(true).expect("a socket");
        Client { stream, heard: Vec::new() }
    }

    /// Sends, as far as it is taken.
    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(bytes.as_ref()).await;
    }

    /// Reads more; tells whether there was any.
    async fn listen(&mut self) -> bool {
        self.heard.reserve(16 << 10);
        let reading = self.stream.read_buf(&mut self.heard);
        timeout(PATIENCE, reading).await.expect("more or an end").unwrap_or(0) > 0
    }

    /// Whether anything comes before the other side closes. What came is kept.
    async fn hears(&mut self) -> bool {
        !self.heard.is_empty() || self.listen().await
    }

    /// The next whole answer.
    async fn answer(&mut self) -> RawAnswer {
        loop {
            let mut answers = parse(&self.heard);
            if !answers.is_empty() && answers[0].whole {
                assert_eq!(answers.len(), 1, "more than was asked for: {answers:?}");
                self.heard.clear();
                return answers.remove(0);
            }
            assert!(self.listen().await, "closed: {}", self.heard.escape_ascii());
        }
    }

    /// Everything that comes until the other side closes.
    async fn rest(mut self) -> Vec<RawAnswer> {
        while self.listen().await {}
        parse(&self.heard)
    }
}

/// A chat call that is good in every respect, with these lines in its head.
fn chat(world: &World, lines: &str) -> String {
    let body = chat_of("lmb-5.5").to_string();
    let length = format!("content-length: {}\r\n{lines}", body.len());
    head(world, "POST /v1/chat/completions HTTP/1.1", &length) + &body
}

/// A head that begins with this line, with the key and these further ones.
fn head(world: &World, first: &str, lines: &str) -> String {
    let key = &world.key;
    format!(
        "{first}\r\nhost: tollgate\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\n{lines}\r\n"
    )
}

/// The code of an answer that refuses.
fn code(answer: &RawAnswer) -> String {
    let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
    body["error"]["code"].as_str().unwrap_or_default().to_owned()
}
