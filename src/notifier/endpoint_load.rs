//! Which endpoints are sent to now. One that fails is left alone for a while, and those that fail
//! or are slow share a few places, so that they take none from the others.

use std::collections::HashMap;
use std::time::Duration;

use crate::webhooks::schedule::pause_ms;

/// At most this many messages are sent at the same time.
const SENDING_MAX: usize = 64;
/// At most this many of them to endpoints that fail or are slow.
const TROUBLED_MAX: usize = 16;
/// An endpoint is slow if it takes longer than this.
const SLOW: Duration = Duration::from_secs(1);
/// At most this many endpoints are remembered that have failed.
const REMEMBERED_MAX: usize = 4_096;

/// What is known of the endpoints.
#[derive(Debug, Default)]
pub(super) struct EndpointLoad {
    by_id: HashMap<String, Load>,
}

/// What is known of an endpoint.
#[derive(Debug, Default)]
struct Load {
    is_sending: bool,
    /// How often it has failed in a row.
    failures: u32,
    /// Until when nothing is sent to it, in unix ms.
    paused_until: i64,
    is_slow: bool,
}

impl Load {
    fn is_troubled(&self) -> bool {
        self.failures > 0 || self.is_slow
    }
}

impl EndpointLoad {
    /// Begins to send to an endpoint, if that may be done at `now` (unix ms).
    pub(super) fn begin(&mut self, endpoint: &str, now: i64) -> bool {
        let sending = || self.by_id.values().filter(|load| load.is_sending);
        let (all, troubled) =
            (sending().count(), sending().filter(|load| load.is_troubled()).count());
        if all >= SENDING_MAX {
            return false;
        }
        if let Some(load) = self.by_id.get(endpoint) {
            let has_place = !load.is_troubled() || troubled < TROUBLED_MAX;
            if load.is_sending || load.paused_until > now || !has_place {
                return false;
            }
        }
        self.by_id.entry(endpoint.to_owned()).or_default().is_sending = true;
        true
    }

    /// Whether all places are taken.
    pub(super) fn is_full(&self) -> bool {
        self.by_id.values().filter(|load| load.is_sending).count() >= SENDING_MAX
    }

    /// Ends what was begun. `took` is how long the endpoint has taken; `None` if nothing was sent.
    pub(super) fn end(
        &mut self,
        endpoint: &str,
        took: Option<Duration>,
        is_accepted: bool,
        now: i64,
    ) {
        let Some(load) = self.by_id.get_mut(endpoint) else { return };
        load.is_sending = false;
        if let Some(took) = took {
            load.is_slow = took > SLOW;
            load.failures = if is_accepted { 0 } else { load.failures.saturating_add(1) };
            // One that is slow has as much time for others as it has taken.
            let took = i64::try_from(took.as_millis()).unwrap_or(i64::MAX);
            let rest = if load.is_slow { took } else { 0 };
            load.paused_until = now.saturating_add(rest.max(pause_ms(load.failures)));
        }
        let is_over = !load.is_troubled();
        if is_over || self.by_id.len() > REMEMBERED_MAX {
            self.by_id.remove(endpoint);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Option<Duration> = Some(Duration::from_millis(5));

    #[test]
    fn an_endpoint_gets_one_message_at_a_time_and_a_pause_after_a_failure() {
        let mut load = EndpointLoad::default();
        assert!(load.begin("a", 0) && !load.begin("a", 0) && load.begin("b", 0));
        load.end("a", FAST, false, 0);
        assert!(!load.begin("a", 999) && load.begin("a", 1_000));
        load.end("a", FAST, false, 1_000);
        assert!(!load.begin("a", 2_999) && load.begin("a", 3_000));
        load.end("a", FAST, true, 3_000);
        assert!(load.begin("a", 3_000));
        // Nothing was sent: another process was first.
        load.end("a", None, false, 3_000);
        load.end("b", FAST, true, 3_000);
        assert!(load.by_id.is_empty());
    }

    #[test]
    fn endpoints_in_trouble_took_the_places_of_others() {
        let mut load = EndpointLoad::default();
        let slow = Some(Duration::from_secs(9));
        for number in 0..100 {
            let bad = format!("bad{number}");
            load.by_id.insert(bad.clone(), Load { is_sending: true, ..Load::default() });
            load.end(&bad, if number % 2 == 0 { slow } else { FAST }, number % 2 == 0, 0);
        }
        let later = 1_000_000;
        let begun = (0..100).filter(|number| load.begin(&format!("bad{number}"), later)).count();
        assert_eq!(begun, TROUBLED_MAX);
        let begun = (0..100).filter(|number| load.begin(&format!("good{number}"), later)).count();
        assert_eq!(begun, SENDING_MAX - TROUBLED_MAX);
        assert!(load.is_full());
    }
}
