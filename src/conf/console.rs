//! The `[console]` section: the public address of the console, and who may sign in besides.

use super::console_oidc::OidcSection;
use crate::toml_reader::{ConfigError, SpannedValue, TableReader, TomlValue};

/// The `[console]` section.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConsoleSection {
    /// The address at which browsers find the console, such as `https://console.example.com`;
    /// `None` if it is that of the listener.
    pub url: Option<String>,
    /// The identity provider by which operators may sign in; `None` if there is none.
    pub oidc: Option<OidcSection>,
}

impl ConsoleSection {
    /// Parses the section of a console that listens at `listen`; faults are added to `faults`.
    pub(crate) fn parse(
        table: &mut TableReader,
        listen: Option<&str>,
        faults: &mut Vec<ConfigError>,
    ) -> ConsoleSection {
        let url = table.take_value("url");
        let has_url = url.is_some();
        let url = url.and_then(|node| parse_url(node, faults));
        let oidc = table.table("oidc", faults).and_then(|table| {
            if !has_url && !listen.is_none_or(is_loopback) {
                let needs = "'console.oidc' needs 'console.url': the provider sends browsers there";
                faults.push(table.location.error(needs));
            }
            OidcSection::parse(table, faults)
        });
        ConsoleSection { url, oidc }
    }
}

fn parse_url(node: SpannedValue, faults: &mut Vec<ConfigError>) -> Option<String> {
    match node.value {
        TomlValue::Text(url) if is_origin(&url) => Some(url),
        _ => {
            let form = "console.url must be an origin without a path, such as \
                        \"https://console.example.com\"";
            faults.push(node.location.error(form));
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
