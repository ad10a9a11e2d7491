//! Computes the most input tokens of a call whose input the vendor may read several times.

use crate::catalogue::Model;
use crate::dialect::call::{InputSize, VendorReads};
use crate::gateway::settlement::usage_bounds::CONTEXT_TOKENS_DEFAULT;

/// Returns the most input tokens of all readings together. One reading of what was sent has at most
/// `sent` tokens; `output_max` is the most output, which is part of the input of later readings.
pub(crate) fn total_input_max(
    model: &Model,
    content: &InputSize,
    sent: u64,
    output_max: u64,
) -> u64 {
    let reads = content.vendor_reads;
    if reads == VendorReads::default() {
        return model.context_length.map_or(sent, |most| sent.min(most));
    }
    let VendorReads { repeats, added_tokens, added_documents, found_tokens } = reads;
    let context_max = model.context_length.unwrap_or(CONTEXT_TOKENS_DEFAULT);
    // Each addition is either text or a document of pages. What tools with a fee find comes beside.
    let pages = added_documents.saturating_mul(model.vendor.document_tokens_max);
    let added = added_tokens.max(pages).saturating_add(found_tokens);
    let largest = sent.saturating_add(added).saturating_add(output_max);
    // Definitions of tools are added before the first reading, and so is what a tool finds that
    // causes no other. Pages are fetched after it.
    let first = if added_documents == 0 { sent.saturating_add(added_tokens) } else { sent };
    let first = first.saturating_add(found_tokens);
    first.min(context_max).saturating_add(largest.min(context_max).saturating_mul(repeats))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rstest::rstest;

    use super::*;
    use crate::catalogue::Vendor;
    use crate::catalogue::kind::ModelKind;
    use crate::dialect::tokens::Tokenizer;
    use crate::money::price::Price;

    fn model(context_length: Option<u64>) -> Model {
        let mut vendor = Vendor::default();
        vendor.document_tokens_max = 500;
        Model {
            id: "m".to_owned(),
            kind: ModelKind::Chat,
            price: Price::Free,
            cost: None,
            context_length,
            output_max: None,
            supports_effort: false,
            hidden_reasoning: false,
            supports_json_schema: false,
            thinking: false,
            tokenizer: Tokenizer::default(),
            vendor: Arc::new(vendor),
        }
    }

    const MOST: u64 = u64::MAX;

    /// The input bound of a call of 100 tokens and at most 10 tokens of output.
    #[rstest]
    #[case::once(Some(10_000), (0, 0, 0, 0), 100)]
    #[case::once_without_a_context(None, (0, 0, 0, 0), 100)]
    #[case::once_beyond_the_context(Some(60), (0, 0, 0, 0), 60)]
    #[case::sources_that_are_read_once(Some(10_000), (0, 0, 0, 800), 100 + 800)]
    #[case::sources_beyond_the_context(Some(700), (0, 0, 0, 800), 700)]
    #[case::a_summary(Some(10_000), (1, 0, 0, 0), 100 + 110)]
    #[case::a_few_pages_of_text(Some(10_000), (9, 600, 1, 0), 100 + 9 * 710)]
    #[case::a_document_is_longer_than_the_text(Some(10_000), (9, 20, 1, 0), 100 + 9 * 610)]
    #[case::found_beside_a_document(Some(10_000), (9, 20, 1, 300), 400 + 9 * 910)]
    #[case::found_beside_text(Some(10_000), (2, 600, 1, 300), 400 + 2 * 1_010)]
    #[case::found_beyond_all_numbers(Some(10_000), (9, 20, 1, MOST), 10 * 10_000)]
    #[case::pages_without_limits(Some(10_000), (9, MOST, MOST, 0), 100 + 9 * 10_000)]
    #[case::pages_beyond_the_context(Some(700), (9, 600, 2, 0), 100 + 9 * 700)]
    #[case::tools_of_a_server(Some(10_000), (3, MOST, 0, 0), 4 * 10_000)]
    #[case::tools_of_a_server_without_a_context(None, (3, MOST, 0, 0), 4 * 2_000_000)]
    #[case::absurd(None, (MOST, MOST, 0, 0), MOST)]
    fn each_reading_counts_with_all_that_may_have_been_added(
        #[case] context_length: Option<u64>,
        #[case] reads: (u64, u64, u64, u64),
        #[case] most: u64,
    ) {
        let (repeats, added_tokens, added_documents, found_tokens) = reads;
        let vendor_reads = VendorReads { repeats, added_tokens, added_documents, found_tokens };
        let content = InputSize { vendor_reads, ..InputSize::default() };
        assert_eq!(total_input_max(&model(context_length), &content, 100, 10), most);
    }
}
