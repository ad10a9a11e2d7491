//! Vendors' replies with an image become what the interface promises.

use bytes::Bytes;
use serde_json::Value as Json;
use tollgate::dialect::json::Document;
use tollgate::dialect::relay::{Passage, Progress};

use super::golden::{CHUNK_SIZES, CREATED, Golden, goldens, judge};
use super::relayed::{Relayed, given, pass_whole};

#[test]
fn every_golden_image_becomes_what_is_expected_however_it_is_cut() {
    judge(&goldens("images_replies", 53), |golden| {
        for size in CHUNK_SIZES {
            let billed = golden.json("billed").as_bool().expect("a flag");
            let passage = Passage::Image { created: CREATED, billed };
            let passed = pass_whole(passage, golden, size, 0);
            passed.ended_rightly(golden)?;
            passed.costs_rightly(golden)?;
            is_made_rightly(golden, &passed)?;
        }
        Ok(())
    });
}

fn is_made_rightly(golden: &Golden, passed: &Relayed) -> Result<(), String> {
    if passed.progress != Progress::Complete {
        return passed.is(b"");
    }
    let expected = golden.json("expect");
    if expected.is_null() {
        return passed.is(&given(golden));
    }
    let made =
        Document::parse(Bytes::from(passed.out.clone())).map_err(|fault| fault.to_string())?;
    let made: Json = serde_json::from_slice(made.body()).map_err(|fault| fault.to_string())?;
    if made == expected { Ok(()) } else { Err(format!("\n  is  {made}\n  not {expected}")) }
}
