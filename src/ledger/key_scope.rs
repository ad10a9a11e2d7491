//! The scope of an API key: what it is called, and what it may be used for.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::account_settings::PlanName;
use super::prepaid::window::KeyId;

/// The most characters of a name.
const NAME_CHARS_MAX: usize = 64;
/// The most tags of a key.
const TAGS_MAX: usize = 16;
/// The most characters of the name of a tag.
const TAG_NAME_CHARS_MAX: usize = 32;
/// The most characters of the value of a tag.
const TAG_VALUE_CHARS_MAX: usize = 64;
/// The most patterns of models.
const MODELS_MAX: usize = 64;
/// The most characters of a pattern.
const MODEL_CHARS_MAX: usize = 128;
/// The most bytes of a scope as JSON.
const SCOPE_BYTES_MAX: usize = 8 << 10;
/// This many of the leading bits of an IPv4-mapped IPv6 address are the same in all of them.
const MAPPED_PREFIX_BITS: u8 = 96;

/// What an API key is called, and what it may be used for. The default restricts nothing.
///
/// A scope with a member that this version does not know cannot be read, so that a restriction of a
/// later version is never left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KeyScope {
    /// What people call the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What else its owner notes of the key.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// Patterns of the ids of the models that the key may use, in which `*` stands for any text.
    /// None allow all models.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// The names of the endpoints that the key may use. None allow all endpoints.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<String>,
    /// The networks from which the key may be used. None allow all addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(serialize_with = "write_networks", deserialize_with = "read_networks")]
    pub from: Vec<IpNet>,
    /// From this moment on the key is refused, in unix seconds; `None` if it does not expire.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<i64>,
    /// Whether the key is refused until it is enabled again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
    /// The plan of the key, beside the one of its account; `None` if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanName>,
    /// The id that the key has from the one that it replaced; `None` if it replaced none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<KeyId>,
}

/// What is wrong with a scope. The text says what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ScopeFault(String);

impl KeyScope {
    /// Whether the scope refuses any call that the key could make without it.
    #[must_use]
    pub fn is_restricting(&self) -> bool {
        let is_open = self.models.is_empty() && self.endpoints.is_empty() && self.from.is_empty();
        !is_open || self.expires_at.is_some() || self.disabled
    }

    /// Whether the key may use the model with this id.
    #[must_use]
    pub fn allows_model(&self, id: &str) -> bool {
        self.models.is_empty() || self.models.iter().any(|pattern| matches_pattern(pattern, id))
    }

    /// Whether the key may use an endpoint that is listed under one of these names.
    #[must_use]
    pub fn allows_endpoint(&self, names: &[&str]) -> bool {
        let is_listed = |name: &String| names.contains(&name.as_str());
        self.endpoints.is_empty() || self.endpoints.iter().any(is_listed)
    }

    /// Whether the key may be used from an address. An address that is not known is in no network,
    /// and an IPv4-mapped IPv6 address counts as its IPv4 address.
    #[must_use]
    pub fn allows_address(&self, address: Option<IpAddr>) -> bool {
        let address = address.map(|address| address.to_canonical());
        let is_inside = |network: &IpNet| address.is_some_and(|address| network.contains(&address));
        self.from.is_empty() || self.from.iter().any(is_inside)
    }

    /// Whether the key has expired at the time `now` (unix seconds).
    #[must_use]
    pub fn is_expired(&self, now: i64) -> bool {
        self.expires_at.is_some_and(|end| now >= end)
    }

    /// Checks the texts and the size of the scope. The names of endpoints are not checked, since
    /// only the gateway knows them.
    ///
    /// # Errors
    /// Says what is too long, and what would be right.
    pub fn check(&self) -> Result<(), ScopeFault> {
        if let Some(name) = &self.name {
            check_text("name", name, NAME_CHARS_MAX)?;
        }
        if self.tags.len() > TAGS_MAX {
            return Err(ScopeFault(format!("a key has {TAGS_MAX} tags at most")));
        }
        for (name, value) in &self.tags {
            check_text("name of a tag", name, TAG_NAME_CHARS_MAX)?;
            check_text("value of a tag", value, TAG_VALUE_CHARS_MAX)?;
        }
        if self.models.len() > MODELS_MAX {
            return Err(ScopeFault(format!("a key has {MODELS_MAX} patterns of models at most")));
        }
        for pattern in &self.models {
            check_text("pattern of models", pattern, MODEL_CHARS_MAX)?;
            if pattern.chars().any(char::is_whitespace) {
                let what = format!("'{pattern}' is no pattern of models: it has a space in it");
                return Err(ScopeFault(what));
            }
        }
        let bytes = self.to_json().len();
        if bytes > SCOPE_BYTES_MAX {
            let what = format!(
                "the name, tags, models, endpoints and networks of a key take {bytes} bytes; they \
                 may take {SCOPE_BYTES_MAX} at most"
            );
            return Err(ScopeFault(what));
        }
        Ok(())
    }

    /// Returns the scope as a store keeps it.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Texts and numbers can always be written. If they could not, the empty text could not be
        // read, and so the key would open nothing.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads what [`KeyScope::to_json`] has written; `None` if it cannot be read. Then the key must
    /// open nothing.
    #[must_use]
    pub fn parse_json(text: &str) -> Option<KeyScope> {
        // A list of no members would be read as a scope without restrictions.
        let is_object = text.starts_with('{');
        is_object.then(|| serde_json::from_str(text).ok()).flatten()
    }
}

/// Parses a network such as `10.0.0.0/8`, or a single address. The bits after the prefix become
/// zero, and a network of IPv4-mapped IPv6 addresses becomes its IPv4 network.
///
/// # Errors
/// The text is no network.
pub fn parse_network(text: &str) -> Result<IpNet, ScopeFault> {
    let network = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    let network = network.map_err(|_| {
        ScopeFault(format!(
            "'{text}' is no network: write an address, or an address and the length of its prefix, \
             as in 10.0.0.0/8 or 2001:db8::/32"
        ))
    })?;
    let address = network.addr().to_canonical();
    let mapped_prefix = network.prefix_len().checked_sub(MAPPED_PREFIX_BITS);
    if address != network.addr()
        && let Some(prefix) = mapped_prefix
        && let Ok(mapped) = IpNet::new(address, prefix)
    {
        return Ok(mapped.trunc());
    }
    Ok(network.trunc())
}

fn check_text(what: &str, text: &str, chars_max: usize) -> Result<(), ScopeFault> {
    let chars = text.chars().count();
    if chars == 0 || chars > chars_max {
        return Err(ScopeFault(format!("the {what} must have 1 to {chars_max} characters")));
    }
    if text.chars().any(char::is_control) {
        return Err(ScopeFault(format!("the {what} has control characters in it")));
    }
    Ok(())
}

/// Whether a pattern matches the whole of a text. `*` stands for any text, also for none.
#[must_use]
pub fn matches_pattern(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        // The first place is the best one: it leaves the most for the parts that follow.
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    true
}

fn write_networks<S: Serializer>(networks: &[IpNet], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(networks.iter().map(ToString::to_string))
}

fn read_networks<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<IpNet>, D::Error> {
    let texts = Vec::<String>::deserialize(from)?;
    texts.iter().map(|text| text.parse::<IpNet>().map_err(serde::de::Error::custom)).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn models(patterns: &[&str]) -> KeyScope {
        let models = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
        KeyScope { models, ..KeyScope::default() }
    }

    fn from(networks: &[&str]) -> KeyScope {
        let parsed = networks.iter().map(|text| parse_network(text).expect("a network"));
        KeyScope { from: parsed.collect(), ..KeyScope::default() }
    }

    #[rstest]
    #[case::itself("lmb-5.5", "lmb-5.5", true)]
    #[case::longer("lmb-5.5", "lmb-5.5-mini", false)]
    #[case::shorter("lmb-5.5", "lmb-5", false)]
    #[case::point_is_a_point("lmb-5.5", "lmb-5x5", false)]
    #[case::beginning("lmb-*", "lmb-5.5", true)]
    #[case::star_is_nothing("lmb-*", "lmb-", true)]
    #[case::other_beginning("lmb-*", "xlmb-5.5", false)]
    #[case::end("*-mini", "lmb-5.5-mini", true)]
    #[case::not_the_end("*-mini", "lmb-mini-5.5", false)]
    #[case::middle("*5*", "lmb-5.5", true)]
    #[case::not_the_middle("*6*", "lmb-5.5", false)]
    #[case::owner("orgA/*", "orgA/famA-V3.2", true)]
    #[case::other_owner("orgA/*", "orgB/famA-V3.2", false)]
    #[case::around("a*a", "aa", true)]
    #[case::no_overlap("a*a", "a", false)]
    #[case::no_overlap_of_three("ab*b*b", "ab", false)]
    #[case::last_place("a*bc", "abcxbc", true)]
    #[case::first_places("a*b*c", "abxbxc", true)]
    #[case::all("*", "", true)]
    #[case::stars("**", "lmb", true)]
    #[case::case_counts("LMB-*", "lmb-5.5", false)]
    fn a_pattern_matches_the_whole_id(
        #[case] pattern: &str,
        #[case] id: &str,
        #[case] is_allowed: bool,
    ) {
        assert_eq!(models(&[pattern]).allows_model(id), is_allowed);
        assert_eq!(models(&["nothing", pattern]).allows_model(id), is_allowed);
    }

    #[test]
    fn a_scope_without_restrictions_allows_all() {
        let name = Some("ci".to_owned());
        let tags = BTreeMap::from([("team".to_owned(), "search".to_owned())]);
        let scope = KeyScope { name, tags, ..KeyScope::default() };
        assert!(!scope.is_restricting());
        assert!(scope.allows_model("lmb-5.5") && scope.allows_endpoint(&["chat"]));
        assert!(scope.allows_address(None) && !scope.is_expired(i64::MAX));
        for restricted in [
            models(&["*"]),
            from(&["::/0"]),
            KeyScope { endpoints: vec!["chat".to_owned()], ..KeyScope::default() },
            KeyScope { expires_at: Some(i64::MAX), ..KeyScope::default() },
            KeyScope { disabled: true, ..KeyScope::default() },
        ] {
            assert!(restricted.is_restricting(), "{restricted:?}");
        }
    }

    #[rstest]
    #[case::inside(&["10.0.0.0/8"], "10.255.0.1", true)]
    #[case::outside(&["10.0.0.0/8"], "11.0.0.1", false)]
    #[case::one_of_two(&["10.0.0.0/8", "192.0.2.7"], "192.0.2.7", true)]
    #[case::beside_an_address(&["192.0.2.7"], "192.0.2.8", false)]
    #[case::mapped_address(&["10.0.0.0/8"], "::ffff:10.1.2.3", true)]
    #[case::mapped_address_outside(&["10.0.0.0/8"], "::ffff:11.1.2.3", false)]
    #[case::mapped_network(&["::ffff:10.0.0.0/104"], "10.1.2.3", true)]
    #[case::mapped_network_outside(&["::ffff:10.0.0.0/104"], "11.1.2.3", false)]
    #[case::mapped_single(&["::ffff:192.0.2.7"], "192.0.2.7", true)]
    #[case::bits_after_the_prefix(&["10.1.2.3/8"], "10.9.9.9", true)]
    #[case::version_6(&["2001:db8::/32"], "2001:db8:1::9", true)]
    #[case::version_6_outside(&["2001:db8::/32"], "2001:db9::9", false)]
    #[case::versions_differ(&["::/0"], "10.0.0.1", false)]
    fn an_address_is_in_one_of_the_networks(
        #[case] networks: &[&str],
        #[case] address: &str,
        #[case] is_allowed: bool,
    ) {
        let address = address.parse().expect("an address");
        assert_eq!(from(networks).allows_address(Some(address)), is_allowed);
        assert!(!from(networks).allows_address(None), "an unknown address is nowhere");
    }

    #[test]
    fn what_is_no_network_is_refused_with_what_would_be_right() {
        for text in ["", "10.0.0.0/33", "10.0.0", "here", "10.0.0.0/8/8", "10.0.0.0-10.0.0.9"] {
            let why = parse_network(text).expect_err("no network").to_string();
            assert!(why.contains("as in 10.0.0.0/8"), "{why}");
        }
    }

    #[test]
    fn a_key_expires_with_the_second_of_its_end() {
        let scope = KeyScope { expires_at: Some(100), ..KeyScope::default() };
        assert!(!scope.is_expired(99) && scope.is_expired(100) && scope.is_expired(101));
    }

    #[test]
    fn what_is_written_is_read_as_it_was() {
        let full = KeyScope {
            name: Some("ci".to_owned()),
            tags: BTreeMap::from([("team".to_owned(), "search".to_owned())]),
            endpoints: vec!["chat".to_owned()],
            expires_at: Some(1_800_000_000),
            disabled: true,
            from: from(&["10.0.0.0/8", "2001:db8::/32"]).from,
            ..models(&["lmb-*"])
        };
        let text = r#"{"name":"ci","tags":{"team":"search"},"models":["lmb-*"],"endpoints":["chat"],"from":["10.0.0.0/8","2001:db8::/32"],"expires_at":1800000000,"disabled":true}"#;
        assert_eq!(full.to_json(), text);
        for scope in [full, KeyScope::default()] {
            assert_eq!(KeyScope::parse_json(&scope.to_json()), Some(scope));
        }
    }

    #[test]
    fn a_restriction_that_is_not_known_was_left_out() {
        for text in [r#"{"methods":["GET"]}"#, "", "[]", r#"{"from":["here"]}"#] {
            assert_eq!(KeyScope::parse_json(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_too_long_is_refused_with_what_would_be_right() {
        let named = |name: &str| KeyScope { name: Some(name.to_owned()), ..KeyScope::default() };
        let tagged = |name: &str, value: &str| {
            let tags = BTreeMap::from([(name.to_owned(), value.to_owned())]);
            KeyScope { tags, ..KeyScope::default() }
        };
        let many_tags = (0..17).map(|number| (number.to_string(), "x".to_owned()));
        let networks = (0..=255).map(|number| parse_network(&format!("2001:db8:{number:x}::/48")));
        let networks: Result<Vec<_>, _> = networks.cycle().take(600).collect();
        let large = KeyScope { from: networks.expect("networks"), ..KeyScope::default() };
        for (scope, told) in [
            (named(""), "the name must have 1 to 64 characters"),
            (named(&"x".repeat(65)), "the name must have 1 to 64 characters"),
            (named("a\nb"), "the name has control characters"),
            (tagged("", "x"), "the name of a tag must have 1 to 32 characters"),
            (tagged(&"x".repeat(33), "x"), "the name of a tag must have 1 to 32"),
            (tagged("x", &"x".repeat(65)), "the value of a tag must have 1 to 64"),
            (KeyScope { tags: many_tags.collect(), ..KeyScope::default() }, "16 tags at most"),
            (models(&["lmb-*"; 65]), "64 patterns of models at most"),
            (models(&[""]), "the pattern of models must have 1 to 128"),
            (models(&["lmb *"]), "'lmb *' is no pattern of models"),
            (large, "they may take 8192 at most"),
        ] {
            let why = scope.check().expect_err("too much").to_string();
            assert!(why.contains(told), "{told}: {why}");
        }
        let fair = KeyScope { tags: tagged("team", "ü").tags, ..models(&["lmb-*"; 64]) };
        assert_eq!(fair.check(), Ok(()));
    }
}
