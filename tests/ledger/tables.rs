//! The tables, and the pure machine against them.

use std::path::Path;

use tollgate::ledger::in_memory::InMemoryAccount;

use super::memory::{self, Memory};
use super::script::{self, Case};

/// A table that shrank below this lost its checks.
const CHECKS_MIN: usize = 1_500;

/// All tables, by name.
pub(crate) fn tables() -> Vec<(String, Vec<Case>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ledger/tables");
    let files = std::fs::read_dir(&folder).expect("the folder of tables");
    let mut paths: Vec<_> = files.map(|f| f.expect("a table").path()).collect();
    paths.sort();
    let table = |path: &Path| {
        let text = std::fs::read_to_string(path).expect("a table");
        let cases = script::read(&text).unwrap_or_else(|why| panic!("{}:{why}", path.display()));
        (path.file_name().unwrap_or_default().to_string_lossy().into_owned(), cases)
    };
    paths.iter().map(|path| table(path)).collect()
}

#[tokio::test]
async fn the_pure_machine_does_what_the_tables_say() {
    let mut checks = 0;
    for (file, cases) in tables() {
        let mut memory = Memory::new(InMemoryAccount::default);
        let done = memory::run(&mut memory, &cases).await;
        checks += done.unwrap_or_else(|why| panic!("{file} {why}"));
    }
    assert!(checks >= CHECKS_MIN, "only {checks} checks are left");
}
