//! The scopes of keys on the command line: how they are given, changed and shown.

use anyhow::{bail, ensure};
use clap::Args;
use serde_json::{Map, Value, json};

use crate::ledger::{KeyScope, parse_network};
use crate::management::error::parse_plan_name;
use crate::management::expiry::not_in_the_future;
use crate::management::field_patch::FieldPatch;
use crate::management::key_scope::{ScopePatch, check_endpoints};

/// One day, in seconds.
const DAY_S: i64 = 24 * 60 * 60;
/// The length of a date such as 2027-01-31.
const DATE_CHARS: usize = 10;

/// The scope that a command gives a key.
#[derive(Debug, Args)]
pub(super) struct ScopeArgs {
    /// What people call the key.
    #[arg(long)]
    name: Option<String>,
    /// Allow only models whose ids match one of these, such as lmb-*.
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    models: Vec<String>,
    /// Allow only these endpoints, such as chat or embeddings.
    #[arg(long, value_name = "ENDPOINT", value_delimiter = ',')]
    endpoints: Vec<String>,
    /// Allow only clients from these networks, such as 10.0.0.0/8.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    from: Vec<String>,
    /// Refuse the key after this time, such as 90d, or from this date on, such as 2027-01-31.
    #[arg(long, value_name = "TIME")]
    expires: Option<String>,
    /// Limit the key by this plan of the rules, beside the plan of its account.
    #[arg(long)]
    plan: Option<String>,
    /// Note something of the key, such as team=search.
    #[arg(long = "tag", value_name = "NAME=VALUE")]
    tags: Vec<String>,
}

impl ScopeArgs {
    fn is_empty(&self) -> bool {
        let lists = [&self.models, &self.endpoints, &self.from, &self.tags];
        let texts = [&self.name, &self.expires, &self.plan];
        texts.iter().all(|text| text.is_none()) && lists.iter().all(|list| list.is_empty())
    }

    /// The name of the plan that is given.
    pub(super) fn plan(&self) -> Option<&str> {
        self.plan.as_deref()
    }

    /// Returns the scope of a new key, at the time `now` (unix seconds).
    pub(super) fn parse(&self, now: i64) -> anyhow::Result<KeyScope> {
        Ok(self.parse_changes(now)?.apply(&KeyScope::default())?)
    }

    fn parse_changes(&self, now: i64) -> anyhow::Result<ScopePatch> {
        let list = |list: &Vec<String>| (!list.is_empty()).then(|| list.clone());
        check_endpoints(&self.endpoints)?;
        let networks = self.from.iter().map(|text| parse_network(text));
        let networks = networks.collect::<Result<Vec<_>, _>>()?;
        let expires_at = self.expires.as_deref().map(|text| parse_expiry(text, now)).transpose()?;
        let plan = self.plan.as_deref().map(parse_plan_name).transpose()?;
        let mut changes = ScopePatch {
            name: FieldPatch::set_if_given(self.name.clone()),
            models: list(&self.models),
            endpoints: list(&self.endpoints),
            from: (!networks.is_empty()).then_some(networks),
            expires_at: FieldPatch::set_if_given(expires_at),
            plan: FieldPatch::set_if_given(plan),
            ..ScopePatch::default()
        };
        for text in &self.tags {
            let Some((name, value)) = text.split_once('=') else {
                bail!("'{text}' is no tag: write its name and its value, as in team=search");
            };
            changes.tags.insert(name.to_owned(), Some(value.to_owned()));
        }
        Ok(changes)
    }
}

/// The changes of a scope that a command is asked to make.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub(super) struct ScopeChanges {
    #[command(flatten)]
    given: ScopeArgs,
    /// Refuse the key from now on.
    #[arg(long)]
    disable: bool,
    /// Accept a disabled key again.
    #[arg(long, conflicts_with = "disable")]
    enable: bool,
    /// Take the name away.
    #[arg(long, conflicts_with = "name")]
    no_name: bool,
    /// Allow all models.
    #[arg(long, conflicts_with = "models")]
    no_models: bool,
    /// Allow all endpoints.
    #[arg(long, conflicts_with = "endpoints")]
    no_endpoints: bool,
    /// Allow clients from everywhere.
    #[arg(long, conflicts_with = "from")]
    no_from: bool,
    /// Let the key work without an end.
    #[arg(long, conflicts_with = "expires")]
    no_expiry: bool,
    /// Limit the key by the plan of its account alone.
    #[arg(long, conflicts_with = "plan")]
    no_plan: bool,
    /// Take a tag away.
    #[arg(long = "no-tag", value_name = "NAME")]
    no_tags: Vec<String>,
}

impl ScopeChanges {
    /// Whether nothing is to be changed.
    pub(super) fn is_empty(&self) -> bool {
        let switches = [
            self.disable,
            self.enable,
            self.no_name,
            self.no_models,
            self.no_endpoints,
            self.no_from,
            self.no_expiry,
            self.no_plan,
        ];
        self.given.is_empty() && self.no_tags.is_empty() && !switches.contains(&true)
    }

    /// The name of the plan that is given.
    pub(super) fn plan(&self) -> Option<&str> {
        self.given.plan()
    }

    /// Parses what was given, which may be nothing, at the time `now` (unix seconds).
    pub(super) fn parse(&self, now: i64) -> anyhow::Result<ScopePatch> {
        let mut changes = self.given.parse_changes(now)?;
        if self.no_name {
            changes.name = FieldPatch::Set(None);
        }
        if self.no_models {
            changes.models = Some(Vec::new());
        }
        if self.no_endpoints {
            changes.endpoints = Some(Vec::new());
        }
        if self.no_from {
            changes.from = Some(Vec::new());
        }
        if self.no_expiry {
            changes.expires_at = FieldPatch::Set(None);
        }
        if self.no_plan {
            changes.plan = FieldPatch::Set(None);
        }
        for name in &self.no_tags {
            // A tag that is set as well stays.
            changes.tags.entry(name.clone()).or_insert(None);
        }
        changes.disabled = (self.disable || self.enable).then_some(self.disable);
        Ok(changes)
    }
}

/// Parses when a key or a token expires: how long it works from `now` (unix seconds) on, or a
/// moment. Returns unix seconds.
pub(super) fn parse_expiry(text: &str, now: i64) -> anyhow::Result<i64> {
    let at = parse_time(text, now)?;
    let past = not_in_the_future("the expiry", text, now);
    ensure!(at > now, "{past}; `revoke` ends it at once");
    ensure!(
        jiff::Timestamp::from_second(at).is_ok(),
        "'{text}' is too far away: without --expires there is no end"
    );
    Ok(at)
}

/// Parses how long something works from `now` (unix seconds) on, or a moment. Returns unix seconds.
pub(super) fn parse_time(text: &str, now: i64) -> anyhow::Result<i64> {
    let after = parse_duration(text).map(|seconds| now.saturating_add(seconds));
    let Some(at) = after.or_else(|| parse_moment(text)) else {
        bail!(
            "'{text}' is no time: write how long it works, as in 90d or 12h, or when it ends, \
             as in 2027-01-31 (midnight UTC) or 2027-01-31T18:00:00Z"
        );
    };
    Ok(at)
}

/// Parses a number of seconds, minutes, hours, days or weeks. Returns seconds.
pub(super) fn parse_duration(text: &str) -> Option<i64> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let unit_s = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 60 * 60,
        "d" => DAY_S,
        "w" => 7 * DAY_S,
        _ => return None,
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = is_number.then(|| digits.parse::<i64>().unwrap_or(i64::MAX))?;
    Some(number.saturating_mul(unit_s))
}

/// Parses a moment, or a date, which stands for its beginning (UTC). Returns unix seconds.
fn parse_moment(text: &str) -> Option<i64> {
    if text.len() != DATE_CHARS {
        return text.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_second);
    }
    let day: jiff::civil::Date = text.parse().ok()?;
    Some(day.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_second())
}

/// Returns the members of a scope as JSON.
pub(super) fn scope_json(scope: &KeyScope) -> Map<String, Value> {
    let from: Vec<String> = scope.from.iter().map(ToString::to_string).collect();
    let members = [
        ("name", json!(scope.name)),
        ("tags", json!(scope.tags)),
        ("models", json!(scope.models)),
        ("endpoints", json!(scope.endpoints)),
        ("from", json!(from)),
        ("expires_at", json!(scope.expires_at)),
        ("disabled", json!(scope.disabled)),
        ("plan", json!(scope.plan)),
    ];
    members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns what a scope has to say, each after what it is about.
pub(super) fn scope_lines(scope: &KeyScope) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    lines.extend(scope.name.iter().map(|name| ("name", name.clone())));
    lines.extend(scope.tags.iter().map(|(name, value)| ("tag", format!("{name}={value}"))));
    let from: Vec<String> = scope.from.iter().map(ToString::to_string).collect();
    let lists = [("models", &scope.models), ("endpoints", &scope.endpoints), ("from", &from)];
    let lists = lists.into_iter().filter(|(_, list)| !list.is_empty());
    lines.extend(lists.map(|(what, list)| (what, list.join(", "))));
    let expires = scope.expires_at.map(|at| match jiff::Timestamp::from_second(at) {
        Ok(at) => at.to_string(),
        Err(_) => at.to_string(),
    });
    lines.extend(expires.map(|at| ("expires", at)));
    lines.extend(scope.plan.iter().map(|plan| ("plan", plan.to_string())));
    lines
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use rstest::rstest;

    use super::*;
    use crate::ledger::KeyId;

    /// 2026-11-25 13:14:15 UTC.
    const NOW: i64 = 1_795_612_455;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        changes: ScopeChanges,
    }

    fn changes(words: &[&str]) -> ScopeChanges {
        let words = ["set"].iter().chain(words);
        Line::try_parse_from(words).expect("known options").changes
    }

    fn changed(scope: &KeyScope, words: &[&str]) -> KeyScope {
        changes(words).parse(NOW).expect("known").apply(scope).expect("sound changes")
    }

    #[test]
    fn a_scope_is_changed_by_what_is_named_and_left_otherwise() {
        let words = "--name ci --models lmb-*,orgA/* --endpoints chat,models --tag a=1 --tag b=2=3";
        let words: Vec<&str> = words.split(' ').collect();
        let scope = changed(&KeyScope::default(), &words);
        let tags = scope.tags.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        assert_eq!(tags.collect::<Vec<_>>(), [("a", "1"), ("b", "2=3")]);
        assert_eq!((scope.name.as_deref(), scope.disabled), (Some("ci"), false));
        assert_eq!(scope.models, ["lmb-*", "orgA/*"]);
        assert_eq!(scope.endpoints, ["chat", "models"]);
        let limited = changed(&scope, &["--from", "10.0.0.0/8", "--expires", "90d", "--disable"]);
        assert_eq!(limited.expires_at, Some(NOW + 90 * DAY_S));
        assert_eq!(limited.from.len(), 1);
        assert!(limited.disabled && changed(&limited, &["--no-name"]).disabled);
        assert_eq!((&limited.name, &limited.models), (&scope.name, &scope.models));
        let opened = changed(&limited, &["--no-from", "--no-expiry", "--enable"]);
        assert_eq!(opened, scope);
        let words = ["--no-name", "--no-models", "--no-endpoints", "--no-tag", "a"];
        let bare = changed(&opened, &words);
        assert_eq!(changed(&bare, &["--no-tag", "b", "--no-tag", "c"]), KeyScope::default());
        assert!(changes(&[]).is_empty() && !changes(&["--enable"]).is_empty());
        assert!(!changes(&["--tag", "a=1"]).is_empty() && !changes(&["--no-tag", "a"]).is_empty());
    }

    #[test]
    fn a_rotated_key_lost_its_id_with_the_last_of_its_restrictions() {
        let id = Some(KeyId(7));
        let scope = KeyScope { id, ..changed(&KeyScope::default(), &["--plan=free", "--name=ci"]) };
        let bare = changed(&scope, &["--no-plan", "--no-name", "--no-models", "--no-expiry"]);
        assert_eq!(bare, KeyScope { id, ..KeyScope::default() });
        assert!(!changes(&["--plan=free"]).is_empty() && !changes(&["--no-plan"]).is_empty());
    }

    #[test]
    fn a_replaced_key_was_given_more_time_by_its_id() {
        let of = |expires_at| KeyScope { expires_at, ..KeyScope::default() };
        let (soon, later) = (Some(NOW + 60), Some(NOW + 3_600));
        for (own, words, end) in [
            (soon, "--no-expiry", soon),
            (soon, "--expires=1h", soon),
            (None, "--expires=1h", later),
            (later, "--expires=1m", soon),
            (None, "--no-expiry", None),
            (soon, "--name=ci", soon),
        ] {
            let changes = changes(&[words]).parse(NOW).expect("known options");
            let limited = changes.apply_to_older(&of(own)).expect("sound changes");
            assert_eq!(limited.expires_at, end, "{own:?} {words}");
        }
    }

    #[rstest]
    #[case::days("90d", NOW + 90 * DAY_S)]
    #[case::weeks("2w", NOW + 14 * DAY_S)]
    #[case::hours("12h", NOW + 43_200)]
    #[case::minutes("5m", NOW + 300)]
    #[case::seconds("1s", NOW + 1)]
    #[case::date("2027-01-31", 1_801_353_600)]
    #[case::moment("2027-01-31T18:00:00Z", 1_801_418_400)]
    #[case::zone("2027-01-31T18:00:00+01:00", 1_801_414_800)]
    fn a_key_expires_after_some_time_or_at_a_moment(#[case] text: &str, #[case] at: i64) {
        assert_eq!(parse_expiry(text, NOW).expect("a time"), at);
    }

    #[test]
    fn what_is_no_scope_is_refused_with_what_would_be_right() {
        for (words, told) in [
            (["--endpoints", "chat,char"], "'char' is no endpoint; the endpoints are chat, "),
            (["--endpoints", "completions"], "embeddings, moderations"),
            (["--endpoints", ""], "'' is no endpoint"),
            (["--models", "lmb-*,"], "the pattern of models must have 1 to 128"),
            (["--from", "10.0.0.0/40"], "'10.0.0.0/40' is no network"),
            (["--tag", "team"], "as in team=search"),
            (["--plan", "a b"], "'a b' is no name of a plan"),
            (["--name", ""], "the name must have 1 to 64"),
            (["--expires", "soon"], "as in 90d or 12h"),
            (["--expires", "2027-02-30"], "as in 90d or 12h"),
            (["--expires", "90"], "as in 90d or 12h"),
            (["--expires", "-1d"], "as in 90d or 12h"),
            (["--expires", "d"], "as in 90d or 12h"),
            (["--expires", ""], "as in 90d or 12h"),
            (["--expires", "0d"], "not in the future"),
            (
                ["--expires", "2026-11-25"],
                "the expiry '2026-11-25' is not in the future: give a time after 2026-",
            ),
            (["--expires", "99999999999999999999w"], "too far away"),
        ] {
            let words = [format!("{}={}", words[0], words[1])];
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let changes = changes(&words);
            let applied =
                changes.parse(NOW).and_then(|changes| Ok(changes.apply(&KeyScope::default())?));
            let why = applied.expect_err("no scope").to_string();
            assert!(why.contains(told), "{words:?}: {why}");
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for words in [
            ["set", "--enable", "--disable"],
            ["set", "--no-name", "--name=ci"],
            ["set", "--no-models", "--models=lmb-*"],
            ["set", "--no-endpoints", "--endpoints=chat"],
            ["set", "--no-from", "--from=::/0"],
            ["set", "--no-expiry", "--expires=90d"],
            ["set", "--no-plan", "--plan=free"],
        ] {
            assert!(Line::try_parse_from(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn a_scope_is_shown_by_what_it_has() {
        let words = ["--name=ci", "--models=lmb-*,a", "--from=10.0.0.0/8", "--tag=team=search"];
        let scope = changed(&KeyScope::default(), &words);
        let scope = changed(&scope, &["--expires=2027-01-31", "--endpoints=chat", "--disable"]);
        let scope = changed(&scope, &["--plan=free"]);
        let lines = scope_lines(&scope);
        let lines: Vec<_> = lines.iter().map(|(what, text)| (*what, text.as_str())).collect();
        let expected = [
            ("name", "ci"),
            ("tag", "team=search"),
            ("models", "lmb-*, a"),
            ("endpoints", "chat"),
            ("from", "10.0.0.0/8"),
            ("expires", "2027-01-31T00:00:00Z"),
            ("plan", "free"),
        ];
        assert_eq!(lines, expected);
        let members = json!({
            "name": "ci", "tags": { "team": "search" }, "models": ["lmb-*", "a"],
            "endpoints": ["chat"], "from": ["10.0.0.0/8"], "expires_at": 1_801_353_600,
            "disabled": true, "plan": "free",
        });
        assert_eq!(Value::Object(scope_json(&scope)), members);
        assert!(scope_lines(&KeyScope::default()).is_empty());
    }
}
