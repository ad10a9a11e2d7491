//! When keys, tokens and granted credit end: what is told of a time that is none to end at.

/// Says that the time of `what`, as it was given, is not after `now` (unix seconds).
pub(crate) fn not_in_the_future(what: &str, shown: &str, now: i64) -> String {
    let now = time_text(now);
    format!("{what} '{shown}' is not in the future: give a time after {now}")
}

/// Returns a time (unix seconds) in the format of RFC 3339, or as a number if it is beyond that.
pub(crate) fn time_text(at: i64) -> String {
    let moment = jiff::Timestamp::from_second(at);
    moment.map_or_else(|_| at.to_string(), |moment| moment.to_string())
}
