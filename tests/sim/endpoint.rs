//! The endpoints that are imitated, and which vendor has which.

use super::vendor::Vendor;

/// An endpoint, whoever has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Chat,
    Messages,
    Responses,
    Generations,
    Edits,
    Speech,
    Embeddings,
    Moderations,
}

impl Endpoint {
    /// Those of a vendor, the one of conversation first.
    pub(super) fn of(vendor: Vendor) -> &'static [Endpoint] {
        match vendor {
            Vendor::A => &[Endpoint::Messages],
            Vendor::B => &[
                Endpoint::Chat,
                Endpoint::Responses,
                Endpoint::Generations,
                Endpoint::Edits,
                Endpoint::Speech,
                Endpoint::Embeddings,
                Endpoint::Moderations,
            ],
            Vendor::C => &[Endpoint::Chat, Endpoint::Embeddings],
            Vendor::D => &[Endpoint::Chat, Endpoint::Generations, Endpoint::Edits],
            Vendor::E => &[Endpoint::Chat],
        }
    }

    /// How it follows the base url.
    pub(super) fn path(self) -> &'static str {
        match self {
            Endpoint::Chat => "/chat/completions",
            Endpoint::Messages => "/messages",
            Endpoint::Responses => "/responses",
            Endpoint::Generations => "/images/generations",
            Endpoint::Edits => "/images/edits",
            Endpoint::Speech => "/audio/speech",
            Endpoint::Embeddings => "/embeddings",
            Endpoint::Moderations => "/moderations",
        }
    }

    /// Whether answers of it are rendered beforehand for benchmarks.
    pub(super) fn has_fast_answers(self) -> bool {
        matches!(self, Endpoint::Chat | Endpoint::Messages)
    }
}
