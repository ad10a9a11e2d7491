//! The bounds of what a store keeps of sign-ins.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

/// At most this many sessions of a principal are kept.
pub const SESSIONS_MAX: u32 = 32;
/// At most this many unused links of a principal are kept.
pub const LINKS_MAX: u32 = 32;
/// Links and sessions are kept for at most this long, in ms (one day).
pub const TTL_MS_MAX: u32 = 24 * 60 * 60 * 1_000;
/// The name of an identity has at most this many bytes.
pub const IDENTITY_NAME_BYTES_MAX: usize = 255;
