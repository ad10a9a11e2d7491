//! What models make.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

/// What a model makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Text, in conversations.
    Chat,
    /// Text, in the responses format only (the pro tier).
    Responses,
    /// Images.
    Image,
    /// Videos.
    Video,
    /// Speech.
    Speech,
    /// Embeddings.
    Embedding,
    /// Verdicts on input.
    Moderation,
}

impl Kind {
    /// All kinds, in the order of the spec.
    pub const ALL: [Kind; 7] = [
        Kind::Chat,
        Kind::Responses,
        Kind::Image,
        Kind::Video,
        Kind::Speech,
        Kind::Embedding,
        Kind::Moderation,
    ];

    /// Its name: the section of the rules, and `type` in the listing.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Chat => "chat",
            Kind::Responses => "responses",
            Kind::Image => "image",
            Kind::Video => "video",
            Kind::Speech => "speech",
            Kind::Embedding => "embedding",
            Kind::Moderation => "moderation",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_their_names_in_the_order_of_the_spec() {
        let names = ["chat", "responses", "image", "video", "speech", "embedding", "moderation"];
        assert_eq!(Kind::ALL.map(Kind::name), names);
    }
}
