//! A vendor's key, which may be replaced while calls use it.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::sync::Arc;

use arc_swap::ArcSwap;

/// A key of a vendor's. Clones share it, so that all that call the vendor get a new one at once. It
/// has no `Debug`, so that it can't get into a log by accident.
#[derive(Clone)]
pub(crate) struct VendorKey(Arc<ArcSwap<KeyHistory>>);

/// Calls that began before a reload carry the key of then, and their vendor may repeat it.
struct KeyHistory {
    current: Arc<String>,
    previous: Option<Arc<String>>,
}

impl VendorKey {
    /// Takes the key as the vendor issued it.
    #[must_use]
    pub(crate) fn new(key: String) -> VendorKey {
        let keys = KeyHistory { current: Arc::new(key), previous: None };
        VendorKey(Arc::new(ArcSwap::from_pointee(keys)))
    }

    /// The key itself, to be put into a header.
    #[must_use]
    pub(crate) fn reveal(&self) -> Arc<String> {
        self.0.load().current.clone()
    }

    /// What may not be repeated to a client: the key, and the one that it replaced.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = Arc<String>> + use<> {
        let keys = self.0.load();
        [Some(keys.current.clone()), keys.previous.clone()].into_iter().flatten()
    }

    /// Puts another key in its place; tells whether it is another one.
    #[must_use]
    pub(crate) fn replace(&self, key: &str) -> bool {
        let current = self.reveal();
        let is_other = *current != key;
        if is_other {
            let keys = KeyHistory { current: Arc::new(key.to_owned()), previous: Some(current) };
            self.0.store(Arc::new(keys));
        }
        is_other
    }
}
