//! The errors of reading and writing files.

/// Why a file is not read or deleted, or gets no URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FileReadError {
    /// The file does not exist.
    #[error("there is no such file")]
    Missing,
    /// The store does not answer or refuses the request.
    #[error("{0}")]
    Unavailable(String),
}

/// Why a file is not written. No part of it remains in the store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FileWriteError<E> {
    /// The source of the file's bytes failed.
    #[error("{0}")]
    Source(E),
    /// The source had no bytes.
    #[error("the file is empty")]
    Empty,
    /// The source had more bytes than allowed.
    #[error("the file is too large")]
    TooLarge,
    /// The store does not answer or refuses the file.
    #[error(transparent)]
    Store(#[from] FileReadError),
}

impl From<object_store::Error> for FileReadError {
    fn from(error: object_store::Error) -> FileReadError {
        // The error's sources name the cause; each of them may repeat the text of the next.
        let mut message = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(inner) = source {
            let text = inner.to_string();
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            source = inner.source();
        }
        FileReadError::Unavailable(message)
    }
}
