//! The `[webhooks]` section: to which addresses messages may be sent, and whom they trust.

use crate::toml_reader::{ConfigError, TableReader, TomlValue};

/// The `[webhooks]` section.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WebhooksSection {
    /// Whether endpoints may have addresses that are not public: for receivers in the operator's
    /// own network. Then a customer who may add endpoints reaches that network too.
    pub allow_private: bool,
    /// A file of certificates (PEM) that are trusted beside those of the system; `None` if none.
    pub ca: Option<String>,
}

impl WebhooksSection {
    /// Parses the section; faults are added to `faults`.
    pub(crate) fn parse(table: &mut TableReader, faults: &mut Vec<ConfigError>) -> WebhooksSection {
        let ca = table.take_value("ca").and_then(|node| match node.value {
            TomlValue::Text(path) if !path.is_empty() => Some(path),
            _ => {
                let what = "webhooks.ca must be the path of a file with certificates";
                faults.push(node.location.error(what));
                None
            }
        });
        let allow_private = table.bool("allow_private", faults).unwrap_or_default();
        WebhooksSection { allow_private, ca }
    }
}
