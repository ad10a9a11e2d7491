//! Why a file is not read or not written.

/// Why a file is not read, deleted or addressed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FileReadError {
    /// It is not there.
    #[error("there is no such file")]
    Missing,
    /// The store does not do it.
    #[error("{0}")]
    Unavailable(String),
}

/// Why a file is not written. Nothing of it stays.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FileWriteError<E> {
    /// What was to be written broke off.
    #[error("{0}")]
    Source(E),
    /// There was nothing to write.
    #[error("the file is empty")]
    Empty,
    /// There was too much to write.
    #[error("the file is too large")]
    TooLarge,
    /// The store does not take it.
    #[error(transparent)]
    Store(#[from] FileReadError),
}

impl From<object_store::Error> for FileReadError {
    fn from(error: object_store::Error) -> FileReadError {
        // Its sources say what went wrong; each of them may say it again.
        let mut told = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(inner) = source {
            let text = inner.to_string();
            if !told.contains(&text) {
                told = format!("{told}: {text}");
            }
            source = inner.source();
        }
        FileReadError::Unavailable(told)
    }
}
