//! Points at which a test kills this process: `TOLLGATE_FAILPOINT=NAME:N` in the environment kills
//! it at the N-th pass of the point NAME; `NAME:N!` lets the task panic that passes it. A point is
//! named by what has just happened.
//!
//! The crate `fail` would do the same by a feature that the tests switch on. But cargo unifies
//! features with those of the development dependencies whenever an example is built beside the
//! gateway, as the release builds of the soak machines and of the benchmarks are, and a plain
//! `cargo build` would be another build than that of the tests. Whether assertions are on divides
//! these builds already: nothing of a point is in a release.

#[cfg(debug_assertions)]
pub(crate) mod armed;

/// Passes a point, with a condition only if that holds. Without debug assertions this is nothing,
/// and the condition is not even compiled.
macro_rules! failpoint {
    ($name:literal) => {
        #[cfg(debug_assertions)]
        {
            crate::failpoints::armed::pass($name);
        }
    };
    ($name:literal, if $condition:expr) => {
        #[cfg(debug_assertions)]
        {
            if $condition {
                crate::failpoints::armed::pass($name);
            }
        }
    };
}

pub(crate) use failpoint;
