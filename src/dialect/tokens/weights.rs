//! What a unit of text costs, for each tokenizer. The numbers were fitted to calls whose usage a
//! vendor reported; `docs/use/charges.md` tells how close they are.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::input::InputTally;
use super::tally::{TextTally, UNITS};
use super::tokenizer::Tokenizer;

/// Prices of text in thousandths of a token.
const MILLI: u64 = 1_000;

/// The tokens of each unit of text, and of what a vendor adds to the text.
#[derive(Debug, Clone, Copy)]
pub(super) struct TokenWeights {
    /// Thousandths of a token for each unit, in the order of [`super::tally::TextUnit`].
    units: [u32; UNITS],
    /// Thousandths by which the tokens of tools and schemas are multiplied: vendors render them in
    /// formats of their own.
    schema_factor: u32,
    /// Tokens of a call, of a message, of a part of a message, of a tool, and of having tools.
    call: u32,
    message: u32,
    part: u32,
    tool: u32,
    any_tools: u32,
    /// Tokens of a reply, and of each call of a tool in it.
    reply: u32,
    tool_call: u32,
}

impl TokenWeights {
    /// Returns the weights of a tokenizer.
    #[must_use]
    pub(super) fn of(tokenizer: Tokenizer) -> &'static TokenWeights {
        match tokenizer {
            Tokenizer::General => &GENERAL,
            Tokenizer::O200k => &O200K,
            Tokenizer::VendorAEarly => &VENDOR_A_EARLY,
            Tokenizer::VendorA => &VENDOR_A,
            Tokenizer::VendorC => &VENDOR_C,
            Tokenizer::VendorD => &VENDOR_D,
        }
    }

    /// Estimates the tokens of a text: at least 1 for a text that is not empty, and at most one for
    /// each byte.
    #[must_use]
    pub(super) fn estimate_text(&self, text: &TextTally) -> u64 {
        let tokens = round_milli(self.text_milli(text));
        tokens.max(u64::from(text.bytes() > 0)).min(text.bytes())
    }

    /// Estimates the output tokens of a reply with this text and so many calls of tools; 0 if it
    /// has neither.
    #[must_use]
    pub(super) fn estimate_reply(&self, text: &TextTally, tool_calls: u64) -> u64 {
        let calls = tool_calls.saturating_mul(u64::from(self.tool_call));
        let tokens = self.estimate_text(text).saturating_add(calls);
        if tokens == 0 { 0 } else { tokens.saturating_add(u64::from(self.reply)) }
    }

    /// Estimates the input tokens of a call.
    #[must_use]
    pub(super) fn estimate_input(&self, input: &InputTally) -> u64 {
        let schema = self.text_milli(&input.schema).saturating_mul(u64::from(self.schema_factor));
        let milli = self.text_milli(&input.text).saturating_add(schema / MILLI);
        let any_tools = if input.tools > 0 { u64::from(self.any_tools) } else { 0 };
        let framing =
            [(input.messages, self.message), (input.parts, self.part), (input.tools, self.tool)];
        let tokens = round_milli(milli).saturating_add(u64::from(self.call));
        framing.into_iter().fold(tokens.saturating_add(any_tools), |sum, (count, each)| {
            sum.saturating_add(count.saturating_mul(u64::from(each)))
        })
    }

    fn text_milli(&self, text: &TextTally) -> u64 {
        let pairs = text.counts().iter().zip(&self.units);
        pairs.fold(0, |sum: u64, (count, weight)| {
            sum.saturating_add(count.saturating_mul(u64::from(*weight)))
        })
    }
}

/// Rounds thousandths of a token to the nearest token.
fn round_milli(milli: u64) -> u64 {
    milli.saturating_add(MILLI / 2) / MILLI
}

const GENERAL: TokenWeights = TokenWeights {
    units: [
        991, 1_027, 76, 49, 573, 241, 1_465, 0, 866, 0, 19, 75, 742, 213, 291, 1_000, 2_259, 520,
        514, 944, 782, 662, 941, 1_440, 2_385,
    ],
    schema_factor: 1_400,
    call: 4,
    message: 2,
    part: 1,
    tool: 15,
    any_tools: 60,
    reply: 2,
    tool_call: 10,
};

const O200K: TokenWeights = TokenWeights {
    units: [
        968, 956, 91, 56, 552, 263, 1_189, 0, 915, 0, 0, 213, 726, 242, 296, 1_000, 1_432, 393,
        403, 412, 754, 775, 867, 994, 1_816,
    ],
    schema_factor: 620,
    call: 3,
    message: 4,
    part: 3,
    tool: 0,
    any_tools: 0,
    reply: 1,
    tool_call: 6,
};

const VENDOR_A_EARLY: TokenWeights = TokenWeights {
    units: [
        1_080, 1_367, 22, 85, 592, 303, 1_049, 0, 0, 0, 986, 338, 916, 0, 306, 1_000, 3_171, 783,
        1_281, 1_655, 1_194, 926, 1_536, 1_838, 3_235,
    ],
    schema_factor: 1_300,
    call: 8,
    message: 0,
    part: 0,
    tool: 0,
    any_tools: 498,
    reply: 3,
    tool_call: 30,
};

const VENDOR_A: TokenWeights = TokenWeights {
    units: [
        1_361, 1_722, 28, 106, 746, 382, 1_322, 0, 0, 0, 1_242, 426, 1_154, 0, 385, 1_000, 3_995,
        987, 1_614, 2_085, 1_503, 1_167, 1_935, 2_315, 4_075,
    ],
    schema_factor: 1_300,
    call: 8,
    message: 0,
    part: 3,
    tool: 38,
    any_tools: 382,
    reply: 3,
    tool_call: 33,
};

const VENDOR_C: TokenWeights = TokenWeights {
    units: [
        975, 1_217, 59, 3, 539, 184, 1_140, 410, 1_276, 13, 543, 0, 893, 0, 144, 1_000, 1_645, 411,
        418, 374, 572, 609, 806, 1_014, 1_641,
    ],
    schema_factor: 1_000,
    call: 0,
    message: 0,
    part: 1,
    tool: 0,
    any_tools: 7,
    reply: 1,
    tool_call: 5,
};

const VENDOR_D: TokenWeights = TokenWeights {
    units: [
        958, 946, 90, 55, 546, 261, 1_177, 0, 906, 0, 0, 211, 718, 239, 293, 1_000, 1_417, 389,
        399, 408, 746, 767, 858, 984, 1_797,
    ],
    schema_factor: 1_300,
    call: 10,
    message: 0,
    part: 1,
    tool: 40,
    any_tools: 110,
    reply: 2,
    tool_call: 8,
};

impl Tokenizer {
    /// Estimates the tokens of a text.
    #[cfg(test)]
    pub(in crate::dialect) fn estimate_text(self, text: &TextTally) -> u64 {
        TokenWeights::of(self).estimate_text(text)
    }

    /// Estimates the output tokens of a reply with this text and so many calls of tools.
    #[must_use]
    pub(in crate::dialect) fn estimate_reply(self, text: &TextTally, tool_calls: u64) -> u64 {
        TokenWeights::of(self).estimate_reply(text, tool_calls)
    }

    /// Estimates the input tokens of a call.
    #[must_use]
    pub(in crate::dialect) fn estimate_input(self, input: &InputTally) -> u64 {
        TokenWeights::of(self).estimate_input(input)
    }
}
