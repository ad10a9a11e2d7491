//! The tokenizers whose counts the gateway can estimate.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

/// The tokenizer of a model, as far as the gateway knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tokenizer {
    /// A tokenizer that is not known: counted as the mean of the open ones.
    #[default]
    General,
    /// The public vocabulary `o200k`.
    O200k,
    /// The tokenizer of `vendor_a`'s models since `lma-opus-4-7`.
    VendorA,
    /// The tokenizer of `vendor_a`'s earlier models.
    VendorAEarly,
    /// The tokenizer of `vendor_c`.
    VendorC,
    /// The tokenizer of `vendor_d`.
    VendorD,
}

impl Tokenizer {
    /// All tokenizers.
    pub const ALL: [Tokenizer; 6] = [
        Tokenizer::General,
        Tokenizer::O200k,
        Tokenizer::VendorA,
        Tokenizer::VendorAEarly,
        Tokenizer::VendorC,
        Tokenizer::VendorD,
    ];

    /// Returns its name in the rules.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Tokenizer::General => "general",
            Tokenizer::O200k => "o200k",
            Tokenizer::VendorA => "vendor_a",
            Tokenizer::VendorAEarly => "vendor_a_early",
            Tokenizer::VendorC => "vendor_c",
            Tokenizer::VendorD => "vendor_d",
        }
    }

    /// Returns the tokenizer with a name; `None` if there is none.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Tokenizer> {
        Tokenizer::ALL.into_iter().find(|tokenizer| tokenizer.name() == name)
    }
}
