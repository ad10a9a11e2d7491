//! Reads the vendors' API keys from their configured sources: the environment, a file or the
//! configuration itself.

use crate::catalogue::VendorRoutes;
use crate::catalogue::route::KeySource;

/// Reads a key and trims the whitespace around it; `None` if the key is missing or empty.
#[must_use]
pub(crate) fn read_key(source: &KeySource) -> Option<String> {
    let found = match source {
        KeySource::Env(name) => std::env::var(name).ok(),
        KeySource::File(path) => std::fs::read_to_string(path).ok(),
        KeySource::Literal(key) => Some(key.clone()),
    };
    found.map(|key| key.trim().to_owned()).filter(|key| !key.is_empty())
}

/// Whether a header can carry a key.
pub(crate) fn is_header_safe(key: &str) -> bool {
    key.bytes().all(|b| b == b' ' || b.is_ascii_graphic())
}

/// Returns a message for each key that is set but has characters that no header can carry. The
/// message names the source of the key and does not contain the key. A missing key is no error: its
/// route is left out.
#[must_use]
pub(crate) fn find_unusable(vendors: &[VendorRoutes]) -> Vec<String> {
    let mut unusable = Vec::new();
    for vendor in vendors {
        for route in &vendor.routes {
            if read_key(&route.key).is_some_and(|key| !is_header_safe(&key)) {
                let (vendor, name, place) = (&vendor.naming.vendor, &route.name, &route.key);
                unusable.push(format!(
                    "the key of route '{name}' of {vendor} ({place:?}) has control characters, or \
                     others that no header can carry"
                ));
            }
        }
    }
    unusable
}
