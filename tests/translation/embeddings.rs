//! Vendors' replies with vectors become what the client asked for.

use tollgate::dialect::embeddings::EmbeddingInputs;
use tollgate::dialect::relay::RelayMode;

use super::golden::{CHUNK_SIZES, goldens, judge};
use super::relayed::pass_whole;

#[test]
fn every_golden_vector_becomes_what_is_expected_however_it_is_cut() {
    judge(&goldens("embeddings_replies", 48), |golden| {
        let tokens = golden.json("counted").as_u64().expect("a number");
        let base64 = golden.json("base64").as_bool().expect("a flag");
        for size in CHUNK_SIZES {
            let passage =
                RelayMode::Embeddings(EmbeddingInputs { base64, tokens, tokens_max: tokens });
            let passed = pass_whole(passage, golden, size, tokens);
            passed.ended_rightly(golden)?;
            passed.costs_rightly(golden)?;
            passed.is_made_rightly(golden)?;
        }
        Ok(())
    });
}
