//! Golden files, read so that what they give keeps its bytes.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use bytes::Bytes;
use serde_json::Value as Json;
use tollgate::catalogue::{Catalogue, Model};
use tollgate::dialect::CallError;
use tollgate::dialect::json::JsonDocument;

/// The time at which all goldens were replied to.
pub(super) const CREATED: i64 = 1_795_219_200;
/// In how large pieces a reply comes.
pub(super) const CHUNK_SIZES: [usize; 4] = [1, 7, 64, usize::MAX];

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| rules(&["vendor_a"]));

fn top() -> PathBuf {
    std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| ".".to_owned()).into()
}

/// The rules of some vendors, as they are shipped.
pub(super) fn rules(vendors: &[&str]) -> Catalogue {
    let source = |vendor: &&str| {
        let file = format!("lua-free-rules/{vendor}.toml");
        let text = std::fs::read_to_string(top().join(&file)).expect("the rules");
        (file, text)
    };
    let sources: Vec<_> = vendors.iter().map(source).collect();
    Catalogue::parse(&sources, &[]).expect("sound rules")
}

/// A model of the rules as they are shipped.
pub(super) fn model(id: &str) -> &'static Model {
    CATALOGUE.find(id).unwrap_or_else(|| panic!("no model '{id}'"))
}

/// The ids of all models.
pub(super) fn model_ids() -> Vec<&'static str> {
    CATALOGUE.models().iter().map(|m| m.id.as_str()).collect()
}

/// One golden case: a JSON object.
pub(super) struct Golden {
    pub(super) name: String,
    document: JsonDocument,
    path: PathBuf,
}

impl Golden {
    fn read(path: PathBuf) -> Golden {
        let body = std::fs::read(&path).expect("a golden file");
        let name = stem(&path);
        let document = JsonDocument::parse(Bytes::from(body))
            .unwrap_or_else(|fault| panic!("{}: {fault}", path.display()));
        Golden { name, document, path }
    }

    /// A member as its bytes stand in the file.
    pub(super) fn bytes(&self, member: &str) -> Option<Bytes> {
        self.document.get(member).map(|value| Bytes::copy_from_slice(value.raw()))
    }

    /// A member, read.
    pub(super) fn json(&self, member: &str) -> Json {
        self.bytes(member).map_or(Json::Null, |raw| serde_json::from_slice(&raw).expect("JSON"))
    }

    /// A member that is a string.
    pub(super) fn text(&self, member: &str) -> String {
        let value = self.json(member);
        value.as_str().unwrap_or_else(|| panic!("{}: no text '{member}'", self.name)).to_owned()
    }

    /// The bytes of the file beside it with another ending.
    pub(super) fn beside(&self, ending: &str) -> Vec<u8> {
        let found = self.beside_if_any(ending);
        found.unwrap_or_else(|| panic!("{}: no file beside it ends in {ending}", self.name))
    }

    /// The same, where there need not be such a file.
    pub(super) fn beside_if_any(&self, ending: &str) -> Option<Vec<u8>> {
        std::fs::read(self.path.with_extension(ending)).ok()
    }

    /// Whether the counts in its `usage` are the metered ones; those not named may be any.
    pub(super) fn agrees_on_usage(
        &self,
        metered: tollgate::money::TokenUsage,
    ) -> Result<(), String> {
        let expected = self.json("usage");
        let found = [
            ("input", metered.input),
            ("output", metered.output),
            ("cache_read", metered.cache_read),
            ("cache_write", metered.cache_write),
        ];
        let differs = |(name, n): &&(&str, u64)| expected.get(*name).is_some_and(|e| *e != *n);
        match found.iter().find(differs) {
            Some(_) => Err(format!("usage is {found:?} instead of {expected}")),
            None => Ok(()),
        }
    }
}

/// All cases of a folder, in order; fewer than `at_least` means that files got lost.
pub(super) fn goldens(folder: &str, at_least: usize) -> Vec<Golden> {
    let folder = top().join("tests/golden").join(folder);
    let entries = std::fs::read_dir(&folder).expect("a folder of goldens");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<_> = paths.filter(|p| p.extension().is_some_and(|e| e == "json")).collect();
    paths.sort();
    assert!(paths.len() >= at_least, "{} cases in {}", paths.len(), folder.display());
    paths.into_iter().map(Golden::read).collect()
}

/// Judges every case and tells all failures at once.
pub(super) fn judge(goldens: &[Golden], by: impl Fn(&Golden) -> Result<(), String>) {
    let failed: Vec<String> = goldens
        .iter()
        .filter_map(|golden| by(golden).err().map(|why| format!("{}: {why}", golden.name)))
        .collect();
    assert!(failed.is_empty(), "{} of {}\n{}", failed.len(), goldens.len(), failed.join("\n"));
}

/// Whether a call was refused with the code and the parameter that a case expects, and told why.
pub(super) fn is_refused<T: Debug>(
    made: Result<T, CallError>,
    expected: &Json,
) -> Result<(), String> {
    let fault = match made {
        Ok(made) => return Err(format!("not refused: {made:?}")),
        Err(fault) => fault,
    };
    let param = fault.param.clone().map_or(Json::Null, Json::from);
    let is_right = expected["code"] == fault.code && expected["param"] == param;
    if is_right && !fault.message.is_empty() {
        return Ok(());
    }
    Err(format!("refused with {} at {param}: {fault}; not {expected}", fault.code))
}

fn stem(path: &Path) -> String {
    path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default()
}
