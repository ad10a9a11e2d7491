//! Which vendor replies cause failover: the route fails, and the request is not the reason.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::dialect::json::{JsonKind, JsonValue as Json, scan};
use crate::toml_reader::{ConfigError, SpannedValue, TableReader, TomlValue};

/// The fewest bytes of a text's prefix, so that it means something.
const PREFIX_BYTES_MIN: usize = 12;

/// Which answers of a vendor make the gateway try the next route.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FailoverRule {
    statuses: Vec<u16>,
    /// Hundreds that block as a whole, such as 5 for `5xx`.
    status_classes: Vec<u16>,
    error_texts: Vec<FailoverText>,
}

/// What a field of a refusal says when it is about the gateway's own account and none of the
/// client's doing.
///
/// The field has to be this text, or begin with it, and not just hold it: vendors repeat what
/// clients sent, and a client that could write the words could have any call tried on every route.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FailoverText {
    status: u16,
    /// Such as `error.details[].reason`.
    field: String,
    texts: Vec<String>,
    prefixes: Vec<String>,
}

impl FailoverRule {
    /// Whether a status blocks.
    #[must_use]
    pub(crate) fn matches_status(&self, status: u16) -> bool {
        self.statuses.contains(&status) || self.status_classes.contains(&(status / 100))
    }

    /// Whether a refusal of a status that does not block says that it is a block.
    #[must_use]
    pub(crate) fn matches_body(&self, status: u16, body: &[u8]) -> bool {
        let mut words = self.error_texts.iter().filter(|words| words.status == status).peekable();
        if words.peek().is_none() || scan::validate_value(body).is_err() {
            return false;
        }
        let body = Json::from_validated(body.trim_ascii());
        // Some vendors send their error as the only one of a list.
        let error =
            if body.kind() == JsonKind::Array { body.elements().next() } else { Some(body) };
        error.is_some_and(|error| words.any(|words| words.matches_path(error, &words.field)))
    }

    /// Reads `blocked` and `blocked_words`.
    pub(super) fn parse(table: &mut TableReader, faults: &mut Vec<ConfigError>) -> FailoverRule {
        let mut blocked = FailoverRule::default();
        for node in table.list("blocked", faults) {
            match &node.value {
                TomlValue::Number(n) if matches!(n.parse(), Ok(100..=599)) => {
                    blocked.statuses.extend(n.parse::<u16>());
                }
                TomlValue::Text(class) if matches!(class.as_str(), "4xx" | "5xx") => {
                    blocked.status_classes.push(if class == "4xx" { 4 } else { 5 });
                }
                _ => {
                    faults.push(
                        node.location.error("'blocked' lists statuses such as 429 or \"5xx\""),
                    );
                }
            }
        }
        for node in table.list("blocked_words", faults) {
            blocked.error_texts.extend(FailoverText::parse(node, faults));
        }
        blocked
    }
}

impl FailoverText {
    fn parse(node: SpannedValue, faults: &mut Vec<ConfigError>) -> Option<FailoverText> {
        let mut row = TableReader::open(node, faults);
        let place = row.location.clone();
        let status = row.integer("status", faults).and_then(|n| u16::try_from(n).ok());
        let field = row.text("field", faults).filter(|field| is_field_path(field));
        let words = row.texts("words", faults).unwrap_or_default();
        row.finish(faults);
        let status = status.filter(|status| (400..=499).contains(status));
        let (Some(status), Some(field), false) = (status, field, words.is_empty()) else {
            let needs = "'blocked_words' need a status from 400 to 499, a field such as \
                error.details[].reason, and words";
            faults.push(place.error(needs));
            return None;
        };
        let (mut texts, mut beginnings) = (Vec::new(), Vec::new());
        for word in words {
            match word.strip_suffix('*') {
                None if !word.is_empty() => texts.push(word),
                Some(beginning) if beginning.len() >= PREFIX_BYTES_MIN => {
                    beginnings.push(beginning.to_owned());
                }
                _ => faults.push(place.error(format!(
                    "'{word}' says too little; before a * stand {PREFIX_BYTES_MIN} bytes or more"
                ))),
            }
        }
        Some(FailoverText { status, field, texts, prefixes: beginnings })
    }

    /// Whether what stands at the end of a path says them.
    fn matches_path(&self, value: Json<'_>, path: &str) -> bool {
        let Some((name, rest)) =
            (!path.is_empty()).then(|| path.split_once('.').unwrap_or((path, "")))
        else {
            return value.text().is_some_and(|said| self.matches_text(&said));
        };
        let Some(inner) = value.get(name.trim_end_matches("[]")) else { return false };
        if name.ends_with("[]") {
            return inner.elements().any(|element| self.matches_path(element, rest));
        }
        self.matches_path(inner, rest)
    }

    fn matches_text(&self, said: &str) -> bool {
        self.texts.iter().any(|text| text == said)
            || self.prefixes.iter().any(|beginning| said.starts_with(beginning))
    }
}

fn is_field_path(field: &str) -> bool {
    let is_name = |part: &str| {
        let name = part.strip_suffix("[]").unwrap_or(part);
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    field.split('.').all(is_name)
}
