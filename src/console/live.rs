//! `/live`: the calls that end and the routes that change, as server-sent events. A stream holds no
//! permit of a request, and lasts for ten minutes at most; browsers then ask for the next one.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, interval_at, sleep_until, timeout};

use super::admit::find_viewer;
use super::error::PageError;
use super::forms::PageQuery;
use super::live_streams::{StreamPermit, StreamsFull};
use super::state::{Console, SignedIn};
use super::views::live as view;
use crate::clock::unix_ms;
use crate::gateway::traffic::live_feed::{EventId, LiveFeed, LiveItem, LiveReader};
use crate::operators::Role;

/// How long a look for the session of a stream may take.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// The times of a stream.
const TIMES: StreamTimes = StreamTimes {
    heartbeat: Duration::from_secs(15),
    check: Duration::from_secs(30),
    life: Duration::from_secs(600),
};
/// The first bytes: how long a browser waits before it asks again, in ms.
const BEGINNING: &str = "retry: 3000\n\n";
/// A comment, by which both sides see that the other is there.
const HEARTBEAT: &str = ":\n\n";

/// The times of a stream.
#[derive(Clone, Copy)]
struct StreamTimes {
    /// Between two comments.
    heartbeat: Duration,
    /// Between two looks for the session.
    check: Duration,
    life: Duration,
}

/// Where a stream begins.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LiveQuery {
    /// The id of the last event that the page shows.
    after: Option<String>,
}

/// Begins a stream.
pub(super) async fn open(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    headers: HeaderMap,
    PageQuery(query): PageQuery<LiveQuery>,
) -> Result<Response, PageError> {
    let permit = console.streams.open(signed_in.viewer.name()).map_err(refused)?;
    // A browser that asks again tells the last event that it had.
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let after = last.and_then(EventId::parse).or_else(|| EventId::parse(query.after.as_deref()?));
    console.live.watch(unix_ms());
    let (reader, feed) = (console.live.read_after(after), console.live.clone());
    let may_go_on = move || {
        let (console, signed_in) = (console.clone(), signed_in.clone());
        async move { is_still_operator(&console, &signed_in).await }
    };
    let stream = LiveStream::new(reader, feed, permit, TIMES, may_go_on);
    let headers = [
        (header::CONTENT_TYPE.as_str(), "text/event-stream"),
        // A proxy that gathers bytes would hold the events back.
        ("x-accel-buffering", "no"),
    ];
    Ok((headers, stream.into_body()).into_response())
}

fn refused(full: StreamsFull) -> PageError {
    let message = match full {
        StreamsFull::OfGateway => "Too many watch at this moment: try again later.",
        StreamsFull::OfOperator => "You watch in too many windows: close one of them.",
    };
    PageError::new(StatusCode::SERVICE_UNAVAILABLE, message)
}

/// Whether the session of a stream is still one of an operator. If the store does not tell, it is
/// not.
async fn is_still_operator(console: &Console, signed_in: &SignedIn) -> bool {
    let looking = async {
        let session = console.api.store.sessions.find_session(signed_in.session).await.ok()??;
        let viewer = find_viewer(console, &session.principal).await.ok()??;
        viewer.role().filter(|role| *role >= Role::Support)
    };
    timeout(CHECK_TIMEOUT, looking).await.is_ok_and(|role| role.is_some())
}

/// A stream of events.
struct LiveStream<C> {
    reader: LiveReader,
    feed: Arc<LiveFeed>,
    /// Whether the beginning was sent.
    has_begun: bool,
    /// Asks whether the stream may go on.
    may_go_on: C,
    stopping: watch::Receiver<bool>,
    ends_at: Instant,
    heartbeat: Interval,
    check: Interval,
    #[expect(dead_code, reason = "it is given back when it is dropped")]
    permit: StreamPermit,
}

impl<C, F> LiveStream<C>
where
    C: Fn() -> F + Send + 'static,
    F: Future<Output = bool> + Send,
{
    fn new(
        reader: LiveReader,
        feed: Arc<LiveFeed>,
        permit: StreamPermit,
        times: StreamTimes,
        may_go_on: C,
    ) -> LiveStream<C> {
        let now = Instant::now();
        LiveStream {
            reader,
            feed,
            has_begun: false,
            may_go_on,
            stopping: permit.stopping(),
            ends_at: now + times.life,
            heartbeat: interval_at(now + times.heartbeat, times.heartbeat),
            check: interval_at(now + times.check, times.check),
            permit,
        }
    }

    fn into_body(self) -> Body {
        let chunks = stream::unfold(self, |mut stream| async move {
            let chunk = stream.next().await?;
            Some((Ok::<_, Infallible>(chunk), stream))
        });
        Body::from_stream(chunks)
    }

    /// Waits for what is sent next; `None` at the end. Nothing is prepared ahead: a reader that is
    /// slow finds the feed further on.
    async fn next(&mut self) -> Option<Bytes> {
        if !std::mem::replace(&mut self.has_begun, true) {
            return Some(Bytes::from_static(BEGINNING.as_bytes()));
        }
        // The value that it waits for is locked while it is looked at.
        let stopped = async { drop(self.stopping.wait_for(|stopping| *stopping).await) };
        // In this order: what ends a stream comes before what it would send.
        tokio::select! {
            biased;
            () = stopped => None,
            () = sleep_until(self.ends_at) => None,
            _ = self.check.tick() => {
                (self.may_go_on)().await.then(|| Bytes::from_static(HEARTBEAT.as_bytes()))
            }
            _ = self.heartbeat.tick() => {
                self.feed.watch(unix_ms());
                Some(Bytes::from_static(HEARTBEAT.as_bytes()))
            }
            item = self.reader.next() => Some(match item {
                LiveItem::Event(event) => view::event_text(&event).into(),
                LiveItem::Lost(lost) => view::lost_text(lost).into(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::console::live_streams::LiveStreams;
    use crate::gateway::traffic::live_feed::{Happening, RouteChange};

    const LONG: Duration = Duration::from_secs(600);
    const SHORT: Duration = Duration::from_millis(20);
    const NEVER: StreamTimes = StreamTimes { heartbeat: LONG, check: LONG, life: LONG };

    fn feed() -> Arc<LiveFeed> {
        let feed = LiveFeed::new(7);
        feed.watch(unix_ms());
        Arc::new(feed)
    }

    fn happen(feed: &LiveFeed, times: u32) {
        for _ in 0..times {
            let (vendor, route) = ("v".to_owned(), "r".to_owned());
            let change = RouteChange { vendor, route, state: "up", reason: "" };
            feed.note(unix_ms(), Happening::RouteChanged(change));
        }
    }

    async fn text<C, F>(stream: &mut LiveStream<C>) -> Option<String>
    where
        C: Fn() -> F + Send + 'static,
        F: Future<Output = bool> + Send,
    {
        let sent = timeout(Duration::from_secs(10), stream.next()).await.expect("in time");
        sent.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    #[tokio::test]
    async fn a_slow_reader_is_told_how_much_it_has_lost_and_nothing_waits_for_it() {
        let (feed, streams) = (feed(), Arc::new(LiveStreams::new()));
        let permit = streams.open("ada").expect("a place");
        let reader = feed.read_after(None);
        let mut stream = LiveStream::new(reader, feed.clone(), permit, NEVER, || async { true });
        assert_eq!(text(&mut stream).await.as_deref(), Some(BEGINNING));
        happen(&feed, 1_000);
        let lost = text(&mut stream).await.expect("an event");
        assert_eq!(lost, "event: lost\ndata: {\"lost\":936}\n\n");
        for _ in 0..64 {
            let event = text(&mut stream).await.expect("an event");
            assert!(event.starts_with("id: 7-") && event.ends_with("\n\n"), "{event}");
        }
        // The end comes before what is still to be read.
        happen(&feed, 3);
        streams.stop();
        assert_eq!(text(&mut stream).await, None);
    }

    #[tokio::test]
    async fn a_stream_ends_with_its_session_and_after_its_life() {
        let (feed, streams) = (feed(), Arc::new(LiveStreams::new()));
        let may_go_on = Arc::new(AtomicBool::new(true));
        let open = |times: StreamTimes| {
            let permit = streams.open("ada").expect("a place");
            let may_go_on = may_go_on.clone();
            LiveStream::new(feed.read_after(None), feed.clone(), permit, times, move || {
                let may_go_on = may_go_on.load(Ordering::Relaxed);
                async move { may_go_on }
            })
        };
        let mut stream = open(StreamTimes { check: SHORT, ..NEVER });
        assert_eq!(text(&mut stream).await.as_deref(), Some(BEGINNING));
        assert_eq!(text(&mut stream).await.as_deref(), Some(HEARTBEAT));
        may_go_on.store(false, Ordering::Relaxed);
        assert_eq!(text(&mut stream).await, None);
        let mut stream = open(StreamTimes { heartbeat: SHORT, life: 10 * SHORT, ..NEVER });
        assert_eq!(text(&mut stream).await.as_deref(), Some(BEGINNING));
        let mut heartbeats = 0;
        while text(&mut stream).await.as_deref() == Some(HEARTBEAT) {
            heartbeats += 1;
        }
        assert!((1..=10).contains(&heartbeats), "{heartbeats}");
    }
}
