//! The `[console.oidc]` section: the identity provider by which operators sign in to the console.

use http::Uri;

use crate::catalogue::route::KeySource;
use crate::toml_reader::{ConfigError, SourceLocation, SpannedValue, TableReader, TomlValue};

const DEFAULT_SCOPES: &str = "openid email";
const DEFAULT_NAME_CLAIM: &str = "email";
/// The lists of the section, and which of its texts each is compared with.
const ROLE_LISTS: [&str; 3] = ["owners", "operators", "support"];
/// The keys without a default.
const REQUIRED: [&str; 3] = ["issuer", "client_id", "role_claim"];

/// The `[console.oidc]` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OidcSection {
    /// The provider's issuer identifier, such as `https://id.example.com`.
    pub issuer: String,
    /// By which name the provider knows the console.
    pub client_id: String,
    /// Where the secret of the console is; `None` for a public client.
    pub client_secret: Option<KeySource>,
    /// What the provider is asked for, separated by spaces.
    pub scopes: Vec<String>,
    /// The claim that has the name of an identity.
    pub name_claim: String,
    /// The claim that has the values which give a role.
    pub role_claim: String,
    /// The values that make an owner.
    pub owners: Vec<String>,
    /// The values that make an operator.
    pub operators: Vec<String>,
    /// The values that make somebody of the support.
    pub support: Vec<String>,
}

impl OidcSection {
    /// Parses the section; faults are added to `faults`. The result is `None` if it has any.
    pub(crate) fn parse(
        mut table: TableReader,
        faults: &mut Vec<ConfigError>,
    ) -> Option<OidcSection> {
        let (section, before) = (table.location.clone(), faults.len());
        let missing = REQUIRED.into_iter().filter(|key| !table.has(key));
        let missing = missing.map(|key| section.error(format!("'console.oidc' needs '{key}'")));
        faults.extend(missing);
        let issuer = table.take_value("issuer").and_then(|node| parse_issuer(node, faults));
        let client_id = table.text("client_id", faults);
        let client_secret =
            table.take_value("client_secret").and_then(|node| parse_secret(&node, faults));
        let scopes = table.take_value("scopes").and_then(|node| parse_scopes(&node, faults));
        let scopes = scopes.unwrap_or_else(|| words_of(DEFAULT_SCOPES));
        let name_claim = table.text("name_claim", faults);
        let role_claim = table.text("role_claim", faults);
        let [owners, operators, support] =
            ROLE_LISTS.map(|key| table.texts(key, faults).unwrap_or_default());
        table.finish(faults);
        let texts =
            [("client_id", &client_id), ("role_claim", &role_claim), ("name_claim", &name_claim)];
        for (key, _) in texts.iter().filter(|(_, text)| text.as_deref() == Some("")) {
            faults.push(section.error(format!("'{key}' must not be empty")));
        }
        let found = OidcSection {
            issuer: issuer.unwrap_or_default(),
            client_id: client_id.unwrap_or_default(),
            client_secret,
            scopes,
            name_claim: name_claim.unwrap_or_else(|| DEFAULT_NAME_CLAIM.to_owned()),
            role_claim: role_claim.unwrap_or_default(),
            owners,
            operators,
            support,
        };
        found.check_lists(&section, faults);
        (faults.len() == before).then_some(found)
    }

    fn check_lists(&self, section: &SourceLocation, faults: &mut Vec<ConfigError>) {
        let lists = [&self.owners, &self.operators, &self.support];
        if lists.iter().all(|list| list.is_empty()) {
            let lists = ROLE_LISTS.join("', '");
            faults.push(section.error(format!("nobody could sign in: fill one of '{lists}'")));
        }
        if lists.iter().any(|list| list.iter().any(String::is_empty)) {
            faults.push(section.error("a value that gives a role must not be empty"));
        }
    }

    /// Returns the host of the provider, as people read it, such as `id.example.com`.
    #[must_use]
    pub(crate) fn issuer_host(&self) -> &str {
        let rest = self.issuer.split_once("://").map_or(&*self.issuer, |(_, rest)| rest);
        rest.split('/').next().unwrap_or_default()
    }
}

fn parse_issuer(node: SpannedValue, faults: &mut Vec<ConfigError>) -> Option<String> {
    if let TomlValue::Text(text) = node.value
        && is_issuer(&text)
    {
        return Some(text);
    }
    let form = "console.oidc.issuer must be an address such as \"https://id.example.com\" (http \
                only on this machine), without a query, exactly as the provider names itself";
    faults.push(node.location.error(form));
    None
}

/// Whether a text is an `https` address, or an `http` one of this machine.
fn is_issuer(text: &str) -> bool {
    let Ok(uri) = text.parse::<Uri>() else { return false };
    let (Some(authority), Some(host)) = (uri.authority(), uri.host()) else { return false };
    let is_plain = authority.as_str().contains('@') || text.contains(['?', '#']);
    match uri.scheme_str() {
        Some("https") => !is_plain && !host.is_empty(),
        Some("http") => !is_plain && is_loopback_host(host),
        _ => false,
    }
}

/// Whether a host of an address is this machine.
pub(crate) fn is_loopback_host(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']);
    let address = host.parse::<std::net::IpAddr>().ok();
    host.eq_ignore_ascii_case("localhost") || address.is_some_and(|address| address.is_loopback())
}

fn parse_secret(node: &SpannedValue, faults: &mut Vec<ConfigError>) -> Option<KeySource> {
    let source = match &node.value {
        TomlValue::Text(text) => Some(KeySource::parse(text)),
        _ => None,
    };
    match source {
        Some(KeySource::Env(name) | KeySource::File(name)) if name.is_empty() => {}
        Some(source @ (KeySource::Env(_) | KeySource::File(_))) => return Some(source),
        _ => {}
    }
    let form = "console.oidc.client_secret is \"env:NAME\" or \"file:PATH\"; it does not stand \
                here itself";
    faults.push(node.location.error(form));
    None
}

fn parse_scopes(node: &SpannedValue, faults: &mut Vec<ConfigError>) -> Option<Vec<String>> {
    let words = match &node.value {
        TomlValue::Text(text) => words_of(text),
        _ => Vec::new(),
    };
    let is_scope = |word: &String| {
        word.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\'))
    };
    if words.iter().any(|word| word == "openid") && words.iter().all(is_scope) {
        return Some(words);
    }
    let form = "console.oidc.scopes must be a text such as \"openid email groups\", with openid";
    faults.push(node.location.error(form));
    None
}

fn words_of(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toml_reader;

    const WHOLE: &str = "issuer = 'https://id.example.com'\nclient_id = 'tollgate'\n\
                         role_claim = 'groups'\nowners = ['admins']\n";

    fn read(text: &str) -> Result<OidcSection, Vec<String>> {
        let (node, mut faults) = toml_reader::parse("f", text);
        let section = OidcSection::parse(TableReader::open(node, &mut faults), &mut faults);
        let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
        if faults.is_empty() { Ok(section.expect("a section")) } else { Err(faults) }
    }

    #[test]
    fn a_section_has_defaults_for_scopes_and_the_name() {
        let section = read(WHOLE).expect("sound");
        assert_eq!((section.issuer_host(), &*section.name_claim), ("id.example.com", "email"));
        assert_eq!(section.scopes, ["openid", "email"]);
        assert_eq!((section.client_secret, section.owners.len()), (None, 1));
        let more = format!("{WHOLE}scopes = 'openid  groups'\nclient_secret = 'env:SECRET'\n");
        let section = read(&more).expect("sound");
        assert_eq!(section.scopes, ["openid", "groups"]);
        assert_eq!(section.client_secret, Some(KeySource::Env("SECRET".to_owned())));
    }

    #[test]
    fn faults_are_told_with_their_line() {
        for (more, fault) in [
            ("scopes = 'email'", "f:5: console.oidc.scopes must be"),
            ("scopes = 'openid a\"b'", "f:5: console.oidc.scopes must be"),
            ("client_secret = 'canary'", "f:5: console.oidc.client_secret is"),
            ("client_secret = 'env:'", "f:5: console.oidc.client_secret is"),
            ("client_secret = 7", "f:5: console.oidc.client_secret is"),
            ("name_claim = ''", "f: 'name_claim' must not be empty"),
            ("support = ['']", "f: a value that gives a role must not be empty"),
            ("support = 'x'", "f:5: 'support' must be a list, not a text"),
            ("roles = []", "f:5: unknown key 'roles'"),
        ] {
            let faults = read(&format!("{WHOLE}{more}\n")).expect_err(more);
            assert!(faults[0].starts_with(fault) && faults.len() == 1, "{faults:?}");
            assert!(!faults[0].contains("canary"), "{faults:?}");
        }
        let nobody = read(&WHOLE.replace("['admins']", "[]")).expect_err("no list");
        assert!(nobody[0].starts_with("f: nobody could sign in"), "{nobody:?}");
        for key in ["issuer", "client_id", "role_claim"] {
            let lines = WHOLE.lines().filter(|line| !line.starts_with(key));
            let text = lines.collect::<Vec<_>>().join("\n");
            assert_eq!(read(&text), Err(vec![format!("f: 'console.oidc' needs '{key}'")]));
        }
    }

    #[test]
    fn an_issuer_speaks_tls_unless_it_is_on_this_machine() {
        for good in [
            "https://id.example.com",
            "https://id.example.com/realms/a/",
            "https://id.example.com:8443",
            "http://127.0.0.1:4000",
            "http://[::1]:4000/x",
            "http://localhost",
        ] {
            assert!(is_issuer(good), "{good}");
        }
        for bad in [
            "http://id.example.com",
            "http://localhost.example.com",
            "http://127.0.0.1.example.com",
            "https://u:p@id.example.com",
            "https://id.example.com?x",
            "https://id.example.com#x",
            "https://",
            "id.example.com",
            "/x",
            "",
        ] {
            assert!(!is_issuer(bad), "{bad}");
        }
    }
}
