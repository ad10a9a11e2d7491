//! Why the archive cannot be written or read.

use crate::files::FileReadError;
use crate::ledger::Unavailable;

/// Why the archive cannot be written or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArchiveFault {
    /// The object store or the store of the ledger does not answer.
    #[error("{0}")]
    Unavailable(String),
    /// The archive and the store, or parts of the archive, do not agree. Nothing is deleted then.
    #[error("the archive does not agree: {0}")]
    Differs(String),
}

impl From<Unavailable> for ArchiveFault {
    fn from(why: Unavailable) -> ArchiveFault {
        ArchiveFault::Unavailable(why.to_string())
    }
}

impl From<FileReadError> for ArchiveFault {
    fn from(why: FileReadError) -> ArchiveFault {
        ArchiveFault::Unavailable(format!("the object store of the archive: {why}"))
    }
}

impl From<ArchiveFault> for Unavailable {
    fn from(why: ArchiveFault) -> Unavailable {
        Unavailable(why.to_string())
    }
}
