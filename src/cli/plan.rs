//! `tollgate plan`: the plans of the rules.

use clap::Subcommand;
use serde_json::{Map, Value, json};

use super::output::{OutputFormat, print_line};
use super::rules::load_catalogue;
use crate::catalogue::Plan;
use crate::catalogue::plan::PlanLimits;
use crate::conf::Config;
use crate::management::error::parse_plan_name;
use crate::management::plans::find_plan;

#[derive(Debug, Subcommand)]
pub(super) enum PlanCommand {
    /// List all plans.
    List,
    /// Show a plan.
    Show {
        /// Its name.
        name: String,
    },
}

pub(super) fn run(conf: &Config, command: &PlanCommand, out: OutputFormat) -> anyhow::Result<()> {
    let plans = load_catalogue(conf)?.plans;
    match command {
        PlanCommand::List => {
            for plan in plans.iter() {
                if out.json {
                    print_line(format_args!("{}", plan_json(plan)))?;
                } else {
                    print_line(format_args!("{:<16} {}", plan.name.as_str(), sum_up(plan)))?;
                }
            }
            Ok(())
        }
        PlanCommand::Show { name } => show_plan(find_plan(&plans, name)?, out),
    }
}

/// Checks that the rules have the plan that a command is given. If they cannot be read here, the
/// command goes on: its machine need not be that of the gateway.
pub(super) fn check_plan(conf: &Config, name: Option<&str>) -> anyhow::Result<()> {
    let Some(name) = name else { return Ok(()) };
    parse_plan_name(name)?;
    match load_catalogue(conf) {
        Ok(catalogue) => Ok(find_plan(&catalogue.plans, name).map(drop)?),
        Err(why) => {
            eprintln!("tollgate: whether there is a plan '{name}' is not known: {why:#}");
            Ok(())
        }
    }
}

fn show_plan(plan: &Plan, out: OutputFormat) -> anyhow::Result<()> {
    if out.json {
        print_line(format_args!("{}", plan_json(plan)))?;
        return Ok(());
    }
    print_line(format_args!("plan         {}", plan.name))?;
    print_line(format_args!("limits       {}", describe_limits(plan.limits)))?;
    for narrower in &plan.narrower {
        let (models, limits) = (narrower.models.join(", "), describe_limits(narrower.limits));
        print_line(format_args!("narrower     {models}: {limits}"))?;
    }
    if !plan.models.is_empty() {
        print_line(format_args!("models       {}", plan.models.join(", ")))?;
    }
    if plan.is_shadow {
        print_line(format_args!("mode         shadow: it counts and refuses nothing"))?;
    }
    Ok(())
}

/// Returns a line about a plan.
fn sum_up(plan: &Plan) -> String {
    let mut text = describe_limits(plan.limits);
    for narrower in &plan.narrower {
        text.push_str("; ");
        text.push_str(&narrower.models.join(", "));
        text.push_str(": ");
        text.push_str(&describe_limits(narrower.limits));
    }
    if !plan.models.is_empty() {
        text.push_str("; only ");
        text.push_str(&plan.models.join(", "));
    }
    if plan.is_shadow {
        text.push_str(" (shadow)");
    }
    text
}

/// The limits of a plan in order, each with its name as JSON and in words.
fn named_limits(limits: PlanLimits) -> [(&'static str, &'static str, Option<i64>); 3] {
    let PlanLimits { requests_per_minute, tokens_per_minute, calls } = limits;
    [
        ("requests_per_minute", "requests a minute", requests_per_minute),
        ("tokens_per_minute", "tokens a minute", tokens_per_minute),
        ("calls", "calls at a time", calls),
    ]
}

fn describe_limits(limits: PlanLimits) -> String {
    let given = named_limits(limits).into_iter().filter_map(|(_, words, limit)| {
        let limit = limit?;
        Some(format!("{limit} {words}"))
    });
    let given: Vec<String> = given.collect();
    if given.is_empty() { "no limits".to_owned() } else { given.join(", ") }
}

fn limits_json(limits: PlanLimits) -> Map<String, Value> {
    let limits = named_limits(limits).into_iter();
    limits.map(|(name, _, limit)| (name.to_owned(), json!(limit))).collect()
}

fn plan_json(plan: &Plan) -> Value {
    let narrower = plan.narrower.iter().map(|narrower| {
        let mut members = limits_json(narrower.limits);
        members.insert("models".to_owned(), json!(narrower.models));
        Value::Object(members)
    });
    let narrower: Vec<Value> = narrower.collect();
    let mut members = limits_json(plan.limits);
    members.insert("name".to_owned(), json!(plan.name));
    members.insert("models".to_owned(), json!(plan.models));
    members.insert("of".to_owned(), Value::Array(narrower));
    members.insert("shadow".to_owned(), plan.is_shadow.into());
    Value::Object(members)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::plan::ModelLimits;

    fn free() -> Plan {
        let limits = PlanLimits { requests_per_minute: Some(20), calls: Some(4), ..none() };
        let of_some = PlanLimits { tokens_per_minute: Some(10_000), ..none() };
        let narrower = ModelLimits { models: vec!["lma-*".to_owned()], limits: of_some };
        Plan {
            name: parse_plan_name("free").expect("a name"),
            limits,
            narrower: vec![narrower],
            models: vec!["orgA/*".to_owned(), "lmb-5-nano".to_owned()],
            is_shadow: true,
        }
    }

    fn none() -> PlanLimits {
        PlanLimits::default()
    }

    #[test]
    fn a_plan_is_told_by_what_it_limits() {
        let told = "20 requests a minute, 4 calls at a time; lma-*: 10000 tokens a minute; \
                    only orgA/*, lmb-5-nano (shadow)";
        assert_eq!(sum_up(&free()), told);
        let open = Plan { limits: none(), narrower: Vec::new(), models: Vec::new(), ..free() };
        assert_eq!(sum_up(&Plan { is_shadow: false, ..open }), "no limits");
        let expected = json!({
            "name": "free", "requests_per_minute": 20, "tokens_per_minute": null, "calls": 4,
            "models": ["orgA/*", "lmb-5-nano"], "shadow": true,
            "of": [{
                "models": ["lma-*"], "requests_per_minute": null, "tokens_per_minute": 10_000,
                "calls": null,
            }],
        });
        assert_eq!(plan_json(&free()), expected);
    }

    #[test]
    fn what_is_no_name_of_a_plan_is_refused_with_what_would_be_right() {
        for text in ["", "a b", "frée", &"a".repeat(65)] {
            let why = parse_plan_name(text).expect_err("no name").to_string();
            assert!(why.contains("1 to 64 letters"), "{why}");
        }
    }
}
