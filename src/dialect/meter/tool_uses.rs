//! Counts how often the vendor ran tools of its own for a call: by its report or, where a reply
//! shows the calls of such tools, by these.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::sync::Arc;

use crate::dialect::json::JsonValue;

/// The type of a block of the messages format with a call of a tool that the vendor runs.
const CALL_BLOCK: &str = "server_tool_use";

/// A tool of the vendor whose uses are counted.
#[derive(Debug, Clone)]
pub(crate) struct HostedTool {
    /// The name by which a reply calls it in the messages format; in the responses format, the type
    /// of its calls is this name with `_call` after it.
    name: String,
    /// The members on the way to the number of its uses, from the reply itself on.
    report_path: Arc<[String]>,
    reported: Option<u64>,
    seen: u64,
    /// How many calls had been seen when the vendor made its report.
    seen_at_report: u64,
}

impl HostedTool {
    /// Makes a tool without uses.
    #[must_use]
    pub(crate) fn new(name: &str, report_path: Arc<[String]>) -> HostedTool {
        HostedTool {
            name: name.to_owned(),
            report_path,
            reported: None,
            seen: 0,
            seen_at_report: 0,
        }
    }

    /// Returns how often it was used so far; `None` if that is not known: the vendor has reported
    /// nothing, and its replies show no calls.
    fn uses(&self, shows_calls: bool) -> Option<u64> {
        match self.reported {
            Some(uses) => Some(uses.saturating_add(self.seen.saturating_sub(self.seen_at_report))),
            None => shows_calls.then_some(self.seen),
        }
    }
}

/// The tools of a call that the vendor runs and that cost a fee.
#[derive(Debug, Clone)]
pub(crate) struct ToolUses {
    tools: Vec<HostedTool>,
    /// Whether the calls of such tools are seen: the reply is of a format that shows them, and was
    /// read.
    shows_calls: bool,
}

impl ToolUses {
    /// Makes the count of a reply. `shows_calls` is whether each call of such a tool is seen as it
    /// arrives; the calls in a reply in one body are seen once it is complete.
    #[must_use]
    pub(crate) fn new(tools: Vec<HostedTool>, shows_calls: bool) -> ToolUses {
        ToolUses { tools, shows_calls }
    }

    /// Returns how often each tool was used so far, in the order of the tools; `None` where that is
    /// not known.
    pub(crate) fn counts(&self) -> impl Iterator<Item = Option<u64>> {
        self.tools.iter().map(|tool| tool.uses(self.shows_calls))
    }

    /// Reads the vendor's report. `member` returns a member of the reply. A later report replaces
    /// an earlier one. What is no whole number is no report.
    pub(crate) fn read_report<'a>(&mut self, member: impl Fn(&str) -> Option<JsonValue<'a>>) {
        for tool in &mut self.tools {
            let Some((first, rest)) = tool.report_path.split_first() else { continue };
            let walk =
                |value| rest.iter().try_fold(value, |value: JsonValue<'a>, name| value.get(name));
            if let Some(uses) = member(first).and_then(walk).and_then(JsonValue::integer) {
                tool.reported = Some(uses);
                tool.seen_at_report = tool.seen;
            }
        }
    }

    /// Counts a block of a messages reply, if it is a call of one of the tools.
    pub(crate) fn see_block(&mut self, block: JsonValue<'_>) {
        let text = |name| block.get(name).and_then(JsonValue::text);
        if text("type").is_none_or(|kind| kind != CALL_BLOCK) {
            return;
        }
        let Some(name) = text("name") else { return };
        for tool in self.tools.iter_mut().filter(|tool| tool.name == *name) {
            tool.seen = tool.seen.saturating_add(1);
        }
    }

    /// Counts the calls in the content of a whole messages reply.
    pub(crate) fn see_content(&mut self, content: Option<JsonValue<'_>>) {
        self.shows_calls = true;
        let blocks = content.into_iter().flat_map(JsonValue::elements);
        blocks.for_each(|block| self.see_block(block));
    }

    /// Counts an output item of a responses reply that was added, if it is a call of one of the
    /// tools.
    pub(crate) fn see_item(&mut self, item: JsonValue<'_>) {
        let Some(kind) = item.get("type").and_then(JsonValue::text) else { return };
        for tool in self.tools.iter_mut().filter(|tool| is_call_of(&kind, tool)) {
            tool.seen = tool.seen.saturating_add(1);
        }
    }

    /// Counts the calls in the whole output of a responses reply, of which some may have been seen
    /// before.
    pub(crate) fn see_output(&mut self, output: Option<JsonValue<'_>>) {
        self.shows_calls = true;
        for tool in &mut self.tools {
            let items = output.into_iter().flat_map(JsonValue::elements);
            let kinds = items.filter_map(|item| item.get("type")?.text());
            let calls = kinds.filter(|kind| is_call_of(kind, tool)).count();
            tool.seen = tool.seen.max(calls as u64);
        }
    }
}

/// Whether an output item of this type is a call of the tool.
fn is_call_of(kind: &str, tool: &HostedTool) -> bool {
    kind.strip_suffix("_call").is_some_and(|name| name == tool.name)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn search(shows_calls: bool) -> ToolUses {
        let path = ["usage", "server_tool_use", "web_search_requests"].map(str::to_owned);
        ToolUses::new(vec![HostedTool::new("web_search", path.into())], shows_calls)
    }

    fn value(json: &str) -> JsonValue<'_> {
        JsonValue::from_validated(json.as_bytes())
    }

    const CALL: &str = r#"{"type":"server_tool_use","id":"s","name":"web_search","input":{}}"#;

    fn counted(uses: &ToolUses) -> Vec<Option<u64>> {
        uses.counts().collect()
    }

    #[rstest]
    #[case::reported(r#"{"usage":{"server_tool_use":{"web_search_requests":3}}}"#, Some(3))]
    #[case::none(r#"{"usage":{"server_tool_use":{"web_search_requests":0}}}"#, Some(0))]
    #[case::another(r#"{"usage":{"server_tool_use":{"web_fetch_requests":3}}}"#, None)]
    #[case::null(r#"{"usage":{"server_tool_use":null}}"#, None)]
    #[case::no_usage(r#"{"content":[]}"#, None)]
    #[case::negative(r#"{"usage":{"server_tool_use":{"web_search_requests":-3}}}"#, None)]
    #[case::fraction(r#"{"usage":{"server_tool_use":{"web_search_requests":1.5}}}"#, None)]
    #[case::a_text(r#"{"usage":{"server_tool_use":{"web_search_requests":"3"}}}"#, None)]
    #[case::no_object(r#"{"usage":{"server_tool_use":3}}"#, None)]
    fn a_report_is_read_or_is_no_report(#[case] reply: &str, #[case] expected: Option<u64>) {
        let mut uses = search(false);
        uses.read_report(|name| value(reply).get(name));
        assert_eq!(counted(&uses), [expected]);
    }

    #[test]
    fn without_a_report_the_calls_that_were_seen_count() {
        let mut uses = search(true);
        assert_eq!(counted(&uses), [Some(0)]);
        uses.see_block(value(CALL));
        uses.see_block(value(r#"{"type":"server_tool_use","name":"web_fetch"}"#));
        uses.see_block(value(r#"{"type":"tool_use","name":"web_search"}"#));
        uses.see_block(value(r#"{"type":"text","text":"web_search"}"#));
        assert_eq!(counted(&uses), [Some(1)]);
    }

    #[test]
    fn a_report_is_believed_and_the_calls_after_it_are_added() {
        let report = r#"{"usage":{"server_tool_use":{"web_search_requests":1}}}"#;
        let mut uses = search(true);
        uses.see_block(value(CALL));
        uses.see_block(value(CALL));
        uses.read_report(|name| value(report).get(name));
        assert_eq!(counted(&uses), [Some(1)], "a search that failed has no fee");
        uses.see_block(value(CALL));
        assert_eq!(counted(&uses), [Some(2)]);
    }

    #[test]
    fn the_items_of_a_response_are_counted_once() {
        let mut uses = search(true);
        uses.see_item(value(r#"{"type":"web_search_call","id":"ws"}"#));
        uses.see_item(value(r#"{"type":"message"}"#));
        let output =
            r#"[{"type":"web_search_call"},{"type":"web_search_call"},{"type":"message"}]"#;
        uses.see_output(Some(value(output)));
        assert_eq!(counted(&uses), [Some(2)]);
        uses.see_output(None);
        assert_eq!(counted(&uses), [Some(2)]);
    }
}
