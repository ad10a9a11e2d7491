//! The fields of a request.

use super::blocks::{self, Place};
use super::cache;
use super::family::Family;
use super::node::{Node, Verdict};
use super::{Terms, tools, turns};

const FIELDS: &str = "model max_tokens messages system stop_sequences stream temperature top_p \
    top_k tools tool_choice thinking output_config metadata cache_control service_tier speed \
    inference_geo container diagnostics";
/// Those which need a beta header.
const BETA_FIELDS: &str = "fallbacks mcp_servers context_management compaction billing_policy \
    thread";
const BREAKPOINTS_MAX: usize = 4;
const THINKING_TOKENS_MIN: u64 = 1024;

/// Refuses a request that the vendor refuses.
pub(super) fn check(root: &Node<'_>, family: &Family, terms: &Terms) -> Verdict {
    root.only(&[FIELDS, if terms.beta { BETA_FIELDS } else { "" }])?;
    let bound = root.need("max_tokens")?;
    let tokens_max = bound.count(0)?;
    if tokens_max > family.output_max() {
        let most = family.output_max();
        return Err(bound.fault(&format!(
            "{tokens_max} > {most}, which is the maximum allowed number of output tokens"
        )));
    }
    if let Some(stream) = root.get("stream") {
        stream.boolean()?;
    }
    sampling(root, family, terms)?;
    system(root)?;
    stop_sequences(root)?;
    thinking(root, tokens_max)?;
    output_config(root, family)?;
    metadata(root)?;
    for (name, known) in
        [("service_tier", &["auto", "standard_only"][..]), ("speed", &["standard", "fast"])]
    {
        root.get(name).map(|node| node.one_of(known)).transpose()?;
    }
    root.get("inference_geo").filter(|geo| !geo.value.is_null()).map(|g| g.text()).transpose()?;
    blocks::cache_control(root)?;
    tools::check(root, family)?;
    turns::check(root, family)?;
    breakpoints(root)
}

fn sampling(root: &Node<'_>, family: &Family, terms: &Terms) -> Verdict {
    for name in ["temperature", "top_p", "top_k"] {
        let Some(node) = root.get(name) else { continue };
        if terms.without_sampling() {
            return Err(node.fault("Extra inputs are not permitted"));
        }
        if !family.samples() {
            return Err(format!("`{name}` is deprecated for this model."));
        }
        if name == "top_k" {
            node.count(0)?;
        } else {
            node.share()?;
        }
    }
    if root.get("temperature").is_some() && root.get("top_p").is_some() {
        return Err("`temperature` and `top_p` cannot both be specified for this model. \
            Please use only one."
            .to_owned());
    }
    Ok(())
}

fn system(root: &Node<'_>) -> Verdict {
    match root.get("system") {
        Some(system) if !system.value.is_string() => {
            system.items()?.iter().try_for_each(|block| blocks::check(block, Place::System))
        }
        _ => Ok(()),
    }
}

fn stop_sequences(root: &Node<'_>) -> Verdict {
    let Some(stops) = root.get("stop_sequences") else { return Ok(()) };
    for stop in stops.items()? {
        if stop.text()?.trim().is_empty() {
            return Err("stop_sequences: each stop sequence must contain non-whitespace".into());
        }
    }
    Ok(())
}

fn thinking(root: &Node<'_>, tokens_max: u64) -> Verdict {
    let Some(thinking) = root.get("thinking") else { return Ok(()) };
    let known = ["enabled", "disabled", "adaptive", "between_tools"];
    let kind = thinking.need("type")?.one_of(&known)?;
    let node = thinking.tagged(kind);
    match kind {
        "enabled" => {
            node.only(&["type budget_tokens display"])?;
            let budget = node.need("budget_tokens")?;
            if budget.count(THINKING_TOKENS_MIN)? >= tokens_max {
                let why = "`max_tokens` must be greater than `thinking.budget_tokens`";
                return Err(why.to_owned());
            }
            let forced = root.value["tool_choice"]["type"].as_str();
            if matches!(forced, Some("any" | "tool")) {
                let why = "Thinking may not be enabled when tool_choice forces tool use.";
                return Err(why.to_owned());
            }
        }
        "adaptive" => node.only(&["type display"])?,
        _ => node.only(&["type"])?,
    }
    let display = node.get("display");
    display.map(|display| display.one_of(&["summarized", "omitted"])).transpose().map(|_| ())
}

fn output_config(root: &Node<'_>, family: &Family) -> Verdict {
    let Some(config) = root.get("output_config") else { return Ok(()) };
    config.only(&["effort format"])?;
    let given = |name| config.get(name).filter(|node| !node.value.is_null());
    if let Some(effort) = given("effort") {
        effort.one_of(&["low", "medium", "high", "xhigh", "max"])?;
        if !family.knows_effort() {
            return Err("This model does not support the effort parameter.".to_owned());
        }
    }
    let Some(format) = given("format") else { return Ok(()) };
    format.only(&["type schema"])?;
    format.need("type")?.one_of(&["json_schema"])?;
    let schema = format.need("schema")?;
    if schema.value.is_object() {
        return Ok(());
    }
    Err(schema.fault("Input should be a valid dictionary"))
}

fn metadata(root: &Node<'_>) -> Verdict {
    let Some(metadata) = root.get("metadata") else { return Ok(()) };
    metadata.only(&["user_id"])?;
    let Some(user) = metadata.get("user_id").filter(|user| !user.value.is_null()) else {
        return Ok(());
    };
    if user.text()?.chars().count() > 256 {
        return Err(user.fault("String should have at most 256 characters"));
    }
    Ok(())
}

fn breakpoints(root: &Node<'_>) -> Verdict {
    let lives = cache::lives(root.value);
    let count = lives.len();
    if count > BREAKPOINTS_MAX {
        return Err(format!(
            "A maximum of {BREAKPOINTS_MAX} blocks with cache_control may be provided. \
             Found {count}."
        ));
    }
    if lives.is_sorted_by(|first, second| first >= second) {
        return Ok(());
    }
    Err("a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block. \
        Note that blocks are processed in the following order: `tools`, `system`, `messages`."
        .to_owned())
}
