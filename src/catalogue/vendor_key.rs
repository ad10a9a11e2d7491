//! A vendor's key, which may be replaced while calls use it.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::sync::Arc;

use arc_swap::ArcSwap;

/// A key of a vendor's. Clones share it, so that all that call the vendor get a new one at once. It
/// has no `Debug`, so that it can't get into a log by accident.
#[derive(Clone)]
pub struct VendorKey(Arc<ArcSwap<String>>);

impl VendorKey {
    /// Takes the key as the vendor issued it.
    #[must_use]
    pub fn new(key: String) -> VendorKey {
        VendorKey(Arc::new(ArcSwap::from_pointee(key)))
    }

    /// The key itself, to be put into a header.
    #[must_use]
    pub fn reveal(&self) -> Arc<String> {
        self.0.load_full()
    }

    /// Puts another key in its place; tells whether it is another one.
    #[must_use]
    pub fn replace(&self, key: &str) -> bool {
        *self.0.swap(Arc::new(key.to_owned())) != key
    }
}
