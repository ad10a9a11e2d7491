//! The plans of the rules, by their names.

use super::error::{ManagementError, parse_plan_name};
use crate::catalogue::{Plan, Plans};
use crate::toml_reader::closest_word;

/// Finds a plan by its name.
pub(crate) fn find_plan<'a>(plans: &'a Plans, name: &str) -> Result<&'a Plan, ManagementError> {
    if let Some(plan) = plans.find(&parse_plan_name(name)?) {
        return Ok(plan);
    }
    let names: Vec<&str> = plans.iter().map(|plan| plan.name.as_str()).collect();
    let hint = if names.is_empty() {
        ": the rules have no plans".to_owned()
    } else {
        match closest_word(name, names.iter().copied()) {
            Some(closest) => format!("; closest is '{closest}'"),
            None => format!("; the plans are {}", names.join(", ")),
        }
    };
    let message = format!("there is no plan '{name}'{hint}");
    Err(ManagementError::Invalid { field: "plan", message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_plan_is_refused_with_what_would_be_right() {
        let why = find_plan(&Plans::default(), "free").expect_err("no plan").to_string();
        assert_eq!(why, "there is no plan 'free': the rules have no plans");
    }
}
