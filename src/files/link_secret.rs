//! Where the secrets are configured that sign the download URLs of files.

use std::env::VarError;

use sha2::{Digest, Sha256};

/// The least length of a secret in bytes. Shorter ones could be guessed.
const SECRET_BYTES_MIN: usize = 32;

/// Where a secret comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkSecret {
    /// The ledger's store, which generated it.
    Store,
    /// An environment variable with this name.
    Env(String),
    File(String),
}

impl LinkSecret {
    /// Parses `store`, `env:NAME` or `file:PATH`; `None` for any other text.
    pub(super) fn parse(text: &str) -> Option<LinkSecret> {
        match text.split_once(':') {
            None if text == "store" => Some(LinkSecret::Store),
            Some(("env", name)) if !name.is_empty() => Some(LinkSecret::Env(name.to_owned())),
            Some(("file", path)) if !path.is_empty() => Some(LinkSecret::File(path.to_owned())),
            _ => None,
        }
    }

    /// Reads the secret; `None` if it is in the store.
    ///
    /// # Errors
    /// Why the secret cannot be used. The message does not contain the secret.
    pub(crate) fn read(&self) -> Result<Option<[u8; 32]>, String> {
        let (found, place) = match self {
            LinkSecret::Store => return Ok(None),
            LinkSecret::Env(name) => {
                // The error's own message would contain the value.
                let words = |why| match why {
                    VarError::NotPresent => "it is not set".to_owned(),
                    VarError::NotUnicode(_) => "it is no text in UTF-8".to_owned(),
                };
                (std::env::var(name).map_err(words), format!("env:{name}"))
            }
            LinkSecret::File(path) => (
                std::fs::read_to_string(path).map_err(|why| why.to_string()),
                format!("file:{path}"),
            ),
        };
        let cannot = |what: &str| format!("files.link_secrets: {place}: {what}");
        let text = found.map_err(|why| cannot(&why))?;
        let text = text.trim();
        if text.len() < SECRET_BYTES_MIN {
            return Err(cannot(&format!("a secret has {SECRET_BYTES_MIN} bytes at least")));
        }
        Ok(Some(Sha256::digest(text).into()))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("store", Some(LinkSecret::Store))]
    #[case("env:A", Some(LinkSecret::Env("A".to_owned())))]
    #[case("file:/a:b", Some(LinkSecret::File("/a:b".to_owned())))]
    #[case("env:", None)]
    #[case("file:", None)]
    #[case("", None)]
    #[case("a secret that stands here itself", None)]
    fn a_secret_stands_elsewhere(#[case] text: &str, #[case] place: Option<LinkSecret>) {
        assert_eq!(LinkSecret::parse(text), place);
    }

    #[test]
    fn a_secret_is_read_and_a_short_one_refused_without_telling_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret").display().to_string();
        let secret = LinkSecret::File(path.clone());
        let why = secret.read().expect_err("it is not there");
        assert!(why.contains(&path), "{why}");
        std::fs::write(&path, "short-canary\n").expect("written");
        let why = secret.read().expect_err("it is short");
        assert!(why.contains("32 bytes") && !why.contains("canary"), "{why}");
        std::fs::write(&path, format!("{}\n", "a".repeat(32))).expect("written");
        let read = secret.read().expect("long enough");
        assert_eq!(read, Some(Sha256::digest("a".repeat(32)).into()), "without its line break");
        assert_eq!(LinkSecret::Store.read(), Ok(None));
    }
}
