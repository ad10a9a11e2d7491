//! What an account may take of the gateway at a time: requests, memory for bodies, memory for
//! answers.

pub mod answers;
pub mod bodies;
pub mod concurrency;
pub mod overload;
pub mod slow_bodies;
pub mod tenants;
pub mod uploads;
