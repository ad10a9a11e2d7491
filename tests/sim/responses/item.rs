//! The items of an output.

use super::super::faults::Fault;
use super::super::reply::Reply;
use super::super::usage::quoted;
use super::hosted::Hosted;
use super::object::SEALED;

/// An item, and the name by which events speak of it.
pub(super) struct Item {
    pub(super) id: String,
    pub(super) kind: Kind,
}

pub(super) enum Kind {
    /// With what only the vendor can read of it, if the request wants that.
    Thought {
        sealed: bool,
    },
    Hosted(Hosted),
    Message {
        pieces: Vec<String>,
    },
    Call {
        call_id: String,
        name: String,
        arguments: &'static str,
    },
    /// A call of a tool that the vendor knows and an agent runs.
    AgentCall {
        call_id: String,
        tool: &'static AgentTool,
    },
    /// All that is left of the conversation.
    Compaction,
}

/// A tool that the vendor knows and an agent runs.
pub(super) struct AgentTool {
    /// The type by which a request offers it.
    pub(super) name: &'static str,
    /// The fault that asks for calls of it.
    pub(super) fault: Fault,
    prefix: &'static str,
    /// The members of a call that tell what is to be done.
    task: &'static str,
}

pub(super) const AGENT_TOOLS: [AgentTool; 2] = [
    AgentTool {
        name: "local_shell",
        fault: Fault::ShellCalls,
        prefix: "lsh",
        task: concat!(
            r#""action":{"type":"exec","command":["expr","2","+","2"],"env":{},"#,
            r#""timeout_ms":1000,"user":null,"working_directory":null}"#,
        ),
    },
    AgentTool {
        name: "apply_patch",
        fault: Fault::PatchCalls,
        prefix: "apc",
        task: r#""operation":{"type":"create_file","path":"sum.txt","diff":"+four\n"}"#,
    },
];

/// What else a request says about the items of its reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wishes {
    /// Whether the calls are those of tools that agents run.
    pub(super) agent_calls: bool,
    /// Whether thoughts come with what only the vendor can read of them.
    pub(super) sealed_thoughts: bool,
    /// Whether the conversation is made shorter, instead of an answer.
    pub(super) compaction: bool,
}

impl Item {
    /// All items of a reply: a thought, tools of the vendor's own, and a text or calls.
    pub(super) fn all(reply: &Reply, hosted: &[Hosted], serial: u64, wishes: Wishes) -> Vec<Item> {
        let mut kinds = Vec::new();
        if reply.billed.reasoning > 0 {
            kinds.push(Kind::Thought { sealed: wishes.sealed_thoughts });
        }
        kinds.extend(hosted.iter().copied().map(Kind::Hosted));
        if wishes.compaction {
            kinds.push(Kind::Compaction);
        } else if reply.calls.is_empty() {
            let pieces = reply.pieces().into_iter().map(str::to_owned).collect();
            kinds.push(Kind::Message { pieces });
        }
        kinds.extend(reply.calls.iter().map(|call| {
            let call_id = call.id.clone();
            let tool = AGENT_TOOLS.iter().find(|tool| tool.name == call.name);
            match tool.filter(|_| wishes.agent_calls) {
                Some(tool) => Kind::AgentCall { call_id, tool },
                None => Kind::Call { call_id, name: call.name.clone(), arguments: call.arguments },
            }
        }));
        let numbered = kinds.into_iter().enumerate();
        numbered.map(|(at, kind)| Item { id: id(&kind, serial, at), kind }).collect()
    }

    /// As it is when it begins.
    pub(super) fn at_start(&self) -> String {
        let id = &self.id;
        match &self.kind {
            Kind::Thought { sealed } => self.thought(*sealed),
            Kind::Compaction => self.compaction(),
            Kind::AgentCall { call_id, tool } => self.agent_call("in_progress", call_id, tool),
            Kind::Hosted(call) => call.text(id, false),
            Kind::Message { .. } => self.message("in_progress", ""),
            Kind::Call { call_id, name, .. } => call(id, "in_progress", [call_id, name, ""]),
        }
    }

    /// As it is when it ends.
    pub(super) fn at_end(&self, status: &str) -> String {
        let id = &self.id;
        match &self.kind {
            Kind::Thought { sealed } => self.thought(*sealed),
            Kind::Compaction => self.compaction(),
            Kind::AgentCall { call_id, tool } => self.agent_call("completed", call_id, tool),
            Kind::Hosted(call) => call.text(id, true),
            Kind::Message { pieces } => self.message(status, &part(&pieces.concat())),
            Kind::Call { call_id, name, arguments } => {
                call(id, "completed", [call_id, name, arguments])
            }
        }
    }

    fn thought(&self, sealed: bool) -> String {
        let content =
            if sealed { format!(r#","encrypted_content":"{SEALED}""#) } else { String::new() };
        format!(r#"{{"id":"{}","type":"reasoning","summary":[]{content}}}"#, self.id)
    }

    fn compaction(&self) -> String {
        let id = &self.id;
        format!(r#"{{"id":"{id}","type":"compaction","encrypted_content":"{SEALED}"}}"#)
    }

    fn agent_call(&self, status: &str, call_id: &str, tool: &AgentTool) -> String {
        let (id, name, task) = (&self.id, tool.name, tool.task);
        format!(
            "{{\"id\":\"{id}\",\"type\":\"{name}_call\",\"status\":\"{status}\",\
             \"call_id\":\"{call_id}\",{task}}}"
        )
    }

    fn message(&self, status: &str, content: &str) -> String {
        format!(
            "{{\"id\":\"{}\",\"type\":\"message\",\"status\":\"{status}\",\
             \"content\":[{content}],\"role\":\"assistant\"}}",
            self.id
        )
    }
}

/// The part of a message that is its text.
pub(super) fn part(text: &str) -> String {
    let text = quoted(text);
    format!(r#"{{"type":"output_text","annotations":[],"logprobs":[],"text":{text}}}"#)
}

fn call(id: &str, status: &str, [call_id, name, arguments]: [&str; 3]) -> String {
    format!(
        "{{\"id\":\"{id}\",\"type\":\"function_call\",\"status\":\"{status}\",\
         \"arguments\":{},\"call_id\":\"{call_id}\",\"name\":{}}}",
        quoted(arguments),
        quoted(name)
    )
}

fn id(kind: &Kind, serial: u64, at: usize) -> String {
    let number = format!("sim{serial:012}{at:04}");
    match kind {
        Kind::Thought { .. } => format!("rs_{number}"),
        Kind::AgentCall { tool, .. } => format!("{}_{number}", tool.prefix),
        Kind::Compaction => format!("cmp_{number}"),
        Kind::Hosted(call) => call.id(&number),
        Kind::Message { .. } => format!("msg_{number}"),
        Kind::Call { .. } => format!("fc_{number}"),
    }
}
