//! The `[console]` section: the public address of the console.

use crate::toml_reader::{ConfigError, TableReader, TomlValue};

/// The `[console]` section.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConsoleSection {
    /// The address at which browsers find the console, such as `https://console.example.com`;
    /// `None` if it is that of the listener.
    pub url: Option<String>,
}

impl ConsoleSection {
    /// Parses the section; faults are added to `faults`.
    pub(crate) fn parse(table: &mut TableReader, faults: &mut Vec<ConfigError>) -> ConsoleSection {
        let Some(node) = table.take_value("url") else { return ConsoleSection::default() };
        match node.value {
            TomlValue::Text(url) if is_origin(&url) => ConsoleSection { url: Some(url) },
            _ => {
                let form = "console.url must be an origin without a path, such as \
                            \"https://console.example.com\"";
                faults.push(node.location.error(form));
                ConsoleSection::default()
            }
        }
    }
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
