//! The videos that were ordered, and the requests about them.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};

use super::super::asked::Asked;
use super::super::endpoint::Endpoint;
use super::end::End;
use super::order::Order;

const VIDEOS_MAX: usize = 10_000;

/// A video that was ordered, and will be made or not.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Video {
    /// The vendor's id of it, which no other simulator gives either.
    pub(crate) id: String,
    /// The faults in the address of the order.
    pub(crate) faults: String,
    pub(crate) model: String,
    pub(crate) prompt: String,
    pub(crate) seconds: u64,
    pub(crate) resolution: String,
    pub(crate) aspect_ratio: Option<String>,
    /// Whether it has a sound.
    pub(crate) audio: bool,
    /// The image to begin with: an address, or the SHA-256 of one that came with the order.
    pub(crate) image: Option<String>,
    /// How it ends: done, lost, withheld, failed, expired, gone or never.
    pub(crate) outcome: &'static str,
    /// The ticks on the vendor's bill, which are certain from the beginning.
    pub(crate) billed: Option<u64>,
    /// How often it was asked after, whatever the answer.
    pub(crate) polls: u64,
    /// How often its file was asked for, whatever the answer.
    pub(crate) fetches: u64,
    #[serde(skip)]
    pub(super) end: End,
    /// The key that ordered it; to others it is unknown.
    #[serde(skip)]
    pub(super) key: String,
    #[serde(skip)]
    begun: Instant,
    #[serde(skip)]
    takes: Duration,
}

impl Video {
    /// Whether it has come to its end.
    pub(crate) fn is_over(&self) -> bool {
        self.end != End::Never && self.begun.elapsed() >= self.takes
    }

    /// How much of it is made, in percent.
    pub(super) fn progress(&self) -> u128 {
        let made = self.begun.elapsed().as_millis() * 100;
        made.checked_div(self.takes.as_millis()).map_or(99, |percent| percent.min(99))
    }
}

/// How many requests there were about videos, whatever the answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Calls {
    /// Orders.
    pub(crate) submissions: u64,
    /// Questions for a video.
    pub(crate) polls: u64,
    /// Requests for a file.
    pub(crate) fetches: u64,
}

/// The memory of videos.
#[derive(Default)]
pub(in super::super) struct Shelf {
    /// By their ids, which sort by age.
    videos: Mutex<BTreeMap<String, Video>>,
    calls: [AtomicU64; 3],
    begun: AtomicU64,
    /// Makes the ids others than those of the next simulator.
    origin: RandomState,
}

impl Shelf {
    /// Counts a request about a video.
    pub(in super::super) fn count(&self, endpoint: Endpoint, job: &str) {
        let place = match endpoint {
            Endpoint::Submit => 0,
            Endpoint::Poll => 1,
            Endpoint::File => 2,
            _ => return,
        };
        self.calls[place].fetch_add(1, Ordering::Relaxed);
        if let Some(video) = self.lock().get_mut(job) {
            let count = if place == 1 { &mut video.polls } else { &mut video.fetches };
            *count += 1;
        }
    }

    pub(in super::super) fn calls(&self) -> Calls {
        let [submissions, polls, fetches] =
            [0, 1, 2].map(|place| self.calls[place].load(Ordering::Relaxed));
        Calls { submissions, polls, fetches }
    }

    /// All videos, oldest first.
    pub(in super::super) fn videos(&self) -> Vec<Video> {
        self.lock().values().cloned().collect()
    }

    /// All of it as JSON.
    pub(in super::super) fn page(&self) -> Value {
        let mut page = json!(self.calls());
        let told = |video: &Video| {
            let mut told = json!(video);
            told["over"] = json!(video.is_over());
            told
        };
        page["videos"] = self.lock().values().map(told).collect();
        page
    }

    /// Begins a video, and gives its id.
    pub(super) fn begin(
        &self,
        asked: &Asked,
        order: Order,
        end: End,
        takes_ms: u64,
        billed: Option<u64>,
    ) -> String {
        let [a, b, c, d, ..] = self.origin.hash_one(0).to_be_bytes();
        let origin = u32::from_be_bytes([a, b, c, d]);
        let serial = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        let id = format!("{origin:08x}-0000-4000-8000-{serial:012x}");
        let video = Video {
            id: id.clone(),
            faults: asked.place.faults.clone(),
            model: order.model,
            prompt: order.prompt,
            seconds: order.seconds,
            resolution: order.resolution,
            aspect_ratio: order.aspect_ratio,
            audio: order.audio,
            image: order.file.map(|file| file.sha256).or(order.image),
            outcome: end.name(),
            billed,
            polls: 0,
            fetches: 0,
            end,
            key: asked.place.key.clone(),
            begun: Instant::now(),
            takes: Duration::from_millis(takes_ms),
        };
        let mut videos = self.lock();
        if videos.len() == VIDEOS_MAX {
            videos.pop_first();
        }
        videos.insert(id.clone(), video);
        id
    }

    pub(super) fn find(&self, id: &str) -> Option<Video> {
        self.lock().get(id).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Video>> {
        self.videos.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
