//! The `[listen]` section: the addresses for clients and scrapers, and the trusted proxies.

use ipnet::IpNet;

use crate::catalogue::route::KeySource;
use crate::gateway::request::client_address::ProxyMode;
use crate::gateway::request::client_address::TrustedProxies;
use crate::gateway::request::cors::CorsOrigins;
use crate::toml_reader::{ConfigError, SpannedValue, TableReader, TomlValue};

/// The `[listen]` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenSection {
    /// The address for clients.
    pub http: String,
    /// The address for `/metrics`, `/healthz` and `/readyz`.
    pub admin: AdminAddress,
    /// The address for the API of operators; `None` if it is off.
    pub console: Option<String>,
    /// The address for the pages of customers alone; `None` if there is none.
    pub customers: Option<String>,
    /// Where the token for the admin address is; `None` if requests there need no token.
    pub admin_token: Option<KeySource>,
    /// Certificate and key, if clients connect over TLS.
    pub tls: Option<ListenTlsSection>,
    /// The proxies that may report the address of a client, if there are any.
    pub proxies: Option<TrustedProxies>,
    /// The origins whose pages may call the gateway from a browser.
    pub cors_origins: CorsOrigins,
}

/// The `[listen.tls]` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenTlsSection {
    /// The certificate chain, a PEM file.
    pub cert: String,
    /// Its key, a PEM file.
    pub key: String,
}

/// The admin address, at which scrapers connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminAddress {
    /// A TCP address and port.
    Tcp(String),
    /// The path of a unix socket, which only its owner may open.
    Unix(String),
}

impl AdminAddress {
    /// Returns the address or the path, which also names the listener in pingora.
    #[must_use]
    pub(crate) fn name(&self) -> &str {
        match self {
            AdminAddress::Tcp(address) => address,
            AdminAddress::Unix(path) => path,
        }
    }
}

impl ListenSection {
    /// Parses the section; faults are added to `faults`.
    pub(crate) fn parse(table: &mut TableReader, faults: &mut Vec<ConfigError>) -> ListenSection {
        let http = match table.take_value("http") {
            Some(node) => parse_tcp_address(node, "http", "127.0.0.1:8080", faults),
            None => "127.0.0.1:8080".to_owned(),
        };
        let admin = parse_admin(table.take_value("admin"), faults);
        // The server would bind the address once, and answer clients with either service. Port 0
        // (any free port) twice also counts as the same address.
        let socket = |text: &str| text.parse::<std::net::SocketAddr>().ok();
        if matches!(&admin, AdminAddress::Tcp(admin) if socket(&http) == socket(admin)) {
            let what = format!("'http' and 'admin' are both {http}; they must differ");
            faults.push(table.location.error(what));
        }
        let mut known = vec![("http", http.clone()), ("admin", admin.name().to_owned())];
        let console = parse_other(table, ("console", "127.0.0.1:9091"), &known, faults);
        known.extend(console.clone().map(|console| ("console", console)));
        let customers = parse_other(table, ("customers", "127.0.0.1:9092"), &known, faults);
        let admin_token = table.text("admin_token", faults).map(|text| KeySource::parse(&text));
        let tls = table.table("tls", faults).map(|tls| parse_tls(tls, faults));
        let proxies = parse_proxies(table, faults);
        let cors_origins = parse_cors_origins(table, faults);
        ListenSection { http, admin, console, customers, admin_token, tls, proxies, cors_origins }
    }
}

fn parse_tcp_address(
    node: SpannedValue,
    key: &str,
    default: &str,
    faults: &mut Vec<ConfigError>,
) -> String {
    match node.value {
        TomlValue::Text(text) if text.parse::<std::net::SocketAddr>().is_ok() => text,
        _ => {
            let what = format!("'{key}' must be an address such as \"{default}\"");
            faults.push(node.location.error(what));
            default.to_owned()
        }
    }
}

fn parse_admin(node: Option<SpannedValue>, faults: &mut Vec<ConfigError>) -> AdminAddress {
    let default = "127.0.0.1:9090";
    let Some(node) = node else { return AdminAddress::Tcp(default.to_owned()) };
    let path = match &node.value {
        TomlValue::Text(text) => text.strip_prefix("unix:").filter(|path| !path.is_empty()),
        _ => None,
    };
    match path {
        Some(path) => AdminAddress::Unix(path.to_owned()),
        None => AdminAddress::Tcp(parse_tcp_address(node, "admin", default, faults)),
    }
}

/// Parses an address that may be missing. Nobody who has one of the `known` addresses may reach it
/// by that. `example` is the key and what its value could be.
fn parse_other(
    table: &mut TableReader,
    example: (&'static str, &str),
    known: &[(&str, String)],
    faults: &mut Vec<ConfigError>,
) -> Option<String> {
    let (key, form) = example;
    let node = table.take_value(key)?;
    let location = node.location.clone();
    let address = parse_tcp_address(node, key, form, faults);
    let socket = |text: &str| text.parse::<std::net::SocketAddr>().ok();
    for (name, other) in known {
        if socket(other) == socket(&address) {
            let what = format!("'{key}' and '{name}' are both {address}; they must differ");
            faults.push(location.error(what));
        }
    }
    Some(address)
}

fn parse_tls(mut tls: TableReader, faults: &mut Vec<ConfigError>) -> ListenTlsSection {
    let location = tls.location.clone();
    let files = (tls.text("cert", faults), tls.text("key", faults));
    tls.finish(faults);
    if files.0.is_none() || files.1.is_none() {
        faults.push(location.error("'tls' needs 'cert' and 'key', two PEM files"));
    }
    ListenTlsSection { cert: files.0.unwrap_or_default(), key: files.1.unwrap_or_default() }
}

fn parse_proxies(table: &mut TableReader, faults: &mut Vec<ConfigError>) -> Option<TrustedProxies> {
    let location = table.location.clone();
    let mode = table.text("proxy", faults).and_then(|text| match text.as_str() {
        "protocol" => Some(ProxyMode::Protocol),
        "header" => Some(ProxyMode::Header),
        _ => {
            let what = format!("'proxy' must be \"protocol\" or \"header\", not \"{text}\"");
            faults.push(location.error(what));
            None
        }
    });
    let mut networks = Vec::new();
    for node in table.list("trusted", faults) {
        let found = parse_network(&node.value);
        if found.is_none() {
            let what = "a trusted proxy must be an address or a network such as \"10.0.0.0/8\"";
            faults.push(node.location.error(what));
        }
        networks.extend(found);
    }
    if mode.is_some() && networks.is_empty() {
        faults.push(location.error("'proxy' needs 'trusted', the addresses of the proxies"));
    }
    if mode.is_none() && !networks.is_empty() {
        faults.push(location.error("'trusted' needs 'proxy', \"protocol\" or \"header\""));
    }
    mode.map(|mode| TrustedProxies { mode, networks })
}

fn parse_cors_origins(table: &mut TableReader, faults: &mut Vec<ConfigError>) -> CorsOrigins {
    let mut origins = CorsOrigins::default();
    for node in table.list("cors_origins", faults) {
        let added = match &node.value {
            TomlValue::Text(origin) => origins.add(origin),
            _ => Err("an origin must be a text such as \"https://app.example\"".to_owned()),
        };
        if let Err(why) = added {
            faults.push(node.location.error(why));
        }
    }
    origins
}

fn parse_network(value: &TomlValue) -> Option<IpNet> {
    let TomlValue::Text(text) = value else { return None };
    let one = || text.parse::<std::net::IpAddr>().ok().map(|ip| IpNet::from(ip.to_canonical()));
    text.parse().ok().or_else(one)
}

#[cfg(test)]
mod tests {
    use crate::conf::Config;

    fn faults_of(text: &str) -> Vec<String> {
        let faults = Config::parse("t.toml", text, []).err().unwrap_or_default();
        faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn whom_to_trust_and_how_go_together() {
        let wrong = |text: &str| faults_of(text).concat();
        assert!(wrong("[listen]\nproxy = \"header\"\n").contains("needs 'trusted'"));
        assert!(wrong("[listen]\ntrusted = [\"10.0.0.1\"]\n").contains("needs 'proxy'"));
        assert!(wrong("[listen]\nproxy = \"haproxy\"\n").contains("not \"haproxy\""));
        let odd = wrong("[listen]\nproxy = \"header\"\ntrusted = [\"10.0.0.0/8\", \"host\"]\n");
        assert!(odd.starts_with("t.toml:3: a trusted proxy must be"), "{odd}");
        let sound = "[listen]\nproxy = \"protocol\"\ntrusted = [\"10.0.0.0/8\", \"::1\"]\n";
        assert_eq!(faults_of(sound), [""; 0]);
    }

    #[test]
    fn an_origin_that_no_browser_sends_is_a_fault_with_its_line() {
        let wrong = |text: &str| faults_of(&format!("[listen]\ncors_origins = {text}\n")).concat();
        assert_eq!(wrong("[\"https://app.example\", \"http://localhost:5173\", \"*\"]"), "");
        assert_eq!(wrong("[]"), "");
        let told = wrong("[\"https://app.example/\"]");
        assert!(told.starts_with("t.toml:2: 'https://app.example/' is no origin"), "{told}");
        assert!(wrong("[1]").contains("must be a text"));
    }

    #[test]
    fn operators_have_an_address_of_their_own_or_none() {
        let conf = Config::parse("t.toml", "[listen]\nconsole = \"127.0.0.1:9091\"\n", []);
        assert_eq!(conf.expect("sound").listen.console.as_deref(), Some("127.0.0.1:9091"));
        assert_eq!(Config::parse("t.toml", "", []).expect("sound").listen.console, None);
        for (address, told) in [
            ("127.0.0.1:8080", "t.toml:2: 'console' and 'http' are both 127.0.0.1:8080"),
            ("127.0.0.1:9090", "t.toml:2: 'console' and 'admin' are both 127.0.0.1:9090"),
            ("unix:x", "'console' must be an address such as"),
            ("", "'console' must be an address such as"),
        ] {
            let found = faults_of(&format!("[listen]\nconsole = \"{address}\"\n")).concat();
            assert!(found.contains(told), "{address}: {found}");
        }
    }

    #[test]
    fn customers_have_an_address_of_their_own_or_none() {
        let text = "[listen]\nconsole = \"127.0.0.1:9091\"\ncustomers = \"127.0.0.1:9092\"\n";
        let conf = Config::parse("t.toml", text, []).expect("sound");
        assert_eq!(conf.listen.customers.as_deref(), Some("127.0.0.1:9092"));
        let same = faults_of(&text.replace("9092", "9091")).concat();
        let told = "t.toml:3: 'customers' and 'console' are both 127.0.0.1:9091; they must differ";
        assert!(same.contains(told), "{same}");
    }

    #[test]
    fn scrapers_may_come_by_a_socket_in_the_file_system() {
        let conf = Config::parse("t.toml", "[listen]\nadmin = \"unix:var/admin.sock\"\n", []);
        assert_eq!(conf.expect("sound").listen.admin.name(), "var/admin.sock");
        assert!(
            faults_of("[listen]\nadmin = \"unix:\"\n")
                .concat()
                .contains("'admin' must be an address")
        );
    }
}
