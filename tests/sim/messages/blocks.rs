//! The blocks of which contents are made.

use super::node::{Node, Verdict};

/// Where a block stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    System,
    User,
    Assistant,
    /// Within the result of a tool.
    Result,
}

/// A kind of block: where it may stand, and what has to be and may be in it.
struct Kind {
    name: &'static str,
    places: &'static [Place],
    needed: &'static str,
    optional: &'static str,
}

const fn kind(
    name: &'static str,
    places: &'static [Place],
    needed: &'static str,
    optional: &'static str,
) -> Kind {
    Kind { name, places, needed, optional }
}

const EVERYWHERE: &[Place] = &[Place::System, Place::User, Place::Assistant, Place::Result];
const SHOWN: &[Place] = &[Place::User, Place::Result];
const SAID: &[Place] = &[Place::Assistant];

const KINDS: [Kind; 14] = [
    kind("text", EVERYWHERE, "text", "cache_control citations"),
    kind("image", SHOWN, "source", "cache_control"),
    kind("document", SHOWN, "source", "cache_control citations context title"),
    kind("search_result", SHOWN, "content source title", "cache_control citations"),
    kind("tool_result", &[Place::User], "tool_use_id", "content is_error cache_control"),
    kind("tool_use", SAID, "id name input", "cache_control caller"),
    kind("server_tool_use", SAID, "id name input", "cache_control caller"),
    kind("web_search_tool_result", SAID, "tool_use_id content", "cache_control caller"),
    kind("web_fetch_tool_result", SAID, "tool_use_id content", "cache_control caller"),
    kind("tool_search_tool_result", SAID, "tool_use_id content", "cache_control caller"),
    kind("tool_reference", &[Place::Result], "tool_name", "cache_control"),
    kind("compaction", SAID, "content", "cache_control"),
    kind("thinking", SAID, "thinking signature", ""),
    kind("redacted_thinking", SAID, "data", ""),
];

/// Refuses a block that the vendor refuses.
pub(super) fn check(node: &Node<'_>, place: Place) -> Verdict {
    let name = node.need("type")?.text()?;
    let Some(kind) = KINDS.iter().find(|kind| kind.name == name) else {
        let known: Vec<_> = KINDS.iter().map(|kind| format!("'{}'", kind.name)).collect();
        return Err(node.fault(&format!(
            "Input tag '{name}' found using 'type' does not match any of the expected tags: {}",
            known.join(", ")
        )));
    };
    if !kind.places.contains(&place) {
        return Err(node.fault(&format!("`{name}` blocks are not permitted here ({place:?})")));
    }
    let node = node.tagged(name);
    for needed in kind.needed.split(' ') {
        node.need(needed)?;
    }
    node.only(&["type", kind.needed, kind.optional])?;
    cache_control(&node)?;
    members(&node, name)
}

/// Refuses a mark of the cache that the vendor refuses.
pub(super) fn cache_control(node: &Node<'_>) -> Verdict {
    let Some(mark) = node.get("cache_control").filter(|mark| !mark.value.is_null()) else {
        return Ok(());
    };
    mark.only(&["type ttl"])?;
    mark.need("type")?.one_of(&["ephemeral"])?;
    mark.get("ttl").map(|ttl| ttl.one_of(&["5m", "1h"])).transpose().map(|_| ())
}

/// Refuses a text that is empty or blank.
pub(super) fn said(node: &Node<'_>, text: &str) -> Verdict {
    if text.is_empty() {
        Err(node.fault("text content blocks must be non-empty"))
    } else if text.trim().is_empty() {
        Err(node.fault("text content blocks must contain non-whitespace text"))
    } else {
        Ok(())
    }
}

fn members(node: &Node<'_>, name: &str) -> Verdict {
    match name {
        "text" => {
            let text = node.need("text")?;
            said(&text, text.text()?)
        }
        "image" => source(&node.need("source")?, "image"),
        "document" => source(&node.need("source")?, "document"),
        "search_result" => {
            node.need("source")?.text()?;
            node.need("title")?.text()?;
            contents(&node.need("content")?)
        }
        "tool_result" => {
            node.need("tool_use_id")?.word(usize::MAX)?;
            node.get("is_error").map(|flag| flag.boolean()).transpose()?;
            node.get("content").map_or(Ok(()), |content| contents(&content))
        }
        "tool_use" | "server_tool_use" => {
            node.need("id")?.word(usize::MAX)?;
            node.need("name")?.word(200)?;
            let input = node.need("input")?;
            let fault = || input.fault("Input should be a valid dictionary");
            input.value.is_object().then_some(()).ok_or_else(fault)
        }
        "thinking" => {
            node.need("signature")?.text()?;
            node.need("thinking")?.text().map(|_| ())
        }
        "redacted_thinking" => node.need("data")?.text().map(|_| ()),
        "tool_reference" => node.need("tool_name")?.text().map(|_| ()),
        "compaction" => Ok(()),
        _ => node.need("tool_use_id")?.word(usize::MAX).map(|_| ()),
    }
}

/// What a tool or a search brought: a text, or blocks.
fn contents(node: &Node<'_>) -> Verdict {
    if node.value.is_string() {
        return Ok(());
    }
    node.items()?.iter().try_for_each(|block| check(block, Place::Result))
}

/// Where an image or a document comes from.
fn source(node: &Node<'_>, of: &str) -> Verdict {
    let images = ["image/jpeg", "image/png", "image/gif", "image/webp"];
    let (kinds, media): (&[_], &[_]) = match of {
        "image" => (&["base64", "url", "file"], &images),
        _ => (&["base64", "text", "url", "content", "file"], &["application/pdf"]),
    };
    let kind = node.need("type")?.one_of(kinds)?;
    let node = node.tagged(kind);
    match kind {
        "base64" => {
            node.only(&["type media_type data"])?;
            node.need("media_type")?.one_of(media)?;
            let data = node.need("data")?;
            let fine = is_base64(data.text()?);
            fine.then_some(()).ok_or_else(|| data.fault("Invalid base64 data"))
        }
        "text" => {
            node.only(&["type media_type data"])?;
            node.need("media_type")?.one_of(&["text/plain"])?;
            let data = node.need("data")?;
            let empty = data.text()?.is_empty();
            if empty { Err(data.fault("document text must be non-empty")) } else { Ok(()) }
        }
        "url" => {
            node.only(&["type url"])?;
            let url = node.need("url")?;
            let text = url.text()?;
            let known = ["https://", "http://"].iter().any(|scheme| text.starts_with(scheme));
            known.then_some(()).ok_or_else(|| url.fault("Only HTTP URLs are supported"))
        }
        "content" => {
            node.only(&["type content"])?;
            contents(&node.need("content")?)
        }
        _ => {
            node.only(&["type file_id"])?;
            node.need("file_id")?.text().map(|_| ())
        }
    }
}

fn is_base64(text: &str) -> bool {
    let digits = text.trim_end_matches('=');
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/');
    text.len() - digits.len() <= 2
        && text.len().is_multiple_of(4)
        && !digits.is_empty()
        && digits.chars().all(fits)
}
