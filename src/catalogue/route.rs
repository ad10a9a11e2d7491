//! The ordered routes to a vendor, and what the vendor calls our models.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::borrow::Cow;
use std::fmt;

use super::route_tls::RouteTlsFiles;
use crate::toml_reader::{ConfigError, SourceLocation, SpannedValue, TableReader};

/// What a vendor calls models: exact names, and patterns with one `*` at the end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelPatterns {
    exact: Vec<(String, String)>,
    /// Beginnings without their `*`, longest first.
    patterns: Vec<(String, String)>,
}

impl ModelPatterns {
    /// Reads a table `"our-*" = "their-*"`.
    pub(crate) fn parse(
        members: Vec<(String, SpannedValue)>,
        faults: &mut Vec<ConfigError>,
    ) -> ModelPatterns {
        let mut names = ModelPatterns::default();
        for (ours, node) in members {
            let crate::toml_reader::TomlValue::Text(theirs) = &node.value else {
                faults.push(node.location.error(format!("the name of '{ours}' must be a text")));
                continue;
            };
            match (ours.strip_suffix('*'), theirs.strip_suffix('*')) {
                (Some(ours), Some(theirs)) => names.patterns.push((ours.into(), theirs.into())),
                (None, None) => names.exact.push((ours, theirs.clone())),
                _ => faults.push(node.location.error("a pattern has a * at the end of both sides")),
            }
        }
        names.patterns.sort_by_key(|(ours, _)| std::cmp::Reverse(ours.len()));
        names
    }

    fn lookup(&self, id: &str) -> Option<String> {
        if let Some((_, theirs)) = self.exact.iter().find(|(ours, _)| ours == id) {
            return Some(theirs.clone());
        }
        let by_pattern = |(ours, theirs): &(String, String)| {
            id.strip_prefix(ours.as_str()).map(|rest| format!("{theirs}{rest}"))
        };
        self.patterns.iter().find_map(by_pattern)
    }
}

/// A vendor's own names for our models.
#[derive(Debug, Clone, Default)]
pub struct VendorModelNames {
    /// The vendor's token.
    pub vendor: String,
    /// The names.
    pub names: ModelPatterns,
    /// Whether clients may use them too.
    pub allow_aliases: bool,
}

impl VendorModelNames {
    /// What the vendor calls a model.
    #[must_use]
    pub(crate) fn vendor_model_name<'a>(&self, id: &'a str) -> Cow<'a, str> {
        self.names.lookup(id).map_or(Cow::Borrowed(id), Cow::Owned)
    }
}

/// Where a route's key is to be found.
#[derive(Clone, PartialEq, Eq)]
pub enum KeySource {
    /// In a variable of the environment.
    Env(String),
    /// In a file.
    File(String),
    /// Here.
    Literal(String),
}

/// Without the key itself, which may stand here.
impl fmt::Debug for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeySource::Env(name) => write!(f, "env:{name}"),
            KeySource::File(path) => write!(f, "file:{path}"),
            KeySource::Literal(_) => f.write_str("…"),
        }
    }
}

impl KeySource {
    /// Reads `env:NAME`, `file:PATH`, or the key itself.
    #[must_use]
    pub(crate) fn parse(text: &str) -> KeySource {
        match text.split_once(':') {
            Some(("env", name)) => KeySource::Env(name.to_owned()),
            Some(("file", path)) => KeySource::File(path.to_owned()),
            _ => KeySource::Literal(text.to_owned()),
        }
    }
}

/// A base address of a vendor: `http[s]://host[:port]/path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseUrl {
    /// Whether to speak TLS.
    pub tls: bool,
    /// The host, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The path, without a slash at its end.
    pub path: String,
}

impl BaseUrl {
    /// Reads an address.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<BaseUrl, String> {
        let wrong = || format!("'{}' is no address such as https://host/v1", redact_address(text));
        let uri: http::Uri = text.parse().map_err(|_| wrong())?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong()),
        };
        let host = uri.host().ok_or_else(wrong)?.trim_matches(['[', ']']).to_owned();
        if uri.query().is_some() || text.contains(['#', '@']) {
            return Err(wrong());
        }
        let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        Ok(BaseUrl { tls, host, port, path: uri.path().trim_end_matches('/').to_owned() })
    }

    /// What goes into the `host` header.
    #[must_use]
    pub(crate) fn authority(&self) -> String {
        let host =
            if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let usual = if self.tls { 443 } else { 80 };
        if self.port == usual { host } else { format!("{host}:{}", self.port) }
    }
}

/// What may be told of an address that is none: what stands before an @ may be a password, and what
/// stands in a query a key.
fn redact_address(text: &str) -> &str {
    let bare = text.find(['?', '#']).map_or(text, |at| &text[..at]);
    match text.rsplit_once('@') {
        None => bare,
        Some((_, rest)) if bare.len() == text.len() => rest,
        // A query with an @, or a password with a question mark: nobody can tell.
        Some(_) => "…",
    }
}

/// Whether a text is the name or the address of a host, and nothing else.
fn is_host(text: &str) -> bool {
    let is_of_name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    let is_name = text.bytes().all(is_of_name) && !text.starts_with('.') && !text.ends_with('.');
    !text.is_empty() && (is_name || text.parse::<std::net::Ipv6Addr>().is_ok())
}

/// Whether a host belongs to the domain of another: it is that one or below it. The domain of
/// `api.vendor.test` is `vendor.test`; nothing is below an address or a name of one word.
#[must_use]
pub(crate) fn is_same_domain(host: &str, other: &str) -> bool {
    let domain = other.strip_prefix("api.").filter(|rest| rest.contains('.')).unwrap_or(other);
    let is_domain = domain.contains('.') && domain.parse::<std::net::IpAddr>().is_err();
    let is_below = || host.strip_suffix(domain).is_some_and(|start| start.ends_with('.'));
    host == other || (is_domain && (host == domain || is_below()))
}

/// One way to a vendor, as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteSection {
    /// Its name in journals and metrics.
    pub name: String,
    /// Where.
    pub base_url: BaseUrl,
    /// The key's place.
    pub key: KeySource,
    /// Names that differ from the vendor's other routes.
    pub names: ModelPatterns,
    /// Calls under way, at most; 0 for no bound.
    pub requests_max: usize,
    /// Whom it trusts and what it shows of itself, where that is not as usual.
    pub tls: Option<RouteTlsFiles>,
}

/// Everything configured for a vendor.
#[derive(Debug, Clone, Default)]
pub struct VendorRoutes {
    /// Names and aliases.
    pub naming: VendorModelNames,
    /// The routes in order of preference.
    pub routes: Vec<RouteSection>,
    /// The real names of headers that the rules name neutrally.
    pub header_names: Vec<(String, String)>,
    /// Hosts where it keeps finished videos, beside those near to a route's own.
    pub file_hosts: Vec<String>,
}

impl VendorRoutes {
    /// Reads a `[vendor.NAME]` section.
    pub(crate) fn parse(
        vendor: &str,
        node: SpannedValue,
        faults: &mut Vec<ConfigError>,
    ) -> VendorRoutes {
        let mut table = TableReader::open(node, faults);
        let mut section = VendorRoutes::default();
        vendor.clone_into(&mut section.naming.vendor);
        section.naming.allow_aliases = table.bool("aliases", faults).unwrap_or(false);
        section.naming.names = ModelPatterns::parse(table.members("names", faults), faults);
        for (neutral, node) in table.members("header_names", faults) {
            match node.value {
                crate::toml_reader::TomlValue::Text(real) => {
                    let lower = |name: &str| name.to_ascii_lowercase();
                    section.header_names.push((lower(&neutral), lower(&real)));
                }
                _ => faults.push(node.location.error("the name of a header must be a text")),
            }
        }
        for node in table.list("file_hosts", faults) {
            match node.value {
                crate::toml_reader::TomlValue::Text(host) if is_host(&host) => {
                    section.file_hosts.push(host.to_ascii_lowercase());
                }
                _ => faults.push(node.location.error("a host must be a name such as files.test")),
            }
        }
        for node in table.list("routes", faults) {
            let place = node.location.clone();
            let Some(route) = parse_route(node, faults) else { continue };
            if section.routes.iter().any(|r| r.name == route.name) {
                faults.push(place.error(format!("route '{}' stands twice", route.name)));
            }
            section.routes.push(route);
        }
        table.finish(faults);
        section
    }
}

fn parse_route(node: SpannedValue, faults: &mut Vec<ConfigError>) -> Option<RouteSection> {
    let mut row = TableReader::open(node, faults);
    let place = row.location.clone();
    let name = required_text(&mut row, "name", &place, faults);
    let key = required_text(&mut row, "key", &place, faults);
    let base = required_text(&mut row, "base_url", &place, faults);
    let names = ModelPatterns::parse(row.members("names", faults), faults);
    let requests_max = row.integer("requests_max", faults).and_then(|n| n.try_into().ok());
    let tls = row.take_value("tls");
    row.finish(faults);
    if key.as_deref().is_some_and(|key| key.contains(char::is_control)) {
        faults.push(place.error("'key' has a control character, which no header can carry"));
    }
    let base = match BaseUrl::parse(&base?) {
        Ok(base) => base,
        Err(why) => {
            faults.push(place.error(why));
            return None;
        }
    };
    let requests_max = requests_max.unwrap_or(0);
    let tls = tls.map(|node| RouteTlsFiles::parse(node, base.tls, faults));
    Some(RouteSection {
        name: name?,
        base_url: base,
        key: KeySource::parse(&key?),
        names,
        requests_max,
        tls,
    })
}

fn required_text(
    row: &mut TableReader,
    key: &'static str,
    place: &SourceLocation,
    faults: &mut Vec<ConfigError>,
) -> Option<String> {
    let text = row.text(key, faults).filter(|t| !t.is_empty());
    if text.is_none() {
        faults.push(place.error(format!("a route needs '{key}'")));
    }
    text
}

impl RouteSection {
    /// What this route calls a model.
    #[must_use]
    pub(crate) fn vendor_model_name<'a>(
        &self,
        naming: &VendorModelNames,
        id: &'a str,
    ) -> Cow<'a, str> {
        self.names.lookup(id).map_or_else(|| naming.vendor_model_name(id), Cow::Owned)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("https://host/v1?key=canary", "'https://host/v1'")]
    #[case("https://host/v1#canary", "'https://host/v1'")]
    #[case("https://user:canary@host/v1", "'host/v1'")]
    #[case("https://host/v1?key=canary@canary", "'…'")]
    #[case("https://user:canary?canary@host/v1", "'…'")]
    #[case("host/v1", "'host/v1'")]
    fn an_address_told_the_key_in_its_query(#[case] text: &str, #[case] told: &str) {
        let why = BaseUrl::parse(text).expect_err("no address");
        assert!(why.contains(told) && !why.contains("canary"), "{why}");
    }

    #[rstest]
    #[case("canary\nx", 1)]
    #[case("canary\u{7f}", 1)]
    #[case("canary-0123", 0)]
    fn a_key_with_a_control_character_is_a_fault(#[case] key: &str, #[case] count: usize) {
        let text = format!(
            "routes = [{{ name = \"a\", base_url = \"https://h/v1\", key = {} }}]",
            serde_json::to_string(key).expect("a text").replace('\u{7f}', "\\u007f")
        );
        let (node, mut faults) = crate::toml_reader::parse("t.toml", &text);
        VendorRoutes::parse("vendor_x", node, &mut faults);
        assert_eq!(faults.len(), count, "{faults:?}");
        for fault in faults {
            let told = fault.to_string();
            assert!(told.starts_with("t.toml:1: ") && !told.contains("canary"), "{told}");
        }
    }
}
