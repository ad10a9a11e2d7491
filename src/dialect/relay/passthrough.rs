//! Relays a reply that the gateway does not parse: its bytes are passed on as received. Its cost
//! was fixed before.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::Bytes;

use super::progress::{RelayError, RelayProgress};
use crate::money::{BilledUnits, Usage, UsageBasis};

/// A reply may have at most this many bytes: twenty minutes of uncompressed sound.
const REPLY_BYTES_MAX: u64 = 64 << 20;

/// The relay of a reply that is passed on without being parsed.
#[derive(Debug)]
pub struct PassthroughRelay {
    characters: u64,
    received_bytes: u64,
    pub(super) progress: RelayProgress,
}

impl PassthroughRelay {
    pub(super) fn new(characters: u64) -> PassthroughRelay {
        PassthroughRelay { characters, received_bytes: 0, progress: RelayProgress::Open }
    }

    pub(super) fn push(&mut self, bytes: Bytes) -> Option<Bytes> {
        if self.progress != RelayProgress::Open {
            return None;
        }
        self.received_bytes += bytes.len() as u64;
        if self.received_bytes > REPLY_BYTES_MAX {
            self.progress = RelayProgress::Failed(RelayError::TooLarge);
            return None;
        }
        Some(bytes).filter(|bytes| !bytes.is_empty())
    }

    pub(super) fn finish(&mut self) {
        if self.progress == RelayProgress::Open {
            // Even silent audio has bytes, so an empty reply is malformed.
            let any_bytes = self.received_bytes > 0;
            self.progress = if any_bytes {
                RelayProgress::Complete
            } else {
                RelayProgress::Failed(RelayError::Malformed)
            };
        }
    }

    pub(super) fn usage(&self) -> Usage {
        let units = BilledUnits::Characters { characters: self.characters };
        Usage { units, basis: UsageBasis::Fixed }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Relay, RelayMode};
    use super::*;

    fn relay_speech(pieces: &[&'static [u8]]) -> (Vec<Bytes>, Relay) {
        let mut relay = Relay::new(RelayMode::Speech { characters: 5 }, false);
        let out = pieces.iter().filter_map(|piece| relay.push(Bytes::from_static(piece))).collect();
        (out, relay)
    }

    #[test]
    fn bytes_pass_as_they_come_and_cost_what_was_fixed() {
        let (out, mut relay) = relay_speech(&[b"ID3", b"", b"{\"error\":1}"]);
        assert_eq!(out, [&b"ID3"[..], b"{\"error\":1}"]);
        assert_eq!(relay.billable_usage(9), None);
        assert_eq!((relay.finish(), relay.progress()), (None, &RelayProgress::Complete));
        let units = BilledUnits::Characters { characters: 5 };
        assert_eq!(relay.billable_usage(9), Some(Usage { units, basis: UsageBasis::Fixed }));
    }

    #[test]
    fn what_breaks_costs_nothing_unless_the_client_had_gone() {
        let (_, mut relay) = relay_speech(&[b"ID3"]);
        relay.fail(RelayError::Truncated);
        assert_eq!(relay.billable_usage(9), None);
        let (_, mut relay) = relay_speech(&[b"ID3"]);
        relay.fail(RelayError::Abandoned);
        assert!(relay.billable_usage(9).is_some());
        let (_, mut relay) = relay_speech(&[]);
        relay.finish();
        assert_eq!(
            (relay.progress(), relay.billable_usage(9)),
            (&RelayProgress::Failed(RelayError::Malformed), None)
        );
    }
}
