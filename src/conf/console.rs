//! The `[console]` section: the public address of the console, and who may sign in besides.

use super::console_oidc::OidcSection;
use crate::toml_reader::{ConfigError, TableReader, TomlValue};

/// The `[console]` section.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConsoleSection {
    /// The address at which browsers find the console, such as `https://console.example.com`;
    /// `None` if it is that of the listener.
    pub url: Option<String>,
    /// The address at which browsers find the pages for customers alone; `None` if it is that of
    /// their listener.
    pub customers_url: Option<String>,
    /// The identity provider by which operators may sign in; `None` if there is none.
    pub oidc: Option<OidcSection>,
}

impl ConsoleSection {
    /// Parses the section of a console that listens at `listen`; faults are added to `faults`.
    /// `has_customers` is whether customers have an address of their own.
    pub(crate) fn parse(
        table: &mut TableReader,
        listen: Option<&str>,
        has_customers: bool,
        faults: &mut Vec<ConfigError>,
    ) -> ConsoleSection {
        let has_url = table.has("url");
        let url = parse_origin(table, "url", faults);
        let location = table.location.clone();
        let customers_url = parse_origin(table, "customers_url", faults);
        if customers_url.is_some() && !has_customers {
            let what = "'customers_url' needs 'listen.customers', the address that it is about";
            faults.push(location.error(what));
        }
        if customers_url.is_some() && customers_url == url {
            let what = "'url' and 'customers_url' are the same; they must differ";
            faults.push(location.error(what));
        }
        let oidc = table.table("oidc", faults).and_then(|table| {
            if !has_url && !listen.is_none_or(is_loopback) {
                let needs = "'console.oidc' needs 'console.url': the provider sends browsers there";
                faults.push(table.location.error(needs));
            }
            OidcSection::parse(table, faults)
        });
        ConsoleSection { url, customers_url, oidc }
    }
}

fn parse_origin(
    table: &mut TableReader,
    key: &'static str,
    faults: &mut Vec<ConfigError>,
) -> Option<String> {
    let node = table.take_value(key)?;
    match node.value {
        TomlValue::Text(url) if is_origin(&url) => Some(url),
        _ => {
            let what = format!(
                "console.{key} must be an origin without a path, such as \
                 \"https://console.example.com\""
            );
            faults.push(node.location.error(what));
            None
        }
    }
}

/// Whether a console listens on this machine alone.
fn is_loopback(listen: &str) -> bool {
    listen.parse::<std::net::SocketAddr>().is_ok_and(|socket| socket.ip().is_loopback())
}

/// Whether a text is a scheme, a host and perhaps a port, as browsers write them.
fn is_origin(text: &str) -> bool {
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let Some(host) = host else { return false };
    let uri = text.parse::<http::Uri>().ok();
    let is_whole = uri.is_some_and(|uri| uri.authority().is_some_and(|found| found == host));
    // Browsers leave the usual port out of the host that they ask for.
    let usual_port = if text.starts_with("https://") { ":443" } else { ":80" };
    is_whole
        && !host.ends_with(usual_port)
        && !host.contains('@')
        && !text.bytes().any(|byte| byte.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_for_customers_is_another_one_and_has_a_listener() {
        let faults = |console: &str, listen: &str| {
            let text = format!("[listen]\n{listen}\n[console]\n{console}\n");
            let faults = crate::conf::Config::parse("t.toml", &text, []).err().unwrap_or_default();
            faults.iter().map(ToString::to_string).collect::<String>()
        };
        let (url, listen) =
            ("customers_url = \"https://a.example\"", "customers = \"127.0.0.1:9092\"");
        assert_eq!(faults(url, listen), "");
        assert!(faults(url, "").starts_with("t.toml:3: 'customers_url' needs"));
        let same = format!("{url}\nurl = \"https://a.example\"");
        assert!(faults(&same, listen).contains("must differ"));
        let path = "customers_url = \"https://a.example/x\"";
        assert!(faults(path, listen).contains("t.toml:4: console.customers_url must be an origin"));
    }

    #[test]
    fn an_origin_has_no_path_and_no_user() {
        for good in ["https://a.example", "http://localhost:9091", "https://[::1]:1"] {
            assert!(is_origin(good), "{good}");
        }
        for bad in [
            "a.example",
            "https://",
            "https://a/",
            "https://A.example",
            "ftp://a",
            "https://u@a.example",
            "https://a.example:443",
            "http://a:80",
            "https://a.example?x",
            "",
        ] {
            assert!(!is_origin(bad), "{bad}");
        }
    }
}
