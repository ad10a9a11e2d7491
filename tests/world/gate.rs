//! A gate between a gateway and its Redis. Everything passes, until the gateway says certain words:
//! from then on it is cut off, right before or right after Redis heard them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

/// Words that were not said by then never will be.
const PATIENCE: Duration = Duration::from_secs(60);

/// What of the words does not arrive any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// They themselves: Redis has never heard them.
    Words,
    /// The answer to them: Redis did as it was told, and nobody knows.
    Answer,
}

/// See the module; all of its connections end when it is dropped.
pub(crate) struct Gate {
    /// Where a gateway finds it.
    pub(crate) url: String,
    state: Arc<State>,
    accepting: AbortHandle,
}

struct State {
    rule: Mutex<Option<(Vec<u8>, Hold)>>,
    /// What is held.
    shut: watch::Sender<Option<Hold>>,
}

impl Gate {
    /// Opens in front of a store, such as `redis://127.0.0.1:6379/1`.
    pub(super) async fn start(store: &str) -> Gate {
        let rest = store.strip_prefix("redis://").expect("a gate stands in front of a Redis");
        let (redis, database) = rest.split_once('/').expect("a Redis has databases");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("its address");
        let state = Arc::new(State { rule: Mutex::default(), shut: watch::Sender::new(None) });
        let accepting = tokio::spawn(accept(listener, redis.to_owned(), Arc::clone(&state)));
        Gate {
            url: format!("redis://{address}/{database}"),
            state,
            accepting: accepting.abort_handle(),
        }
    }

    /// Shuts when these words are said.
    pub(crate) fn shut_at(&self, words: &str, hold: Hold) {
        *self.state.rule() = Some((words.as_bytes().to_vec(), hold));
    }

    /// Waits until it is shut.
    pub(crate) async fn is_shut(&self) {
        let mut shut = self.state.shut.subscribe();
        let said = timeout(PATIENCE, shut.wait_for(Option::is_some)).await;
        assert!(said.is_ok(), "the gateway did not say it");
    }

    /// Opens again; what was held arrives late.
    pub(crate) fn open(&self) {
        self.state.shut.send_replace(None);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl State {
    fn rule(&self) -> std::sync::MutexGuard<'_, Option<(Vec<u8>, Hold)>> {
        self.rule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks whether this has the words, and shuts if it does.
    fn hears(&self, said: &[u8]) {
        let mut rule = self.rule();
        let holds = rule.as_ref().is_some_and(|(words, _)| {
            said.windows(words.len()).any(|piece| piece == words.as_slice())
        });
        if let Some((_, hold)) = rule.take_if(|_| holds) {
            self.shut.send_replace(Some(hold));
        }
    }

    /// Waits until what is held is none of these.
    async fn pass(&self, held: &[Hold]) {
        let mut shut = self.shut.subscribe();
        let is_free = |now: &Option<Hold>| now.is_none_or(|hold| !held.contains(&hold));
        // The sender lives as long as this does.
        let _ = shut.wait_for(is_free).await;
    }
}

async fn accept(listener: TcpListener, redis: String, state: Arc<State>) {
    let mut connections = JoinSet::new();
    while let Ok((gateway, _)) = listener.accept().await {
        connections.spawn(serve(gateway, redis.clone(), Arc::clone(&state)));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(gateway: TcpStream, redis: String, state: Arc<State>) {
    let Ok(redis) = TcpStream::connect(redis).await else { return };
    // Each byte goes on at once, as it would without a gate.
    let _ = (gateway.set_nodelay(true), redis.set_nodelay(true));
    let (from_gateway, to_gateway) = gateway.into_split();
    let (from_redis, to_redis) = redis.into_split();
    tokio::select! {
        () = words(from_gateway, to_redis, &state) => {}
        () = answers(from_redis, to_gateway, &state) => {}
    }
}

async fn words(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, state: &State) {
    // Words may come in two pieces.
    let mut said = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        said.extend_from_slice(&buffer[..count]);
        state.hears(&said);
        said.drain(..said.len().saturating_sub(200));
        state.pass(&[Hold::Words]).await;
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

async fn answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, state: &State) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        state.pass(&[Hold::Words, Hold::Answer]).await;
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
