//! What the console does by itself: it notes the traffic once a minute, tells the feed of routes
//! that change, and ends the streams when the gateway stops.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use super::state::Console;
use crate::clock::unix_ms;
use crate::gateway::traffic::live_feed::{Happening, LiveFeed, RouteChange};
use crate::gateway::traffic::reading::TrafficLog;
use crate::gateway::upstream::routes::RouteTable;

const MINUTE_MS: u64 = 60_000;
/// How often the states of routes are compared, while somebody watches.
const ROUTES_INTERVAL: Duration = Duration::from_secs(1);

/// Runs until the future is dropped.
pub(crate) async fn run(console: &Console, mut stopping: watch::Receiver<bool>) {
    let stop_streams = async {
        let _ = stopping.changed().await;
        console.streams.stop();
    };
    tokio::join!(
        note_traffic(&console.traffic),
        watch_routes(&console.live, &console.api.routes),
        stop_streams,
    );
}

/// Notes the traffic at the end of each minute.
async fn note_traffic(traffic: &TrafficLog) {
    loop {
        let into_minute = unix_ms().unsigned_abs() % MINUTE_MS;
        sleep(Duration::from_millis(MINUTE_MS - into_minute)).await;
        traffic.note(unix_ms());
    }
}

/// Tells the feed of each route whose state has changed since the last look.
async fn watch_routes(feed: &LiveFeed, routes: &RouteTable) {
    let mut known: Option<Vec<&'static str>> = None;
    loop {
        sleep(ROUTES_INTERVAL).await;
        if !feed.is_watched() {
            known = None;
            continue;
        }
        let now = unix_ms();
        let states: Vec<_> = routes.all().map(|route| route.state_at(now)).collect();
        let before = known.unwrap_or_else(|| states.iter().map(|state| state.0).collect());
        for ((route, state), before) in routes.all().zip(&states).zip(before) {
            if state.0 != before {
                let (vendor, route) = (route.vendor.clone(), route.name.clone());
                let (state, reason) = *state;
                let change = RouteChange { vendor, route, state, reason };
                feed.note(now, Happening::RouteChanged(change));
            }
        }
        known = Some(states.into_iter().map(|state| state.0).collect());
    }
}
