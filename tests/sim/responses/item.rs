//! The items of an output.

use super::super::reply::Reply;
use super::super::usage::quoted;
use super::hosted::Hosted;

/// An item, and the name by which events speak of it.
pub(super) struct Item {
    pub(super) id: String,
    pub(super) kind: Kind,
}

pub(super) enum Kind {
    Thought,
    Hosted(Hosted),
    Message { pieces: Vec<String> },
    Call { call_id: String, name: String, arguments: &'static str },
}

impl Item {
    /// All items of a reply: a thought, tools of the vendor's own, and a text or calls.
    pub(super) fn all(reply: &Reply, hosted: &[Hosted], serial: u64) -> Vec<Item> {
        let mut kinds = Vec::new();
        if reply.billed.reasoning > 0 {
            kinds.push(Kind::Thought);
        }
        kinds.extend(hosted.iter().copied().map(Kind::Hosted));
        if reply.calls.is_empty() {
            let pieces = reply.pieces().into_iter().map(str::to_owned).collect();
            kinds.push(Kind::Message { pieces });
        }
        kinds.extend(reply.calls.iter().map(|call| Kind::Call {
            call_id: call.id.clone(),
            name: call.name.clone(),
            arguments: call.arguments,
        }));
        let numbered = kinds.into_iter().enumerate();
        numbered.map(|(at, kind)| Item { id: id(&kind, serial, at), kind }).collect()
    }

    /// As it is when it begins.
    pub(super) fn at_start(&self) -> String {
        let id = &self.id;
        match &self.kind {
            Kind::Thought => self.thought(),
            Kind::Hosted(call) => call.text(id, false),
            Kind::Message { .. } => self.message("in_progress", ""),
            Kind::Call { call_id, name, .. } => call(id, "in_progress", [call_id, name, ""]),
        }
    }

    /// As it is when it ends.
    pub(super) fn at_end(&self, status: &str) -> String {
        let id = &self.id;
        match &self.kind {
            Kind::Thought => self.thought(),
            Kind::Hosted(call) => call.text(id, true),
            Kind::Message { pieces } => self.message(status, &part(&pieces.concat())),
            Kind::Call { call_id, name, arguments } => {
                call(id, "completed", [call_id, name, arguments])
            }
        }
    }

    fn thought(&self) -> String {
        format!(r#"{{"id":"{}","type":"reasoning","summary":[]}}"#, self.id)
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
        Kind::Thought => format!("rs_{number}"),
        Kind::Hosted(call) => call.id(&number),
        Kind::Message { .. } => format!("msg_{number}"),
        Kind::Call { .. } => format!("fc_{number}"),
    }
}
