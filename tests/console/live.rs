//! The calls of the gateway as the console shows them: by hour, by route, and live.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::{ACCOUNT, AdminWorld, Browser, Page, Store, chat_of, link, operator, until};
use crate::world::{Answer, Opened};

/// An event comes within this time. It takes some milliseconds, and up to a second for a route.
const SOON: Duration = Duration::from_secs(10);
const MODEL: &str = "lmb-5.5";

impl Browser {
    async fn live(&self, after: &str) -> Opened {
        let request = self.client.get(format!("{}/live{after}", self.root));
        Opened::open(request.header("cookie", &self.cookie)).await
    }
}

/// The data of the next event.
async fn next(stream: &mut Opened) -> Value {
    let event = tokio::time::timeout(SOON, stream.next()).await.expect("an event in time");
    serde_json::from_str(&event.expect("an event")).expect("JSON")
}

/// Waits until a stream has ended, and tells how long that took.
async fn ended(stream: Opened, limit: Duration) -> Duration {
    let began = Instant::now();
    tokio::time::timeout(limit, stream.rest()).await.expect("the stream ends");
    began.elapsed()
}

async fn call(world: &AdminWorld) -> Answer {
    let answer = world.world.chat(chat_of(MODEL)).await;
    assert_eq!(answer.status, 200, "{}", answer.html());
    answer
}

#[tokio::test]
async fn the_first_page_shows_the_calls_of_the_gateway_and_a_reload_shows_newer_ones() {
    let world = AdminWorld::start(Store::Sqlite).await;
    let browser = Browser::of(&world, &operator("support")).await;
    let page = browser.get("/").await.html();
    assert!(page.contains("No call has come to this gateway"), "{page}");
    assert!(page.contains("id=\"live-none\""), "{page}");
    call(&world).await;
    let refused = world.world.chat(chat_of("no-such-model")).await;
    assert_eq!(refused.status, 404);
    let page = until(&browser, "/", "Calls and their errors by hour").await;
    let page = if page.contains("50.0 %") { page } else { until(&browser, "/", "50.0 %").await };
    for shown in ["Time to first byte by hour", "aria-label=\"Calls of each hour", "2 calls"] {
        assert!(page.contains(shown), "{shown}: {page}");
    }
    let tail = page.split("id=\"live-calls\"").nth(1).expect("the tail");
    let rows: Vec<_> = tail.split("<tr>").skip(1).collect();
    // The newest first.
    for (row, cells) in [(0, [ACCOUNT, "chat", ">404<"]), (1, [MODEL, "0.008", "vendor_b / "])] {
        assert!(cells.iter().all(|cell| rows[row].contains(cell)), "{cells:?}: {page}");
    }
    assert!(!page.contains("How much is 2 + 2?"), "what is asked is not shown");
    let routes = until(&browser, "/routes", "<td class=\"number\">1</td>").await;
    assert!(routes.contains("is not measured by route"), "{routes}");
}

#[tokio::test]
async fn a_stream_tells_of_each_call_once_and_of_nothing_that_was_said() {
    let world = AdminWorld::start(Store::Sqlite).await;
    let browser = Browser::of(&world, &operator("support")).await;
    let page = browser.get("/").await.html();
    let after = page.split("data-after=\"").nth(1).and_then(|rest| rest.split('"').next());
    let after = format!("?after={}", after.expect("the id of the newest event"));
    // Before the stream has begun, and after.
    call(&world).await;
    until(&browser, "/", "0.008").await;
    let mut stream = browser.live(&after).await;
    assert_eq!(stream.status, 200);
    let header = |name: &str| stream.headers.get(name).and_then(|value| value.to_str().ok());
    assert_eq!(header("content-type"), Some("text/event-stream"));
    assert_eq!(header("cache-control"), Some("no-store"));
    call(&world).await;
    for _ in 0..2 {
        let cells = next(&mut stream).await["cells"].clone();
        let told = |at: usize| cells[at].as_str().expect("a text").to_owned();
        assert_eq!([told(1), told(2), told(3)], [ACCOUNT, MODEL, "chat"]);
        assert_eq!([told(4), told(5)], ["200", "0.008"]);
        assert!(told(7).starts_with("vendor_b / ") && !cells.to_string().contains("2 + 2"));
    }
    assert!(
        tokio::time::timeout(Duration::from_millis(300), stream.next()).await.is_err(),
        "each call is told once"
    );
    // A browser that asks again tells the last event it had, whatever its page says.
    let request = browser.client.get(format!("{}/live{after}", world.root));
    let request = request.header("cookie", &browser.cookie);
    let first = after.replace("?after=", "").replace("-0", "-1");
    let mut again = Opened::open(request.header("last-event-id", first)).await;
    next(&mut again).await;
    assert!(tokio::time::timeout(Duration::from_millis(300), again.next()).await.is_err());
}

#[tokio::test]
async fn operators_may_watch_and_nobody_else() {
    let world = AdminWorld::start(Store::Sqlite).await;
    let nobody = Browser::new(&world.root).get("/live").await;
    assert_eq!((nobody.status, nobody.header("location")), (303, Some("/sign-in")));
    let customer = Browser::of(&world, &["--account", ACCOUNT]).await.get("/live").await;
    assert_eq!(customer.status, 403, "{}", customer.html());
    for role in ["support", "operator", "owner"] {
        let browser = Browser::of(&world, &operator(role)).await;
        assert_eq!(browser.live("").await.status, 200, "{role}");
        assert_eq!(browser.get("/live?before=1").await.status, 400, "{role}");
        let posted = browser.post("/live", "").await;
        assert_eq!(posted.status, 405, "{role}");
    }
}

#[tokio::test]
async fn sixteen_streams_and_four_of_one_operator_and_pages_go_on() {
    let world = AdminWorld::start(Store::Sqlite).await;
    let mut open = Vec::new();
    let mut browsers = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        world.world.command(&["operator", "add", name, "--role", "support"]).await.done();
        browsers.push(Browser::of(&world, &operator(name)).await);
    }
    for browser in &browsers[..4] {
        for _ in 0..4 {
            let stream = browser.live("").await;
            assert_eq!(stream.status, 200);
            open.push(stream);
        }
        if open.len() == 4 {
            let refused = browser.get("/live").await;
            assert_eq!(refused.status, 503);
            assert!(refused.html().contains("too many windows"), "{}", refused.html());
        }
    }
    let refused = browsers[4].get("/live").await;
    assert!(refused.status == 503 && refused.html().contains("Too many watch"));
    assert_eq!(browsers[4].get("/accounts").await.status, 200, "pages have permits of their own");
    drop(open.remove(0));
    for _ in 0..200 {
        let stream = browsers[4].live("").await;
        if stream.status == 200 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("a stream that was closed makes no room");
}

#[tokio::test]
async fn a_gateway_that_stops_ends_its_streams_at_once() {
    let mut world = AdminWorld::start(Store::Sqlite).await;
    let browser = Browser::of(&world, &operator("support")).await;
    let (one, other) = (browser.live("").await, browser.live("").await);
    world.world.gateway.signal("TERM");
    let limit = Duration::from_secs(5);
    tokio::join!(ended(one, limit), ended(other, limit));
    world.world.gateway.ended(Duration::from_secs(5)).await;
    assert!(!world.world.log().contains("console_stop_slow"));
}

/// It is looked for each half a minute.
#[tokio::test]
async fn a_stream_ends_when_its_session_has_ended_and_the_others_go_on() {
    let world = AdminWorld::start(Store::Sqlite).await;
    let [leaver, stayer] = [
        Browser::of(&world, &operator("support")).await,
        Browser::of(&world, &operator("owner")).await,
    ];
    let (left, mut other) = (leaver.live("").await, stayer.live("").await);
    assert_eq!(leaver.post("/sign-out", "").await.status, 303);
    ended(left, Duration::from_secs(40)).await;
    // It has had its comments meanwhile.
    call(&world).await;
    assert_eq!(next(&mut other).await["cells"][1], ACCOUNT);
}

#[tokio::test]
async fn the_script_and_the_stylesheet_are_kept_by_browsers_for_ever() {
    let world = AdminWorld::start(Store::Sqlite).await;
    let mut browser = Browser::new(&world.root);
    let answer = browser.get(&link(&world, &operator("support")).await).await;
    browser.signed_in(&answer).await;
    let page = browser.get("/").await.html();
    for (before, kind) in
        [("<script src=\"", "text/javascript"), ("stylesheet\" href=\"", "text/css")]
    {
        let path = page.split(before).nth(1).and_then(|rest| rest.split('"').next());
        let asset = Browser::new(&world.root).get(path.expect("an address")).await;
        assert_eq!(asset.status, 200, "{path:?}");
        let header = |name: &str| asset.header(name).unwrap_or_default();
        assert!(
            header("content-type").starts_with(kind)
                && header("x-content-type-options") == "nosniff"
        );
        assert!(header("cache-control").contains("immutable"), "{path:?}");
    }
    assert_eq!(browser.get("/assets/live-0000000000000000.js").await.status, 404);
}
