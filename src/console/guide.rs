//! How clients are set up for this gateway: the document of that, with its address.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

/// The document, whose examples are tested. Its sections are the clients.
const DOCUMENT: &str = include_str!("../../docs/use/set-up.md");
/// The address and the key of its examples.
const EXAMPLE_ADDRESS: &str = "http://127.0.0.1:8080";
const EXAMPLE_KEY: &str = "sk-tg-…";

/// How clients are set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SetupGuide {
    /// The address of the gateway for clients.
    pub(super) address: String,
    pub(super) sections: Vec<GuideSection>,
}

/// How one client is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GuideSection {
    pub(super) title: String,
    /// Its parts in their order.
    pub(super) parts: Vec<GuidePart>,
}

/// A part of a section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum GuidePart {
    /// A paragraph.
    Text(String),
    /// Lines to copy.
    Code(String),
}

impl SetupGuide {
    /// Returns the guide for a gateway whose clients find it at `address`.
    pub(crate) fn new(address: &str) -> SetupGuide {
        let address = address.trim_end_matches('/').to_owned();
        let sections = parse(&DOCUMENT.replace(EXAMPLE_ADDRESS, &address));
        SetupGuide { address, sections }
    }
}

/// Returns lines with a key in the place of that of the examples.
pub(super) fn with_key(lines: &str, key: Option<&str>) -> String {
    match key {
        Some(key) => lines.replace(EXAMPLE_KEY, key),
        None => lines.to_owned(),
    }
}

fn parse(document: &str) -> Vec<GuideSection> {
    let mut sections: Vec<GuideSection> = Vec::new();
    let (mut code, mut text) = (None::<String>, String::new());
    for line in document.lines() {
        if line.starts_with("```") {
            push_text(&mut sections, &mut text);
            match code.take() {
                Some(lines) => push(&mut sections, GuidePart::Code(lines)),
                None => code = Some(String::new()),
            }
        } else if let Some(lines) = &mut code {
            lines.push_str(line);
            lines.push('\n');
        } else if let Some(title) = line.strip_prefix("## ") {
            push_text(&mut sections, &mut text);
            sections.push(GuideSection { title: title.to_owned(), parts: Vec::new() });
        } else if line.is_empty() {
            push_text(&mut sections, &mut text);
        } else {
            text.push_str(line);
            text.push(' ');
        }
    }
    push_text(&mut sections, &mut text);
    sections
}

fn push_text(sections: &mut [GuideSection], text: &mut String) {
    let paragraph = std::mem::take(text).trim_end().replace(['`', '*'], "");
    if !paragraph.is_empty() {
        push(sections, GuidePart::Text(paragraph));
    }
}

/// Adds a part to the last section. What is before the first one is for readers of the document.
fn push(sections: &mut [GuideSection], part: GuidePart) {
    if let Some(section) = sections.last_mut() {
        section.parts.push(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_of_the_document_has_lines_to_copy_with_the_address() {
        let guide = SetupGuide::new("https://api.example.com/");
        assert!(guide.sections.len() >= 8, "{:?}", guide.sections.len());
        for section in &guide.sections {
            let codes = section.parts.iter().filter_map(|part| match part {
                GuidePart::Code(lines) => Some(lines.as_str()),
                GuidePart::Text(_) => None,
            });
            let all = codes.collect::<Vec<_>>().concat();
            assert!(all.contains("https://api.example.com"), "{section:?}");
            assert!(all.contains(EXAMPLE_KEY) && !all.contains(EXAMPLE_ADDRESS), "{section:?}");
            assert!(with_key(&all, Some("sk-tg-1")).contains("sk-tg-1"));
        }
    }
}
