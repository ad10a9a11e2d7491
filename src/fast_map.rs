//! Maps for the way of a call, where the hash of the standard maps costs more than the look-up.
//!
//! The hash is keyed, with keys that the process draws at random when it begins: clients choose
//! names and contents, and without the keys they cannot choose some that collide. It is the hash of
//! pingora's own tables. Other maps stay standard ones.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::HashMap;

/// The random keys of a hash. No two maps have the same.
pub(crate) type HashKeys = ahash::RandomState;

/// A map with a hash that is fast for short keys.
pub(crate) type FastMap<K, V> = HashMap<K, V, HashKeys>;
