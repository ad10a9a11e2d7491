//! The ordered routes to a vendor, and the vendor's own names for models.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::borrow::Cow;
use std::fmt;

use super::alias::{AliasSetting, ModelAlias};
use super::route_tls::RouteTlsFiles;
use crate::toml_reader::{ConfigError, SourceLocation, SpannedValue, TableReader};

/// A vendor's own names for models: exact names, and patterns with one `*` at the end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelPatterns {
    exact: Vec<(String, String)>,
    /// Prefixes, without the `*`, of our ids and of the vendor's names; longest first.
    patterns: Vec<(String, String)>,
}

impl ModelPatterns {
    /// Parses a table of lines such as `"our-*" = "their-*"`.
    pub(crate) fn parse(
        members: Vec<(String, SpannedValue)>,
        faults: &mut Vec<ConfigError>,
    ) -> ModelPatterns {
        let mut names = ModelPatterns::default();
        for (model_id, node) in members {
            let crate::toml_reader::TomlValue::Text(vendor_name) = &node.value else {
                faults
                    .push(node.location.error(format!("the name of '{model_id}' must be a text")));
                continue;
            };
            match (model_id.strip_suffix('*'), vendor_name.strip_suffix('*')) {
                (Some(model_id), Some(vendor_name)) => {
                    names.patterns.push((model_id.into(), vendor_name.into()));
                }
                (None, None) => names.exact.push((model_id, vendor_name.clone())),
                _ => faults.push(node.location.error("a pattern has a * at the end of both sides")),
            }
        }
        names.patterns.sort_by_key(|(model_id, _)| std::cmp::Reverse(model_id.len()));
        names
    }

    fn lookup(&self, id: &str) -> Option<String> {
        if let Some((_, vendor_name)) = self.exact.iter().find(|(model_id, _)| model_id == id) {
            return Some(vendor_name.clone());
        }
        let by_pattern = |(model_id, vendor_name): &(String, String)| {
            id.strip_prefix(model_id.as_str()).map(|rest| format!("{vendor_name}{rest}"))
        };
        self.patterns.iter().find_map(by_pattern)
    }
}

/// A vendor's own names for our models.
#[derive(Debug, Clone, Default)]
pub struct VendorModelNames {
    /// The vendor's token.
    pub vendor: String,
    /// The vendor's name in traces; `None` if that is the token.
    pub provider: Option<String>,
    /// The vendor's names, by the ids of our models.
    pub names: ModelPatterns,
    /// Whether clients may use the vendor's names too.
    pub allows_vendor_names: bool,
    /// Further names by which clients may ask for a model.
    pub aliases: Vec<ModelAlias>,
}

impl VendorModelNames {
    /// Returns the vendor's name in traces.
    #[must_use]
    pub(crate) fn provider(&self) -> &str {
        self.provider.as_deref().unwrap_or(&self.vendor)
    }

    /// Returns the vendor's name for a model; the model's id if no other name is configured.
    #[must_use]
    pub(crate) fn vendor_model_name<'a>(&self, id: &'a str) -> Cow<'a, str> {
        self.names.lookup(id).map_or(Cow::Borrowed(id), Cow::Owned)
    }
}

/// The place from which a route's key is read.
#[derive(Clone, PartialEq, Eq)]
pub enum KeySource {
    /// The name of an environment variable that holds the key.
    Env(String),
    /// The path of a file that holds the key.
    File(String),
    /// The key itself.
    Literal(String),
}

/// Writes the place without the key itself, which the configuration may contain.
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
    /// Parses `env:NAME`, `file:PATH`, or the key itself.
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
    /// Whether connections use TLS.
    pub tls: bool,
    /// The host, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The path, without a slash at its end.
    pub path: String,
}

impl BaseUrl {
    /// Parses an address.
    ///
    /// # Errors
    /// A text that says what is wrong with the address.
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

    /// Returns the value of the `host` header.
    #[must_use]
    pub(crate) fn authority(&self) -> String {
        let host =
            if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let usual = if self.tls { 443 } else { 80 };
        if self.port == usual { host } else { format!("{host}:{}", self.port) }
    }
}

/// Returns the part of an invalid address that an error may show: the part before an `@` may be a
/// password, and a query may contain a key.
fn redact_address(text: &str) -> &str {
    let bare = text.find(['?', '#']).map_or(text, |at| &text[..at]);
    match text.rsplit_once('@') {
        None => bare,
        Some((_, rest)) if bare.len() == text.len() => rest,
        // This may be a query with an `@`, or a password with a question mark. The two cannot be
        // told apart, so nothing is shown.
        Some(_) => "…",
    }
}

/// Whether a text is the name or the address of a host, and nothing else.
fn is_host(text: &str) -> bool {
    let is_of_name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    let is_name = text.bytes().all(is_of_name) && !text.starts_with('.') && !text.ends_with('.');
    !text.is_empty() && (is_name || text.parse::<std::net::Ipv6Addr>().is_ok())
}

/// Whether a host is another one or belongs to its domain. The domain of `api.vendor.test` is
/// `vendor.test`. Nothing belongs to the domain of an IP address or of a name of one word.
#[must_use]
pub(crate) fn is_same_domain(host: &str, other: &str) -> bool {
    let domain = other.strip_prefix("api.").filter(|rest| rest.contains('.')).unwrap_or(other);
    let is_domain = domain.contains('.') && domain.parse::<std::net::IpAddr>().is_err();
    let is_below = || host.strip_suffix(domain).is_some_and(|start| start.ends_with('.'));
    host == other || (is_domain && (host == domain || is_below()))
}

/// A route to a vendor, as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteSection {
    /// Its name in journals and metrics.
    pub name: String,
    /// The base address of the vendor's API.
    pub base_url: BaseUrl,
    /// The place of the key.
    pub key: KeySource,
    /// The names of models that differ from those of the vendor's other routes.
    pub names: ModelPatterns,
    /// At most this many calls run on the route at the same time; 0 sets no limit.
    pub requests_max: usize,
    /// The TLS settings; `None` trusts the system's authorities and presents no certificate.
    pub tls: Option<RouteTlsFiles>,
}

/// Everything configured for a vendor.
#[derive(Debug, Clone, Default)]
pub struct VendorRoutes {
    /// The vendor's names for models, and the names that clients may use beside our ids.
    pub naming: VendorModelNames,
    /// The routes in order of preference.
    pub routes: Vec<RouteSection>,
    /// Pairs of the neutral name of a header in the rules and its real name at the vendor.
    pub header_names: Vec<(String, String)>,
    /// Hosts from which finished videos may be fetched, besides those in the domain of a route's
    /// own host.
    pub file_hosts: Vec<String>,
}

impl VendorRoutes {
    /// Parses a `[vendor.NAME]` section.
    pub(crate) fn parse(
        vendor: &str,
        node: SpannedValue,
        faults: &mut Vec<ConfigError>,
    ) -> VendorRoutes {
        let mut table = TableReader::open(node, faults);
        let mut section = VendorRoutes::default();
        vendor.clone_into(&mut section.naming.vendor);
        let setting = table.take_value("aliases").map(|node| AliasSetting::parse(node, faults));
        let AliasSetting { aliases, allows_vendor_names } = setting.unwrap_or_default();
        section.naming.aliases = aliases;
        section.naming.allows_vendor_names =
            table.bool("vendor_names", faults).unwrap_or(allows_vendor_names);
        section.naming.provider = table.text("provider", faults).filter(|name| !name.is_empty());
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
            let location = node.location.clone();
            let Some(route) = parse_route(node, faults) else { continue };
            if section.routes.iter().any(|r| r.name == route.name) {
                faults.push(location.error(format!("route '{}' stands twice", route.name)));
            }
            section.routes.push(route);
        }
        table.finish(faults);
        section
    }
}

fn parse_route(node: SpannedValue, faults: &mut Vec<ConfigError>) -> Option<RouteSection> {
    let mut row = TableReader::open(node, faults);
    let location = row.location.clone();
    let name = required_text(&mut row, "name", &location, faults);
    let key = required_text(&mut row, "key", &location, faults);
    let base = required_text(&mut row, "base_url", &location, faults);
    let names = ModelPatterns::parse(row.members("names", faults), faults);
    let requests_max = row.integer("requests_max", faults).and_then(|n| n.try_into().ok());
    let tls = row.take_value("tls");
    row.finish(faults);
    if key.as_deref().is_some_and(|key| key.contains(char::is_control)) {
        faults.push(location.error("'key' has a control character, which no header can carry"));
    }
    let base = match BaseUrl::parse(&base?) {
        Ok(base) => base,
        Err(why) => {
            faults.push(location.error(why));
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
    location: &SourceLocation,
    faults: &mut Vec<ConfigError>,
) -> Option<String> {
    let text = row.text(key, faults).filter(|t| !t.is_empty());
    if text.is_none() {
        faults.push(location.error(format!("a route needs '{key}'")));
    }
    text
}

impl RouteSection {
    /// Returns the name of a model on this route: the route's own name, else that of the vendor.
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
    fn an_address_told_the_key_in_its_query(#[case] text: &str, #[case] shown: &str) {
        let why = BaseUrl::parse(text).expect_err("no address");
        assert!(why.contains(shown) && !why.contains("canary"), "{why}");
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
            let message = fault.to_string();
            assert!(message.starts_with("t.toml:1: ") && !message.contains("canary"), "{message}");
        }
    }
}
