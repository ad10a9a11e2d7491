//! The kinds of models, by their output.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

/// The kind of a model, by its output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ModelKind {
    /// Text in conversations.
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
    /// Moderation verdicts on an input.
    Moderation,
}

impl ModelKind {
    /// All kinds, in the order of the spec.
    pub(crate) const ALL: [ModelKind; 7] = [
        ModelKind::Chat,
        ModelKind::Responses,
        ModelKind::Image,
        ModelKind::Video,
        ModelKind::Speech,
        ModelKind::Embedding,
        ModelKind::Moderation,
    ];

    /// Returns its name: the section of the rules, and the `type` in the model listing.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            ModelKind::Chat => "chat",
            ModelKind::Responses => "responses",
            ModelKind::Image => "image",
            ModelKind::Video => "video",
            ModelKind::Speech => "speech",
            ModelKind::Embedding => "embedding",
            ModelKind::Moderation => "moderation",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_their_names_in_the_order_of_the_spec() {
        let names = ["chat", "responses", "image", "video", "speech", "embedding", "moderation"];
        assert_eq!(ModelKind::ALL.map(ModelKind::name), names);
    }
}
