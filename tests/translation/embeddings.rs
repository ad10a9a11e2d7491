//! Vendors' replies with vectors become what the client asked for.

use bytes::Bytes;
use tollgate::dialect::embeddings::Inputs;
use tollgate::dialect::json::{Document, Value};
use tollgate::dialect::relay::{Passage, Progress};

use super::golden::{CHUNK_SIZES, Golden, goldens, judge};
use super::relayed::{Relayed, given, pass_whole};
use super::requests::same_members;

#[test]
fn every_golden_vector_becomes_what_is_expected_however_it_is_cut() {
    judge(&goldens("embeddings_replies", 48), |golden| {
        let tokens = golden.json("counted").as_u64().expect("a number");
        let base64 = golden.json("base64").as_bool().expect("a flag");
        for size in CHUNK_SIZES {
            let passage = Passage::Embeddings(Inputs { base64, tokens, tokens_max: tokens });
            let passed = pass_whole(passage, golden, size, tokens);
            passed.ended_rightly(golden)?;
            passed.costs_rightly(golden)?;
            is_made_rightly(golden, &passed)?;
        }
        Ok(())
    });
}

/// What is written anew has its members in any order; nothing else of it is free.
fn is_made_rightly(golden: &Golden, passed: &Relayed) -> Result<(), String> {
    if passed.progress != Progress::Complete {
        return passed.is(b"");
    }
    let Some(expected) = golden.bytes("expect") else { return passed.is(&given(golden)) };
    let made =
        Document::parse(Bytes::from(passed.out.clone())).map_err(|fault| fault.to_string())?;
    same_members(Value::trusted(&expected), Value::trusted(made.body()))
}
