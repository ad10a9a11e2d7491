//! Writes JSON as a list of pieces: short values are copied into a buffer, long values stay in the
//! bytes of the request and are only referenced.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::{Bytes, BytesMut};

use crate::dialect::json::JsonValue;

/// Values of at least this many bytes are not copied.
const ZERO_COPY_BYTES_MIN: usize = 4 << 10;

/// Writes JSON in pieces; see the module.
#[derive(Default)]
pub(super) struct MessagesWriter {
    pieces: Vec<Bytes>,
    buffer: BytesMut,
}

impl MessagesWriter {
    pub(super) fn write_str(&mut self, text: &str) {
        self.buffer.extend_from_slice(text.as_bytes());
    }

    pub(super) fn write_bytes(&mut self, bytes: &Bytes) {
        if bytes.len() < ZERO_COPY_BYTES_MIN {
            self.buffer.extend_from_slice(bytes);
            return;
        }
        self.flush();
        self.pieces.push(bytes.clone());
    }

    /// Writes the items with commas between them.
    pub(super) fn write_list<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut each: impl FnMut(&mut MessagesWriter, T),
    ) {
        for (i, item) in items.into_iter().enumerate() {
            if i > 0 {
                self.write_str(",");
            }
            each(self, item);
        }
    }

    pub(super) fn finish(mut self) -> Vec<Bytes> {
        self.flush();
        self.pieces
    }

    fn flush(&mut self) {
        if !self.buffer.is_empty() {
            self.pieces.push(self.buffer.split().freeze());
        }
    }
}

/// The bytes from which values are sliced.
#[derive(Clone, Copy)]
pub(super) struct SourceBytes<'a>(pub(super) &'a Bytes);

impl SourceBytes<'_> {
    /// Returns the bytes of a value: a slice of the source if the value lies in it, else a copy.
    pub(super) fn slice_value(self, value: JsonValue<'_>) -> Bytes {
        self.slice(value.raw())
    }

    pub(super) fn slice(self, raw: &[u8]) -> Bytes {
        let (all, part) = (self.0.as_ptr_range(), raw.as_ptr_range());
        if all.start <= part.start && part.end <= all.end {
            self.0.slice_ref(raw)
        } else {
            Bytes::copy_from_slice(raw)
        }
    }
}
