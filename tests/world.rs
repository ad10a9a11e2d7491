//! A whole world for a test: simulated vendors, a gateway process, an account with credit and a
//! key. A test says what is given, makes a call, and asserts; nothing of it outlives the test.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::ledger::redis_server::RedisServer;
use crate::sim::Sim;

mod answer;
mod assembled;
mod books;
mod builder;
mod canned;
mod collector;
mod endpoints;
mod gate;
mod messages;
mod process;
mod raw;
mod rules;
mod shape;
mod videos;

pub(crate) use answer::{Answer, Opened, Streamed};
pub(crate) use books::Charge;
pub(crate) use builder::{Builder, RedisKind};
pub(crate) use canned::{Canned, events, http};
pub(crate) use collector::{Collector, attributes};
pub(crate) use endpoints::{
    CHAT, COMPACT, COUNT_TOKENS, EDIT_B, EDIT_D, EMBEDDING_B, EMBEDDING_C, Form, IMAGE_B, IMAGE_D,
    INPUT_TOKENS, MESSAGES, MODERATION, OFFERS, Offer, RESPONSES, SPEECH, Sent, VIDEO, usd,
};
pub(crate) use gate::{Gate, Hold};
pub(crate) use process::{Process, closed_port};
pub(crate) use raw::{RawAnswer, parse};
pub(crate) use shape::{chat_of, long, messages_of, model_of, with};
pub(crate) use videos::{Video, quick};

use books::BooksReader;

/// The key that the gateway shows to every simulated vendor.
pub(crate) const VENDOR_KEY: &str = "vk-canary-0123456789";
/// The account that the world is opened with.
pub(crate) const ACCOUNT: &str = "acct";
/// Nothing that a test waits for takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the ledger lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    Sqlite,
    Redis,
}

/// What a Redis world shares or owns.
enum Redis {
    None,
    Shared(#[expect(dead_code, reason = "kept so that it runs")] Arc<RedisServer>),
    /// With the Sentinel that watches it, or the other nodes of its cluster.
    Own(RedisServer, Vec<RedisServer>),
}

/// Everything a test needs; it stops when dropped.
pub(crate) struct World {
    pub(crate) sim: Sim,
    pub(crate) key: String,
    pub(crate) gateway: Process,
    gate: Option<Gate>,
    folder: TempDir,
    redis: Redis,
    /// The store of a world that has no Redis of its own, for its books.
    books: Option<BooksReader>,
    client: reqwest::Client,
}

impl World {
    /// A world yet to be described.
    pub(crate) fn start(store: Store) -> Builder {
        Builder::new(store)
    }

    /// A file of the world's folder.
    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// Redis, of a world that has one of its own.
    pub(crate) fn redis(&mut self) -> &mut RedisServer {
        match &mut self.redis {
            Redis::Own(server, _) => server,
            _ => panic!("the world has no Redis of its own"),
        }
    }

    /// Connects to Redis, as the gateways of the world have it.
    pub(crate) fn connect_to_redis(&self) -> redis::Connection {
        let conf = std::fs::read_to_string(self.path("tollgate.toml")).expect("a configuration");
        let (_, rest) = conf.split_once("url = \"").expect("the store's address");
        let (url, _) = rest.split_once('"').expect("its end");
        let client = redis::Client::open(url).expect("an address");
        client.get_connection().expect("a connection")
    }

    /// The other nodes of its cluster.
    pub(crate) fn other_redis(&self) -> &[RedisServer] {
        match &self.redis {
            Redis::Own(_, others) => others,
            _ => panic!("the world has no Redis of its own"),
        }
    }

    /// The same, from now on the test's own.
    pub(crate) fn take_redis(&mut self) -> RedisServer {
        match std::mem::replace(&mut self.redis, Redis::None) {
            Redis::Own(server, others) if others.is_empty() => server,
            _ => panic!("the world has no Redis of its own and nothing else"),
        }
    }

    /// A chat call that is answered at once.
    pub(crate) async fn chat(&self, body: Value) -> Answer {
        self.post(body.to_string()).await
    }

    /// A chat call with these bytes as its body.
    pub(crate) async fn post(&self, body: impl Into<reqwest::Body>) -> Answer {
        Answer::read(self.request("/v1/chat/completions").body(body)).await
    }

    /// A chat call whose answer comes in events, read to its end.
    pub(crate) async fn stream(&self, body: Value) -> Streamed {
        self.open_stream(body).await.rest().await
    }

    /// A chat call whose answer comes in events, none of them read yet.
    pub(crate) async fn open_stream(&self, mut body: Value) -> Opened {
        body["stream"] = true.into();
        Opened::open(self.request("/v1/chat/completions").body(body.to_string())).await
    }

    /// A POST with the key, to which headers and a body can be added.
    pub(crate) fn request(&self, path: &str) -> reqwest::RequestBuilder {
        let url = format!("http://{}{path}", self.gateway.http);
        let request = self.client.post(url).header("authorization", format!("Bearer {}", self.key));
        request.header("content-type", "application/json")
    }

    /// A GET with the key.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.get_with(path, &self.key).await
    }

    /// A GET with another key.
    pub(crate) async fn get_with(&self, path: &str, key: &str) -> Answer {
        let url = format!("http://{}{path}", self.gateway.http);
        Answer::read(self.client.get(url).header("authorization", format!("Bearer {key}"))).await
    }

    /// Bytes on a connection of their own, and all that comes back until it ends.
    pub(crate) async fn raw(&self, bytes: &[u8]) -> Vec<RawAnswer> {
        raw::exchange(&self.gateway.http, bytes).await
    }

    /// The client of the world, for what the methods above do not cover.
    pub(crate) fn client(&self) -> &reqwest::Client {
        &self.client
    }

    /// Another gateway on the same store, with the same routes.
    pub(crate) async fn second_gateway(&self) -> Process {
        self.gateway_with("second", &[]).await
    }

    /// The same, with a name for its log and settings of its own, as variables of its environment.
    pub(crate) async fn gateway_with(&self, name: &str, env: &[(&str, &str)]) -> Process {
        Process::start(self.folder.path(), name, env).await
    }

    /// Starts a gateway that may end before it is ready.
    pub(crate) fn doomed_gateway(&self, name: &str, env: &[(&str, &str)]) -> Process {
        Process::start_doomed(self.folder.path(), name, env)
    }

    /// A gateway that takes the place of the running one.
    pub(crate) fn successor(
        &self,
        name: &str,
        env: &[(&str, &str)],
    ) -> impl Future<Output = Process> + use<> {
        let Process { http, admin, .. } = &self.gateway;
        let addresses = process::Addresses { http: http.clone(), admin: admin.clone() };
        Process::take_over(self.folder.path(), name, env, addresses)
    }

    /// Waits until the running gateway has given way to `new`. Its connections end with it: a
    /// client that took one of them for its next call would hear nothing.
    pub(crate) async fn gives_way_to(&mut self, new: Process) -> Process {
        let mut old = std::mem::replace(&mut self.gateway, new);
        old.ended(PATIENCE).await;
        self.client = process::client(Some(self.sim.certificate()));
        old
    }

    /// Another gateway, whose files a test may forbid to grow: the system does not end it for that.
    pub(crate) async fn unlimited_gateway(&self) -> Process {
        Process::start_as(self.folder.path(), "unlimited", &[], process::undaunted).await
    }

    /// What stands between some gateways and Redis.
    pub(crate) fn gate(&self) -> &Gate {
        self.gate.as_ref().expect("the world is gated")
    }

    /// Ends the gateway at once, without its consent, and starts another in its place.
    pub(crate) async fn kill_and_start_again(&mut self) {
        self.gateway.kill();
        self.gateway = self.gateway_with("again", &[]).await;
    }

    /// The same world as a client of another gateway sees it.
    pub(crate) fn url_of(&self, gateway: &Process, path: &str) -> reqwest::RequestBuilder {
        let url = format!("http://{}{path}", gateway.http);
        self.client.post(url).bearer_auth(&self.key)
    }

    /// What `/metrics` says.
    pub(crate) async fn metrics(&self) -> String {
        self.gateway.metrics(&self.client).await
    }

    /// The sum of a metric over its label sets that have all of `labels`, such as `model="o1"`.
    pub(crate) async fn metric(&self, name: &str, labels: &[&str]) -> i64 {
        let text = self.metrics().await;
        let lines = text.lines().filter(|line| {
            let rest = line.strip_prefix(name);
            let named = rest.is_some_and(|rest| rest.starts_with(['{', ' ']));
            named && labels.iter().all(|label| line.contains(label))
        });
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<i64>().ok()).sum()
    }

    /// Waits until a metric has a value.
    pub(crate) async fn metric_becomes(&self, name: &str, labels: &[&str], value: i64) {
        let end = Instant::now() + PATIENCE;
        loop {
            let found = self.metric(name, labels).await;
            if found == value {
                return;
            }
            assert!(Instant::now() < end, "{name} is {found}, not {value}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until `/metrics` has a line that begins with each of these.
    pub(crate) async fn scraped(&self, lines: &[&str]) {
        let end = Instant::now() + PATIENCE;
        loop {
            let text = self.metrics().await;
            let missing = |begin: &&&str| !text.lines().any(|line| line.starts_with(**begin));
            let Some(missing) = lines.iter().find(missing) else { return };
            assert!(Instant::now() < end, "{missing} is not in\n{text}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// What the gateway wrote to its log.
    pub(crate) fn log(&self) -> String {
        self.gateway.log()
    }

    /// Waits until the log has a line with all of these words, and gives the line.
    pub(crate) async fn logged(&self, words: &[&str]) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let log = self.log();
            let found = log.lines().find(|line| words.iter().all(|word| line.contains(word)));
            if let Some(line) = found {
                return line.to_owned();
            }
            assert!(Instant::now() < end, "no line with {words:?} in\n{log}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
