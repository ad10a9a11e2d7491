//! Decides which vendor replies cause failover: replies that show that the route failed, and that
//! the request is not the reason.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::dialect::json::{JsonKind, JsonValue as Json, scan};
use crate::toml_reader::{ConfigError, SpannedValue, TableReader, TomlValue};

/// The minimum length of a prefix in bytes: a shorter one would match unrelated texts.
const PREFIX_BYTES_MIN: usize = 12;

/// Which answers of a vendor make the gateway try the next route.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FailoverRule {
    statuses: Vec<u16>,
    /// The first digits of status classes that cause failover as a whole, such as 5 for `5xx`.
    status_classes: Vec<u16>,
    error_texts: Vec<FailoverText>,
}

/// The texts in a field of a refusal that show that it is about the gateway's own account, and not
/// caused by the client.
///
/// The field must equal one of the texts or begin with one of the prefixes. It is not enough if it
/// contains one: vendors repeat what clients sent, so a client that wrote such a text into its
/// request could have any call tried on every route.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FailoverText {
    status: u16,
    /// The path of the field, such as `error.details[].reason`.
    field: String,
    texts: Vec<String>,
    prefixes: Vec<String>,
}

impl FailoverRule {
    /// Whether a status alone causes failover.
    #[must_use]
    pub(crate) fn matches_status(&self, status: u16) -> bool {
        self.statuses.contains(&status) || self.status_classes.contains(&(status / 100))
    }

    /// Whether the body of a refusal causes failover, although its status alone does not.
    #[must_use]
    pub(crate) fn matches_body(&self, status: u16, body: &[u8]) -> bool {
        let mut error_texts =
            self.error_texts.iter().filter(|text| text.status == status).peekable();
        if error_texts.peek().is_none() || scan::validate_value(body).is_err() {
            return false;
        }
        let body = Json::from_validated(body.trim_ascii());
        // Some vendors send the error as the only element of a list.
        let error =
            if body.kind() == JsonKind::Array { body.elements().next() } else { Some(body) };
        error.is_some_and(|error| error_texts.any(|text| text.matches_path(error, &text.field)))
    }

    /// Parses the keys `blocked` and `blocked_words` of the rules.
    pub(super) fn parse(table: &mut TableReader, faults: &mut Vec<ConfigError>) -> FailoverRule {
        let mut rule = FailoverRule::default();
        for node in table.list("blocked", faults) {
            match &node.value {
                TomlValue::Number(n) if matches!(n.parse(), Ok(100..=599)) => {
                    rule.statuses.extend(n.parse::<u16>());
                }
                TomlValue::Text(class) if matches!(class.as_str(), "4xx" | "5xx") => {
                    rule.status_classes.push(if class == "4xx" { 4 } else { 5 });
                }
                _ => {
                    faults.push(
                        node.location.error("'blocked' lists statuses such as 429 or \"5xx\""),
                    );
                }
            }
        }
        for node in table.list("blocked_words", faults) {
            rule.error_texts.extend(FailoverText::parse(node, faults));
        }
        rule
    }
}

impl FailoverText {
    fn parse(node: SpannedValue, faults: &mut Vec<ConfigError>) -> Option<FailoverText> {
        let mut row = TableReader::open(node, faults);
        let location = row.location.clone();
        let status = row.integer("status", faults).and_then(|n| u16::try_from(n).ok());
        let field = row.text("field", faults).filter(|field| is_field_path(field));
        let patterns = row.texts("words", faults).unwrap_or_default();
        row.finish(faults);
        let status = status.filter(|status| (400..=499).contains(status));
        let (Some(status), Some(field), false) = (status, field, patterns.is_empty()) else {
            let needs = "'blocked_words' need a status from 400 to 499, a field such as \
                error.details[].reason, and words";
            faults.push(location.error(needs));
            return None;
        };
        let (mut texts, mut prefixes) = (Vec::new(), Vec::new());
        for pattern in patterns {
            match pattern.strip_suffix('*') {
                None if !pattern.is_empty() => texts.push(pattern),
                Some(prefix) if prefix.len() >= PREFIX_BYTES_MIN => {
                    prefixes.push(prefix.to_owned());
                }
                _ => faults.push(location.error(format!(
                    "'{pattern}' says too little; before a * stand {PREFIX_BYTES_MIN} bytes or more"
                ))),
            }
        }
        Some(FailoverText { status, field, texts, prefixes })
    }

    /// Whether the text at the end of a path in `value` is one of the texts or begins with a
    /// prefix.
    fn matches_path(&self, value: Json<'_>, path: &str) -> bool {
        let Some((name, rest)) =
            (!path.is_empty()).then(|| path.split_once('.').unwrap_or((path, "")))
        else {
            return value.text().is_some_and(|text| self.matches_text(&text));
        };
        let Some(inner) = value.get(name.trim_end_matches("[]")) else { return false };
        if name.ends_with("[]") {
            return inner.elements().any(|element| self.matches_path(element, rest));
        }
        self.matches_path(inner, rest)
    }

    fn matches_text(&self, value: &str) -> bool {
        self.texts.iter().any(|text| text == value)
            || self.prefixes.iter().any(|prefix| value.starts_with(prefix))
    }
}

fn is_field_path(field: &str) -> bool {
    let is_name = |part: &str| {
        let name = part.strip_suffix("[]").unwrap_or(part);
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    field.split('.').all(is_name)
}
