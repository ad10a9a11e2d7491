//! A reply in the vendor's own words: whole, or as the events of a stream.

use std::fmt::Write;

use super::faults::{Fault, Faults};
use super::record::Billed;
use super::reply::{Ask, Reply, ToolCall};
use super::usage::{self, quoted};
use super::vendor::Vendor;

/// At most so many events of thought, however many tokens it took.
const THOUGHTS_MAX: u64 = 3;

/// An event of a stream.
pub(super) struct Event {
    /// The word in the line before the data; none where the vendor writes no such line.
    pub(super) name: &'static str,
    pub(super) data: String,
    /// What the vendor bills if it stops after this one.
    pub(super) billed: Billed,
}

/// The body of a reply that comes at once.
pub(super) fn whole(reply: &Reply, ask: &Ask, faults: &Faults) -> String {
    let choices: Vec<_> = (0..reply.choices).map(|index| whole_choice(reply, index)).collect();
    let usage = usage::text(reply.vendor, &reply.billed, faults);
    envelope(reply, ask, "chat.completion", &choices.join(","), usage.as_deref(), "")
}

/// All events of a stream, but for its end.
pub(super) fn events(reply: &Reply, ask: &Ask, faults: &Faults) -> Vec<Event> {
    let calls =
        reply.calls.len() as u64 * if reply.vendor.sends_whole_tool_calls() { 1 } else { 3 };
    let pieces = reply.pieces();
    let mut script = Script {
        reply,
        ask,
        faults,
        events: Vec::new(),
        made: 0,
        all: (pieces.len() as u64 + calls) * reply.choices,
    };
    script.open();
    script.think();
    script.speak(&pieces);
    script.call();
    script.close();
    script.events
}

struct Script<'a> {
    reply: &'a Reply,
    ask: &'a Ask,
    faults: &'a Faults,
    events: Vec<Event>,
    /// Parts of the visible reply, such as words, that are in the events already.
    made: u64,
    all: u64,
}

impl Script<'_> {
    /// The first deltas, which only name the role.
    fn open(&mut self) {
        if self.reply.vendor.repeats_role() {
            return;
        }
        let refusal = if self.reply.vendor == Vendor::B { r#","refusal":null"# } else { "" };
        for index in 0..self.reply.choices {
            let delta = format!(r#"{{"role":"assistant","content":""{refusal}}}"#);
            let billed = self.reply.billed_for_prompt();
            self.push(&self.choice(index, &delta, None), None, billed);
        }
    }

    /// Deltas of reasoning, from the vendor who shows it.
    fn think(&mut self) {
        if self.reply.vendor != Vendor::D {
            return;
        }
        let all = self.reply.billed;
        let count = all.reasoning.min(THOUGHTS_MAX);
        for number in 1..=count {
            let reasoning = all.reasoning / count * number + all.reasoning % count;
            let total = all.prompt.saturating_add(reasoning);
            let billed = Billed { prompt: all.prompt, reasoning, total, ..Billed::default() };
            let delta = r#"{"reasoning_content":"Let me think. "}"#;
            self.push(&self.choice(0, delta, None), None, billed);
        }
    }

    fn speak(&mut self, pieces: &[&str]) {
        for piece in pieces {
            for index in 0..self.reply.choices {
                let role = self.repeated_role();
                self.part(index, &format!(r#"{{"content":{}{role}}}"#, quoted(piece)));
            }
        }
    }

    fn call(&mut self) {
        for index in 0..self.reply.choices {
            for (number, call) in self.reply.calls.iter().enumerate() {
                if self.reply.vendor.sends_whole_tool_calls() {
                    let call = self.whole_call(number, call);
                    let role = self.repeated_role();
                    self.part(index, &format!(r#"{{"tool_calls":[{call}]{role}}}"#));
                } else {
                    self.call_in_parts(index, number, call);
                }
            }
        }
    }

    fn whole_call(&self, number: usize, call: &ToolCall) -> String {
        let ToolCall { id, name, arguments } = call;
        let function = function(name, arguments);
        let extra = extra_content(self.reply.vendor);
        if self.faults.has(Fault::OldTools) {
            return format!(r#"{{"id":"","type":"function","function":{function}{extra}}}"#);
        }
        format!(
            r#"{{"index":{number},"id":"{id}","type":"function","function":{function}{extra}}}"#
        )
    }

    fn call_in_parts(&mut self, index: u64, number: usize, call: &ToolCall) {
        let ToolCall { id, name, arguments } = call;
        let function = function(name, "");
        let head = format!(r#""id":"{id}","type":"function","function":{function}"#);
        let (first, second) = arguments.split_at(arguments.len() / 2);
        let argument = |part| format!(r#""function":{{"arguments":{}}}"#, quoted(part));
        for members in [head, argument(first), argument(second)] {
            let call = format!(r#"{{"index":{number},{members}}}"#);
            self.part(index, &format!(r#"{{"tool_calls":[{call}]}}"#));
        }
    }

    /// The finish of every choice, and the usage where the vendor puts it.
    fn close(&mut self) {
        let reply = self.reply;
        let whole_calls = reply.vendor.sends_whole_tool_calls() && !reply.calls.is_empty();
        let old = self.faults.has(Fault::OldTools) && whole_calls;
        let reason = if old { "stop" } else { reply.finish_reason };
        for index in 0..reply.choices {
            let delta = match reply.vendor {
                Vendor::C => r#"{"content":"","role":"assistant"}"#,
                Vendor::E => r#"{"content":""}"#,
                _ => "{}",
            };
            let last = index + 1 == reply.choices;
            let usage = (reply.vendor == Vendor::E && last).then(|| self.usage(&reply.billed));
            self.push(&self.choice(index, delta, Some(reason)), usage.flatten(), reply.billed);
        }
        let apart = match reply.vendor {
            Vendor::B => self.ask.include_usage,
            Vendor::D => true,
            _ => false,
        };
        if apart && !self.faults.has(Fault::NullUsage) && !self.faults.has(Fault::NoUsage) {
            let usage = self.usage(&reply.billed);
            self.push("", usage, reply.billed);
        }
    }

    /// An event with the next part of the visible reply.
    fn part(&mut self, index: u64, delta: &str) {
        self.made += 1;
        let billed = self.reply.billed_until(self.made, self.all);
        self.push(&self.choice(index, delta, None), None, billed);
    }

    fn push(&mut self, choices: &str, usage: Option<String>, billed: Billed) {
        let usage = usage.or_else(|| self.ordinary_usage(&billed));
        let padding = if choices.is_empty() { String::new() } else { self.obfuscation() };
        let data = envelope(
            self.reply,
            self.ask,
            "chat.completion.chunk",
            choices,
            usage.as_deref(),
            &padding,
        );
        self.events.push(Event { name: "", data, billed });
    }

    fn choice(&self, index: u64, delta: &str, finish: Option<&str>) -> String {
        let finish = finish.map_or_else(|| "null".to_owned(), quoted);
        match self.reply.vendor {
            Vendor::C if finish == "null" => format!(r#"{{"delta":{delta},"index":{index}}}"#),
            Vendor::C => {
                format!(r#"{{"delta":{delta},"finish_reason":{finish},"index":{index}}}"#)
            }
            Vendor::B => format!(
                r#"{{"index":{index},"delta":{delta},"logprobs":null,"finish_reason":{finish}}}"#
            ),
            _ => format!(r#"{{"index":{index},"delta":{delta},"finish_reason":{finish}}}"#),
        }
    }

    /// What the vendor writes as usage on a chunk which is not about usage.
    fn ordinary_usage(&self, billed: &Billed) -> Option<String> {
        match self.reply.vendor {
            Vendor::C => self.usage(billed),
            Vendor::B if self.ask.include_usage && !self.faults.has(Fault::NoUsage) => {
                Some("null".to_owned())
            }
            _ => self.faults.has(Fault::NullUsage).then(|| "null".to_owned()),
        }
    }

    fn usage(&self, billed: &Billed) -> Option<String> {
        usage::text(self.reply.vendor, billed, self.faults)
    }

    fn repeated_role(&self) -> &'static str {
        if self.reply.vendor.repeats_role() { r#","role":"assistant""# } else { "" }
    }

    fn obfuscation(&self) -> String {
        if self.reply.vendor != Vendor::B || !self.ask.obfuscate {
            return String::new();
        }
        let seed = self.events.len();
        let letters = "x7KqLp0ZtR4vWm9cYs2Nd";
        format!(r#","obfuscation":"{}""#, &letters[..3 + seed * 7 % (letters.len() - 3)])
    }
}

fn whole_choice(reply: &Reply, index: u64) -> String {
    let mut calls = String::new();
    for ToolCall { id, name, arguments } in &reply.calls {
        let comma = if calls.is_empty() { "" } else { "," };
        let function = function(name, arguments);
        let extra = extra_content(reply.vendor);
        let call = format!(r#"{{"id":"{id}","type":"function","function":{function}{extra}}}"#);
        write!(calls, "{comma}{call}").expect("a String takes everything");
    }
    let content = if reply.calls.is_empty() { quoted(&reply.text) } else { "null".to_owned() };
    let calls = if calls.is_empty() { calls } else { format!(r#","tool_calls":[{calls}]"#) };
    let finish = quoted(reply.finish_reason);
    match reply.vendor {
        Vendor::A | Vendor::B => format!(
            "{{\"index\":{index},\"message\":{{\"role\":\"assistant\",\"content\":{content}{calls},\
             \"refusal\":null,\"annotations\":[]}},\"logprobs\":null,\"finish_reason\":{finish}}}"
        ),
        Vendor::C => format!(
            "{{\"finish_reason\":{finish},\"index\":{index},\"message\":{{\"content\":{content},\
             \"role\":\"assistant\"{calls}}}}}"
        ),
        Vendor::D => {
            let thought = r#","reasoning_content":"Let me think. ""#;
            let thought = if reply.billed.reasoning > 0 { thought } else { "" };
            format!(
                "{{\"index\":{index},\"message\":{{\"role\":\"assistant\",\"content\":{content}\
                 {thought}{calls},\"refusal\":null}},\"finish_reason\":{finish}}}"
            )
        }
        Vendor::E => format!(
            "{{\"index\":{index},\"message\":{{\"role\":\"assistant\",\"content\":{content},\
             \"name\":null{calls}}},\"finish_reason\":{finish}}}"
        ),
    }
}

/// The members around the choices; `rest` follows them all.
fn envelope(
    reply: &Reply,
    ask: &Ask,
    object: &str,
    choices: &str,
    usage: Option<&str>,
    rest: &str,
) -> String {
    let usage = usage.map_or_else(String::new, |usage| format!(r#","usage":{usage}"#));
    let (id, created, model) = (&reply.id, reply.created, quoted(&ask.model));
    match reply.vendor {
        Vendor::C => format!(
            "{{\"choices\":[{choices}],\"created\":{created},\"id\":\"{id}\",\"model\":{model},\
             \"object\":\"{object}\"{usage}{rest}}}"
        ),
        Vendor::E => format!(
            "{{\"id\":\"{id}\",\"object\":\"{object}\",\"created\":{created},\"model\":{model},\
             \"choices\":[{choices}]{usage}{rest}}}"
        ),
        Vendor::D => format!(
            "{{\"id\":\"{id}\",\"object\":\"{object}\",\"created\":{created},\"model\":{model},\
             \"choices\":[{choices}]{usage},\"system_fingerprint\":\"fp_sim0d\"{rest}}}"
        ),
        Vendor::A | Vendor::B => {
            let tier = quoted(&ask.service_tier);
            format!(
                "{{\"id\":\"{id}\",\"object\":\"{object}\",\"created\":{created},\
                 \"model\":{model},\"choices\":[{choices}]{usage},\"service_tier\":{tier},\
                 \"system_fingerprint\":null{rest}}}"
            )
        }
    }
}

fn function(name: &str, arguments: &str) -> String {
    format!(r#"{{"name":{},"arguments":{}}}"#, quoted(name), quoted(arguments))
}

/// A member of tool calls that must survive both ways through a gateway.
fn extra_content(vendor: Vendor) -> &'static str {
    match vendor {
        Vendor::C => {
            r#","extra_content":{"vendor_c":{"thought_signature":"c2lnbmVkIHRob3VnaHQ="}}"#
        }
        _ => "",
    }
}
