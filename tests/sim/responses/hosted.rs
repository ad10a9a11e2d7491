//! Tools that the vendor runs itself.

use serde_json::Value;

use super::super::faults::{Fault, Faults};

/// A kind of tool: how names of it begin, the prefix of its ids, its item, its events, and the
/// members of an item that is done.
struct Kind {
    tool: &'static str,
    prefix: &'static str,
    item: &'static str,
    events: &'static [&'static str],
    result: &'static str,
}

/// The tool that stands for those of a server.
const SERVER_TOOL: &str = "mcp";
/// What the vendor does first with such a server.
const LISTING: Kind = Kind {
    tool: SERVER_TOOL,
    prefix: "mcpl",
    item: "mcp_list_tools",
    events: &["response.mcp_list_tools.in_progress", "response.mcp_list_tools.completed"],
    result: concat!(
        r#","server_label":"sums","error":null,"tools":[{"name":"add","annotations":null,"#,
        r#""description":"adds","input_schema":{"type":"object"}}]"#,
    ),
};
/// What it asks before it calls a tool of the server.
const QUESTION: Kind = Kind {
    tool: SERVER_TOOL,
    prefix: "mcpr",
    item: "mcp_approval_request",
    events: &[],
    result: r#","server_label":"sums","name":"add","arguments":"{\"a\":2,\"b\":2}""#,
};
/// A call of a tool of the server.
const CALL: Kind = Kind {
    tool: SERVER_TOOL,
    prefix: "mcp",
    item: "mcp_call",
    events: &[
        "response.mcp_call.in_progress",
        "response.mcp_call_arguments.done",
        "response.mcp_call.completed",
    ],
    result: concat!(
        r#","server_label":"sums","name":"add","arguments":"{\"a\":2,\"b\":2}","#,
        r#""output":"4","error":null,"approval_request_id":null"#,
    ),
};

const KINDS: [Kind; 4] = [
    Kind {
        tool: "web_search",
        prefix: "ws",
        item: "web_search_call",
        events: &[
            "response.web_search_call.in_progress",
            "response.web_search_call.searching",
            "response.web_search_call.completed",
        ],
        result: r#","action":{"type":"search","query":"two and two"}"#,
    },
    Kind {
        tool: "file_search",
        prefix: "fs",
        item: "file_search_call",
        events: &[
            "response.file_search_call.in_progress",
            "response.file_search_call.searching",
            "response.file_search_call.completed",
        ],
        result: r#","queries":["two and two"],"results":null"#,
    },
    Kind {
        tool: "code_interpreter",
        prefix: "ci",
        item: "code_interpreter_call",
        events: &[
            "response.code_interpreter_call.in_progress",
            "response.code_interpreter_call.interpreting",
            "response.code_interpreter_call.completed",
        ],
        result: r#","code":"2 + 2","container_id":"cntr_sim","outputs":null"#,
    },
    Kind {
        tool: "image_generation",
        prefix: "ig",
        item: "image_generation_call",
        events: &[
            "response.image_generation_call.in_progress",
            "response.image_generation_call.generating",
            "response.image_generation_call.completed",
        ],
        result: r#","output_format":"png","result":"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mM4ISICAAKYAPGZtnS8AAAAAElFTkSuQmCC""#,
    },
];

/// Whether the last question was answered with yes.
fn is_approved(body: &Value) -> bool {
    let mut items = body["input"].as_array().into_iter().flatten();
    items.any(|item| item["type"] == "mcp_approval_response" && item["approve"] == true)
}

/// A call of such a tool.
#[derive(Clone, Copy)]
pub(super) struct Hosted(&'static Kind);

impl Hosted {
    /// The calls of a response: one of each tool, or as many searches as asked for. Those of a
    /// server's tools are listed first, and only called if nobody has to be asked.
    pub(super) fn called(body: &Value, faults: &Faults) -> Vec<Hosted> {
        if body["tool_choice"] == "none" {
            return Vec::new();
        }
        let mut calls = Vec::new();
        for tool in body["tools"].as_array().into_iter().flatten() {
            let named = tool["type"].as_str().unwrap_or_default();
            if named == SERVER_TOOL {
                let may_call = tool["require_approval"] == "never" || is_approved(body);
                calls.extend([Hosted(&LISTING), Hosted(if may_call { &CALL } else { &QUESTION })]);
                continue;
            }
            let kind = KINDS.iter().find(|kind| named.starts_with(kind.tool));
            let call = kind.map(Hosted);
            let searches = faults.number(Fault::Searches).unwrap_or(1);
            let times = if call.is_some_and(Hosted::is_search) { searches } else { 1 };
            calls.extend((0..times).filter_map(|_| call));
        }
        calls
    }

    pub(super) fn is_search(self) -> bool {
        self.0.tool == "web_search"
    }

    pub(super) fn is_image(self) -> bool {
        self.0.tool == "image_generation"
    }

    pub(super) fn id(self, number: &str) -> String {
        format!("{}_{number}", self.0.prefix)
    }

    pub(super) fn events(self) -> &'static [&'static str] {
        self.0.events
    }

    /// The item, before or after its work.
    pub(super) fn text(self, id: &str, done: bool) -> String {
        let item = self.0.item;
        let (status, result) =
            if done { ("completed", self.0.result) } else { ("in_progress", "") };
        format!(r#"{{"id":"{id}","type":"{item}","status":"{status}"{result}}}"#)
    }
}
