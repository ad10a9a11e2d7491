//! A reply in JSON: whole, or as the events of a stream.

use super::super::faults::Fault;
use super::super::record::Billed;
use super::super::script::Event;
use super::super::usage::quoted;
use super::turn::{Block, EXPLANATION, REDACTED, SUMMARY, ServerTool, Turn};

impl Turn<'_> {
    /// The body of a reply that comes at once.
    pub(in super::super) fn whole(&self) -> String {
        let blocks: Vec<_> = self.blocks.iter().map(whole_block).collect();
        let (reason, usage) = (self.stop(), self.usage.whole());
        self.message(&format!("[{}]", blocks.join(",")), &reason, &usage)
    }

    /// All events of a stream, but for its end.
    pub(in super::super) fn events(&self) -> Vec<Event> {
        let mut script = Script { turn: self, events: Vec::new(), thought: 0, made: 0 };
        script.start();
        for (index, block) in self.blocks.iter().enumerate() {
            script.block(index, block);
        }
        script.end();
        script.events
    }

    /// The members which tell why it ended.
    fn stop(&self) -> String {
        let stop = self.reply.stopped_by.as_deref().filter(|_| self.stop_reason == "stop_sequence");
        let stop = stop.map_or_else(|| "null".to_owned(), quoted);
        let details = if self.explained {
            let explanation = quoted(EXPLANATION);
            format!(r#"{{"type":"refusal","category":"sums","explanation":{explanation}}}"#)
        } else {
            "null".to_owned()
        };
        let reason = self.stop_reason;
        format!(r#""stop_reason":"{reason}","stop_sequence":{stop},"stop_details":{details}"#)
    }

    fn message(&self, content: &str, reason: &str, usage: &str) -> String {
        let (id, model) = (&self.reply.id, quoted(self.model));
        format!(
            "{{\"id\":\"{id}\",\"type\":\"message\",\"role\":\"assistant\",\"model\":{model},\
             \"content\":{content},{reason}{usage}}}"
        )
    }
}

struct Script<'a> {
    turn: &'a Turn<'a>,
    events: Vec<Event>,
    /// Parts of the thought that are in the events already.
    thought: u64,
    /// The same of the visible reply.
    made: u64,
}

impl Script<'_> {
    fn start(&mut self) {
        let reason = r#""stop_reason":null,"stop_sequence":null,"stop_details":null"#;
        let output = self.billed().completion;
        let message = self.turn.message("[]", reason, &self.turn.usage.at_start(output));
        let twice = self.turn.faults.has(Fault::DoubleStart);
        for _ in 0..=u8::from(twice) {
            self.push("message_start", &format!(r#""message":{message}"#));
        }
    }

    fn block(&mut self, index: usize, block: &Block) {
        self.odd_event();
        let start = match block {
            Block::Summary => r#"{"type":"compaction","content":null}"#.to_owned(),
            Block::Thought { .. } => r#"{"type":"thinking","thinking":"","signature":""}"#.into(),
            Block::Text { .. } => r#"{"type":"text","text":""}"#.to_owned(),
            Block::Call { id, name, .. } => call(id, name, "{}"),
            Block::Asked { id, tool } => asked(id, tool, "{}"),
            whole => whole_block(whole),
        };
        self.push("content_block_start", &format!(r#""index":{index},"content_block":{start}"#));
        self.odd_delta(index);
        match block {
            Block::Thought { pieces, signature } => {
                for piece in pieces {
                    self.thought += 1;
                    self.delta(index, "thinking_delta", "thinking", piece);
                }
                self.thought += 1;
                self.delta(index, "signature_delta", "signature", signature);
            }
            Block::Text { pieces } => {
                for piece in pieces {
                    self.made += 1;
                    self.delta(index, "text_delta", "text", piece);
                }
            }
            Block::Call { input, .. } => self.input(index, input, 1),
            Block::Asked { tool, .. } => self.input(index, tool.input, 0),
            // Where nobody expects it, JSON comes in pieces once more.
            Block::Found { tool, .. } if self.turn.faults.has(Fault::WebJson) => {
                self.input(index, tool.content, 0);
            }
            Block::Summary => self.delta(index, "compaction_delta", "content", SUMMARY),
            Block::Found { .. } | Block::Redacted => {}
        }
        self.odd_delta(index);
        self.push("content_block_stop", &format!(r#""index":{index}"#));
    }

    /// JSON in pieces, of which the first is empty; none at all if there is nothing in it.
    fn input(&mut self, index: usize, json: &str, parts: u64) {
        if json == "{}" {
            self.made += 3 * parts;
            return;
        }
        let (first, second) = json.split_at(json.len() / 2);
        for piece in ["", first, second] {
            self.made += parts;
            self.delta(index, "input_json_delta", "partial_json", piece);
        }
    }

    fn end(&mut self) {
        if self.turn.faults.has(Fault::OddEvents) {
            let usage = self.turn.usage.at_end(&self.billed());
            let delta = r#"{"stop_reason":null,"stop_sequence":null}"#;
            self.push("message_delta", &format!(r#""delta":{delta}{usage}"#));
        }
        (self.thought, self.made) = (self.turn.thought_parts(), self.turn.visible_parts());
        let usage = self.turn.usage.at_end(&self.turn.reply.billed);
        let (members, billed) =
            (format!(r#""delta":{{{}}}{usage}"#, self.turn.stop()), self.turn.reply.billed);
        self.push_billed("message_delta", &members, billed);
    }

    fn delta(&mut self, index: usize, kind: &str, member: &str, piece: &str) {
        let piece = quoted(piece);
        let delta = format!(r#"{{"type":"{kind}","{member}":{piece}}}"#);
        self.push("content_block_delta", &format!(r#""index":{index},"delta":{delta}"#));
    }

    fn odd_event(&mut self) {
        if self.turn.faults.has(Fault::OddEvents) {
            self.push("weather_report", r#""weather":{"type":"text","text":"rain"},"index":0"#);
        }
    }

    fn odd_delta(&mut self, index: usize) {
        if self.turn.faults.has(Fault::OddEvents) {
            self.delta(index, "mood_delta", "text", "gloomy");
        }
    }

    fn push(&mut self, name: &'static str, members: &str) {
        let billed = self.billed();
        self.push_billed(name, members, billed);
    }

    fn push_billed(&mut self, name: &'static str, members: &str, billed: Billed) {
        let data = format!(r#"{{"type":"{name}",{members}}}"#);
        let billed = self.turn.usage.with_summary(billed);
        self.events.push(Event { name, data, billed });
    }

    /// What the vendor bills for all that is in the events.
    fn billed(&self) -> Billed {
        let all = self.turn.reply.billed;
        let (thoughts, parts) = (self.turn.thought_parts(), self.turn.visible_parts());
        if self.made > 0 {
            return self.turn.reply.billed_until(self.made, parts);
        }
        // A token is made before the first event is.
        let reasoning = share(all.reasoning, self.thought, thoughts);
        let completion = reasoning.max(1).min(all.completion);
        let reasoning = reasoning.min(completion);
        let total = all.prompt.saturating_add(completion);
        Billed { prompt: all.prompt, completion, reasoning, total, ..Billed::default() }
    }
}

fn share(all: u64, made: u64, parts: u64) -> u64 {
    let share = u128::from(all) * u128::from(made) / u128::from(parts.max(1));
    u64::try_from(share).expect("a part is no larger than the whole")
}

fn call(id: &str, name: &str, input: &str) -> String {
    let name = quoted(name);
    format!(r#"{{"type":"tool_use","id":"{id}","name":{name},"input":{input}}}"#)
}

fn asked(id: &str, tool: &ServerTool, input: &str) -> String {
    let name = tool.name;
    format!(r#"{{"type":"server_tool_use","id":"{id}","name":"{name}","input":{input}}}"#)
}

fn whole_block(block: &Block) -> String {
    match block {
        Block::Summary => format!(r#"{{"type":"compaction","content":{}}}"#, quoted(SUMMARY)),
        Block::Thought { pieces, signature } => {
            let (thought, signature) = (quoted(&pieces.concat()), quoted(signature));
            format!(r#"{{"type":"thinking","thinking":{thought},"signature":{signature}}}"#)
        }
        Block::Redacted => format!(r#"{{"type":"redacted_thinking","data":"{REDACTED}"}}"#),
        Block::Text { pieces } => {
            format!(r#"{{"type":"text","text":{}}}"#, quoted(&pieces.concat()))
        }
        Block::Call { id, name, input } => call(id, name, input),
        Block::Asked { id, tool } => asked(id, tool, tool.input),
        Block::Found { id, tool } => {
            let ServerTool { result, content, .. } = tool;
            format!(r#"{{"type":"{result}","tool_use_id":"{id}","content":{content}}}"#)
        }
    }
}
