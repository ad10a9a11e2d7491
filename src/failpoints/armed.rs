//! The point at which this process dies or panics, if a test has armed one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use once_cell::sync::Lazy;
use rustix::process::{Signal, getpid, kill_process};

/// Has the name of a point, and the pass at which the process dies: `end_written:60`. With `!` at
/// its end, only the task panics that passes: `reply_begun:1!`.
const VARIABLE: &str = "TOLLGATE_FAILPOINT";

static ARMED: Lazy<Option<ArmedPoint>> =
    Lazy::new(|| std::env::var(VARIABLE).ok().map(|text| ArmedPoint::parse(&text)));

struct ArmedPoint {
    name: String,
    last_pass: u64,
    panics: bool,
    passes: AtomicU64,
}

impl ArmedPoint {
    /// Without a number it is the first pass.
    fn parse(text: &str) -> ArmedPoint {
        let (name, number) = text.split_once(':').unwrap_or((text, ""));
        let (number, panics) =
            number.strip_suffix('!').map_or((number, false), |rest| (rest, true));
        let last_pass = number.parse().unwrap_or(1);
        ArmedPoint { name: name.to_owned(), last_pass, panics, passes: AtomicU64::new(0) }
    }

    /// Counts a pass, and returns whether it is the last one.
    fn count_pass(&self) -> bool {
        self.passes.fetch_add(1, Ordering::SeqCst) + 1 == self.last_pass
    }
}

/// Kills the process if the point is armed and this is its last pass. As after any `kill -9`,
/// nothing unwinds, and nothing that is in memory is written.
///
/// # Panics
/// In place of that, if the point was armed so.
pub(crate) fn pass(name: &str) {
    let Some(armed) = ARMED.as_ref().filter(|armed| armed.name == name) else { return };
    if !armed.count_pass() {
        return;
    }
    // The test reads this, so that no other death passes for this one.
    eprintln!("failpoint {name}");
    assert!(!armed.panics, "failpoint {name}");
    // A process may always kill itself.
    let _ = kill_process(getpid(), Signal::KILL);
    loop {
        thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_armed_for_one_of_its_passes() {
        let armed = ArmedPoint::parse("end_written:3");
        assert_eq!(armed.name, "end_written");
        let passes: Vec<bool> = (0..4).map(|_| armed.count_pass()).collect();
        assert_eq!(passes, [false, false, true, false]);
        assert!(ArmedPoint::parse("end_written").count_pass());
        let panics = |text| ArmedPoint::parse(text).panics;
        assert_eq!([panics("end_written:3"), panics("end_written:3!")], [false, true]);
    }
}
