//! Fields that must not reach a vendor, because no price covers their cost.
//!
//! All refused fields of a vendor's endpoint form one tree, so a body is walked once, and only
//! along the paths of refused fields.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::dialect::json::{JsonDocument, JsonKind, JsonValue};
use crate::money::price::Price;

/// One refused field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldRefusal {
    /// The path of the field as written in the rules, such as `tools[].type`.
    pub field: String,
    /// The reason that the client gets in the error.
    pub reason: String,
    /// Values of the field, as JSON, that are allowed all the same.
    pub unless: Vec<String>,
    /// An optional price: a model that has it may get the field all the same.
    pub unless_price: Option<OptionalPrice>,
    /// Details for programs, as JSON, in the error of the messages format.
    pub details: Option<String>,
}

/// A refused field that a body has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedField {
    /// The rule that refuses it.
    pub rule: FieldRefusal,
    /// Where it stands in the body, such as `tools[8].type`.
    pub path: String,
    /// Its value for people, such as `'web_search'`; a long one is cut.
    pub value: String,
}

/// At most this many bytes of a refused value are shown.
const VALUE_BYTES_MAX: usize = 64;

/// A price that not every model has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionalPrice {
    /// The price of tokens that are written to a prompt cache for an hour.
    CacheWrite1h,
}

impl OptionalPrice {
    /// Parses the name of a price in the rules; `None` if it is unknown.
    #[must_use]
    pub(crate) fn from_name(name: &str) -> Option<OptionalPrice> {
        (name == "cache_write_1h").then_some(OptionalPrice::CacheWrite1h)
    }

    fn is_part_of(self, price: &Price) -> bool {
        match (self, price) {
            (OptionalPrice::CacheWrite1h, Price::Tokens(tokens)) => tokens.has_cache_write_1h(),
            _ => false,
        }
    }
}

/// The values that a field may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ValuePattern {
    /// Any value but null.
    Any,
    /// This text.
    Text(String),
    /// A text that begins so.
    Prefix(String),
}

impl ValuePattern {
    /// Parses a pattern of the rules, which may have a `*` at its end; `None` if it has one
    /// elsewhere, or nothing before it.
    pub(super) fn parse(text: &str) -> Option<ValuePattern> {
        let (start, is_prefix) = match text.strip_suffix('*') {
            Some(start) => (start, true),
            None => (text, false),
        };
        if start.is_empty() || start.contains('*') {
            return None;
        }
        let start = start.to_owned();
        Some(if is_prefix { ValuePattern::Prefix(start) } else { ValuePattern::Text(start) })
    }

    /// Returns the pattern as the rules write it; `None` if it is any value.
    #[must_use]
    pub(super) fn to_text(&self) -> Option<String> {
        match self {
            ValuePattern::Any => None,
            ValuePattern::Text(text) => Some(text.clone()),
            ValuePattern::Prefix(start) => Some(format!("{start}*")),
        }
    }

    /// Whether a value of the field is one of these.
    #[must_use]
    pub(super) fn matches(&self, value: JsonValue<'_>) -> bool {
        match self {
            ValuePattern::Any => !value.is_null(),
            ValuePattern::Text(text) => value.text().is_some_and(|found| found == *text),
            ValuePattern::Prefix(start) => value.text().is_some_and(|text| text.starts_with(start)),
        }
    }
}

/// All refused fields of an endpoint.
#[derive(Debug, Clone, Default)]
pub struct FieldPolicy {
    root: FieldNode,
}

#[derive(Debug, Clone, Default)]
struct FieldNode {
    members: Vec<(String, FieldNode)>,
    elements: Option<Box<FieldNode>>,
    refusals: Vec<FieldRefusal>,
    /// Values of the field that no rule refuses, because they cost a fee.
    priced: Vec<ValuePattern>,
}

impl FieldPolicy {
    /// Adds a refused field.
    ///
    /// # Errors
    /// A text that says what is wrong with the path of the field.
    pub(crate) fn add(&mut self, refusal: FieldRefusal) -> Result<(), String> {
        self.root.branch_mut(&refusal.field)?.refusals.push(refusal);
        Ok(())
    }

    /// Adds values of a field that are not refused, because they cost a fee.
    ///
    /// # Errors
    /// A text that says what is wrong with the path of the field.
    pub(crate) fn add_priced(&mut self, field: &str, values: ValuePattern) -> Result<(), String> {
        self.root.branch_mut(field)?.priced.push(values);
        Ok(())
    }

    /// Returns the first refused field in a body for a model of this price; `None` if the body has
    /// none.
    #[must_use]
    pub fn find_refusal(&self, document: &JsonDocument, price: &Price) -> Option<RefusedField> {
        self.root.members.iter().find_map(|(name, branch)| {
            Some(branch.find_refusal(document.get(name)?, price)?.within(name))
        })
    }
}

impl FieldNode {
    /// Returns the node of a path.
    ///
    /// # Errors
    /// A text that says that it is none.
    fn branch_mut(&mut self, path: &str) -> Result<&mut FieldNode, String> {
        let mut branch = self;
        for part in path.split('.') {
            let name = part.trim_end_matches("[]");
            if name.is_empty() || name.contains(['[', ']']) {
                return Err(format!("'{path}' is no path such as tools[].type"));
            }
            branch = branch.member_mut(name);
            for _ in 0..(part.len() - name.len()) / 2 {
                branch = branch.elements.get_or_insert_default();
            }
        }
        Ok(branch)
    }

    fn member_mut(&mut self, name: &str) -> &mut FieldNode {
        let known = self.members.iter().position(|(n, _)| n == name);
        let at = known.unwrap_or_else(|| {
            self.members.push((name.to_owned(), FieldNode::default()));
            self.members.len() - 1
        });
        &mut self.members[at].1
    }

    fn find_refusal(&self, value: JsonValue<'_>, price: &Price) -> Option<RefusedField> {
        if value.is_null() {
            return None;
        }
        let mut refusals = self.refusals.iter().filter(|_| !self.is_priced(value));
        if let Some(rule) = refusals.find(|r| !r.allows(value, price)) {
            return Some(RefusedField::new(rule, value));
        }
        // The rules may refuse both `a[].b` and `a.b`: an array is checked only for the first.
        if let (JsonKind::Array, Some(each)) = (value.kind(), &self.elements) {
            return value.elements().enumerate().find_map(|(i, element)| {
                Some(each.find_refusal(element, price)?.within(&format!("[{i}]")))
            });
        }
        if self.members.is_empty() {
            return None;
        }
        value.raw_members().find_map(|(name, inner)| {
            let (name, branch) = self.members.iter().find(|(n, _)| *n.as_bytes() == *name)?;
            Some(branch.find_refusal(inner, price)?.within(name))
        })
    }

    fn is_priced(&self, value: JsonValue<'_>) -> bool {
        self.priced.iter().any(|values| values.matches(value))
    }
}

impl RefusedField {
    fn new(rule: &FieldRefusal, value: JsonValue<'_>) -> RefusedField {
        RefusedField { rule: rule.clone(), path: String::new(), value: shown_value(value) }
    }

    /// Adds the member or the index that the field stands in to the front of the path.
    fn within(self, outer: &str) -> RefusedField {
        let dot = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        RefusedField { path: format!("{outer}{dot}{}", self.path), ..self }
    }
}

/// Returns the beginning of a value: a string in quotes, with its control characters escaped, and
/// any other value as JSON.
fn shown_value(value: JsonValue<'_>) -> String {
    let (text, quote) = match value.text() {
        Some(text) => (text, "'"),
        None => (String::from_utf8_lossy(value.raw()), ""),
    };
    let mut shown = String::from(quote);
    for character in text.chars() {
        if shown.len() >= VALUE_BYTES_MAX {
            shown.push('…');
            break;
        }
        let is_quoted = !quote.is_empty() && matches!(character, '\'' | '\\');
        if is_quoted || character.is_control() {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown + quote
}

impl FieldRefusal {
    fn allows(&self, value: JsonValue<'_>, price: &Price) -> bool {
        if self.unless_price.is_some_and(|name| name.is_part_of(price)) {
            return true;
        }
        self.unless.iter().any(|allowed| match value.text() {
            // Strings are compared unescaped, since an escaped string means the same as a plain
            // one.
            Some(text) => {
                JsonValue::from_validated(allowed.as_bytes()).text().is_some_and(|a| a == text)
            }
            None => allowed.as_bytes() == value.raw(),
        })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// Returns the path and the value for which a policy of these fields refuses a body. All of
    /// them allow the value `"good"`.
    fn refused(fields: &[&str], body: &str) -> Option<(String, String)> {
        let mut policy = FieldPolicy::default();
        for field in fields {
            let refusal = FieldRefusal {
                field: (*field).to_owned(),
                reason: "it has no price".to_owned(),
                unless: vec![r#""good""#.to_owned()],
                unless_price: None,
                details: None,
            };
            policy.add(refusal).expect("a path");
        }
        let document = JsonDocument::parse(body.to_owned().into()).expect("sound");
        let found = policy.find_refusal(&document, &Price::Free)?;
        assert!(fields.contains(&found.rule.field.as_str()), "{found:?}");
        Some((found.path, found.value))
    }

    #[rstest]
    #[case::member(r#"{"tier":"bad"}"#, "tier", "'bad'")]
    #[case::escaped_name(r#"{"ti\u0065r":"b\u0061d"}"#, "tier", "'bad'")]
    #[case::number(r#"{"tier":2.50}"#, "tier", "2.50")]
    #[case::object(r#"{"tier":{"id":"x"}}"#, "tier", r#"{"id":"x"}"#)]
    #[case::in_a_list(r#"{"tools":[{"type":"good"},{"type":"bad"}]}"#, "tools[1].type", "'bad'")]
    #[case::in_two_lists(
        r#"{"tools":[{},{"type":"good","tools":[{"type":"good"},{"type":null},{"type":false}]}]}"#,
        "tools[1].tools[2].type",
        "false"
    )]
    #[case::the_element_itself(r#"{"kinds":["good","bad"]}"#, "kinds[1]", "'bad'")]
    #[case::list_of_lists(r#"{"pairs":[["good"],["good","bad"]]}"#, "pairs[1][1]", "'bad'")]
    fn a_refusal_tells_the_place_and_the_value(
        #[case] body: &str,
        #[case] path: &str,
        #[case] value: &str,
    ) {
        let fields = ["tier", "tools[].type", "tools[].tools[].type", "kinds[]", "pairs[][]"];
        assert_eq!(refused(&fields, body), Some((path.to_owned(), value.to_owned())));
    }

    #[rstest]
    #[case::nothing("{}")]
    #[case::null(r#"{"tier":null,"tools":null}"#)]
    #[case::allowed(r#"{"tier":"g\u006fod","tools":[{"type":"good"}]}"#)]
    #[case::elsewhere(r#"{"type":"bad","tools":[{"tier":"bad"},"bad"],"x":{"tier":"bad"}}"#)]
    fn other_values_pass(#[case] body: &str) {
        assert_eq!(refused(&["tier", "tools[].type"], body), None);
    }

    #[rstest]
    #[case::controls(r#""a\u0000\nb""#, r"'a\u{0}\nb'")]
    #[case::quotes(r#""it's \"here\" \\""#, r#"'it\'s "here" \\'"#)]
    #[case::letters(r#""é東""#, "'é東'")]
    #[case::spaces_of_json("[1,\n 2]", r"[1,\n 2]")]
    fn a_value_is_shown_on_one_line(#[case] value: &str, #[case] shown: &str) {
        let found = refused(&["tier"], &format!(r#"{{"tier":{value}}}"#));
        assert_eq!(found, Some(("tier".to_owned(), shown.to_owned())));
    }

    #[test]
    fn a_long_value_is_cut() {
        for letter in ["x", "東", "\\u0000"] {
            let body = format!(r#"{{"tier":"{}"}}"#, letter.repeat(100_000));
            let (_, value) = refused(&["tier"], &body).expect("a refusal");
            assert!(value.ends_with("…'") && value.len() < VALUE_BYTES_MAX + 16, "{value}");
        }
    }

    #[rstest]
    #[case("")]
    #[case("a..b")]
    #[case("[]")]
    #[case("a[0]")]
    fn a_path_that_cannot_be_read_is_a_fault(#[case] field: &str) {
        let refusal = FieldRefusal {
            field: field.to_owned(),
            reason: String::new(),
            unless: Vec::new(),
            unless_price: None,
            details: None,
        };
        assert!(FieldPolicy::default().add(refusal).is_err(), "{field}");
    }
}
