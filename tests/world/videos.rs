//! Video jobs, as the client who asked for them sees them, and as the vendor who makes them does.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Answer, VIDEO, World};
use crate::sim::Seen;

/// A job that is not over by then never will be. One whose node died while it took it in is looked
/// for after a minute.
const PATIENCE: Duration = Duration::from_secs(90);

/// The `[videos]` section with times that suit a test, and with these in their place or beside
/// them. The machine may have more to do than this test, and a late ledger is another one.
pub(crate) fn quick(settings: &[(&str, u64)]) -> String {
    let usual = [("poll_ms", 50), ("retry_ms", 20), ("lease_ms", 800), ("answer_ms", 5_000)];
    let mut all = BTreeMap::from(usual);
    all.extend(settings.iter().copied());
    let mut section = "[videos]\n".to_owned();
    for (name, value) in all {
        writeln!(section, "{name} = {value}").expect("a String takes everything");
    }
    section + "[timeouts]\nledger_ms = 10_000\n"
}

/// A job as its client sees it.
#[derive(Clone, Debug)]
pub(crate) struct Video {
    pub(crate) json: Value,
    text: String,
}

impl Video {
    /// Reads the answer that shows it.
    pub(crate) fn of(answer: &Answer) -> Video {
        assert_eq!(answer.status, 200, "{answer:?}");
        let text = String::from_utf8(answer.body.to_vec()).expect("text");
        let json = answer.json();
        assert_eq!(json["object"], "video", "{text}");
        Video { json, text }
    }

    pub(crate) fn id(&self) -> &str {
        self.json["id"].as_str().expect("an id")
    }

    pub(crate) fn status(&self) -> &str {
        self.json["status"].as_str().expect("a status")
    }

    /// The status, with the code of the error if it failed.
    pub(crate) fn outcome(&self) -> String {
        match self.json["error"]["code"].as_str() {
            Some(code) => format!("{} {code}", self.status()),
            None => self.status().to_owned(),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        ["completed", "failed"].contains(&self.status())
    }

    /// What it cost in nano-USD, by the digits of `cost_usd`.
    pub(crate) fn cost_nano(&self) -> i64 {
        let digits = self.text.split(r#""cost_usd":"#).nth(1).expect("a cost");
        let digits = digits.split(['}', ',']).next().unwrap_or_default();
        let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
        let number = |digits: &str| digits.parse::<i64>().expect("digits");
        assert!(part.len() <= 9, "{digits}");
        number(whole) * 1_000_000_000 + number(&format!("{part:0<9}"))
    }
}

impl World {
    /// Asks for a video, with these members in the place of those of a short call, and gives its
    /// id.
    pub(crate) async fn place(&self, members: Value) -> String {
        let video = Video::of(&self.call(VIDEO, members).await);
        assert_eq!(video.outcome(), "queued", "{video:?}");
        video.id().to_owned()
    }

    /// A GET that is led nowhere: at this gateway or another address, with a key and a range if
    /// there are any.
    pub(crate) async fn get_there(
        &self,
        place: &str,
        key: Option<&str>,
        range: Option<&str>,
    ) -> Answer {
        let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
        let gateway = format!("http://{}", self.gateway.http);
        let url = if place.starts_with("http") { place } else { &format!("{gateway}{place}") };
        let request = client.build().expect("a client").get(url);
        let request = key.iter().fold(request, reqwest::RequestBuilder::bearer_auth);
        let ranged =
            |request: reqwest::RequestBuilder, range: &&str| request.header("range", *range);
        Answer::read(range.iter().fold(request, ranged)).await
    }

    /// A DELETE.
    pub(crate) async fn delete(&self, path: &str) -> Answer {
        let url = format!("http://{}{path}", self.gateway.http);
        Answer::read(self.client.delete(url).bearer_auth(&self.key)).await
    }

    /// A job as it is now.
    pub(crate) async fn video(&self, id: &str) -> Video {
        Video::of(&self.get(&format!("/v1/videos/{id}")).await)
    }

    /// Waits until a job is as expected.
    pub(crate) async fn video_becomes(&self, id: &str, is_so: impl Fn(&Video) -> bool) -> Video {
        let end = Instant::now() + PATIENCE;
        loop {
            let answer = self.get(&format!("/v1/videos/{id}")).await;
            if answer.status == 503 && Instant::now() < end {
                // A key is looked up again every second, and the first question to a Redis that
                // has come back finds a line that broke.
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
            let video = Video::of(&answer);
            if is_so(&video) {
                return video;
            }
            let log = self.log();
            assert!(!video.is_over() && Instant::now() < end, "{video:?}\n{log}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until a vendor has it.
    pub(crate) async fn in_progress(&self, id: &str) -> Video {
        self.video_becomes(id, |video| video.status() == "in_progress").await
    }

    /// Waits until a job is over.
    pub(crate) async fn over(&self, id: &str) -> Video {
        self.video_becomes(id, Video::is_over).await
    }

    /// Waits until an address is not found any more.
    pub(crate) async fn gone(&self, path: &str) {
        let end = Instant::now() + PATIENCE;
        loop {
            let answer = self.get(path).await;
            if answer.status == 404 {
                assert_eq!(answer.refusal(), (404, "not_found".to_owned()));
                return;
            }
            assert!(Instant::now() < end, "{path} is still there: {answer:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The requests of one kind that came to the vendor.
    fn heard(&self, is_so: impl Fn(&Seen) -> bool) -> Vec<Seen> {
        let seen = self.sim.seen().into_iter();
        seen.filter(|seen| seen.vendor == VIDEO.vendor && is_so(seen)).collect()
    }

    /// The POSTs that came to the vendor, taken or not.
    pub(crate) fn submissions(&self) -> Vec<Seen> {
        self.heard(|seen| seen.path.ends_with("/videos/generations"))
    }

    /// The questions for jobs that came to the vendor.
    pub(crate) fn polls(&self) -> Vec<Seen> {
        self.heard(|seen| seen.method == "GET" && seen.path.contains("/videos/"))
    }

    /// How often the vendor was asked for a file.
    pub(crate) fn fetches(&self) -> Vec<Seen> {
        self.heard(|seen| seen.path.contains("/files/"))
    }

    /// Waits until the vendor has heard as much as expected.
    pub(crate) async fn vendor_hears(&self, what: &str, is_so: impl Fn(&World) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(Instant::now() < end, "the vendor does not hear of {what}\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
