//! The values of a text call that bound its tokens.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

/// The values that decide how many tokens a text call may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextRequest {
    /// The most output tokens of one choice, if the client set a limit.
    pub output_max: Option<u64>,
    /// The smallest limit with which the vendor takes the call: it exceeds the thinking budget.
    pub output_min: u64,
    /// How many choices (alternative answers) the client asked for.
    pub choices: u64,
    /// Output tokens of one choice that the vendor may bill in addition to `output_max` without
    /// returning them.
    pub hidden_output_max: u64,
    /// The part of `hidden_output_max` that is for summaries of the conversation, which the vendor
    /// returns beside the answer; 0 if the client asked for none.
    pub summary_output_max: u64,
    /// The part of `summary_output_max` that the length of the input allows for: all of it, or 0 if
    /// the input is too short to be summarized.
    pub expected_summary_max: u64,
    /// The amount of input, by kind.
    pub input_size: InputSize,
}

/// The amounts of input that decide how many tokens the input of a call may be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InputSize {
    /// The number of images.
    pub images: u64,
    /// The number of documents with pages, whose token count cannot be derived from their bytes.
    pub documents: u64,
    /// How many tool prompts the vendor adds: one for each tool that it hosts itself, and one more
    /// if there are any tools at all.
    pub vendor_tool_prompt_count: u64,
    /// Bytes of the body without images and documents.
    pub text_bytes: u64,
    /// Whether the vendor may read input that is neither in the body nor counted above.
    pub has_external_input: bool,
    /// What the vendor may read more than once, and beside the body.
    pub vendor_reads: VendorReads,
}

/// What a vendor may read beyond one reading of the body. It reads the input again after each tool
/// that it ran itself and after each summary, and what a tool fetched is then part of the input.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VendorReads {
    /// How many more times the vendor may read the input.
    pub repeats: u64,
    /// The most tokens of text that the vendor may add to the input; `u64::MAX` if nothing but the
    /// model's context limits them.
    pub added_tokens: u64,
    /// The most documents of pages that the vendor may add to the input instead.
    pub added_documents: u64,
    /// The most tokens that tools with a fee find, beside those.
    pub found_tokens: u64,
}

impl InputSize {
    /// Whether the body is the vendor's only input, so that its bytes bound the input tokens.
    #[must_use]
    pub(crate) fn is_bounded_by_body(&self) -> bool {
        let InputSize { images, documents, has_external_input: reads_elsewhere, .. } = *self;
        images == 0 && documents == 0 && !reads_elsewhere && !self.has_hosted_tools()
    }

    /// Whether the vendor hosts one of the tools itself. (All tools of the client together add 1 to
    /// the count of tool prompts.)
    #[must_use]
    pub(crate) fn has_hosted_tools(&self) -> bool {
        self.vendor_tool_prompt_count > 1
    }
}
