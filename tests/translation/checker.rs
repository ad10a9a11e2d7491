//! What the vendor demands of a messages request, checked as strictly as it does.

use serde_json::{Map, Value as Json};

type Members = Map<String, Json>;
pub(crate) type Verdict = Result<(), String>;

/// Whether the vendor would take a body.
pub(crate) fn check(body: &[u8]) -> Verdict {
    let body: Json = serde_json::from_slice(body).map_err(|e| format!("no JSON: {e}"))?;
    let body = object(
        &body,
        &["model", "max_tokens", "messages"],
        &[
            "system",
            "stop_sequences",
            "stream",
            "temperature",
            "top_p",
            "tools",
            "tool_choice",
            "output_config",
            "metadata",
        ],
    )?;
    demand(body["model"].as_str().is_some_and(|m| !m.is_empty()), "a model")?;
    demand(body["max_tokens"].as_u64().is_some(), "max_tokens is whole")?;
    demand(body.get("stream").is_none_or(Json::is_boolean), "stream is a boolean")?;
    let (temperature, top_p) = (body.get("temperature"), body.get("top_p"));
    demand(temperature.is_none() || top_p.is_none(), "one of temperature and top_p")?;
    if let Some(system) = body.get("system") {
        filled(system)?.iter().try_for_each(text_block)?;
    }
    if let Some(stop) = body.get("stop_sequences") {
        for entry in filled(stop)? {
            demand(entry.as_str().is_some_and(|s| !s.trim().is_empty()), "stops that are text")?;
        }
    }
    if let Some(metadata) = body.get("metadata") {
        let user = object(metadata, &["user_id"], &[])?["user_id"].as_str().unwrap_or_default();
        let hex = |c: char| matches!(c, '0'..='9' | 'a'..='f');
        demand(user.len() == 64 && user.chars().all(hex), "a user that is a digest")?;
    }
    output_config(body.get("output_config"))?;
    let called = messages(&body["messages"])?;
    demand(!called || body.contains_key("tools"), "definitions of what was called")?;
    tools(body)
}

fn output_config(config: Option<&Json>) -> Verdict {
    let Some(config) = config else { return Ok(()) };
    let config = object(config, &[], &["effort", "format"])?;
    demand(!config.is_empty(), "an output_config of something")?;
    if let Some(effort) = config.get("effort") {
        let known = ["low", "medium", "high", "xhigh", "max"];
        demand(effort.as_str().is_some_and(|e| known.contains(&e)), "a known effort")?;
    }
    if let Some(format) = config.get("format") {
        let format = object(format, &["type", "schema"], &[])?;
        demand(format["type"] == "json_schema", "a known format")?;
        demand(format["schema"].is_object(), "a schema")?;
    }
    Ok(())
}

fn tools(body: &Members) -> Verdict {
    let mut names = Vec::new();
    if let Some(tools) = body.get("tools") {
        for tool in filled(tools)? {
            let may = ["description", "cache_control", "strict"];
            let tool = object(tool, &["name", "input_schema"], &may)?;
            demand(tool.get("strict").is_none_or(|strict| *strict == true), "a flag that is true")?;
            names.push(tool["name"].as_str().ok_or("a tool's name is text")?);
            demand(tool["input_schema"]["type"] == "object", "a schema of an object")?;
            demand(tool.get("description").is_none_or(Json::is_string), "a description of text")?;
            mark(tool)?;
        }
    }
    let Some(choice) = body.get("tool_choice") else { return Ok(()) };
    demand(!names.is_empty(), "tools to choose from")?;
    let flag = "disable_parallel_tool_use";
    let choice = match choice["type"].as_str().unwrap_or_default() {
        "none" => object(choice, &["type"], &[])?,
        "auto" | "any" => object(choice, &["type"], &[flag])?,
        "tool" => object(choice, &["type", "name"], &[flag])?,
        other => return Err(format!("a tool_choice of type '{other}'")),
    };
    demand(choice.get(flag).is_none_or(|f| *f == true), "a flag that is true")
}

/// Checks the turns; tells whether any has a call.
fn messages(messages: &Json) -> Result<bool, String> {
    let turns = filled(messages)?;
    let mut called = false;
    // The assistant may begin.
    let ahead = usize::from(turns[0]["role"] == "assistant");
    for (i, turn) in turns.iter().enumerate() {
        let turn = object(turn, &["role", "content"], &[])?;
        let expected = if (i + ahead) % 2 == 0 { "user" } else { "assistant" };
        demand(turn["role"] == expected, "turns that alternate")?;
        let blocks = filled(&turn["content"])?;
        if expected == "user" {
            user_turn(blocks)?;
        } else {
            called |= assistant_turn(blocks)?;
        }
    }
    let last = turns.last().filter(|turn| turn["role"] == "assistant");
    let last = last.and_then(|turn| turn["content"].as_array()?.last()?["text"].as_str());
    demand(last.is_none_or(|text| text.trim_end() == text), "a prefill without blanks at its end")?;
    Ok(called)
}

fn user_turn(blocks: &[Json]) -> Verdict {
    let (mut seen, mut results_ended) = (Vec::new(), false);
    for block in blocks {
        if block["type"] != "tool_result" {
            results_ended = true;
            part(block)?;
            continue;
        }
        demand(!results_ended, "results before anything else")?;
        let result = object(block, &["type", "tool_use_id"], &["content", "cache_control"])?;
        let id = id(&result["tool_use_id"])?;
        demand(!seen.contains(&id), "one result for a call")?;
        seen.push(id);
        mark(result)?;
        match result.get("content") {
            None => {}
            Some(Json::String(text)) => demand(!text.is_empty(), "content that is not empty")?,
            Some(list) => filled(list)?.iter().try_for_each(part)?,
        }
    }
    Ok(())
}

fn assistant_turn(blocks: &[Json]) -> Result<bool, String> {
    let mut seen = Vec::new();
    for block in blocks {
        match block["type"].as_str().unwrap_or_default() {
            "tool_use" => {
                let call = object(block, &["type", "id", "name", "input"], &["cache_control"])?;
                let id = id(&call["id"])?;
                demand(!seen.contains(&id), "ids that differ")?;
                seen.push(id);
                demand(call["name"].is_string(), "a name")?;
                demand(call["input"].is_object(), "an input that is an object")?;
                mark(call)?;
            }
            "thinking" => {
                object(block, &["type", "thinking", "signature"], &[])?;
            }
            "redacted_thinking" => {
                object(block, &["type", "data"], &[])?;
            }
            _ => text_block(block)?,
        }
    }
    Ok(!seen.is_empty())
}

/// A text, an image or a document.
fn part(block: &Json) -> Verdict {
    let kind = block["type"].as_str().unwrap_or_default();
    if kind == "text" {
        return text_block(block);
    }
    let free: &[&str] =
        if kind == "document" { &["title", "cache_control"] } else { &["cache_control"] };
    mark(object(block, &["type", "source"], free)?)?;
    let source = &block["source"];
    let data = || source["data"].as_str().unwrap_or_default();
    match (kind, source["type"].as_str().unwrap_or_default()) {
        ("image", "url") => {
            let url = object(source, &["type", "url"], &[])?["url"].as_str().unwrap_or_default();
            let url = url.to_ascii_lowercase();
            demand(url.starts_with("http://") || url.starts_with("https://"), "an address")
        }
        ("image" | "document", "base64") => {
            let source = object(source, &["type", "media_type", "data"], &[])?;
            let known: &[&str] = match kind {
                "image" => &["image/jpeg", "image/png", "image/gif", "image/webp"],
                _ => &["application/pdf"],
            };
            let known = source["media_type"].as_str().is_some_and(|t| known.contains(&t));
            demand(known, "a known media type")?;
            let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=');
            demand(!data().is_empty() && data().chars().all(letter), "base64")
        }
        ("document", "text") => {
            let source = object(source, &["type", "media_type", "data"], &[])?;
            demand(source["media_type"] == "text/plain" && source["data"].is_string(), "plain text")
        }
        other => Err(format!("a block of {other:?}")),
    }
}

fn text_block(block: &Json) -> Verdict {
    let members = object(block, &["type", "text"], &["cache_control"])?;
    demand(members["type"] == "text", "a block of text")?;
    let text = members["text"].as_str().ok_or("text that is text")?;
    demand(!text.trim().is_empty(), "text that is not blank")?;
    mark(members)
}

/// A mark is the vendor's to judge, but one that says nothing is not sent.
fn mark(members: &Members) -> Verdict {
    demand(members.get("cache_control").is_none_or(|mark| !mark.is_null()), "a mark or none")
}

fn id(value: &Json) -> Result<&str, String> {
    let id = value.as_str().unwrap_or_default();
    let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    demand(!id.is_empty() && id.chars().all(letter), "an id the vendor takes")?;
    Ok(id)
}

fn filled(list: &Json) -> Result<&[Json], String> {
    let list = list.as_array().filter(|l| !l.is_empty());
    list.map(Vec::as_slice).ok_or_else(|| "a list that is not empty".to_owned())
}

/// An object that has all of `must` and nothing but those and `may`.
fn object<'a>(value: &'a Json, must: &[&str], may: &[&str]) -> Result<&'a Members, String> {
    let members = value.as_object().ok_or_else(|| format!("an object, not {value}"))?;
    if let Some(name) = must.iter().find(|name| !members.contains_key(**name)) {
        return Err(format!("'{name}' is missing in {value}"));
    }
    let known = |name: &&String| must.contains(&name.as_str()) || may.contains(&name.as_str());
    match members.keys().find(|name| !known(name)) {
        Some(name) => Err(format!("'{name}' does not belong into {value}")),
        None => Ok(members),
    }
}

fn demand(holds: bool, what: &str) -> Verdict {
    if holds { Ok(()) } else { Err(format!("the vendor demands {what}")) }
}
