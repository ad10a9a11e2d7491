//! What becomes of a job: pure steps from stage to stage, with the time as an argument.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]
