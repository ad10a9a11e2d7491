//! A job as clients see it.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]
