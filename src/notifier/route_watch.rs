//! Which routes are down, and for how long.

use std::collections::HashMap;

/// A route is told as down after this time, in ms: a failure of a moment is no news.
const DOWN_AFTER_MS: i64 = 10_000;
/// A route is up again after this time, in ms.
const UP_AFTER_MS: i64 = 60_000;

/// The state of a route at a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RouteState {
    /// The vendor's token.
    pub(crate) vendor: String,
    /// The name of the route.
    pub(crate) route: String,
    /// Why no call may take it; `None` if calls may.
    pub(crate) down: Option<String>,
}

/// A change of a route that is to be noted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RouteTransition {
    pub(super) state: RouteState,
    /// Since when, in unix ms.
    pub(super) since: i64,
}

/// What is known of the routes.
#[derive(Debug, Default)]
pub(super) struct RouteWatch {
    by_name: HashMap<(String, String), Watched>,
}

/// What is known of a route.
#[derive(Debug)]
struct Watched {
    is_down: bool,
    /// Since when, in unix ms.
    since: i64,
    /// Whether it was noted as down; `None` if nothing was noted yet: a process before this one may
    /// have noted it.
    noted: Option<bool>,
}

impl RouteWatch {
    /// Takes the states of all routes at `now` (unix ms), and returns what is to be noted. It is
    /// returned again until [`RouteWatch::mark_noted`].
    pub(super) fn observe(&mut self, states: Vec<RouteState>, now: i64) -> Vec<RouteTransition> {
        let name_of = |state: &RouteState| (state.vendor.clone(), state.route.clone());
        let names: std::collections::HashSet<_> = states.iter().map(name_of).collect();
        self.by_name.retain(|name, _| names.contains(name));
        let mut changes = Vec::new();
        for state in states {
            let is_down = state.down.is_some();
            let new = || Watched { is_down, since: now, noted: None };
            let watched = self.by_name.entry(name_of(&state)).or_insert_with(new);
            if watched.is_down != is_down {
                (watched.is_down, watched.since) = (is_down, now);
            }
            let wait = if is_down { DOWN_AFTER_MS } else { UP_AFTER_MS };
            let is_over = now.saturating_sub(watched.since) >= wait;
            if is_over && watched.noted != Some(is_down) {
                changes.push(RouteTransition { state, since: watched.since });
            }
        }
        changes
    }

    /// Notes that a change was noted.
    pub(super) fn mark_noted(&mut self, change: &RouteTransition) {
        let name = (change.state.vendor.clone(), change.state.route.clone());
        if let Some(watched) = self.by_name.get_mut(&name) {
            watched.noted = Some(change.state.down.is_some());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(down: bool) -> Vec<RouteState> {
        let down = down.then(|| "refused".to_owned());
        vec![RouteState { vendor: "vendor_b".to_owned(), route: "main".to_owned(), down }]
    }

    #[test]
    fn a_route_is_told_once_when_it_is_down_for_a_while() {
        let mut watch = RouteWatch::default();
        let mut told = Vec::new();
        // Up, a failure of a moment, up, down for two minutes, up, down again.
        for (second, down) in
            (0..400).map(|second| (second, matches!(second, 20..=25 | 100..=220 | 320..=400)))
        {
            for change in watch.observe(state(down), second * 1_000) {
                told.push((second, change.state.down.is_some(), change.since / 1_000));
                watch.mark_noted(&change);
            }
        }
        assert_eq!(told, [(86, false, 26), (110, true, 100), (281, false, 221), (330, true, 320)]);
    }

    #[test]
    fn a_change_that_could_not_be_noted_is_told_again() {
        let mut watch = RouteWatch::default();
        assert!(watch.observe(state(true), 0).is_empty());
        let first = watch.observe(state(true), DOWN_AFTER_MS);
        assert_eq!(
            (first.len(), watch.observe(state(true), DOWN_AFTER_MS + 1)),
            (1, first.clone())
        );
        watch.mark_noted(&first[0]);
        assert!(watch.observe(state(true), DOWN_AFTER_MS + 2).is_empty());
        // A route that is gone is forgotten.
        assert!(
            watch.observe(Vec::new(), DOWN_AFTER_MS + 3).is_empty() && watch.by_name.is_empty()
        );
    }
}
