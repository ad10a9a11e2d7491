//! A reply as it is collected while it goes to the client, up to a bound; and the bound of all of
//! them together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};

use crate::repeats::{Head, Reply};

/// All replies of a process that are being collected have so many bytes, at most.
const ALL_BYTES_MAX: usize = 256 << 20;
/// Pieces from this size on are kept as they are; shorter ones are copied together.
const WHOLE_BYTES_MIN: usize = 16 << 10;

/// How many bytes are being collected.
#[derive(Debug, Clone, Default)]
pub struct Room(Arc<AtomicUsize>);

/// See the module. What outgrows its bound is given up.
#[derive(Debug)]
pub(super) struct Collected {
    head: Option<Head>,
    /// What is full, and what is being filled.
    pieces: Vec<Bytes>,
    short: BytesMut,
    bytes: usize,
    bytes_max: usize,
    given_up: bool,
    room: Room,
}

impl Collected {
    pub(super) fn new(bytes_max: usize, room: &Room) -> Collected {
        Collected {
            head: None,
            pieces: Vec::new(),
            short: BytesMut::new(),
            bytes: 0,
            bytes_max,
            given_up: false,
            room: room.clone(),
        }
    }

    /// How many bytes there are.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Notes the head.
    pub(super) fn begin(&mut self, head: Head) {
        self.head = Some(head);
    }

    /// Adds what comes next.
    pub(super) fn add(&mut self, piece: &Bytes) {
        if self.given_up {
            return;
        }
        let all = self.room.0.fetch_add(piece.len(), Ordering::Relaxed) + piece.len();
        self.bytes += piece.len();
        if self.bytes > self.bytes_max || all > ALL_BYTES_MAX {
            self.give_up();
        } else if piece.len() < WHOLE_BYTES_MIN {
            self.short.extend_from_slice(piece);
        } else {
            if !self.short.is_empty() {
                self.pieces.push(self.short.split().freeze());
            }
            self.pieces.push(piece.clone());
        }
    }

    /// Forgets all of it, and what is to come.
    pub(super) fn give_up(&mut self) {
        self.given_up = true;
        self.pieces = Vec::new();
        self.short = BytesMut::new();
        self.room.0.fetch_sub(std::mem::take(&mut self.bytes), Ordering::Relaxed);
    }

    /// The reply, if all of it is here.
    pub(super) fn reply(&mut self) -> Option<Reply> {
        if self.given_up {
            return None;
        }
        if !self.short.is_empty() {
            self.pieces.push(self.short.split().freeze());
        }
        if self.pieces.len() > 1 {
            self.pieces = vec![Bytes::from(self.pieces.concat())];
        }
        let body = self.pieces.first().cloned().unwrap_or_default();
        Some(Reply { head: self.head.clone()?, body })
    }
}

impl Drop for Collected {
    fn drop(&mut self) {
        self.give_up();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn used(room: &Room) -> usize {
        room.0.load(Ordering::Relaxed)
    }

    proptest! {
        #[test]
        fn what_was_added_comes_out_whole_or_not_at_all(
            sizes in prop::collection::vec(prop_oneof![0..99_usize, 9_000..40_000_usize], 0..9),
            bytes_max in 0..90_000_usize,
        ) {
            let room = Room::default();
            let mut collected = Collected::new(bytes_max, &room);
            let head = Head { status: 200, headers: Vec::new(), apart: None };
            collected.begin(head.clone());
            let mut all = Vec::new();
            for (number, size) in (1_u8..).zip(&sizes) {
                let piece = vec![number; *size];
                all.extend_from_slice(&piece);
                collected.add(&Bytes::from(piece));
            }
            let fits = all.len() <= bytes_max;
            prop_assert_eq!(used(&room), if fits { all.len() } else { 0 });
            for _ in 0..2 {
                let reply = fits.then(|| Reply { head: head.clone(), body: all.clone().into() });
                prop_assert_eq!(collected.reply(), reply);
            }
            drop(collected);
            prop_assert_eq!(used(&room), 0);
        }
    }

    #[test]
    fn all_together_have_a_bound() {
        let room = Room::default();
        let large = Bytes::from(vec![0; ALL_BYTES_MAX / 2 + 1]);
        let [mut one, mut other] = [(); 2].map(|()| Collected::new(usize::MAX, &room));
        [&mut one, &mut other].into_iter().for_each(|collected| {
            collected.begin(Head { status: 200, headers: Vec::new(), apart: None });
            collected.add(&large);
        });
        assert_eq!((one.bytes(), other.bytes()), (large.len(), 0));
        assert!(one.reply().is_some() && other.reply().is_none());
        drop(one);
        assert_eq!(used(&room), 0);
    }
}
