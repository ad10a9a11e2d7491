//! The documents: their links resolve, the settings they list are those of the code, the commands
//! and scripts they show exist, and the runbook explains every log line.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use tollgate::conf::Config;

const CONFIGURATION: &str = "docs/operate/configuration.md";
/// The sections of the configuration: their names on that page, and how a file opens them.
const SECTIONS: [(&str, &str); 19] = [
    ("listen", "[listen]"),
    ("listen.tls", "[listen.tls]"),
    ("server", "[server]"),
    ("store", "[store]"),
    ("files", "[files]"),
    ("journal", "[journal]"),
    ("console", "[console]"),
    ("console.oidc", "[console.oidc]"),
    ("rules", "[rules]"),
    ("log", "[log]"),
    ("traces", "[traces]"),
    ("webhooks", "[webhooks]"),
    ("audit", "[audit]"),
    ("limits", "[limits]"),
    ("timeouts", "[timeouts]"),
    ("videos", "[videos]"),
    ("vendor.NAME", "[vendor.name]"),
    ("vendor.NAME.routes[]", "[[vendor.name.routes]]"),
    ("vendor.NAME.routes[].tls", TLS_OF_A_ROUTE),
];
/// Without its address and key a route is refused before its `tls` is read.
const TLS_OF_A_ROUTE: &str = "[[vendor.name.routes]]
name = 'main'
key = 'k'
base_url = 'https://vendor.test/v1'
[vendor.name.routes.tls]";
const LOG_LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

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

/// The keys that the parser knows in a section: it lists them if a key resembles none of them.
fn keys_of_code(header: &str) -> Vec<String> {
    let text = format!("{header}\nzzzz = 1\n");
    let faults = Config::parse("t.toml", &text, []).err().unwrap_or_default();
    let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
    let known = faults.iter().find_map(|fault| fault.split_once("'zzzz'; known are "));
    let (_, keys) = known.unwrap_or_else(|| panic!("{header}: {faults:?}"));
    keys.split(", ").map(str::to_owned).collect()
}

/// The settings that the code asks for, with their sections.
fn settings_of_code() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (section, header) in SECTIONS {
        for key in keys_of_code(header) {
            found.insert(format!("{section}.{key}"));
        }
    }
    assert!(found.len() > 50, "{found:?}");
    found
}

/// The settings that the page lists: the first column of its tables.
fn settings_of_page() -> BTreeSet<String> {
    let text = text_of(CONFIGURATION);
    let rows = prose(&text).into_iter().filter_map(|(_, line)| line.strip_prefix("| `"));
    let names = rows.filter_map(|row| row.split_once('`').map(|(name, _)| name));
    let settings = names.filter(|name| name.contains('.') && !name.contains("__"));
    settings.map(str::to_owned).collect()
}

#[test]
fn the_page_of_settings_lists_those_of_the_code() {
    let listed: Vec<_> = SECTIONS.iter().filter_map(|(name, _)| name.split('.').next()).collect();
    for section in keys_of_code("") {
        assert!(listed.contains(&section.as_str()), "SECTIONS lacks {section}");
    }
    let (code, page) = (settings_of_code(), settings_of_page());
    let missing: Vec<_> = code.difference(&page).collect();
    assert!(missing.is_empty(), "{CONFIGURATION} lacks {missing:?}");
    let unknown: Vec<_> = page.difference(&code).collect();
    assert!(unknown.is_empty(), "{CONFIGURATION} lists {unknown:?}, which nobody reads");
}

/// The words of the lines in the code blocks of a document, numbered, without comments.
fn block_lines(text: &str) -> Vec<(usize, Vec<String>)> {
    let mut in_block = false;
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if in_block {
            let line = line.trim().trim_start_matches("$ ");
            let line = line.split(" #").next().unwrap_or_default();
            found.push((number, line.split_whitespace().map(str::to_owned).collect()));
        }
    }
    found
}

/// The lines of code blocks that begin with a command of ours.
fn commands(text: &str) -> Vec<(usize, Vec<String>)> {
    let mut lines = block_lines(text);
    lines.retain(|(_, words)| {
        words.first().is_some_and(|first| {
            let is_binary = first == "tollgate" || first.ends_with("/tollgate");
            first == "make" || is_binary && !first.contains('=')
        })
    });
    lines
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

/// What a line of a code block takes from the repository, and whether it is there. A script may
/// also stand in the document, below a comment with its name.
fn taken_from_repository(words: &[String], document: &str, manifest: &str) -> Vec<(String, bool)> {
    let has_file = |path: &str| root().join(path).exists();
    let is_cargo = words.iter().any(|word| word == "cargo");
    let mut taken = Vec::new();
    for word in words {
        if word.starts_with("tests/") || word.starts_with("benches/") {
            taken.push((word.clone(), has_file(word)));
        }
    }
    for pair in words.windows(2) {
        let (word, name) = (pair[0].as_str(), pair[1].as_str());
        let kind = word.trim_start_matches("--");
        let is_there = match word {
            "python3" if !name.starts_with('-') => {
                has_file(name) || document.contains(&format!("\n# {name} "))
            }
            "--test" | "--bench" | "--bin" | "--example" if is_cargo => {
                manifest.contains(&format!("[[{kind}]]\nname = \"{name}\"\n"))
            }
            _ => continue,
        };
        taken.push((format!("{word} {name}"), is_there));
    }
    taken
}

#[test]
fn every_script_and_target_that_is_shown_exists() {
    let manifest = text_of("Cargo.toml");
    let (mut faults, mut checked) = (Vec::new(), 0);
    for path in documents() {
        let text = text_of(&path);
        for (number, words) in block_lines(&text) {
            for (what, is_there) in taken_from_repository(&words, &text, &manifest) {
                checked += 1;
                if !is_there {
                    faults.push(format!("{}:{number}: {what}", path.display()));
                }
            }
        }
    }
    assert!(faults.is_empty(), "scripts and targets that do not exist:\n{}", faults.join("\n"));
    assert!(checked > 10, "only {checked} were found");
}

/// The log lines of a source file: what is between the brackets, and the event. The event stands
/// there as a text, or in the variable `event`, which is set before the line.
fn log_lines(text: &str) -> Vec<(&str, Option<&str>)> {
    let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut found = Vec::new();
    for level in LOG_LEVELS {
        for (at, call) in code.match_indices(&format!("log::{level}!(")) {
            let (before, rest) = code.split_at(at + call.len());
            let line = rest.split(");").next().unwrap_or_default();
            let named = if line.trim_start().starts_with("event,") {
                before.rsplit_once("let event = \"")
            } else {
                line.split_once("event = \"")
            };
            let event = named.and_then(|(_, rest)| rest.split_once('"')).map(|(event, _)| event);
            found.push((line, event));
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
            for (line, event) in log_lines(&text_of(&path)) {
                checked += 1;
                let is_known = event.is_some_and(|name| runbook.contains(&format!("`{name}`")));
                if !is_known {
                    faults.push(format!("{}: {line}", path.display()));
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
