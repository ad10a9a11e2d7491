//! The page of the architecture lists the arrows between rooms and the places of crates as the
//! tests of the house have them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::{ARROWS, CRATES};

/// Names, each with those that belong to it.
type Lists = BTreeMap<String, BTreeSet<String>>;

/// The lines of the page between one that is `opening` and the next one that is `closing`.
fn lines_between(page: &str, opening: &str, closing: &str) -> Vec<String> {
    let lines = page.lines().skip_while(|line| *line != opening).skip(1);
    lines.take_while(|line| *line != closing).map(str::to_owned).collect()
}

fn words(text: &str) -> BTreeSet<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// The rooms that a list names, each with those it may import. A line that begins with a space goes
/// on with the room of the line before it.
fn listed_arrows(lines: &[String]) -> Lists {
    let mut arrows = Lists::new();
    let mut room = String::new();
    for line in lines {
        let mut named = words(line);
        if let Some(first) = line.split(' ').next().filter(|first| !first.is_empty()) {
            first.clone_into(&mut room);
            named.remove(first);
        }
        arrows.entry(room.clone()).or_default().extend(named);
    }
    arrows
}

/// What stands between backquotes in the cell `at` of a row of a table.
fn quoted_in(row: &str, at: usize) -> BTreeSet<String> {
    let cell = row.split('|').nth(at).unwrap_or_default();
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The crates of a table, each with its places.
fn listed_crates(rows: &[String]) -> Lists {
    let mut crates = Lists::new();
    for row in rows {
        let places = quoted_in(row, 2);
        crates.extend(quoted_in(row, 1).into_iter().map(|name| (name, places.clone())));
    }
    crates
}

#[test]
fn the_page_of_the_architecture_lists_the_arrows_and_crates_of_the_house() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(top.join("docs/develop/architecture.md")).expect("the page");
    let section = page.split("## Arrows between rooms\n").nth(1).expect("the section");
    let arrows = ARROWS.iter().filter(|(_, imported)| !imported.is_empty());
    let arrows: Lists = arrows.map(|(room, of)| ((*room).to_owned(), words(of))).collect();
    assert_eq!(listed_arrows(&lines_between(section, "```text", "```")), arrows);
    let crates = CRATES.iter().map(|(name, of)| ((*name).to_owned(), words(&of.join(" "))));
    let crates: Lists = crates.collect();
    let rows = lines_between(section, "| crate | place |", "");
    assert_eq!(listed_crates(&rows), crates);
}
