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
    /// The tokens of messages.
    CountTokens,
    /// The tokens of what a response is asked for with.
    InputTokens,
    /// A conversation of responses, made shorter.
    Compact,
    /// Where a video is asked for.
    Submit,
    /// A video that was asked for, by its id.
    Poll,
    /// The file of a finished video, on what the vendor has as another host.
    File,
}

impl Endpoint {
    /// Those of a vendor, the one of conversation first.
    pub(super) fn of(vendor: Vendor) -> &'static [Endpoint] {
        match vendor {
            Vendor::A => &[Endpoint::Messages, Endpoint::CountTokens],
            Vendor::B => &[
                Endpoint::Chat,
                Endpoint::Responses,
                Endpoint::Generations,
                Endpoint::Edits,
                Endpoint::Speech,
                Endpoint::Embeddings,
                Endpoint::Moderations,
                Endpoint::InputTokens,
                Endpoint::Compact,
            ],
            Vendor::C => &[Endpoint::Chat, Endpoint::Embeddings],
            Vendor::D => &[
                Endpoint::Chat,
                Endpoint::Generations,
                Endpoint::Edits,
                Endpoint::Submit,
                Endpoint::Poll,
                Endpoint::File,
            ],
            Vendor::E => &[Endpoint::Chat],
        }
    }

    /// Divides the path of a request into what stands before the endpoint and, where the endpoint
    /// ends with one, the id of a job.
    pub(super) fn split(self, path: &str) -> Option<(&str, &str)> {
        match self {
            Endpoint::Poll => {
                let (rest, job) = path.rsplit_once('/')?;
                Some((rest.strip_suffix(self.path())?, job))
            }
            Endpoint::File => {
                let (rest, file) = path.rsplit_once('/')?;
                Some((rest.strip_suffix(self.path())?, file.strip_suffix(".mp4")?))
            }
            _ => Some((path.strip_suffix(self.path())?, "")),
        }
    }

    /// The one method that it takes.
    pub(super) fn method(self) -> &'static str {
        if matches!(self, Endpoint::Poll | Endpoint::File) { "GET" } else { "POST" }
    }

    /// The word in front of a fault that is meant for it alone.
    pub(super) fn aim(self) -> Option<&'static str> {
        match self {
            Endpoint::Submit => Some("submit"),
            Endpoint::Poll => Some("poll"),
            Endpoint::File => Some("file"),
            _ => None,
        }
    }

    /// How it follows the base url.
    fn path(self) -> &'static str {
        match self {
            Endpoint::Chat => "/chat/completions",
            Endpoint::Messages => "/messages",
            Endpoint::Responses => "/responses",
            Endpoint::Generations => "/images/generations",
            Endpoint::Edits => "/images/edits",
            Endpoint::Speech => "/audio/speech",
            Endpoint::Embeddings => "/embeddings",
            Endpoint::Moderations => "/moderations",
            Endpoint::CountTokens => "/messages/count_tokens",
            Endpoint::InputTokens => "/responses/input_tokens",
            Endpoint::Compact => "/responses/compact",
            Endpoint::Submit => "/videos/generations",
            Endpoint::Poll => "/videos",
            Endpoint::File => "/files",
        }
    }

    /// Whether answers of it are rendered beforehand for benchmarks.
    pub(super) fn has_fast_answers(self) -> bool {
        matches!(self, Endpoint::Chat | Endpoint::Messages)
    }
}
