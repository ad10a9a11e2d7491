//! The `[traces]` section: where traces are sent, and which calls are traced. Where it is silent,
//! the variables that are the standard of OpenTelemetry count.

use std::time::Duration;

use crate::catalogue::route::KeySource;
use crate::gateway::request::target::percent_decode;
use crate::toml_reader::{ConfigError, SourceLocation, TableReader, TomlValue};
use crate::traces::sampler::CallerTraces;

/// The prefix of the standard variables.
pub(crate) const STANDARD_PREFIX: &str = "OTEL_";
/// What an address of a collector gets behind it.
const TRACES_PATH: &str = "/v1/traces";
const DEFAULT_SERVICE_NAME: &str = "tollgate";
const DEFAULT_RATIO: f64 = 0.1;
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest timeout of a request to the collector, in ms.
const TIMEOUT_MS_MAX: u64 = 60_000;

/// The `[traces]` section.
#[derive(Debug, Clone)]
pub struct TracesSection {
    /// The address of the collector, with its path; `None` if nothing is traced.
    pub endpoint: Option<String>,
    /// The name of the service.
    pub service_name: String,
    /// The share of calls that are traced, from 0 to 1.
    pub sample_ratio: f64,
    /// What the span of a caller means.
    pub callers: CallerTraces,
    /// The headers of each request to the collector, with the sources of their values.
    pub headers: Vec<(http::HeaderName, KeySource)>,
    /// The timeout of a request to the collector.
    pub timeout: Duration,
    /// Further attributes of the process.
    pub attributes: Vec<(String, String)>,
}

/// The standard variables that are set.
pub(super) struct StandardVariables(pub(super) Vec<(String, String)>);

impl StandardVariables {
    /// Returns the value of a variable, with its location for errors. An empty one counts as unset.
    fn get(&self, name: &str) -> Option<(&str, SourceLocation)> {
        let found = self.0.iter().find(|(known, value)| known == name && !value.trim().is_empty());
        found.map(|(name, value)| (value.trim(), variable_location(name)))
    }

    /// Returns the value of a variable for traces, or of that for all signals.
    fn of_traces(&self, name: &str) -> Option<(&str, SourceLocation)> {
        let own = self.get(&format!("OTEL_EXPORTER_OTLP_TRACES_{name}"));
        own.or_else(|| self.get(&format!("OTEL_EXPORTER_OTLP_{name}")))
    }

    /// Whether they say that nothing is traced.
    fn turns_off(&self) -> bool {
        let says = |name: &str, word: &str| {
            self.get(name).is_some_and(|(value, _)| value.eq_ignore_ascii_case(word))
        };
        says("OTEL_SDK_DISABLED", "true")
            || says("OTEL_TRACES_EXPORTER", "none")
            || ["always_off", "parentbased_always_off"]
                .iter()
                .any(|sampler| says("OTEL_TRACES_SAMPLER", sampler))
    }
}

fn variable_location(name: &str) -> SourceLocation {
    SourceLocation::whole_source(&format!("environment variable {name}"))
}

impl TracesSection {
    /// Parses the section; faults are added to `faults`. The standard variables are read only where
    /// the section is silent, and only if anything is traced.
    pub(super) fn parse(
        table: &mut TableReader,
        standard: &StandardVariables,
        faults: &mut Vec<ConfigError>,
    ) -> TracesSection {
        // An empty text is off, whatever the variables of the machine say.
        let is_silent = !table.has("endpoint");
        let endpoint = parse_endpoint(table, faults);
        let service_name = table.text("service_name", faults).filter(|name| !name.is_empty());
        let sample_ratio = parse_ratio(table, faults);
        let callers = parse_callers(table, faults);
        let headers = parse_headers(table, faults);
        let timeout = parse_timeout(table, faults);
        let mut section = TracesSection {
            endpoint,
            service_name: service_name.clone().unwrap_or_else(|| DEFAULT_SERVICE_NAME.to_owned()),
            sample_ratio: sample_ratio.unwrap_or(DEFAULT_RATIO),
            callers: callers.unwrap_or(CallerTraces::Link),
            headers,
            timeout: timeout.unwrap_or(DEFAULT_TIMEOUT),
            attributes: Vec::new(),
        };
        if is_silent {
            section.endpoint = standard_endpoint(standard, faults);
        }
        if section.endpoint.is_none() {
            return section;
        }
        if let Some((name, _)) =
            standard.get("OTEL_SERVICE_NAME").filter(|_| service_name.is_none())
        {
            name.clone_into(&mut section.service_name);
        }
        let sampler = standard_sampler(standard, faults);
        section.sample_ratio = sample_ratio.or(sampler.ratio).unwrap_or(DEFAULT_RATIO);
        section.callers = callers.or(sampler.callers).unwrap_or(CallerTraces::Link);
        if section.headers.is_empty() {
            section.headers = standard_headers(standard, faults);
        }
        if let Some((text, at)) = standard.of_traces("TIMEOUT").filter(|_| timeout.is_none()) {
            section.timeout = timeout_of(text).unwrap_or_else(|| {
                faults.push(at.error(timeout_form(text)));
                DEFAULT_TIMEOUT
            });
        }
        section.attributes = standard_attributes(standard, faults);
        section
    }
}

fn parse_endpoint(table: &mut TableReader, faults: &mut Vec<ConfigError>) -> Option<String> {
    let node = table.take_value("endpoint")?;
    let TomlValue::Text(text) = &node.value else {
        faults.push(node.location.error("traces.endpoint must be a text"));
        return None;
    };
    if text.is_empty() {
        return None;
    }
    let endpoint = endpoint_of(text, true);
    if endpoint.is_none() {
        let form = "traces.endpoint must be an address such as http://127.0.0.1:4318, without a \
                    user, a query or a fragment";
        faults.push(node.location.error(form));
    }
    endpoint
}

/// Returns an address of a collector with its path, which is added if `adds_path`; `None` if the
/// text is no address.
fn endpoint_of(text: &str, adds_path: bool) -> Option<String> {
    let uri: http::Uri = text.parse().ok()?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    let is_sound = is_http && uri.host().is_some_and(|host| !host.is_empty());
    if !is_sound || uri.query().is_some() || text.contains(['#', '@']) {
        return None;
    }
    if !adds_path || uri.path().ends_with(TRACES_PATH) {
        return Some(text.to_owned());
    }
    Some(format!("{}{TRACES_PATH}", text.trim_end_matches('/')))
}

fn parse_ratio(table: &mut TableReader, faults: &mut Vec<ConfigError>) -> Option<f64> {
    let (digits, at) = table.number("sample_ratio", faults)?;
    let ratio = ratio_of(&digits);
    if ratio.is_none() {
        faults.push(at.error(format!("traces.sample_ratio must be from 0 to 1, not {digits}")));
    }
    ratio
}

fn ratio_of(digits: &str) -> Option<f64> {
    digits.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio))
}

fn parse_callers(table: &mut TableReader, faults: &mut Vec<ConfigError>) -> Option<CallerTraces> {
    let location = table.location.clone();
    match table.text("callers", faults)?.as_str() {
        "link" => Some(CallerTraces::Link),
        "continue" => Some(CallerTraces::Continue),
        _ => {
            faults.push(location.error("traces.callers must be \"link\" or \"continue\""));
            None
        }
    }
}

fn parse_headers(
    table: &mut TableReader,
    faults: &mut Vec<ConfigError>,
) -> Vec<(http::HeaderName, KeySource)> {
    let mut headers = Vec::new();
    for (name, node) in table.members("headers", faults) {
        let value = match &node.value {
            TomlValue::Text(text) if !text.is_empty() => KeySource::parse(text),
            _ => {
                faults.push(node.location.error("the value of a header must be a text"));
                continue;
            }
        };
        match http::HeaderName::from_bytes(name.as_bytes()) {
            Ok(name) => headers.push((name, value)),
            Err(_) => faults.push(node.location.error(format!("'{name}' is no name of a header"))),
        }
    }
    headers
}

fn parse_timeout(table: &mut TableReader, faults: &mut Vec<ConfigError>) -> Option<Duration> {
    let (digits, at) = table.number("timeout_ms", faults)?;
    let timeout = timeout_of(&digits);
    if timeout.is_none() {
        faults.push(at.error(format!("traces.timeout_ms: {}", timeout_form(&digits))));
    }
    timeout
}

fn timeout_of(digits: &str) -> Option<Duration> {
    let ms = digits.parse().ok().filter(|ms| (1..=TIMEOUT_MS_MAX).contains(ms));
    ms.map(Duration::from_millis)
}

fn timeout_form(found: &str) -> String {
    format!("a timeout must be from 1 to {TIMEOUT_MS_MAX} ms, not {found}")
}

/// Returns the address that the standard variables name, if they do not turn traces off.
fn standard_endpoint(
    standard: &StandardVariables,
    faults: &mut Vec<ConfigError>,
) -> Option<String> {
    let own = standard.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
    let adds_path = own.is_none();
    let (text, at) = own.or_else(|| standard.get("OTEL_EXPORTER_OTLP_ENDPOINT"))?;
    if standard.turns_off() {
        return None;
    }
    if let Some((protocol, at)) = standard.of_traces("PROTOCOL")
        && protocol != "http/protobuf"
    {
        faults.push(at.error("traces are sent by http/protobuf only"));
    }
    let endpoint = endpoint_of(text, adds_path);
    if endpoint.is_none() {
        faults.push(at.error("it must be an address such as http://127.0.0.1:4318"));
    }
    endpoint
}

/// What a sampler of the standard says; `None` where it says nothing.
#[derive(Default)]
struct StandardSampler {
    ratio: Option<f64>,
    callers: Option<CallerTraces>,
}

fn standard_sampler(
    standard: &StandardVariables,
    faults: &mut Vec<ConfigError>,
) -> StandardSampler {
    let Some((name, at)) = standard.get("OTEL_TRACES_SAMPLER") else {
        return StandardSampler::default();
    };
    let (kind, callers) = match name.strip_prefix("parentbased_") {
        Some(kind) => (kind, CallerTraces::Continue),
        None => (name, CallerTraces::Link),
    };
    let ratio = match kind {
        "always_on" => Some(1.0),
        "always_off" => Some(0.0),
        "traceidratio" => match standard.get("OTEL_TRACES_SAMPLER_ARG") {
            None => Some(1.0),
            Some((digits, at)) => {
                let ratio = ratio_of(digits);
                if ratio.is_none() {
                    faults.push(at.error(format!("a ratio must be from 0 to 1, not {digits}")));
                }
                ratio
            }
        },
        _ => {
            let known = "known are always_on, always_off, traceidratio, and these after \
                         parentbased_";
            faults.push(at.error(format!("'{name}' is no sampler here; {known}")));
            None
        }
    };
    StandardSampler { ratio, callers: Some(callers) }
}

fn standard_headers(
    standard: &StandardVariables,
    faults: &mut Vec<ConfigError>,
) -> Vec<(http::HeaderName, KeySource)> {
    let Some((list, at)) = standard.of_traces("HEADERS") else { return Vec::new() };
    let mut headers = Vec::new();
    for (name, value) in pairs_of(list, &at, faults) {
        match http::HeaderName::from_bytes(name.as_bytes()) {
            Ok(name) => headers.push((name, KeySource::Literal(value))),
            Err(_) => faults.push(at.error("it must be a list such as name=value,name=value")),
        }
    }
    headers
}

fn standard_attributes(
    standard: &StandardVariables,
    faults: &mut Vec<ConfigError>,
) -> Vec<(String, String)> {
    let Some((list, at)) = standard.get("OTEL_RESOURCE_ATTRIBUTES") else { return Vec::new() };
    let mut pairs = pairs_of(list, &at, faults);
    // The name has a variable, and a key, of its own.
    pairs.retain(|(key, _)| !key.starts_with("service."));
    pairs
}

/// Reads a list of the form `name=value,name=value`, whose values are percent-encoded. No fault
/// quotes it: it may have a token.
fn pairs_of(
    list: &str,
    at: &SourceLocation,
    faults: &mut Vec<ConfigError>,
) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    for member in list.split(',').map(str::trim).filter(|member| !member.is_empty()) {
        let pair = member.split_once('=').map(|(name, value)| (name.trim(), value.trim()));
        match pair.filter(|(name, _)| !name.is_empty()) {
            Some((name, value)) if let Some(value) = percent_decode(value) => {
                pairs.push((name.to_owned(), value));
            }
            _ => faults.push(at.error("it must be a list such as name=value,name=value")),
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::conf::Config;

    fn parse(text: &str, variables: &[(&str, &str)]) -> Result<TracesSection, Vec<String>> {
        let variables = variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let parsed = Config::parse("t.toml", text, variables).map(|conf| conf.traces);
        parsed.map_err(|faults| faults.iter().map(ToString::to_string).collect())
    }

    fn sound(text: &str, variables: &[(&str, &str)]) -> TracesSection {
        parse(text, variables).expect("sound")
    }

    #[test]
    fn without_an_address_nothing_is_traced_and_nothing_else_is_looked_at() {
        assert_eq!(sound("", &[]).endpoint, None);
        assert_eq!(sound("", &[("OTEL_TRACES_SAMPLER", "odd")]).endpoint, None);
        assert_eq!(sound("[traces]\nendpoint = ''\n", &[]).endpoint, None);
    }

    #[test]
    fn an_address_gets_the_path_of_traces_unless_it_is_that_of_traces_alone() {
        for (address, endpoint) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("https://c.test/otlp/", "https://c.test/otlp/v1/traces"),
            ("https://c.test/v1/traces", "https://c.test/v1/traces"),
        ] {
            let section = sound(&format!("[traces]\nendpoint = '{address}'\n"), &[]);
            assert_eq!(section.endpoint.as_deref(), Some(endpoint));
            let section = sound("", &[("OTEL_EXPORTER_OTLP_ENDPOINT", address)]);
            assert_eq!(section.endpoint.as_deref(), Some(endpoint));
        }
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c.test/in");
        let section = sound("", &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://d.test"), own]);
        assert_eq!(section.endpoint.as_deref(), Some("http://c.test/in"));
    }

    #[test]
    fn the_file_comes_before_the_standard_variables() {
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://d.test"),
            ("OTEL_SERVICE_NAME", "other"),
            ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b%2Cc+d,x=y"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
            ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=lab,service.name=no"),
        ];
        let section = sound("", &variables);
        assert_eq!(section.service_name, "other");
        assert!((section.sample_ratio - 0.25).abs() < f64::EPSILON);
        assert_eq!(section.callers, CallerTraces::Continue);
        let value = |text: &str| KeySource::Literal(text.to_owned());
        let headers: Vec<_> =
            section.headers.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        assert_eq!(headers, [("api-key", value("a b,c+d")), ("x", value("y"))]);
        assert_eq!(section.timeout, Duration::from_millis(2_500));
        let lab = ("deployment.environment.name".to_owned(), "lab".to_owned());
        assert_eq!(section.attributes, [lab]);

        let file = "[traces]\nendpoint = 'http://c.test'\nservice_name = 'mine'\n\
                    sample_ratio = 0.5\ncallers = 'link'\ntimeout_ms = 300\n\
                    headers = { authorization = 'file:/run/token' }\n";
        let section = sound(file, &variables);
        assert_eq!(section.endpoint.as_deref(), Some("http://c.test/v1/traces"));
        assert_eq!(section.service_name, "mine");
        assert!((section.sample_ratio - 0.5).abs() < f64::EPSILON);
        assert_eq!(section.callers, CallerTraces::Link);
        assert_eq!(section.timeout, Duration::from_millis(300));
        let token = KeySource::File("/run/token".to_owned());
        assert_eq!(section.headers, [(http::header::AUTHORIZATION, token)]);
    }

    #[rstest]
    #[case("OTEL_SDK_DISABLED", "true")]
    #[case("OTEL_TRACES_EXPORTER", "none")]
    #[case("OTEL_TRACES_SAMPLER", "always_off")]
    #[case("OTEL_TRACES_SAMPLER", "parentbased_always_off")]
    fn the_standard_variables_can_say_that_nothing_is_traced(
        #[case] name: &str,
        #[case] value: &str,
    ) {
        let address = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://d.test");
        assert!(sound("", &[address]).endpoint.is_some());
        assert_eq!(sound("", &[address, (name, value)]).endpoint, None);
    }

    #[rstest]
    #[case("endpoint = 'c.test:4318'", "t.toml:2: traces.endpoint must be")]
    #[case("endpoint = 'grpc://c.test'", "t.toml:2: traces.endpoint must be")]
    #[case("endpoint = 'http://u:canary@c.test'", "t.toml:2: traces.endpoint must be")]
    #[case("endpoint = 'http://c.test?key=canary'", "t.toml:2: traces.endpoint must be")]
    #[case("endpoint = 7", "t.toml:2: traces.endpoint must be a text")]
    #[case("sample_ratio = 1.01", "t.toml:2: traces.sample_ratio must be from 0 to 1, not 1.01")]
    #[case("sample_ratio = -0.1", "t.toml:2: traces.sample_ratio must be from 0 to 1")]
    #[case("callers = 'trust'", "t.toml:1: traces.callers must be")]
    #[case("timeout_ms = 0", "t.toml:2: traces.timeout_ms: a timeout must be from 1 to")]
    #[case("headers = { 'a b' = 'canary' }", "t.toml:2: 'a b' is no name of a header")]
    #[case("headers = { a = 1 }", "t.toml:2: the value of a header must be a text")]
    #[case("ratio = 1", "t.toml:2: unknown key 'ratio'")]
    fn a_bad_value_is_a_fault_with_its_line(#[case] line: &str, #[case] fault: &str) {
        let faults = parse(&format!("[traces]\n{line}\n"), &[]).expect_err("a fault");
        assert!(faults.len() == 1 && faults[0].starts_with(fault), "{faults:?}");
        assert!(!faults[0].contains("canary"), "{faults:?}");
    }

    #[rstest]
    #[case("OTEL_TRACES_SAMPLER", "jaeger_remote")]
    #[case("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]
    #[case("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "c.test")]
    #[case("OTEL_EXPORTER_OTLP_HEADERS", "canary")]
    #[case("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")]
    #[case("OTEL_RESOURCE_ATTRIBUTES", "=canary")]
    fn a_bad_standard_variable_is_named_and_not_quoted(#[case] name: &str, #[case] value: &str) {
        let address = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://d.test");
        let faults = parse("", &[address, (name, value)]).expect_err("a fault");
        let named = format!("environment variable {name}: ");
        assert!(faults.len() == 1 && faults[0].starts_with(&named), "{faults:?}");
        assert!(!faults[0].contains("canary"), "{faults:?}");
    }
}
