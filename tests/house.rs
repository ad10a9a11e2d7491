//! The house rules that no compiler checks: sizes, names, arrows between rooms, and words.

use std::path::Path;

mod failpoints;
mod files;
mod page;
mod parameters;

const CODE_LINES_MAX: usize = 400;
const COLUMNS_MAX: usize = 100;

/// What a room may import, beside itself. A room that is not here has no place in the house.
const ARROWS: [(&str, &str); 34] = [
    ("backoff", ""),
    ("clock", ""),
    ("error_chain", ""),
    ("failpoints", ""),
    ("fast_map", ""),
    ("hex", ""),
    ("money", ""),
    ("task_group", ""),
    ("toml_reader", ""),
    ("metrics", "fast_map"),
    ("permissions", ""),
    ("files", "permissions toml_reader"),
    ("dialect", "hex money"),
    ("ledger", "fast_map hex money"),
    ("traces", "error_chain fast_map hex metrics"),
    ("webhooks", "hex ledger money"),
    ("notifier", "clock error_chain ledger metrics webhooks"),
    ("settlement", "backoff ledger metrics money"),
    ("kv_cache", "ledger"),
    ("operators", "hex ledger"),
    ("sessions", "hex ledger operators"),
    ("usage", "ledger money"),
    ("statement", "hex ledger money usage"),
    ("archive", "failpoints files hex ledger money toml_reader usage"),
    ("idempotency", "fast_map hex ledger"),
    ("catalogue", "fast_map hex money dialect ledger toml_reader"),
    (
        "store",
        "backoff clock failpoints fast_map hex jobs ledger money metrics kv_cache permissions \
         idempotency operators sessions task_group usage statement archive webhooks",
    ),
    (
        "jobs",
        "backoff clock error_chain ledger settlement catalogue dialect money metrics files \
         notifier toml_reader traces webhooks",
    ),
    (
        "gateway",
        "backoff clock failpoints fast_map hex jobs ledger settlement kv_cache idempotency \
         catalogue dialect money metrics files toml_reader traces usage",
    ),
    ("conf", "archive gateway jobs store files catalogue toml_reader traces"),
    (
        "management",
        "archive catalogue clock conf files gateway jobs ledger money notifier operators \
         permissions sessions statement store toml_reader usage webhooks",
    ),
    (
        "admin_api",
        "catalogue clock conf files gateway jobs ledger management money operators statement store \
         usage webhooks",
    ),
    (
        "console",
        "admin_api catalogue clock conf error_chain gateway hex jobs ledger management money \
         operators sessions statement store usage webhooks",
    ),
    (
        "cli",
        "clock money toml_reader metrics permissions files dialect ledger kv_cache idempotency \
         catalogue store jobs gateway conf operators task_group \
         management admin_api console sessions statement usage archive traces notifier webhooks",
    ),
];

/// Crates and the only places for them. A name that ends in `*` is the beginning of several.
const CRATES: [(&str, &[&str]); 15] = [
    ("axum", &["src/admin_api", "src/console"]),
    ("maud", &["src/console"]),
    ("utoipa*", &["src/admin_api"]),
    ("pingora*", &["src/gateway", "src/cli/serve"]),
    ("rusqlite", &["src/store"]),
    ("redis", &["src/store"]),
    ("tar", &["src/store/backup"]),
    ("object_store", &["src/files"]),
    ("parquet", &["src/archive"]),
    ("openidconnect", &["src/console/oidc"]),
    ("opentelemetry_proto", &["src/traces"]),
    ("prost", &["src/traces"]),
    ("reqwest", &["src/console/oidc", "src/jobs/video_client", "src/notifier", "src/traces"]),
    ("sd_notify", &["src/cli/serve/service_link"]),
    ("anyhow", &["src/cli", "src/main", "src/jobs/worker"]),
];

const PURE_ROOMS: [&str; 12] = [
    "money",
    "toml_reader",
    "catalogue",
    "dialect",
    "ledger",
    "kv_cache",
    "idempotency",
    "operators",
    "sessions",
    "statement",
    "usage",
    "webhooks",
];
const PURE: &str =
    "#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]";

const EMPTY_NAMES: &str = "util utils helper helpers common manager handler service";
const LOOSE_ENDS: [&str; 6] =
    ["#[ignore", "should_panic", "todo!", "unimplemented!", "dbg!", "#[cfg(any())]"];
const BRANDS: &str = "openai anthropic gemini google xai grok deepinfra claude gpt chatgpt \
    mistral llama qwen deepseek kimi moonshot cohere bedrock openrouter";

/// The one name of a vendor's that the gateway itself has to say: official clients look for it.
const POLL_HEADER: &str = "openai-poll-after-ms";

/// What is wrong, as `file:line: what`.
type Faults = Vec<String>;

fn fault(path: &str, line: usize, what: &str) -> String {
    format!("{path}:{line}: {what}")
}

/// The faults of all lines about which `judge` has something to say.
fn by_line(path: &str, text: &str, judge: impl Fn(&str) -> Option<String>) -> Faults {
    let said = |(number, line)| judge(line).map(|what| fault(path, number, &what));
    (1..).zip(text.lines()).filter_map(said).collect()
}

/// The text with comments and what is in quotes blanked, line for line.
fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = opaque_length(rest);
        if skipped == 0 {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            code.extend(rest[..skipped].chars().map(|c| if c == '\n' { c } else { ' ' }));
            rest = &rest[skipped..];
            // So that `r"` of a raw string does not open the next one.
            code.push_str(if code.ends_with(' ') { "" } else { " " });
        }
    }
    code
}

/// How long the comment or literal is that the text begins with; 0 if it begins with neither.
fn opaque_length(text: &str) -> usize {
    let up_to = |end: &str, from: usize| {
        text[from..].find(end).map_or(text.len(), |at| from + at + end.len())
    };
    if text.starts_with("//") {
        return text.find('\n').unwrap_or(text.len());
    }
    if text.starts_with("/*") {
        return up_to("*/", 2);
    }
    for (opening, closing) in [("r\"", "\""), ("r#\"", "\"#"), ("r##\"", "\"##")] {
        if text.starts_with(opening) {
            return up_to(closing, opening.len());
        }
    }
    if let Some(quoted) = text.strip_prefix('"') {
        let mut escaped = false;
        let end = quoted.find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        return end.map_or(text.len(), |at| at + 2);
    }
    if text.starts_with("'\\") {
        return up_to("'", 3);
    }
    // A character, and no lifetime.
    let mut chars = text.char_indices();
    let [quote, _, end] = [chars.next(), chars.next(), chars.next()];
    match (quote, end) {
        (Some((_, '\'')), Some((at, '\''))) => at + 1,
        _ => 0,
    }
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The room a file belongs to; `None` for `lib.rs`, `main.rs` and what is not in `src`.
fn room_of(path: &str) -> Option<&str> {
    let inside = path.strip_prefix("src/")?;
    let room = inside.split(['/', '.']).next()?;
    (!matches!(room, "lib" | "main")).then_some(room)
}

fn sizes(path: &str, text: &str) -> Faults {
    let mut faults = by_line(path, text, |line| {
        // What stands on the wire stays on one line.
        if line.contains("r#\"") {
            return None;
        }
        let columns = line.chars().count();
        (columns > COLUMNS_MAX).then(|| format!("{columns} columns; at most {COLUMNS_MAX}"))
    });
    let body = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with("//");
    let lines = body.lines().filter(is_code).count();
    if path.starts_with("src/") && lines > CODE_LINES_MAX {
        let what = format!("{lines} lines of code; at most {CODE_LINES_MAX}");
        faults.push(fault(path, text.lines().count(), &what));
    }
    faults
}

fn names(path: &str, _: &str) -> Faults {
    let mut faults = Faults::new();
    for part in path.split('/') {
        let stem = part.split('.').next().unwrap_or_default();
        if part == "mod.rs" {
            faults.push(fault(path, 1, "name it after its folder, beside it, instead of mod.rs"));
        } else if EMPTY_NAMES.split(' ').any(|name| name == stem) {
            faults.push(fault(path, 1, &format!("`{stem}` says nothing")));
        }
    }
    faults
}

/// The rooms that a line of code names: of `crate::a::b` it is `a`, of `crate::{a, b::c}` both.
fn rooms_named(code: &str) -> Vec<(usize, String)> {
    let mut named: Vec<(usize, String)> = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        if code[..at].ends_with(is_of_name) {
            continue;
        }
        let line = code[..at].matches('\n').count() + 1;
        let after = &code[at + "crate::".len()..];
        let name = |text: &str| text.trim().chars().take_while(|c| is_of_name(*c)).collect();
        let Some(group) = after.strip_prefix('{') else {
            named.push((line, name(after)));
            continue;
        };
        let (mut depth, mut begin) = (0, 0);
        for (end, c) in group.char_indices() {
            if depth == 0 && matches!(c, ',' | '}') {
                named.push((line, name(&group[begin..end])));
                begin = end + 1;
            }
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                _ => {}
            }
        }
    }
    named.retain(|(_, name)| name.starts_with(char::is_lowercase));
    named
}

fn arrows(path: &str, text: &str) -> Faults {
    let Some(room) = room_of(path) else { return Faults::new() };
    let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == room) else {
        return vec![fault(path, 1, &format!("`{room}` is no room of this house"))];
    };
    let is_allowed = |name: &str| name == room || allowed.split(' ').any(|a| a == name);
    let named = rooms_named(&code_of(text)).into_iter();
    let wrong = named.filter(|(_, name)| !is_allowed(name));
    wrong.map(|(n, name)| fault(path, n, &format!("`{room}` must not use `{name}`"))).collect()
}

/// Whether a line of code uses a crate, as `name::…`, `name!` or `use name`.
fn uses(line: &str, name: &str) -> bool {
    let (stem, is_prefix) = name.strip_suffix('*').map_or((name, false), |stem| (stem, true));
    line.match_indices(stem).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + stem.len()..]);
        let after = if is_prefix { after.trim_start_matches(is_of_name) } else { after };
        let begins = !before.ends_with(is_of_name) && !before.ends_with("::");
        let used = before.trim_end().ends_with("use") && !after.starts_with(is_of_name);
        begins && (after.starts_with("::") || after.starts_with('!') || used)
    })
}

fn crates(path: &str, text: &str) -> Faults {
    if !path.starts_with("src/") {
        return Faults::new();
    }
    let is_in = |place: &str| {
        let below = path.strip_prefix(place);
        below.is_some_and(|rest| rest.starts_with(['/', '.']))
    };
    let misplaced: Vec<_> =
        CRATES.iter().filter(|(_, places)| !places.iter().any(|p| is_in(p))).collect();
    by_line(path, &code_of(text), |line| {
        let (name, places) = misplaced.iter().find(|(name, _)| uses(line, name))?;
        Some(format!("`{name}` belongs into {}", places.join(", ")))
    })
}

fn openings(path: &str, text: &str) -> Faults {
    let Some(room) = room_of(path).or(path.starts_with("src/").then_some("")) else {
        return Faults::new();
    };
    let mut faults = Faults::new();
    let told = text.starts_with("//!") || text.starts_with("#![doc = include_str!(");
    if !told {
        faults.push(fault(path, 1, "a file begins with `//!` and what it is for"));
    }
    let mut lines = (1..).zip(text.lines()).filter(|(_, l)| !l.starts_with("//!") && !l.is_empty());
    let opens_pure = lines.next().is_none_or(|(_, line)| line == PURE);
    if PURE_ROOMS.contains(&room) && !path.ends_with("/tests.rs") && !opens_pure {
        faults.push(fault(path, 1, "a file of a pure room opens with the lints that keep it so"));
    }
    faults
}

fn loose_ends(path: &str, text: &str) -> Faults {
    by_line(path, &code_of(text), |line| {
        let found = LOOSE_ENDS.iter().find(|end| {
            line.match_indices(**end).any(|(at, _)| !line[..at].ends_with(is_of_name))
        })?;
        Some(format!("`{found}` does not stay"))
    })
}

fn brands(path: &str, text: &str) -> Faults {
    let is_rule = path.starts_with("lua-free-rules/");
    by_line(path, text, |line| {
        let key = line.split('=').next().unwrap_or_default().trim();
        // A vendor's own field may be named so; a rule has to name it to do something about it.
        let is_path = is_rule && matches!(key, "field" | "given" | "expect" | "refused");
        let lower = line.to_lowercase().replace(POLL_HEADER, "");
        let mut words = lower.split(|c: char| !c.is_alphanumeric());
        let brand = words.find(|word| {
            BRANDS.split_whitespace().any(|b| b == *word) && !(is_path && *word == "google")
        })?;
        Some(format!("`{brand}` is a vendor's word; rules and code keep the spec's tokens"))
    })
}

/// All files below a folder with one of these endings, by their path from the top.
fn files_in(top: &Path, folder: &str, endings: &[&str]) -> Vec<(String, String)> {
    let mut files = Vec::new();
    let Ok(entries) = std::fs::read_dir(top.join(folder)) else { return files };
    for entry in entries {
        let entry = entry.expect("an entry of a folder");
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{folder}/{name}");
        // What tools put there is not ours.
        let foreign = name.starts_with('.') || matches!(&*name, "node_modules" | "target");
        if entry.path().is_dir() && !foreign {
            files.extend(files_in(top, &path, endings));
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            files.push((path, std::fs::read_to_string(entry.path()).expect("a text")));
        }
    }
    files.sort();
    files
}

type Check = fn(&str, &str) -> Faults;

fn all_hold(folders: &[&str], endings: &[&str], checks: &[Check]) {
    // Asked for when it runs, so that one build can look at another tree.
    let top = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| ".".to_owned());
    let files: Vec<_> =
        folders.iter().flat_map(|folder| files_in(top.as_ref(), folder, endings)).collect();
    assert!(!files.is_empty(), "there is nothing in {folders:?}");
    let judged = files.iter().flat_map(|(path, text)| checks.iter().flat_map(|c| c(path, text)));
    let faults: Faults = judged.collect();
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn files_are_short_and_well_named() {
    all_hold(&["src", "tests", "benches"], &[".rs", ".lua"], &[sizes, names]);
}

#[test]
fn rooms_import_only_what_they_may() {
    all_hold(&["src"], &[".rs"], &[arrows, crates]);
}

#[test]
fn files_open_as_they_should() {
    all_hold(&["src"], &[".rs"], &[openings]);
}

#[test]
fn nothing_is_left_undone() {
    all_hold(&["src", "tests", "benches"], &[".rs"], &[loose_ends]);
}

#[test]
fn no_vendor_is_named() {
    all_hold(&["src", "lua-free-rules"], &[""], &[brands]);
}

/// How many faults a check finds in a snippet.
fn found(check: Check, path: &str, text: &str) -> usize {
    check(path, text).len()
}

#[test]
fn bad_sizes_and_names_are_found() {
    let long = "let x = 1;\n".repeat(CODE_LINES_MAX);
    assert_eq!(found(sizes, "src/money.rs", &long), 0);
    assert_eq!(found(sizes, "src/money.rs", &format!("// why\n\n{long}")), 0);
    assert_eq!(found(sizes, "src/money.rs", &format!("{long}x();")), 1);
    let tested = format!("{long}#[cfg(test)]\nmod tests {{\n}}\n");
    assert_eq!(found(sizes, "src/money.rs", &tested), 0);
    assert_eq!(found(sizes, "tests/a.rs", &"ä".repeat(COLUMNS_MAX)), 0);
    assert_eq!(sizes("tests/a.rs", &format!("\n{}", "ä".repeat(101))).len(), 1);
    for bad in ["src/money/mod.rs", "src/utils.rs", "tests/common/a.rs", "src/a/handler.rs"] {
        assert_eq!(found(names, bad, ""), 1, "{bad}");
    }
    assert_eq!(found(names, "src/model/commons.rs", ""), 0);
}

#[test]
fn bad_arrows_are_found() {
    let cases = [
        ("src/money.rs", "use crate::ledger::Hold;", 1),
        ("src/ledger.rs", "use crate::money::Money;\nuse crate::ledger::key;", 0),
        ("src/ledger/key.rs", "fn f() { crate::store::open() }", 1),
        ("src/dialect.rs", "use crate::{\n    money::{self, Rate},\n    catalogue,\n};", 1),
        ("src/dialect.rs", "use crate::{money::{gateway, Rate}, dialect::json};", 0),
        ("src/dialect.rs", "//! See crate::gateway.\nlet a = \"crate::gateway\";", 0),
        ("src/dialect.rs", "let a = ('\"', crate::gateway::b(), '\"');", 1),
        ("src/dialect.rs", "let a: &'a str = crate::gateway::b::<'a>();", 1),
        ("src/dialect.rs", "let a = r#\"\"crate::gateway\"#; crate::conf::b();", 1),
        ("src/kv_cache.rs", "use crate::ledger::AccountName;\nuse crate::store::sqlite;", 1),
        ("src/store/redis/kv_cache.rs", "use crate::kv_cache::{ENTRY_BYTES_MAX, Notes};", 0),
        ("src/ledger.rs", "use crate::kv_cache::Notes;", 1),
        ("src/cellar.rs", "", 1),
        ("src/lib.rs", "use crate::cli;", 0),
    ];
    for (path, text, faults) in cases {
        assert_eq!(found(arrows, path, text), faults, "{path}: {text}");
    }
    assert!(arrows("src/money.rs", "\n\nuse crate::cli::a;")[0].starts_with("src/money.rs:3: "));
}

#[test]
fn misplaced_crates_are_found() {
    let cases = [
        ("src/ledger.rs", "use rusqlite::Connection;", 1),
        ("src/store/sqlite.rs", "use rusqlite::Connection;", 0),
        ("src/storehouse.rs", "redis::cmd(\"GET\");", 1),
        ("src/cli/key.rs", "crate::store::redis::Redis::open(); // redis::cmd", 0),
        ("src/cli/key.rs", "use pingora::server::Server;", 1),
        ("src/cli/serve/admin.rs", "use pingora::server::Server;", 0),
        ("src/gateway/admit.rs", "use pingora::prelude::*;", 0),
        ("src/gateway/admit.rs", "anyhow::bail!(\"no\")", 1),
        ("src/conf.rs", "use anyhow;", 1),
        ("src/main.rs", "fn main() -> anyhow::Result<()>", 0),
        ("src/jobs.rs", "reqwest::get(url)", 1),
    ];
    for (path, text, faults) in cases {
        assert_eq!(found(crates, path, text), faults, "{path}: {text}");
    }
}

#[test]
fn bad_openings_loose_ends_and_brands_are_found() {
    assert_eq!(found(openings, "src/conf.rs", "//! What.\n\nuse a;"), 0);
    assert_eq!(found(openings, "src/lib.rs", "use a;"), 1);
    assert_eq!(found(openings, "src/money/price.rs", "//! What.\n\nuse a;"), 1);
    assert_eq!(found(openings, "src/kv_cache.rs", "//! What.\n\nuse a;"), 1);
    assert_eq!(found(openings, "src/money/price.rs", &format!("//! W.\n//!\n{PURE}\nuse a;")), 0);
    assert_eq!(found(openings, "src/dialect/relay/tests.rs", "//! W.\nuse a;"), 0);
    for bad in ["#[ignore]\nfn a() {}", "#[ignore = \"slow\"]", "#[should_panic]", "todo!()"] {
        assert_eq!(found(loose_ends, "tests/a.rs", bad), 1, "{bad}");
    }
    assert_eq!(found(loose_ends, "tests/a.rs", "// todo!\nlet a = \"dbg!\"; mydbg!()"), 0);
    for bad in ["OpenAI", "let openai_url = 1;", "// as Claude does", "x-goog = google"] {
        assert_eq!(found(brands, "src/a.rs", bad), 1, "{bad}");
    }
    assert_eq!(found(brands, "src/a.rs", "field = \"extra_body.google\""), 1);
    assert_eq!(found(brands, "lua-free-rules/c.toml", "field = \"extra_body.google\""), 0);
    assert_eq!(found(brands, "lua-free-rules/c.toml", "refused = \"google.gemini\""), 1);
    assert_eq!(found(brands, "lua-free-rules/c.toml", "# for google"), 1);
    assert_eq!(found(brands, "src/a.rs", "googled anthropics"), 0);
}
