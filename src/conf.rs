//! The configuration: one file, overlaid by environment variables. All its faults are reported
//! together.

use crate::archive::JournalSection;
use crate::catalogue::VendorRoutes;
use crate::files::FilesSection;
use crate::gateway::limits::{Limits, Timeouts};
use crate::jobs::schedule::JobSchedule;
use crate::store::{StoreSection, StoreTls, StoreTlsFiles, URL_SCHEMES};
use crate::toml_reader::{self, ConfigError, SourceLocation, SpannedValue, TableReader, TomlValue};

mod console;
mod console_oidc;
mod listen;
mod rules;
mod traces;
mod webhooks;

pub use console::ConsoleSection;
pub use console_oidc::OidcSection;
pub(crate) use console_oidc::is_loopback_host;
pub use listen::AdminAddress;
pub use listen::ListenSection;
pub use listen::ListenTlsSection;
pub use rules::RulesSection;
pub(crate) use traces::STANDARD_PREFIX;
use traces::StandardVariables;
pub use traces::TracesSection;
pub use webhooks::WebhooksSection;

/// The prefix of environment variables that set values, such as `TOLLGATE__LISTEN__HTTP`.
pub(crate) const ENV_PREFIX: &str = "TOLLGATE__";

/// The whole configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// The addresses for clients and scrapers.
    pub listen: ListenSection,
    /// Threads and shutdown.
    pub server: ServerSection,
    /// The store of the ledger.
    pub store: StoreSection,
    /// The store of finished videos.
    pub files: FilesSection,
    /// The archive of journals.
    pub journal: JournalSection,
    /// The folders of the rules files.
    pub rules: RulesSection,
    /// The format and the level of the log.
    pub log: LogSection,
    /// Where traces are sent, and of which calls.
    pub traces: TracesSection,
    /// The console.
    pub console: ConsoleSection,
    /// Where messages of webhooks may be sent.
    pub webhooks: WebhooksSection,
    /// Where commands record what they change.
    pub audit: AuditSection,
    /// Limits of sizes and of concurrency.
    pub limits: Limits,
    /// Timeouts.
    pub timeouts: Timeouts,
    /// The intervals and time limits of video jobs.
    pub videos: JobSchedule,
    /// The vendors with their routes.
    pub vendors: Vec<VendorRoutes>,
}

/// The `[server]` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSection {
    /// The number of threads that serve requests; 0 for one per core.
    pub threads: usize,
    /// How long a stopping process waits for the last response, in seconds.
    pub grace_s: u64,
    /// The path of the unix socket over which a process hands its listening sockets to the next
    /// process.
    pub upgrade_sock: String,
    /// The path of the pid file; `None` writes none.
    pub pid_file: Option<String>,
}

/// The `[log]` section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogSection {
    /// JSON instead of text.
    pub json: bool,
    /// The lowest level that is logged.
    pub level: log::LevelFilter,
}

/// The `[audit]` section: where the audit trail is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditSection {
    /// On standard error, like the log of a command.
    Log,
    /// Appended to this file.
    File(String),
}

impl Config {
    /// Parses a configuration file and the variables of an environment.
    ///
    /// # Errors
    /// Every fault found, with its file and line or its variable.
    pub fn parse(
        file: &str,
        text: &str,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Config, Vec<ConfigError>> {
        let (mut root, mut faults) = toml_reader::parse(file, text);
        let (mut variables, others): (Vec<_>, Vec<_>) =
            environment.into_iter().partition(|(name, _)| name.starts_with(ENV_PREFIX));
        variables.sort();
        for (name, value) in variables {
            apply_variable(&mut root, &name, &value, &mut faults);
        }
        let mut table = TableReader::open(root, &mut faults);
        let conf = parse_root(&mut table, &StandardVariables(others), &mut faults);
        table.finish(&mut faults);
        if faults.is_empty() { Ok(conf) } else { Err(faults) }
    }
}

fn parse_root(
    table: &mut TableReader,
    standard: &StandardVariables,
    faults: &mut Vec<ConfigError>,
) -> Config {
    let vendors = table.members("vendor", faults);
    let listen = parse_section(take_section(table, "listen", faults), faults, ListenSection::parse);
    Config {
        server: parse_server(take_section(table, "server", faults), faults),
        store: parse_store(take_section(table, "store", faults), faults),
        files: parse_section(take_section(table, "files", faults), faults, FilesSection::parse),
        journal: parse_section(
            take_section(table, "journal", faults),
            faults,
            JournalSection::parse,
        ),
        rules: parse_section(take_section(table, "rules", faults), faults, RulesSection::parse),
        log: parse_log(take_section(table, "log", faults), faults),
        traces: parse_section(take_section(table, "traces", faults), faults, |table, faults| {
            TracesSection::parse(table, standard, faults)
        }),
        console: parse_section(take_section(table, "console", faults), faults, |table, faults| {
            let has_customers = listen.customers.is_some();
            ConsoleSection::parse(table, listen.console.as_deref(), has_customers, faults)
        }),
        webhooks: parse_section(
            take_section(table, "webhooks", faults),
            faults,
            WebhooksSection::parse,
        ),
        audit: parse_audit(take_section(table, "audit", faults), faults),
        limits: parse_section(take_section(table, "limits", faults), faults, Limits::parse),
        timeouts: parse_section(take_section(table, "timeouts", faults), faults, Timeouts::parse),
        videos: parse_section(take_section(table, "videos", faults), faults, JobSchedule::parse),
        vendors: vendors
            .into_iter()
            .map(|(name, node)| VendorRoutes::parse(&name, node, faults))
            .collect(),
        listen,
    }
}

/// Takes a section out of the table; a missing one is empty.
fn take_section(
    table: &mut TableReader,
    key: &'static str,
    faults: &mut Vec<ConfigError>,
) -> TableReader {
    let empty =
        SpannedValue { location: table.location.clone(), value: TomlValue::Table(Vec::new()) };
    let node = table.take_value(key).unwrap_or(empty);
    TableReader::open(node, faults)
}

fn parse_section<T>(
    mut table: TableReader,
    faults: &mut Vec<ConfigError>,
    parse: impl FnOnce(&mut TableReader, &mut Vec<ConfigError>) -> T,
) -> T {
    let read = parse(&mut table, faults);
    table.finish(faults);
    read
}

fn parse_server(mut table: TableReader, faults: &mut Vec<ConfigError>) -> ServerSection {
    let threads = table.integer("threads", faults).and_then(|n| n.try_into().ok()).unwrap_or(0);
    let grace_s = table.integer("grace_s", faults).unwrap_or(300);
    let upgrade_sock = table.text("upgrade_sock", faults);
    let upgrade_sock = upgrade_sock.unwrap_or_else(|| "var/upgrade/tollgate.sock".to_owned());
    let pid_file = table.text("pid_file", faults).filter(|path| !path.is_empty());
    table.finish(faults);
    ServerSection { threads, grace_s, upgrade_sock, pid_file }
}

fn parse_store(mut table: TableReader, faults: &mut Vec<ConfigError>) -> StoreSection {
    let location = table.location.clone();
    let default = StoreSection::default();
    let url = table.text("url", faults).unwrap_or(default.url);
    if !URL_SCHEMES.iter().any(|scheme| url.starts_with(scheme)) {
        faults.push(
            location.error(format!("store.url must begin with one of {}", URL_SCHEMES.join(" "))),
        );
    }
    let allow_volatile = table.bool("allow_volatile", faults).unwrap_or(default.allow_volatile);
    let outbox = table.text("outbox", faults).unwrap_or(default.outbox);
    let kept_bytes_max = table.integer("kept_bytes_max", faults).unwrap_or(default.kept_bytes_max);
    let allotments = table.bool("allotments", faults).unwrap_or(default.allotments);
    let tls = parse_store_tls(&mut table, url.starts_with("rediss"), faults);
    table.finish(faults);
    StoreSection { url, allow_volatile, outbox, kept_bytes_max, allotments, tls }
}

/// Reads and checks the files for TLS to the store.
fn parse_store_tls(
    table: &mut TableReader,
    is_tls: bool,
    faults: &mut Vec<ConfigError>,
) -> StoreTls {
    let section = table.location.clone();
    let mut locations = Vec::new();
    let mut file = |key: &'static str| {
        let node = table.take_value(key)?;
        locations.push((key, node.location.clone()));
        match node.value {
            TomlValue::Text(path) => Some(path),
            other => {
                let what = format!("'{key}' must be a text, not {}", other.kind_name());
                faults.push(node.location.error(what));
                None
            }
        }
    };
    let files = StoreTlsFiles { ca: file("ca"), cert: file("cert"), key: file("key") };
    if !is_tls {
        faults.extend(locations.iter().map(|(key, location)| {
            location.error(format!("store.{key} is for a store.url that begins with 'rediss'"))
        }));
        return StoreTls::default();
    }
    StoreTls::load(&files).unwrap_or_else(|fault| {
        let named = locations.iter().find(|(key, _)| *key == fault.setting);
        let location = named.map_or(&section, |(_, location)| location);
        faults.push(location.error(format!("store.{}: {}", fault.setting, fault.message)));
        StoreTls::default()
    })
}

fn parse_log(mut table: TableReader, faults: &mut Vec<ConfigError>) -> LogSection {
    let location = table.location.clone();
    let format = table.text("format", faults);
    let level = table.text("level", faults);
    table.finish(faults);
    let json = match format.as_deref() {
        Some("json") => true,
        Some("text") | None => false,
        Some(_) => {
            faults.push(location.error("log.format must be \"text\" or \"json\""));
            false
        }
    };
    let level = level.as_deref().unwrap_or("info").parse().unwrap_or_else(|_| {
        let levels = "log.level must be one of off, error, warn, info, debug, trace";
        faults.push(location.error(levels));
        log::LevelFilter::Info
    });
    LogSection { json, level }
}

fn parse_audit(mut table: TableReader, faults: &mut Vec<ConfigError>) -> AuditSection {
    let location = table.location.clone();
    let to = table.text("to", faults).unwrap_or_else(|| "file:var/audit.jsonl".to_owned());
    table.finish(faults);
    match to.strip_prefix("file:") {
        Some(path) if !path.is_empty() => AuditSection::File(path.to_owned()),
        _ => {
            if to != "log" {
                faults.push(location.error("audit.to must be \"file:PATH\" or \"log\""));
            }
            AuditSection::Log
        }
    }
}

/// Sets the value that the variable's name addresses.
fn apply_variable(root: &mut SpannedValue, name: &str, value: &str, faults: &mut Vec<ConfigError>) {
    let shown = format!("environment variable {name}");
    let path: Vec<String> = name[ENV_PREFIX.len()..].split("__").map(str::to_lowercase).collect();
    let mut node = root;
    for part in &path {
        let TomlValue::Table(members) = &mut node.value else {
            faults.push(
                SourceLocation::whole_source(&shown).error("there is no section of that name"),
            );
            return;
        };
        let at = members.iter().position(|(key, _)| key == part).unwrap_or_else(|| {
            let empty = SpannedValue {
                location: SourceLocation::whole_source(&shown),
                value: TomlValue::Table(Vec::new()),
            };
            members.push((part.clone(), empty));
            members.len() - 1
        });
        node = &mut members[at].1;
    }
    *node = toml_reader::parse_value(&shown, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults_of(text: &str, variables: &[(&str, &str)]) -> Vec<String> {
        let variables = variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let faults = Config::parse("t.toml", text, variables).err().unwrap_or_default();
        faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_empty_file_is_a_whole_configuration() {
        let conf = Config::parse("t.toml", "", []).expect("sound");
        assert_eq!(conf.store.url, "sqlite:var/tollgate.db");
        assert_eq!(conf.listen.http, "127.0.0.1:8080");
    }

    #[test]
    fn one_address_for_clients_and_scrapers_answered_each_with_either() {
        let one = faults_of("[listen]\nhttp = \"127.0.0.1:9090\"\n", &[]);
        assert_eq!(one, ["t.toml:1: 'http' and 'admin' are both 127.0.0.1:9090; they must differ"]);
        let variable = faults_of("", &[("TOLLGATE__LISTEN__ADMIN", "127.0.0.1:8080")]);
        assert_eq!(variable.len(), 1, "{variable:?}");
        let any = "[listen]\nhttp = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n";
        assert_eq!(faults_of(any, &[]).len(), 1);
    }

    #[test]
    fn local_rules_in_the_folder_of_the_others_would_replace_nothing() {
        for local in ["'r'", "'r/'"] {
            let faults = faults_of(&format!("[rules]\ndir = 'r'\nlocal = {local}\n"), &[]);
            assert_eq!(
                faults,
                ["t.toml:1: 'dir' and 'local' are the same folder; they must differ"]
            );
        }
        let read = |text| Config::parse("t.toml", text, []).expect("sound").rules.local;
        assert_eq!(read("[rules]\nlocal = 'l'\n").as_deref(), Some("l"));
        assert_eq!(read("[rules]\nlocal = ''\n"), None);
        assert_eq!(read(""), None);
    }

    #[test]
    fn a_console_with_a_provider_needs_an_address_that_the_provider_can_send_browsers_to() {
        let provider = "[console.oidc]\nissuer = 'https://id.example.com'\nclient_id = 'c'\n\
                        role_claim = 'groups'\nowners = ['a']\n";
        for (text, is_sound) in [
            ("[listen]\nconsole = '127.0.0.1:9091'\n", true),
            ("[listen]\nconsole = '[::1]:9091'\n", true),
            ("[listen]\nconsole = '0.0.0.0:9091'\n", false),
            ("[listen]\nconsole = '0.0.0.0:9091'\n[console]\nurl = 'https://a.example'\n", true),
        ] {
            let faults = faults_of(&[text, provider].concat(), &[]);
            assert_eq!(faults.is_empty(), is_sound, "{faults:?}");
            let needs = "t.toml:3: 'console.oidc' needs 'console.url'";
            assert!(faults.iter().all(|fault| fault.starts_with(needs)), "{faults:?}");
        }
        let variable = [("TOLLGATE__CONSOLE__OIDC__ISSUER", "http://id.example.com")];
        let faults = faults_of(provider, &variable);
        let named = "environment variable TOLLGATE__CONSOLE__OIDC__ISSUER: console.oidc.issuer";
        assert!(faults.len() == 1 && faults[0].starts_with(named), "{faults:?}");
    }

    #[test]
    fn unknown_keys_name_the_line_and_the_closest_known_key() {
        let faults =
            faults_of("[listen]\nhtpp = \"x\"\n[stroe]\n[server]\nthreads = \"two\"\n", &[]);
        assert_eq!(
            faults,
            [
                "t.toml:2: unknown key 'htpp'; closest is 'http'",
                "t.toml:5: 'threads' must be a number, not a text",
                "t.toml:3: unknown key 'stroe'; closest is 'store'",
            ]
        );
    }

    #[test]
    fn the_environment_wins_and_is_named_when_it_is_wrong() {
        let variables = [
            ("TOLLGATE__STORE__URL".to_owned(), "redis://127.0.0.1:1/0".to_owned()),
            ("TOLLGATE__SERVER__THREADS".to_owned(), "3".to_owned()),
            (
                "TOLLGATE__VENDOR__VENDOR_B__ROUTES".to_owned(),
                "[{ name = 'm', base_url = 'http://h/v1', key = 'k' }]".to_owned(),
            ),
        ];
        let conf =
            Config::parse("t.toml", "[store]\nurl = 'sqlite:x'\n", variables).expect("sound");
        assert_eq!(conf.store.url, "redis://127.0.0.1:1/0");
        assert_eq!(conf.server.threads, 3);
        assert_eq!(conf.vendors[0].routes[0].name, "m");
        assert_eq!(
            faults_of("", &[("TOLLGATE__LISTEN__HTPP", "x")]),
            ["environment variable TOLLGATE__LISTEN__HTPP: unknown key 'htpp'; closest is 'http'"]
        );
    }
}
