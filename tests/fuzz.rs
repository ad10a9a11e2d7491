//! The fuzz targets, each with the golden files and with what is known to be hard. A fuzzer goes on
//! from there (`tests/fuzz/run.sh`). This also tells when a target no longer compiles.

use std::fs;
use std::path::{Path, PathBuf};

mod bodies;

/// A golden file above this size is cut there, in bytes: the seeds of a fuzzer are short.
const SEED_BYTES: usize = 4 << 10;

/// The crates that bodies use are those of the fuzzers' own manifest, in the gateway's versions.
#[test]
fn fuzzers_have_the_crates_that_targets_use() {
    let read = |path: &Path| fs::read_to_string(path).expect("a file");
    let manifest = read(&here().join("Cargo.toml"));
    let gateway = read(&here().with_file_name("../Cargo.toml"));
    let version = |manifest: &str, name: &str| -> Option<String> {
        let line = manifest.lines().find(|line| line.starts_with(&format!("{name} = ")))?;
        line.split('"').nth(1).map(str::to_owned)
    };
    let mut files = Vec::new();
    golden_files(&here().join("bodies"), &mut files);
    for file in files {
        for line in read(&file).lines() {
            let Some(used) = line.strip_prefix("use ") else { continue };
            let name = used.split([':', ';', ' ']).next().expect("a name");
            if ["std", "super", "crate", "tollgate"].contains(&name) {
                continue;
            }
            let of_fuzzers = version(&manifest, name);
            assert!(of_fuzzers.is_some(), "{name} of {}", file.display());
            assert_eq!(of_fuzzers, version(&gateway, name), "{name}");
        }
    }
}

/// What a target does with some bytes.
type Target = fn(&[u8]);

/// The targets by the names of their files.
const TARGETS: [(&str, Target); 10] = [
    ("embeddings", bodies::embeddings::run),
    ("form", bodies::form::run),
    ("head", bodies::head::run),
    ("relay", bodies::relay::run),
    ("rules", bodies::rules::run),
    ("sse", bodies::sse::run),
    ("strict_scan", bodies::strict_scan::run),
    ("translate_reply", bodies::translate_reply::run),
    ("translate_request", bodies::translate_request::run),
    ("videos", bodies::videos::run),
];

fn here() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fuzz"))
}

fn golden_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            golden_files(&path, files);
        } else {
            files.push(path);
        }
    }
}

#[test]
fn targets_hold_for_golden_files() {
    let mut files = Vec::new();
    golden_files(&here().with_file_name("golden"), &mut files);
    assert!(files.len() > 1_000, "{}", files.len());
    for file in files {
        let mut seed = fs::read(&file).expect("a file");
        seed.truncate(SEED_BYTES);
        for (name, run) in TARGETS {
            // A target that panics tells what it found, and this with what.
            println!("{name} with {}", file.display());
            run(&seed);
        }
    }
}

#[test]
fn each_target_is_a_program_of_its_own() {
    let mut files = Vec::new();
    golden_files(&here().join("targets"), &mut files);
    let mut names: Vec<String> = files
        .iter()
        .map(|file| file.file_stem().expect("a name").to_string_lossy().into())
        .collect();
    names.sort_unstable();
    assert_eq!(names, TARGETS.map(|(name, _)| name));
    let manifest = fs::read_to_string(here().join("Cargo.toml")).expect("a manifest");
    for name in names {
        assert!(manifest.contains(&format!("path = \"targets/{name}.rs\"")), "{name}");
        let target = fs::read_to_string(here().join(format!("targets/{name}.rs"))).expect("a file");
        let run = format!("libfuzzer_sys::fuzz_target!(|data: &[u8]| {name}::run(data));\n");
        let body = format!("#[path = \"../bodies/{name}.rs\"]\nmod {name};\n");
        assert!(target.contains(&body) && target.ends_with(&run), "{target}");
        let text = fs::read_to_string(here().join(format!("bodies/{name}.rs"))).expect("a file");
        let modules = target.matches("\nmod ").count() - 1;
        assert_eq!(text.contains("super::checker"), modules == 1, "{name}");
    }
}
