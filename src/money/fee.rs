//! The fees of a call: what the uses of tools cost that the vendor runs itself.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use serde::{Deserialize, Serialize};

use super::Money;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !*value
}

/// The charged fee of one tool, as it is in a journal line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChargedFee {
    /// The name of the tool.
    pub(crate) name: String,
    /// How many uses are charged.
    pub(crate) uses: u64,
    /// The amount for all of them, in nano-USD.
    #[serde(rename = "nano")]
    pub(crate) amount: Money,
    /// How many uses the vendor reported, if that is more than the call allows; `uses` is then what
    /// the call allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rejected_uses: Option<u64>,
    /// Whether nobody told how often the tool was used; `uses` is then what the call allows.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) assumed: bool,
}
