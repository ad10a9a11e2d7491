//! The members of a body that limit the output tokens of a call, by endpoint.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::dialect::Endpoint;
use crate::dialect::json::{JsonPatch, JsonValue};
use crate::toml_reader::{ConfigError, TableReader};

/// The endpoints of which a rule can be given.
const TEXT_ENDPOINTS: [Endpoint; 3] = [Endpoint::Chat, Endpoint::Responses, Endpoint::Messages];

/// How the output of a call is limited at a vendor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OutputLimitRule {
    /// The endpoint in whose format the body is sent.
    endpoint: Endpoint,
    /// The members that the vendor reads, the one it prefers first.
    fields: Vec<String>,
    /// The smallest limit that the vendor accepts, in tokens.
    pub(crate) min: u64,
}

impl OutputLimitRule {
    /// Whether the rule is for bodies in the format of `endpoint`.
    #[must_use]
    pub(crate) fn applies_to(&self, endpoint: Endpoint) -> bool {
        self.endpoint == endpoint
    }

    /// Sets the limit in a body: in the members that the client sent, unless they are lower, or, if
    /// it sent none, in the preferred one.
    pub(crate) fn apply(&self, limit: u64, patch: &mut JsonPatch<'_>) {
        let is_sent = |field: &&String| patch.get(field).is_some_and(|v| !JsonValue::is_null(v));
        let sent: Vec<&String> = self.fields.iter().filter(is_sent).collect();
        let fields = if sent.is_empty() { self.fields.iter().take(1).collect() } else { sent };
        let is_lower = |field: &&String| {
            patch.get(field).and_then(JsonValue::integer).is_some_and(|own| own <= limit)
        };
        let higher: Vec<&String> = fields.into_iter().filter(|field| !is_lower(field)).collect();
        higher.into_iter().for_each(|field| patch.set(field, limit.to_string()));
    }

    /// Parses the table `output_limit` of the rules; empty if there is none.
    pub(super) fn parse_table(
        table: &mut TableReader,
        faults: &mut Vec<ConfigError>,
    ) -> Vec<OutputLimitRule> {
        let Some(mut limits) = table.table("output_limit", faults) else { return Vec::new() };
        let mut rules = Vec::new();
        for endpoint in TEXT_ENDPOINTS {
            let Some(mut row) = limits.table(endpoint.name(), faults) else { continue };
            let fields = row.texts("fields", faults).unwrap_or_default();
            let min = row.integer("min", faults).unwrap_or(1);
            if fields.is_empty() || min == 0 {
                faults.push(row.location.error(
                    "an output limit needs 'fields', the members that hold it, and 'min', if \
                     given, is a whole number from 1",
                ));
            }
            rules.push(OutputLimitRule { endpoint, fields, min });
            row.finish(faults);
        }
        limits.finish(faults);
        rules
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rstest::rstest;

    use super::*;
    use crate::dialect::json::JsonDocument;
    use crate::toml_reader;

    fn parse(text: &str) -> (Vec<OutputLimitRule>, Vec<String>) {
        let (root, mut faults) = toml_reader::parse("rules.toml", text);
        let mut table = TableReader::open(root, &mut faults);
        let rules = OutputLimitRule::parse_table(&mut table, &mut faults);
        table.finish(&mut faults);
        (rules, faults.iter().map(ToString::to_string).collect())
    }

    #[rstest]
    #[case::none_sent(r#"{"a":1}"#, r#"{"max_completion_tokens":7,"a":1}"#)]
    #[case::the_older_name(r#"{"max_tokens":90}"#, r#"{"max_tokens":7}"#)]
    #[case::null(r#"{"max_tokens":null}"#, r#"{"max_completion_tokens":7,"max_tokens":null}"#)]
    #[case::both(
        r#"{"max_tokens":90,"max_completion_tokens":80}"#,
        r#"{"max_tokens":7,"max_completion_tokens":7}"#
    )]
    #[case::both_and_one_is_lower(
        r#"{"max_tokens":5,"max_completion_tokens":80}"#,
        r#"{"max_tokens":5,"max_completion_tokens":7}"#
    )]
    fn the_limit_stands_where_the_client_had_its_own(#[case] sent: &str, #[case] expected: &str) {
        let text =
            "[output_limit]\nchat = { fields = [\"max_completion_tokens\", \"max_tokens\"] }";
        let (rules, faults) = parse(text);
        assert_eq!(faults, Vec::<String>::new());
        let body = Bytes::copy_from_slice(sent.as_bytes());
        let document = JsonDocument::parse(body).expect("JSON");
        let mut patch = JsonPatch::new(&document);
        rules.first().expect("a rule").apply(7, &mut patch);
        assert_eq!(String::from_utf8_lossy(&patch.finish().concat()), expected);
    }

    #[rstest]
    #[case::no_field("[output_limit]\nchat = { min = 1 }", "rules.toml:2")]
    #[case::no_minimum("[output_limit]\nchat = { fields = [\"a\"], min = 0 }", "rules.toml:2")]
    #[case::other_endpoint("[output_limit]\nimages = { fields = [\"a\"] }", "rules.toml:2")]
    fn a_fault_names_its_line(#[case] text: &str, #[case] place: &str) {
        let (_, faults) = parse(text);
        assert!(faults.iter().any(|fault| fault.starts_with(place)), "{faults:?}");
    }
}
