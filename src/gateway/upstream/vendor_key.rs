//! Keys of vendors, from where they are configured to be.

use crate::catalogue::VendorRoutes;
use crate::catalogue::route::KeySource;

/// A key without the space around it; `None` where there is none.
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

/// Keys that are there and that no header can carry, each told by its place and without itself. A
/// route whose key is not there is left out, which is no fault.
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
