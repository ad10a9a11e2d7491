//! A vendor's key, which may be replaced while calls use it.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::sync::Arc;

use arc_swap::ArcSwap;

/// A vendor's API key. Clones share it, so that a new key takes effect for all calls to the vendor
/// at once. It has no `Debug`, so that it cannot get into a log by accident.
#[derive(Clone)]
pub(crate) struct VendorKey(Arc<ArcSwap<KeyHistory>>);

/// The current key, and the one that it replaced. Calls that began before a reload were sent with
/// the previous key, and the vendor may repeat it in an answer.
struct KeyHistory {
    current: Arc<String>,
    previous: Option<Arc<String>>,
}

impl VendorKey {
    /// Makes a shared key from the text that the vendor issued.
    #[must_use]
    pub(crate) fn new(key: String) -> VendorKey {
        let keys = KeyHistory { current: Arc::new(key), previous: None };
        VendorKey(Arc::new(ArcSwap::from_pointee(keys)))
    }

    /// Returns the key itself, for the header of a request.
    #[must_use]
    pub(crate) fn reveal(&self) -> Arc<String> {
        self.0.load().current.clone()
    }

    /// Returns the texts that a client must not see: the key, and the one that it replaced.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = Arc<String>> + use<> {
        let keys = self.0.load();
        [Some(keys.current.clone()), keys.previous.clone()].into_iter().flatten()
    }

    /// Replaces the key. Returns whether the new key differs from the old one.
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
