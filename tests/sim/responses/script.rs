//! A response as the events of a stream.

use super::super::record::Billed;
use super::super::reply::Reply;
use super::super::script::Event;
use super::super::usage::quoted;
use super::hosted::Hosted;
use super::item::{self, Item, Kind};
use super::object::{Object, Outcome};

/// All events but the last, and the name and the data of that.
pub(super) fn events(
    object: &Object<'_>,
    items: &[Item],
    reply: &Reply,
    outcome: Outcome,
) -> (Vec<Event>, (&'static str, String)) {
    let parts = items.iter().map(|item| match &item.kind {
        Kind::Message { pieces } => pieces.len() as u64,
        Kind::Call { .. } => 2,
        Kind::AgentCall { .. } | Kind::Compaction => 1,
        Kind::Thought { .. } | Kind::Hosted(_) => 0,
    });
    let before = Billed { searches: 0, images: 0, ..reply.billed_for_prompt() };
    let all = parts.sum();
    let mut script = Script { object, reply, events: Vec::new(), made: 0, all, billed: before };
    script.stage("response.created", if object.background { "queued" } else { "in_progress" });
    if object.background {
        script.stage("response.queued", "queued");
    }
    script.stage("response.in_progress", "in_progress");
    for (at, item) in items.iter().enumerate() {
        script.push("response.output_item.added", &of_output(at, "item", &item.at_start()));
        script.inside(at, item);
        let status = if outcome == Outcome::Completed { "completed" } else { "incomplete" };
        script.push("response.output_item.done", &of_output(at, "item", &item.at_end(status)));
    }
    // Whatever was forgotten on the way is billed when it is over.
    if let Some(last) = script.events.last_mut() {
        last.billed = reply.billed;
    }
    let end = object.finished(outcome, items);
    let end = data(outcome.event(), script.events.len(), &format!(r#""response":{end}"#));
    (script.events, (outcome.event(), end))
}

struct Script<'a> {
    object: &'a Object<'a>,
    reply: &'a Reply,
    events: Vec<Event>,
    /// Parts of the visible reply, such as words, that are in the events already.
    made: u64,
    all: u64,
    billed: Billed,
}

impl Script<'_> {
    fn push(&mut self, name: &'static str, members: &str) {
        let data = data(name, self.events.len(), members);
        self.events.push(Event { name, data, billed: self.billed });
    }

    fn stage(&mut self, name: &'static str, status: &str) {
        let response = self.object.unfinished(status);
        self.push(name, &format!(r#""response":{response}"#));
    }

    /// The events between the beginning and the end of an item.
    fn inside(&mut self, at: usize, item: &Item) {
        match &item.kind {
            Kind::Thought { .. } => self.bill(),
            // What the item says comes with its end.
            Kind::AgentCall { .. } => self.part(),
            Kind::Compaction => self.compact(at, item),
            Kind::Hosted(call) => self.run(at, item, *call),
            Kind::Message { pieces } => self.speak(at, item, pieces),
            Kind::Call { name, arguments, .. } => self.call(at, item, name, arguments),
        }
    }

    fn compact(&mut self, at: usize, item: &Item) {
        let place = format!(r#""output_index":{at},"item_id":"{}""#, item.id);
        self.push("response.compaction.compacting", &place);
        self.part();
    }

    fn run(&mut self, at: usize, item: &Item, call: Hosted) {
        self.billed.searches += u64::from(call.is_search());
        self.billed.images += u64::from(call.is_image());
        let id = &item.id;
        for &name in call.events() {
            self.push(name, &format!(r#""output_index":{at},"item_id":"{id}""#));
        }
    }

    fn speak(&mut self, at: usize, item: &Item, pieces: &[String]) {
        let place = format!(r#""item_id":"{}","output_index":{at},"content_index":0"#, item.id);
        let part = |text: &str| format!(r#"{place},"part":{}"#, item::part(text));
        self.push("response.content_part.added", &part(""));
        for piece in pieces {
            self.part();
            let (delta, more) = (quoted(piece), self.obfuscation());
            let members = format!(r#"{place},"delta":{delta},"logprobs":[]{more}"#);
            self.push("response.output_text.delta", &members);
        }
        let text = pieces.concat();
        let members = format!(r#"{place},"text":{},"logprobs":[]"#, quoted(&text));
        self.push("response.output_text.done", &members);
        self.push("response.content_part.done", &part(&text));
    }

    fn call(&mut self, at: usize, item: &Item, name: &str, arguments: &str) {
        let place = format!(r#""item_id":"{}","output_index":{at}"#, item.id);
        let (first, second) = arguments.split_at(arguments.len() / 2);
        for piece in [first, second] {
            self.part();
            let (delta, more) = (quoted(piece), self.obfuscation());
            let members = format!(r#"{place},"delta":{delta}{more}"#);
            self.push("response.function_call_arguments.delta", &members);
        }
        let members =
            format!(r#"{place},"name":{},"arguments":{}"#, quoted(name), quoted(arguments));
        self.push("response.function_call_arguments.done", &members);
    }

    /// One more part of the visible reply.
    fn part(&mut self) {
        self.made += 1;
        self.bill();
    }

    fn bill(&mut self) {
        let Billed { searches, images, .. } = self.billed;
        let billed = self.reply.billed_until(self.made, self.all);
        self.billed = Billed { images, searches, ..billed };
    }

    fn obfuscation(&self) -> String {
        if !self.object.obfuscates {
            return String::new();
        }
        let letters = "x7KqLp0ZtR4vWm9cYs2Nd";
        let length = 3 + self.events.len() * 7 % (letters.len() - 3);
        format!(r#","obfuscation":"{}""#, &letters[..length])
    }
}

fn of_output(at: usize, name: &str, value: &str) -> String {
    format!(r#""output_index":{at},"{name}":{value}"#)
}

fn data(name: &str, sequence: usize, members: &str) -> String {
    format!(r#"{{"type":"{name}","sequence_number":{sequence},{members}}}"#)
}
