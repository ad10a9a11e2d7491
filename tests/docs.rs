//! The documents: their links resolve, the settings they list are those of the code, and the
//! commands they show exist.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const CONFIGURATION: &str = "docs/operate/configuration.md";
/// Where settings are read.
const READERS: [&str; 10] = [
    "src/conf.rs",
    "src/conf/listen.rs",
    "src/catalogue/route.rs",
    "src/catalogue/route_tls.rs",
    "src/files/config.rs",
    "src/files/link_secret.rs",
    "src/gateway/limits.rs",
    "src/jobs/schedule.rs",
    "src/store.rs",
    "src/store/tls.rs",
];
/// How they are read: what stands before the name of a setting.
const CALLS: [&str; 14] = [
    ".text(",
    ".number(",
    ".integer(",
    ".bool(",
    ".list(",
    ".texts(",
    ".members(",
    ".table(",
    ".take_value(",
    ".has(",
    "read(",
    "count(",
    "text(table,",
    "required_text(&mut row,",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text_of(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

/// All documents, by their paths in the repository.
fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root().join(&folder)).expect("a folder") {
            let entry = entry.expect("an entry");
            let path = folder.join(entry.file_name());
            if entry.path().is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "md") {
                found.push(path);
            }
        }
    }
    for entry in std::fs::read_dir(root()).expect("the repository") {
        let name = PathBuf::from(entry.expect("an entry").file_name());
        if name.extension().is_some_and(|e| e == "md") {
            found.push(name);
        }
    }
    found.sort();
    assert!(found.len() > 5, "{found:?}");
    found
}

/// The lines of a document outside of code blocks, numbered.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut in_block = false;
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            lines.push((number, line));
        }
    }
    lines
}

/// What a link to a heading says.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).into_iter().filter(|(_, line)| line.starts_with('#'));
    headings.map(|(_, line)| anchor(line.trim_start_matches('#'))).collect()
}

/// The targets of the links in a line.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
}

#[test]
fn every_link_leads_somewhere() {
    let mut faults = Vec::new();
    let mut checked = 0;
    for path in documents() {
        let text = text_of(&path);
        for (number, line) in prose(&text) {
            for target in links(line).filter(|target| !target.contains("://")) {
                checked += 1;
                let (file, heading) = target.split_once('#').unwrap_or((target, ""));
                let folder = path.parent().unwrap_or(Path::new(""));
                let led_to = if file.is_empty() { path.clone() } else { folder.join(file) };
                let is_there = root().join(&led_to).exists();
                let is_headed =
                    heading.is_empty() || is_there && anchors(&text_of(&led_to)).contains(heading);
                if !is_there || !is_headed {
                    faults.push(format!("{}:{number}: {target}", path.display()));
                }
            }
        }
    }
    assert!(faults.is_empty(), "links that lead nowhere:\n{}", faults.join("\n"));
    assert!(checked > 20, "only {checked} links were found");
}

/// The settings that the code asks for.
fn settings_of_code() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for reader in READERS {
        let text = text_of(reader);
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for call in CALLS {
            let named = code.split(call).skip(1).filter_map(|rest| {
                rest.trim_start().strip_prefix('"')?.split_once('"').map(|(name, _)| name)
            });
            found.extend(named.map(str::to_owned));
        }
    }
    assert!(found.len() > 50, "{found:?}");
    found
}

/// The settings that the page lists: the first column of its tables, in parts.
fn settings_of_page() -> BTreeSet<Vec<String>> {
    let text = text_of(CONFIGURATION);
    let rows = prose(&text).into_iter().filter_map(|(_, line)| line.strip_prefix("| `"));
    let names = rows.filter_map(|row| row.split_once('`').map(|(name, _)| name));
    let settings = names.filter(|name| name.contains('.') && !name.contains("__"));
    settings.map(|name| name.split('.').map(str::to_owned).collect()).collect()
}

#[test]
fn the_page_of_settings_lists_those_of_the_code() {
    let (code, page) = (settings_of_code(), settings_of_page());
    let parts: BTreeSet<_> = page.iter().flatten().cloned().collect();
    let missing: Vec<_> = code.difference(&parts).collect();
    assert!(missing.is_empty(), "{CONFIGURATION} lacks {missing:?}");
    let last = page.iter().filter_map(|name| name.last());
    let unknown: Vec<_> = last.filter(|name| !code.contains(*name)).collect();
    assert!(unknown.is_empty(), "{CONFIGURATION} lists {unknown:?}, which nobody reads");
}

/// The commands in the code blocks of a document, numbered: lines that begin with one of ours.
fn commands(text: &str) -> Vec<(usize, Vec<String>)> {
    let mut in_block = false;
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
            continue;
        }
        let line = line.trim().trim_start_matches("$ ");
        let line = line.split(" #").next().unwrap_or_default();
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        let is_ours = words.first().is_some_and(|first| {
            let is_binary = first == "tollgate" || first.ends_with("/tollgate");
            first == "make" || is_binary && !first.contains('=')
        });
        if in_block && is_ours {
            found.push((number, words));
        }
    }
    found
}

/// Why a command of the binary cannot be one.
fn fault_of_binary(words: &[String]) -> Option<String> {
    let mut subcommands: Vec<&str> = Vec::new();
    let mut flags = Vec::new();
    for word in words.iter().map(String::as_str) {
        if let Some(flag) = word.strip_prefix("--") {
            flags.push(format!("--{}", flag.split('=').next().unwrap_or_default()));
        } else {
            let deeper: Vec<_> = subcommands.iter().copied().chain([word, "--help"]).collect();
            let known = Command::new(env!("CARGO_BIN_EXE_tollgate")).args(&deeper).output();
            let is_known = known.is_ok_and(|out| {
                let help = String::from_utf8_lossy(&out.stdout).into_owned();
                out.status.success()
                    && help.contains(&format!("tollgate {}", deeper[..deeper.len() - 1].join(" ")))
            });
            if is_known {
                subcommands.push(word);
            }
        }
    }
    let asked: Vec<_> = subcommands.iter().copied().chain(["--help"]).collect();
    let out = Command::new(env!("CARGO_BIN_EXE_tollgate")).args(&asked).output().expect("its help");
    let help = String::from_utf8_lossy(&out.stdout).into_owned();
    if subcommands.is_empty() && !flags.iter().any(|f| f == "--help" || f == "--version") {
        return Some("no such command".to_owned());
    }
    flags.into_iter().find(|flag| flag.len() > 2 && !help.contains(flag.as_str()))
}

#[test]
fn every_command_that_is_shown_exists() {
    let makefile = text_of("Makefile");
    let mut faults = Vec::new();
    let mut checked = 0;
    for path in documents() {
        for (number, words) in commands(&text_of(&path)) {
            checked += 1;
            let fault = if words[0] == "make" {
                let targets = words[1..].iter().filter(|word| !word.contains('='));
                let is_target = |word: &&String| !makefile.contains(&format!("\n{word}:"));
                targets.take(1).find(is_target).cloned()
            } else {
                fault_of_binary(&words[1..])
            };
            if let Some(fault) = fault {
                faults.push(format!("{}:{number}: {fault}: {}", path.display(), words.join(" ")));
            }
        }
    }
    assert!(faults.is_empty(), "commands that do not exist:\n{}", faults.join("\n"));
    assert!(checked > 20, "only {checked} commands were found");
}

/// The log lines of a source file: level, and what is between the brackets.
fn log_lines(text: &str) -> Vec<(&str, &str)> {
    let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut found = Vec::new();
    for level in ["warn", "error", "info"] {
        for rest in code.split(&format!("log::{level}!(")).skip(1) {
            let line = rest.split(");").next().unwrap_or_default();
            found.push((level, line));
        }
    }
    found
}

#[test]
fn every_log_line_has_an_event_and_the_runbook_explains_it() {
    let runbook = text_of("docs/operate/runbook.md");
    let (mut faults, mut checked) = (Vec::new(), 0);
    let mut folders = vec![root().join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            for (level, line) in log_lines(&text_of(&path)) {
                checked += 1;
                let event = line.split_once("event = \"").map(|(_, rest)| rest);
                let event = event.and_then(|rest| rest.split_once('"'));
                let is_access_log = line.trim_start().starts_with("target: \"request\"");
                let is_named = event.is_some() || line.contains("event, ") || is_access_log;
                let is_known = event.is_none_or(|(name, _)| runbook.contains(&format!("`{name}`")));
                if !is_named || (level != "info" && !is_known) {
                    faults.push(format!("{}: {level} {line}", path.display()));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(checked > 100, "only {checked} log lines were found");
}

#[test]
fn the_front_page_is_short() {
    let lines = text_of("README.md").lines().count();
    assert!(lines <= 200, "README.md has {lines} lines");
}
