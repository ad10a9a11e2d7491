//! The `[files]` section: which folder or bucket keeps the files.

use super::link_secret::LinkSecret;
use crate::toml_reader::{ConfigError, SourceLocation as At, TableReader, TomlValue};

/// How many bytes of bodies are kept if the section does not say otherwise.
const DEFAULT_KEPT_BYTES_MAX: u64 = 2 << 30;

/// The forms that `files.url` may have.
pub(super) const URL_FORMS: &str = "files.url must be \"file:PATH\" or \"s3://BUCKET/PREFIX\"";

/// The `[files]` section, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilesSection {
    /// `file:PATH`, or `s3://BUCKET/PREFIX`.
    pub url: String,
    /// The base URL under which clients reach files that the gateway serves itself, without a slash
    /// at its end.
    pub public_base: Option<String>,
    /// The most bytes of bodies that are kept beside the videos: replies for idempotent repeats,
    /// and image uploads of videos that were not submitted to a vendor yet.
    pub kept_bytes_max: u64,
    /// Where the secrets for download URLs are. The first one signs new URLs; URLs signed with the
    /// second one are accepted too.
    pub link_secrets: Vec<LinkSecret>,
}

impl Default for FilesSection {
    fn default() -> FilesSection {
        let url = "file:var/files".to_owned();
        let link_secrets = vec![LinkSecret::Store];
        FilesSection {
            url,
            public_base: None,
            kept_bytes_max: DEFAULT_KEPT_BYTES_MAX,
            link_secrets,
        }
    }
}

impl FilesSection {
    /// Parses the section; faults are added to `faults`.
    pub(crate) fn parse(table: &mut TableReader, faults: &mut Vec<ConfigError>) -> FilesSection {
        let default = FilesSection::default();
        let url = take_text(table, "url", faults).map_or(default.url, |(url, at)| {
            if parse_location(&url).is_none() {
                faults.push(at.error(URL_FORMS));
            }
            url
        });
        let public_base = take_text(table, "public_base", faults).map(|(base, at)| {
            if !is_base_url(&base) {
                faults.push(at.error(
                    "files.public_base must be an address such as \"https://video.example\", \
                     without a query",
                ));
            }
            base.trim_end_matches('/').to_owned()
        });
        let kept_bytes_max = table.integer("kept_bytes_max", faults);
        let kept_bytes_max = kept_bytes_max.unwrap_or(default.kept_bytes_max);
        let link_secrets = parse_link_secrets(table, faults);
        FilesSection { url, public_base, kept_bytes_max, link_secrets }
    }

    /// Reads the secrets for download URLs, the one for new URLs first. An element is `None` if the
    /// secret is in the store.
    ///
    /// # Errors
    /// Why a secret cannot be used. The message does not contain the secret.
    pub(crate) fn read_link_secrets(&self) -> Result<Vec<Option<[u8; 32]>>, String> {
        self.link_secrets.iter().map(LinkSecret::read).collect()
    }

    pub(super) fn location(&self) -> Option<StorageLocation<'_>> {
        parse_location(&self.url)
    }
}

/// The place that `files.url` names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StorageLocation<'a> {
    /// A folder.
    Folder(&'a str),
    /// A bucket, and the prefix of every name in it: empty, or with a slash at its end.
    Bucket { bucket: &'a str, prefix: String },
}

fn take_text(
    table: &mut TableReader,
    key: &'static str,
    faults: &mut Vec<ConfigError>,
) -> Option<(String, At)> {
    let node = table.take_value(key)?;
    if let TomlValue::Text(text) = node.value {
        return Some((text, node.location));
    }
    faults.push(
        node.location.error(format!("'{key}' must be a text, not {}", node.value.kind_name())),
    );
    None
}

fn parse_link_secrets(table: &mut TableReader, faults: &mut Vec<ConfigError>) -> Vec<LinkSecret> {
    if !table.has("link_secrets") {
        // Taken although it is empty, so that the key counts as known.
        table.take_value("link_secrets");
        return vec![LinkSecret::Store];
    }
    let at = table.location.clone();
    let mut secrets = Vec::new();
    for node in table.list("link_secrets", faults) {
        let read = match &node.value {
            TomlValue::Text(text) => LinkSecret::parse(text),
            _ => None,
        };
        match read {
            Some(secret) => secrets.push(secret),
            None => faults.push(node.location.error(
                "a secret of addresses is \"store\", \"env:NAME\" or \"file:PATH\"; it does not \
                 stand here itself",
            )),
        }
    }
    if secrets.is_empty() || secrets.len() > 2 {
        faults.push(
            at.error("files.link_secrets has one secret, or two: the new one, and the one before"),
        );
    }
    secrets
}

pub(super) fn parse_location(url: &str) -> Option<StorageLocation<'_>> {
    if let Some(path) = url.strip_prefix("file:") {
        // `file://a/b` would mean the folder b on the host a.
        let is_remote = path.starts_with("//") && !path.starts_with("///");
        return (!path.is_empty() && !is_remote).then_some(StorageLocation::Folder(path));
    }
    let rest = url.strip_prefix("s3://")?;
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let prefix = prefix.trim_end_matches('/');
    let has_valid_chars = |text: &str| {
        text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
    };
    let is_bucket = !bucket.is_empty() && has_valid_chars(bucket);
    let is_segment = |s: &str| !matches!(s, "" | "." | "..") && has_valid_chars(s);
    if !is_bucket || !(prefix.is_empty() || prefix.split('/').all(is_segment)) {
        return None;
    }
    let slash = if prefix.is_empty() { "" } else { "/" };
    Some(StorageLocation::Bucket { bucket, prefix: format!("{prefix}{slash}") })
}

/// Whether a URL results when a path is appended to the text.
fn is_base_url(text: &str) -> bool {
    let Ok(uri) = text.parse::<http::Uri>() else { return false };
    let is_web = matches!(uri.scheme_str(), Some("http" | "https"));
    let has_host =
        uri.authority().is_some_and(|a| !a.host().is_empty() && !a.as_str().contains('@'));
    is_web && has_host && !text.contains(['?', '#'])
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn read(text: &str) -> (FilesSection, Vec<String>) {
        let (root, mut faults) = crate::toml_reader::parse("t.toml", text);
        let mut table = TableReader::open(root, &mut faults);
        let section = FilesSection::parse(&mut table, &mut faults);
        table.finish(&mut faults);
        (section, faults.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn nothing_written_is_a_folder() {
        let (section, faults) = read("");
        assert_eq!(
            (section.url.as_str(), section.public_base, faults.len()),
            ("file:var/files", None, 0)
        );
    }

    #[test]
    fn secrets_of_addresses_are_named_and_one_or_two() {
        assert_eq!(read("").0.link_secrets, [LinkSecret::Store]);
        let (section, faults) = read("link_secrets = [\"env:A\", \"store\"]");
        assert_eq!(section.link_secrets, [LinkSecret::Env("A".to_owned()), LinkSecret::Store]);
        assert_eq!(faults, [""; 0]);
        for (text, expected) in [
            ("[]", "has one secret, or two"),
            ("[\"store\", \"env:A\", \"env:B\"]", "has one secret, or two"),
            ("[\"canary-canary-canary-canary-canary\"]", "does not stand here itself"),
        ] {
            let (_, faults) = read(&format!("link_secrets = {text}"));
            assert!(faults[0].contains(expected), "{faults:?}");
            assert!(!faults.concat().contains("canary"), "{faults:?}");
        }
    }

    #[rstest]
    #[case("file:var/files", "var/files")]
    #[case("file:/srv/files", "/srv/files")]
    #[case("file:///srv/files", "///srv/files")]
    fn a_folder_is_told(#[case] url: &str, #[case] path: &str) {
        assert_eq!(parse_location(url), Some(StorageLocation::Folder(path)));
    }

    #[rstest]
    #[case("s3://videos", "videos", "")]
    #[case("s3://videos/", "videos", "")]
    #[case("s3://my-videos.eu/a", "my-videos.eu", "a/")]
    #[case("s3://videos/a/b_c/", "videos", "a/b_c/")]
    fn a_bucket_is_told(#[case] url: &str, #[case] bucket: &str, #[case] prefix: &str) {
        assert_eq!(
            parse_location(url),
            Some(StorageLocation::Bucket { bucket, prefix: prefix.to_owned() })
        );
    }

    #[rstest]
    fn any_other_address_is_a_fault_that_names_both_forms(
        #[values(
            "",
            "var/files",
            "file:",
            "file://host/a",
            "s3:videos",
            "s3://",
            "s3:///a",
            "s3://a//b",
            "s3://a/../b",
            "s3://a/./b",
            "s3://a/b?c",
            "s3://a b",
            "s3://k:s@a",
            "gs://a"
        )]
        url: &str,
    ) {
        let (_, faults) = read(&format!("\nurl = \"{url}\"\n"));
        assert_eq!(faults, [format!("t.toml:2: {URL_FORMS}")]);
    }

    #[rstest]
    #[case("https://video.example", "https://video.example")]
    #[case("https://video.example/", "https://video.example")]
    #[case("http://127.0.0.1:8080/gateway//", "http://127.0.0.1:8080/gateway")]
    fn a_base_loses_its_slash(#[case] written: &str, #[case] expected: &str) {
        let (section, faults) = read(&format!("public_base = \"{written}\""));
        assert_eq!((section.public_base.as_deref(), faults.len()), (Some(expected), 0));
    }

    #[rstest]
    fn a_base_that_is_none_is_a_fault(
        #[values(
            "",
            "/",
            "video.example",
            "ftp://video.example",
            "https://",
            "https://a b",
            "https://a?b",
            "https://a/?",
            "https://a/#b",
            "https://user:word@a"
        )]
        base: &str,
    ) {
        let (_, faults) = read(&format!("\npublic_base = \"{base}\""));
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].starts_with("t.toml:2: files.public_base must be"), "{faults:?}");
    }

    #[test]
    fn what_is_no_text_is_a_fault() {
        let (_, faults) = read("url = 1\npublic_base = true\nurll = 2");
        assert_eq!(
            faults,
            [
                "t.toml:1: 'url' must be a text, not a number",
                "t.toml:2: 'public_base' must be a text, not true or false",
                "t.toml:3: unknown key 'urll'; closest is 'url'",
            ]
        );
    }
}
