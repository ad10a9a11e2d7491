//! The points at which tests kill the gateway: none is dead, and none is in a release.

use std::collections::BTreeMap;

use super::files_in;

/// Where points are defined, and the only file that knows how a process dies there.
const ROOM: &str = "src/failpoints";
const CALL: &str = "failpoint!(";

/// The names of the points that a file passes.
fn points_of(text: &str) -> impl Iterator<Item = &str> {
    text.split(CALL).skip(1).filter_map(|rest| {
        let (name, _) = rest.trim_start().strip_prefix('"')?.split_once('"')?;
        Some(name)
    })
}

fn top() -> String {
    std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| ".".to_owned())
}

fn text_of(path: &str) -> String {
    std::fs::read_to_string(format!("{}/{path}", top())).expect("a file of the crate")
}

#[test]
fn every_point_is_at_one_place_and_some_case_dies_there() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in files_in(top().as_ref(), "src", &[".rs"]) {
        if !path.starts_with(ROOM) {
            for point in points_of(&text) {
                places.entry(point.to_owned()).or_default().push(path.clone());
            }
        }
    }
    assert!(places.len() > 10, "only {places:?} were found");
    let cases = text_of("tests/crash_points.rs");
    for (point, paths) in &places {
        assert_eq!(paths.len(), 1, "{point} is in {paths:?}");
        assert!(cases.contains(&format!("\"{point}:")), "no case dies at {point}, in {paths:?}");
    }
}

#[test]
fn a_release_has_no_points() {
    let assertions = "#[cfg(debug_assertions)]";
    let room = text_of("src/failpoints.rs");
    let guarded = |what: &str| format!("{assertions}\n{what}");
    assert!(room.contains(&guarded("pub(crate) mod armed;")), "how to die is in every build");
    let (rule, _) = room.split_once("macro_rules!").expect("the macro");
    assert!(!rule.contains("armed::"), "something beside the macro leads to a death");
    let arms = room.matches("=> {\n").count();
    let guarded_arms = room.matches(&format!("=> {{\n        {assertions}\n        {{\n")).count();
    assert_eq!((arms, guarded_arms), (2, 2), "an arm of the macro is in every build");
    for (path, text) in files_in(top().as_ref(), "src", &[".rs"]) {
        assert!(path.starts_with(ROOM) || !text.contains("failpoints::armed"), "{path}");
    }
    let manifest = text_of("Cargo.toml");
    assert!(!manifest.contains("debug-assertions"), "a release is to have no assertions");
}

#[test]
fn points_are_found_however_they_are_written() {
    let text = "failpoint!(\"a\");\n failpoint!(\n    \"b_c\",\n    if d\n);\nfailpoint!(name);";
    assert_eq!(points_of(text).collect::<Vec<_>>(), ["a", "b_c"]);
}
