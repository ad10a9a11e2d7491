//! How it is logged that a process could not keep in touch with those that share its store.

use crate::ledger::Unavailable;

pub(super) fn log_fleet_error(why: &Unavailable) {
    log::warn!(
        event = "fleet_update_failed", error:% = why;
        "fleet update failed; first attempts may stay unknown to other gateways"
    );
}
