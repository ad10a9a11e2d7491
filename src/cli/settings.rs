//! Loads the configuration, with the values from the environment, and the secrets that it names.

use std::ffi::OsString;

use anyhow::{Context, anyhow, bail};

use crate::conf::{self, Config, OidcSection};
use crate::gateway::upstream::vendor_key;
use crate::toml_reader::ConfigError;

/// Loads the configuration.
pub(super) fn load_config(file: &str) -> anyhow::Result<Config> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
    Config::parse(file, &text, config_variables()?).map_err(|found| config_error(&found))
}

/// Returns the environment variables that set configuration values. The standard library's `vars`
/// is not used: it panics if any value is not UTF-8, and prints that value.
fn config_variables() -> anyhow::Result<Vec<(String, String)>> {
    let ours = std::env::vars_os().filter_map(|(name, value)| {
        let prefixes = [conf::ENV_PREFIX, conf::STANDARD_PREFIX];
        let name = name.into_string().ok()?;
        prefixes.iter().any(|prefix| name.starts_with(prefix)).then_some((name, value))
    });
    let text = |(name, value): (String, OsString)| match value.into_string() {
        Ok(value) => Ok((name, value)),
        Err(_) => bail!("{name} in the environment is no text in UTF-8"),
    };
    ours.map(text).collect()
}

/// Loads the secrets that the configuration names. A secret that is present must be usable.
pub(super) fn load_secrets(conf: &Config) -> anyhow::Result<Vec<Option<[u8; 32]>>> {
    let unusable = vendor_key::find_unusable(&conf.vendors);
    if !unusable.is_empty() {
        bail!("{}", unusable.join("\n"));
    }
    conf.files.read_link_secrets().map_err(anyhow::Error::msg)
}

/// Loads the secret by which the identity provider knows the console; `None` if it has none.
pub(super) fn load_client_secret(section: &OidcSection) -> anyhow::Result<Option<String>> {
    let Some(source) = &section.client_secret else { return Ok(None) };
    let missing = || format!("console.oidc.client_secret: {source:?} is missing, or empty");
    Ok(Some(vendor_key::read_key(source).with_context(missing)?))
}

/// Joins several faults into one error.
pub(super) fn config_error(faults: &[ConfigError]) -> anyhow::Error {
    let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
    anyhow!("{} fault(s)\n{}", lines.len(), lines.join("\n"))
}
