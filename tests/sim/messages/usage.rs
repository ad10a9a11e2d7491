//! Usage as the vendor writes it.

use serde_json::Value;

use super::super::faults::{Fault, Faults};
use super::super::record::Billed;
use super::super::usage::quoted;
use super::cache::Kept;
use super::turn::{self, ServerTool};

const BROKEN: &str = concat!(
    r#"{"input_tokens":-7,"cache_creation_input_tokens":"many","#,
    r#""cache_read_input_tokens":99999999999999999999,"output_tokens":3.75}"#,
);

/// What a reply costs, and what else is told with it.
pub(super) struct Usage {
    pub(super) billed: Billed,
    kept: Kept,
    speed: String,
    region: String,
    style: Style,
    server_tool: Option<&'static ServerTool>,
    /// The tokens of the summary that a pass of its own makes.
    pub(super) summary: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Full,
    /// The end says nothing of the input.
    Lean,
    Broken,
    Null,
    Missing,
}

impl Usage {
    pub(super) fn new(billed: &Billed, kept: &Kept, body: &Value, faults: &Faults) -> Usage {
        let told = |name: &str, usual: &str| quoted(body[name].as_str().unwrap_or(usual));
        let styles = [
            (Fault::NoUsage, Style::Missing),
            (Fault::NullUsage, Style::Null),
            (Fault::BadUsage, Style::Broken),
            (Fault::LeanUsage, Style::Lean),
        ];
        let style = styles.into_iter().find(|(fault, _)| faults.has(*fault));
        Usage {
            billed: *billed,
            kept: kept.within(billed.prompt),
            speed: told("speed", "standard"),
            region: told("inference_geo", "global"),
            style: style.map_or(Style::Full, |(_, style)| style),
            server_tool: turn::server_tool(body, faults),
            summary: faults.number(Fault::Summary).filter(|_| turn::is_to_be_compacted(body)),
        }
    }

    /// A bill of the answer, with that of the summary before it: a pass over the whole prompt.
    pub(super) fn with_summary(&self, billed: Billed) -> Billed {
        let Some(summary) = self.summary else { return billed };
        let pass = self.billed.prompt;
        Billed {
            prompt: billed.prompt + pass,
            completion: billed.completion + summary,
            total: billed.total + pass + summary,
            ..billed
        }
    }

    /// The member of a reply that comes at once, with a comma before it.
    pub(super) fn whole(&self) -> String {
        let Billed { completion, reasoning, .. } = self.billed;
        self.member(&format!(
            "{{{},{},\"output_tokens\":{completion},\
             \"output_tokens_details\":{{\"thinking_tokens\":{reasoning}}},\
             \"server_tool_use\":{},{}{}}}",
            self.input(self.uncached()),
            self.split(),
            self.searches(),
            self.circumstances(),
            self.iterations(completion)
        ))
    }

    /// The same at the start of a stream, when `output` tokens are made.
    pub(super) fn at_start(&self, output: u64) -> String {
        let parts = if self.server_tool.is_some() { 3 } else { 1 };
        let uncached = self.uncached() / parts;
        self.member(&format!(
            "{{{},{},\"output_tokens\":{output},{}}}",
            self.input(uncached),
            self.split(),
            self.circumstances()
        ))
    }

    /// The same when the stream comes to its end; all of it, not what was added.
    pub(super) fn at_end(&self, billed: &Billed) -> String {
        let Billed { completion, reasoning, .. } = *billed;
        let input = if self.style == Style::Lean {
            r#""input_tokens":null,"cache_creation_input_tokens":null"#.to_owned()
        } else {
            self.input(self.uncached())
        };
        self.member(&format!(
            "{{{input},\"output_tokens\":{completion},\
             \"output_tokens_details\":{{\"thinking_tokens\":{reasoning}}},\
             \"server_tool_use\":{}{}}}",
            self.searches(),
            self.iterations(completion)
        ))
    }

    /// The passes one by one, where there is more than one. Only that of the answer, which made so
    /// many tokens, stands in the other members.
    fn iterations(&self, completion: u64) -> String {
        let Some(summary) = self.summary else { return String::new() };
        let prompt = self.billed.prompt;
        let answer = self.input(self.uncached());
        format!(
            ",\"iterations\":[{{\"type\":\"compaction\",\"input_tokens\":{prompt},\
             \"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":0,\
             \"output_tokens\":{summary}}},\
             {{\"type\":\"message\",{answer},\"output_tokens\":{completion}}}]"
        )
    }

    fn member(&self, usual: &str) -> String {
        let value = match self.style {
            Style::Full | Style::Lean => usual,
            Style::Broken => BROKEN,
            Style::Null => "null",
            Style::Missing => return String::new(),
        };
        format!(r#","usage":{value}"#)
    }

    fn uncached(&self) -> u64 {
        self.billed.prompt - self.kept.read - self.kept.written
    }

    fn input(&self, uncached: u64) -> String {
        let Kept { read, written, .. } = self.kept;
        format!(
            "\"input_tokens\":{uncached},\"cache_creation_input_tokens\":{written},\
             \"cache_read_input_tokens\":{read}"
        )
    }

    fn split(&self) -> String {
        let Kept { written, for_an_hour, .. } = self.kept;
        let for_minutes = written - for_an_hour;
        format!(
            "\"cache_creation\":{{\"ephemeral_5m_input_tokens\":{for_minutes},\
             \"ephemeral_1h_input_tokens\":{for_an_hour}}}"
        )
    }

    fn searches(&self) -> &'static str {
        self.server_tool.map_or("null", |tool| tool.requests)
    }

    fn circumstances(&self) -> String {
        let Usage { speed, region, .. } = self;
        format!(r#""service_tier":"standard","speed":{speed},"inference_geo":{region}"#)
    }
}
