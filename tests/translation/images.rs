//! Vendors' replies with an image become what the interface promises.

use tollgate::dialect::relay::RelayMode;

use super::golden::{CHUNK_SIZES, CREATED, goldens, judge};
use super::relayed::pass_whole;

#[test]
fn every_golden_image_becomes_what_is_expected_however_it_is_cut() {
    judge(&goldens("images_replies", 54), |golden| {
        for size in CHUNK_SIZES {
            let billed = golden.json("billed").as_bool().expect("a flag");
            let passage = RelayMode::Image { created: CREATED, uses_vendor_cost: billed };
            let passed = pass_whole(passage, golden, size, 0);
            passed.ended_rightly(golden)?;
            passed.costs_rightly(golden)?;
            passed.is_made_rightly(golden)?;
        }
        Ok(())
    });
}
