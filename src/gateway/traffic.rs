//! What the console tells of the traffic of this gateway: its calls, their errors and times minute
//! by minute, out of the metrics that the process counts anyway; and the calls that have just
//! ended, while somebody watches.

pub(crate) mod counts;
pub(crate) mod ended_calls;
pub(crate) mod history;
pub(crate) mod live_feed;
pub(crate) mod percentile;
pub(crate) mod reading;
