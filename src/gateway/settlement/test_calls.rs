//! The rules as they are shipped, and calls of their models, for the tests of this folder.

use bytes::Bytes;
use once_cell::sync::Lazy;

use crate::catalogue::Catalogue;
use crate::dialect::Endpoint;
use crate::dialect::call::{ModelCall, ParsedBody};
use crate::money::Money;

pub(crate) static CATALOGUE: Lazy<Catalogue> = Lazy::new(|| {
    let file = |name: &str, text: &str| (format!("{name}.toml"), text.to_owned());
    let sources = [
        file("vendor_a", include_str!("../../../lua-free-rules/vendor_a.toml")),
        file("vendor_b", include_str!("../../../lua-free-rules/vendor_b.toml")),
        file("vendor_c", include_str!("../../../lua-free-rules/vendor_c.toml")),
        file("vendor_d", include_str!("../../../lua-free-rules/vendor_d.toml")),
        file("vendor_e", include_str!("../../../lua-free-rules/vendor_e.toml")),
    ];
    Catalogue::parse(&sources, &[]).expect("sound rules")
});

/// The members of a short chat or messages call.
pub(super) const HI: &str = r#""messages":[{"role":"user","content":"hi"}]"#;

/// Parses a call whose body has these members after the model.
pub(super) fn parse_call(model: &str, endpoint: Endpoint, members: &str) -> ModelCall {
    let body = format!(r#"{{"model":"{model}",{members}}}"#);
    let opened = ParsedBody::parse(Bytes::from(body), None).expect("a body");
    ModelCall::parse(opened, endpoint).expect("a call")
}

pub(super) fn nano(amount: i64) -> Money {
    Money::from_nano(amount).expect("money")
}
