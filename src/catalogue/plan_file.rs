//! The file of the plans: the rate limits that accounts and keys may have, and the models that they
//! are for.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::sync::Arc;

use super::model::Model;
use super::named_tables;
use super::offer::Catalogue;
use super::plan::{ModelLimits, Plan, PlanLimits, Plans};
use crate::ledger::prepaid::rate::RATE_UNITS_MAX;
use crate::ledger::{PlanName, matches_pattern};
use crate::toml_reader::{ConfigError, SpannedValue, TableReader, TomlValue};

/// The name of the file in the folder of the rules.
const FILE_NAME: &str = "plans.toml";
/// The most tables `of` of a plan. A call may count for each of them.
const NARROWER_MAX: usize = 64;
/// The keys of the limits, in a plan and in its tables `of`.
const LIMIT_KEYS: [&str; 3] = ["requests_per_minute", "tokens_per_minute", "calls"];

/// Whether a file of the rules is that of the plans, and no vendor's.
#[must_use]
pub(super) fn is_plan_file(file: &str) -> bool {
    named_tables::has_name(file, FILE_NAME)
}

/// Parses the file of the plans, and adds every fault to `faults`. Each pattern must match a model
/// of `catalogue`; without it the patterns are not checked against models.
pub(super) fn parse(
    file: &str,
    text: &str,
    catalogue: Option<&Catalogue>,
    faults: &mut Vec<ConfigError>,
) -> Plans {
    let rows = named_tables::parse(file, text, "plan", "plans", faults);
    let plan = |(name, node): (String, SpannedValue)| parse_plan(&name, node, catalogue, faults);
    Plans::new(rows.into_iter().filter_map(plan).collect())
}

/// Parses a plan; `None` if its name is none.
fn parse_plan(
    name: &str,
    node: SpannedValue,
    catalogue: Option<&Catalogue>,
    faults: &mut Vec<ConfigError>,
) -> Option<Plan> {
    let is_table = matches!(node.value, TomlValue::Table(_));
    let mut row = TableReader::open(node, faults);
    let plan_name = PlanName::parse(name);
    if plan_name.is_none() {
        let what = "is no name of a plan: it has 1 to 64 letters, digits, '-' and '_'";
        faults.push(row.location.error(format!("'{name}' {what}")));
    }
    if is_table && !has_limits(&row) && !row.has("models") && !row.has("of") {
        let what = format!("a plan needs {}, models or of", LIMIT_KEYS.join(", "));
        faults.push(row.location.error(what));
    }
    let limits = parse_limits(&mut row, faults);
    let models = parse_patterns(&mut row, catalogue, faults);
    let is_shadow = parse_mode(&mut row, faults);
    let narrower = parse_narrower(name, &mut row, catalogue, faults);
    row.finish(faults);
    Some(Plan { name: plan_name?, limits, narrower, models, is_shadow })
}

/// Whether a table has a limit that was not read yet.
fn has_limits(row: &TableReader) -> bool {
    LIMIT_KEYS.iter().any(|key| row.has(key))
}

fn parse_limits(row: &mut TableReader, faults: &mut Vec<ConfigError>) -> PlanLimits {
    let [requests_per_minute, tokens_per_minute, calls] =
        LIMIT_KEYS.map(|key| parse_units(row, key, faults));
    PlanLimits { requests_per_minute, tokens_per_minute, calls }
}

/// Reads the units of a limit: a whole number, or a text such as `"40K"`.
fn parse_units(
    row: &mut TableReader,
    key: &'static str,
    faults: &mut Vec<ConfigError>,
) -> Option<i64> {
    let node = row.take_value(key)?;
    let units = match &node.value {
        TomlValue::Text(text) | TomlValue::Number(text) => read_units(text),
        _ => None,
    };
    if units.is_none() {
        let range = format!("a whole number from 0 to {RATE_UNITS_MAX}");
        let what = format!("'{key}' must be {range}, such as 40, \"40K\" or \"2M\"");
        faults.push(node.location.error(what));
    }
    units
}

/// Reads digits, of which K makes thousands and M millions; `None` if that is no number of units.
fn read_units(text: &str) -> Option<i64> {
    let factors = [('K', 1_000), ('M', 1_000_000)];
    let scaled = factors.into_iter().find_map(|(letter, factor)| {
        let digits = text.strip_suffix(letter)?;
        Some((digits, factor))
    });
    let (digits, factor) = scaled.unwrap_or((text, 1));
    // The parser of numbers takes a sign, too.
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let count: i64 = digits.parse().ok().filter(|_| is_plain)?;
    count.checked_mul(factor).filter(|units| *units <= RATE_UNITS_MAX)
}

/// Reads whether the limits of a plan refuse nothing.
fn parse_mode(row: &mut TableReader, faults: &mut Vec<ConfigError>) -> bool {
    let Some(node) = row.take_value("mode") else { return false };
    match &node.value {
        TomlValue::Text(mode) if mode == "shadow" => true,
        TomlValue::Text(mode) if mode == "enforce" => false,
        _ => {
            faults.push(node.location.error("'mode' must be \"enforce\" or \"shadow\""));
            false
        }
    }
}

/// Reads patterns of models; none if the key is absent.
fn parse_patterns(
    row: &mut TableReader,
    catalogue: Option<&Catalogue>,
    faults: &mut Vec<ConfigError>,
) -> Vec<String> {
    let Some(node) = row.take_value("models") else { return Vec::new() };
    let items = match node.value {
        TomlValue::List(items) => items,
        other => {
            let what = format!("'models' must be a list, not {}", other.kind_name());
            faults.push(node.location.error(what));
            return Vec::new();
        }
    };
    if items.is_empty() {
        faults.push(node.location.error("'models' must have an id or a pattern at least"));
    }
    items.into_iter().filter_map(|item| parse_pattern(item, catalogue, faults)).collect()
}

fn parse_pattern(
    node: SpannedValue,
    catalogue: Option<&Catalogue>,
    faults: &mut Vec<ConfigError>,
) -> Option<String> {
    let pattern = match node.value {
        TomlValue::Text(text) => text,
        other => {
            let what = format!("'models' must have texts, not {}", other.kind_name());
            faults.push(node.location.error(what));
            return None;
        }
    };
    if pattern.is_empty() {
        faults.push(node.location.error("a pattern must not be empty; \"*\" is for all models"));
        return None;
    }
    let is_match = |model: &Arc<Model>| matches_pattern(&pattern, &model.id);
    if let Some(catalogue) = catalogue
        && !catalogue.models().iter().any(is_match)
    {
        let closest = closest_id(catalogue, &pattern);
        let what = format!("'{pattern}' matches no model on offer; closest is '{closest}'");
        faults.push(node.location.error(what));
    }
    Some(pattern)
}

/// Returns the id that was probably meant by a pattern. Where something stands before its first
/// `*`, that is compared with the beginnings of the ids.
fn closest_id<'a>(catalogue: &'a Catalogue, pattern: &str) -> &'a str {
    match pattern.split_once('*') {
        Some((beginning, _)) if !beginning.is_empty() => {
            let length = beginning.chars().count();
            let distance = |model: &&Arc<Model>| {
                let of_model: String = model.id.chars().take(length).collect();
                strsim::damerau_levenshtein(beginning, &of_model)
            };
            let nearest = catalogue.models().iter().min_by_key(distance);
            nearest.map_or("", |model| model.id.as_str())
        }
        _ => catalogue.closest_name(&pattern.replace('*', ""), None).unwrap_or_default(),
    }
}

/// Reads the further limits of the plan `name`.
fn parse_narrower(
    name: &str,
    row: &mut TableReader,
    catalogue: Option<&Catalogue>,
    faults: &mut Vec<ConfigError>,
) -> Vec<ModelLimits> {
    let Some(node) = row.take_value("of") else { return Vec::new() };
    let TomlValue::List(items) = node.value else {
        let what = format!("'of' must be a list of tables, each below a line [[plan.{name}.of]]");
        faults.push(node.location.error(what));
        return Vec::new();
    };
    if let Some(item) = items.get(NARROWER_MAX) {
        let what = format!("a plan has at most {NARROWER_MAX} tables 'of', not {}", items.len());
        faults.push(item.location.error(what));
    }
    items.into_iter().map(|item| parse_model_limits(item, catalogue, faults)).collect()
}

fn parse_model_limits(
    node: SpannedValue,
    catalogue: Option<&Catalogue>,
    faults: &mut Vec<ConfigError>,
) -> ModelLimits {
    let is_table = matches!(node.value, TomlValue::Table(_));
    let mut row = TableReader::open(node, faults);
    if is_table && !row.has("models") {
        faults.push(row.location.error("'models' is required: the models of these limits"));
    }
    if is_table && !has_limits(&row) {
        let what = format!("a table 'of' needs a limit: {}", LIMIT_KEYS.join(", "));
        faults.push(row.location.error(what));
    }
    let models = parse_patterns(&mut row, catalogue, faults);
    let limits = parse_limits(&mut row, faults);
    row.finish(faults);
    ModelLimits { models, limits }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const RULES: &str = "vendor = \"vendor_y\"\ndialect = \"chat\"\nauth = { header = \"x\" }\n\
                         estimate = { output_tokens = 1, image_tokens = 1, document_tokens = 1 }\n\
                         [chat]\n\"orgA/one\" = { input = 1, output = 1, context = 1000 }\n\
                         \"y-nano\" = { input = 1, output = 1, context = 1000 }\n";

    /// Parses the rules of a vendor and, if there is one, a file of plans.
    fn parse_rules(rules: &str, plans: Option<&str>) -> Result<Catalogue, Vec<String>> {
        let plans = plans.map(|text| ("r/plans.toml", text));
        let sources = plans.into_iter().chain([("r/vendor_y.toml", rules)]);
        let sources = sources.map(|(file, text)| (file.to_owned(), text.to_owned()));
        let messages = |faults: Vec<ConfigError>| faults.iter().map(ToString::to_string).collect();
        Catalogue::parse(&sources.collect::<Vec<_>>(), &[]).map_err(messages)
    }

    fn parse_plans(text: &str) -> Plans {
        parse_rules(RULES, Some(text)).expect("sound plans").plans
    }

    fn find_faults(text: &str) -> Vec<String> {
        parse_rules(RULES, Some(text)).expect_err("faults")
    }

    fn limits(requests: Option<i64>, tokens: Option<i64>, calls: Option<i64>) -> PlanLimits {
        PlanLimits { requests_per_minute: requests, tokens_per_minute: tokens, calls }
    }

    #[test]
    fn a_plan_is_what_its_file_says() {
        let plans = parse_plans(
            "[plan.free]\nrequests_per_minute = 20\ntokens_per_minute = \"40K\"\ncalls = 4\n\
             models = [\"orgA/*\", \"y-nano\"]\n\
             [[plan.free.of]]\nmodels = [\"y-*\"]\ntokens_per_minute = \"2M\"\n\
             [[plan.free.of]]\nmodels = [\"*\"]\nrequests_per_minute = 0\n\
             [plan.default]\ncalls = 256\n\
             [plan.trial]\nmode = \"shadow\"\nrequests_per_minute = 1_000_000_000\n\
             [plan.nano]\nmode = \"enforce\"\nmodels = [\"y-nano\"]\n",
        );
        let names: Vec<_> = plans.iter().map(|plan| plan.name.as_str()).collect();
        assert_eq!(names, ["default", "free", "nano", "trial"]);
        assert_eq!(plans.count(), 4);
        let find = |name| plans.find(&PlanName::parse(name).expect("a name"));
        let free = find("free").expect("the plan");
        assert_eq!(free.limits, limits(Some(20), Some(40_000), Some(4)));
        assert_eq!(free.models, ["orgA/*", "y-nano"]);
        assert!(!free.is_shadow);
        let narrower = free.narrower.iter().map(|of| (of.limits, of.models.join(" ")));
        let narrower: Vec<_> = narrower.collect();
        let expected = [
            (limits(None, Some(2_000_000), None), "y-*".to_owned()),
            (limits(Some(0), None, None), "*".to_owned()),
        ];
        assert_eq!(narrower, expected);
        let trial = find("trial").expect("the plan");
        assert_eq!(trial.limits, limits(Some(RATE_UNITS_MAX), None, None));
        assert!(trial.is_shadow && trial.models.is_empty() && trial.narrower.is_empty());
        let nano = find("nano").expect("the plan");
        assert!(!nano.is_shadow && nano.limits == PlanLimits::default());
        assert_eq!(plans.default_plan(), find("default"));
        assert_eq!(plans.default_plan().and_then(|plan| plan.limits.calls), Some(256));
        assert_eq!(find("fre"), None);
    }

    #[test]
    fn all_faults_are_told_at_once_each_with_its_line() {
        let faults = find_faults(
            "[plan.free]\nrequests_per_minute = -1\ntokens_per_minute = \"40k\"\ncalls = 1.5\n\
             models = [\"orgB/*\", \"\", 7,\n\"y-nona\"]\nmode = \"off\"\nburst = 3\n\
             [[plan.free.of]]\nmodels = []\ntokens_per_minute = true\n\
             [[plan.free.of]]\ncalls = 1\n[[plan.free.of]]\nmodels = [\"*\"]\n\
             [plan.empty]\n[plan.\"a b\"]\ncalls = 1\n\
             [plan.one]\nmodels = \"*\"\n[plan.one.of]\ncalls = 1\n[plans.free]\ncalls = 1\n",
        );
        let range = "must be a whole number from 0 to 1000000000, such as 40, \"40K\" or \"2M\"";
        let keys = "requests_per_minute, tokens_per_minute, calls";
        let expected = [
            "23: unknown key 'plans'; closest is 'plan'".to_owned(),
            format!("2: 'requests_per_minute' {range}"),
            format!("3: 'tokens_per_minute' {range}"),
            format!("4: 'calls' {range}"),
            "5: 'orgB/*' matches no model on offer; closest is 'orgA/one'".to_owned(),
            "5: a pattern must not be empty; \"*\" is for all models".to_owned(),
            "5: 'models' must have texts, not a number".to_owned(),
            "6: 'y-nona' matches no model on offer; closest is 'y-nano'".to_owned(),
            "7: 'mode' must be \"enforce\" or \"shadow\"".to_owned(),
            "10: 'models' must have an id or a pattern at least".to_owned(),
            format!("11: 'tokens_per_minute' {range}"),
            "12: 'models' is required: the models of these limits".to_owned(),
            format!("14: a table 'of' needs a limit: {keys}"),
            format!("8: unknown key 'burst'; known are {keys}, models, mode, of"),
            format!("16: a plan needs {keys}, models or of"),
            "17: 'a b' is no name of a plan: it has 1 to 64 letters, digits, '-' and '_'"
                .to_owned(),
            "20: 'models' must be a list, not a text".to_owned(),
            "21: 'of' must be a list of tables, each below a line [[plan.one.of]]".to_owned(),
        ];
        let expected: Vec<_> =
            expected.iter().map(|fault| format!("r/plans.toml:{fault}")).collect();
        assert_eq!(faults, expected);
    }

    #[rstest]
    #[case::plan("plan = 3\n", "r/plans.toml:1: expected a table, found a number")]
    #[case::row("[plan]\nfree = 3\n", "r/plans.toml:2: expected a table, found a number")]
    #[case::of("[plan.a]\nof = [\n3]\n", "r/plans.toml:3: expected a table, found a number")]
    fn what_is_no_table_is_told_once(#[case] text: &str, #[case] fault: &str) {
        assert_eq!(find_faults(text), [fault]);
    }

    #[test]
    fn a_number_is_plain_and_may_have_a_letter_behind_it() {
        let numbers = [
            ("0", Some(0)),
            ("007", Some(7)),
            ("40K", Some(40_000)),
            ("1000M", Some(RATE_UNITS_MAX)),
            ("1000000000", Some(RATE_UNITS_MAX)),
        ];
        for (text, units) in numbers {
            assert_eq!(read_units(text), units, "{text}");
        }
        let others = ",K,M,+1,-1,1k,1G,1 K,1KK,1_0,1e3,0.5M,1001M,1000000001,\
                      9223372036854775807M,99999999999999999999";
        for text in others.split(',') {
            assert_eq!(read_units(text), None, "{text}");
        }
    }

    #[test]
    fn more_plans_or_narrower_limits_than_a_gateway_looks_through_are_a_fault() {
        let plans = |count: usize| -> String {
            (0..count).map(|n| format!("[plan.p{n}]\ncalls = 1\n")).collect()
        };
        assert_eq!(parse_plans(&plans(named_tables::TABLES_MAX)).count(), named_tables::TABLES_MAX);
        let told = "r/plans.toml:2001: a file has at most 1000 plans, not 1001";
        assert_eq!(find_faults(&plans(named_tables::TABLES_MAX + 1)), [told]);
        let of = |count| "[[plan.a.of]]\nmodels = [\"*\"]\ncalls = 1\n".repeat(count);
        let plans = parse_plans(&of(NARROWER_MAX));
        let counts: Vec<_> = plans.iter().map(|plan| plan.narrower.len()).collect();
        assert_eq!(counts, [NARROWER_MAX]);
        let told = "r/plans.toml:193: a plan has at most 64 tables 'of', not 65";
        assert_eq!(find_faults(&of(NARROWER_MAX + 1)), [told]);
    }

    #[test]
    fn a_model_that_a_fault_hides_is_not_missed_by_a_plan() {
        let rules = RULES.replace("\"y-nano\"", "y nano");
        let plans = "[plan.a]\nmodels = [\"y-nano\"]\nmode = 1\n";
        let faults = parse_rules(&rules, Some(plans)).expect_err("faults");
        let of_plans: Vec<_> = faults.iter().filter(|fault| fault.contains("plans.toml")).collect();
        assert_eq!(of_plans, ["r/plans.toml:3: 'mode' must be \"enforce\" or \"shadow\""]);
        assert!(faults.len() > 1, "{faults:?}");
    }

    #[test]
    fn plans_changed_the_version_of_the_prices() {
        let version = |plans| parse_rules(RULES, plans).expect("sound rules").version;
        let without = version(None);
        assert_eq!(version(Some("[plan.default]\ncalls = 1\n")), without);
        assert_eq!(version(Some("# later\n")), without);
    }

    #[test]
    fn without_their_file_and_with_the_one_that_is_shipped_there_are_no_plans() {
        let shipped = include_str!("../../lua-free-rules/plans.toml");
        for plans in [None, Some(shipped)] {
            let catalogue = parse_rules(RULES, plans).expect("sound rules");
            assert_eq!(catalogue.plans, Plans::default());
            assert_eq!(catalogue.plans.default_plan(), None);
        }
    }

    #[test]
    fn only_the_file_of_that_very_name_has_the_plans() {
        for (file, is_it) in [
            ("plans.toml", true),
            ("lua-free-rules/plans.toml", true),
            ("r/plans.toml/vendor_y.toml", false),
            ("r/my-plans.toml", false),
            ("r/plans", false),
        ] {
            assert_eq!(is_plan_file(file), is_it, "{file}");
        }
    }
}
