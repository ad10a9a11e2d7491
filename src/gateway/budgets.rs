//! Bounds that accounts and addresses share: requests in flight, memory for bodies and for answers;
//! and load shedding.

pub(crate) mod answers;
pub(crate) mod bodies;
pub(crate) mod concurrency;
pub(crate) mod overload;
pub(crate) mod slow_bodies;
pub(crate) mod tenants;
pub(crate) mod uploads;
