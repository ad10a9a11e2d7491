//! What a node says to Redis at each stage of a job.

/// The words with which it takes an order in.
pub(super) const TAKES: &str = r#""stage":{"queued""#;
/// The words with which it saves that the job is at a stage.
pub(super) const SENDS: &str = r#""stage":{"submitting""#;
pub(super) const RUNS: &str = r#""stage":{"running""#;
pub(super) const DECIDES: &str = r#""stage":{"settling""#;
pub(super) const ENDS: &str = r#""stage":{"ended""#;
/// And those with which it brings a charge into the ledger.
pub(super) const CHARGES: &str = r#""endpoint":"videos""#;
