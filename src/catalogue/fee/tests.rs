//! Tests of fees: what a rule must say, and what a call must.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use rstest::rstest;

use super::*;
use crate::catalogue::{Catalogue, Model};

const HEAD: &str = "auth = { header = \"x\" }\n\
                    estimate = { output_tokens = 1, image_tokens = 1, document_tokens = 1 }\n";
const MODELS: &str = "[chat]\n\"m\" = { input = 1, output = 1, context = 1000 }\n";
const REFUSAL: &str = "[[refuse]]\nfield = \"tools[].type\"\nunless = [\"custom\"]\n\
                       because = \"it has no price\"\n";
const SEARCH: &str = "[[fee]]\nfield = \"tools[].type\"\nvalue = \"web_search*\"\n\
                      per = \"usage.server_tool_use.web_search_requests\"\nusd = 0.01\n\
                      most = \"max_uses\"\n";

/// Parses rules that have these fees.
fn catalogue(dialect: &str, models: &str, fees: &str) -> Result<Catalogue, Vec<String>> {
    let text =
        format!("vendor = \"v\"\ndialect = \"{dialect}\"\n{HEAD}{models}{MODELS}{REFUSAL}{fees}");
    let told = |faults: Vec<ConfigError>| faults.iter().map(ToString::to_string).collect();
    Catalogue::parse(&[("v.toml".to_owned(), text)], &[]).map_err(told)
}

fn found(model: &Model, endpoint: Endpoint, members: &str) -> Result<CallFees, CallError> {
    let body = format!("{{\"model\":\"m\",{members}}}");
    let document = JsonDocument::parse(body.into()).expect("sound");
    model.vendor.find_fees(endpoint, &document, None)
}

/// Finds the fees of a call by the rule of a search.
fn searches(members: &str) -> Result<CallFees, CallError> {
    let catalogue = catalogue("messages", "", SEARCH).expect("sound rules");
    let model = catalogue.find("m").expect("the model");
    found(model, Endpoint::Messages, members)
}

fn nano(amount: Money) -> i64 {
    amount.nano()
}

const EXPECTED: &str =
    "a whole number from 1 to 1000, the most uses of web_search that you pay for, 0.01 USD each";

#[rstest]
#[case::one(r#""max_uses":1"#, 1)]
#[case::several(r#""max_uses":3"#, 3)]
#[case::the_most(r#""max_uses":1000"#, 1_000)]
#[case::escaped(r#""max\u005fuses":2"#, 2)]
fn a_bound_is_held_times_the_fee(#[case] member: &str, #[case] uses: i64) {
    let tool = format!(r#""tools":[{{"type":"web_search_20250305",{member}}}]"#);
    let fees = searches(&tool).expect("a bound");
    assert_eq!(fees.amount_max().map(nano), Ok(uses * 10_000_000));
    assert_eq!(i64::try_from(fees.rereads_max()), Ok(uses + 1), "one try more");
}

#[rstest]
#[case::zero("0", "a number (0)")]
#[case::negative("-1", "a number (-1)")]
#[case::float("1.5", "a number (1.5)")]
#[case::a_whole_float("2.0", "a number (2.0)")]
#[case::exponent("1e2", "a number (1e2)")]
#[case::too_many("1001", "a number (1001)")]
#[case::huge("18446744073709551616", "a number (18446744073709551616)")]
#[case::text(r#""3""#, r#"a string ("3")"#)]
#[case::truth("true", "a boolean (true)")]
#[case::list("[3]", "an array ([3])")]
fn a_bound_that_is_none_is_told_with_its_field_and_value(#[case] value: &str, #[case] shown: &str) {
    let tools = format!(r#"{{"type":"custom"}},{{"type":"web_search_1","max_uses":{value}}}"#);
    let error = searches(&format!(r#""tools":[{tools}]"#)).expect_err("no bound");
    assert_eq!((error.code, error.param.as_deref()), ("invalid_value", Some("tools[1].max_uses")));
    assert_eq!(error.message, format!("'tools[1].max_uses' must be {EXPECTED}, not {shown}"));
}

#[rstest]
#[case::missing("")]
#[case::null(r#","max_uses":null"#)]
fn a_missing_bound_is_told_with_what_would_be_right(#[case] member: &str) {
    let tools = format!(r#""tools":[{{"type":"web_search_20250305"{member}}}]"#);
    let error = searches(&tools).expect_err("no bound");
    assert_eq!(error.code, "missing_required_parameter");
    assert_eq!(error.message, format!("'tools[0].max_uses' is required: {EXPECTED}"));
}

#[test]
fn a_missing_bound_tells_what_the_account_pays() {
    let catalogue = catalogue("messages", "", SEARCH).expect("sound rules");
    let model = catalogue.find("m").expect("the model");
    let body = r#"{"tools":[{"type":"web_search_1"}]}"#;
    let document = JsonDocument::parse(body.into()).expect("sound");
    let factor = PriceFactor::parse("0.8333").ok();
    let error =
        model.vendor.find_fees(Endpoint::Messages, &document, factor).expect_err("no bound");
    assert!(error.message.ends_with("that you pay for, 0.008333 USD each"), "{}", error.message);
}

#[test]
fn several_tools_add_up_and_each_needs_a_bound() {
    let tool = |rest: &str| format!(r#"{{"type":"web_search_1"{rest}}}"#);
    let both = [r#","max_uses":2"#, r#","max_uses":5"#].map(tool).join(",");
    let fees = searches(&format!(r#""tools":[{both}]"#)).expect("bounds");
    assert_eq!((fees.rereads_max(), fees.amount_max().map(nano)), (8, Ok(70_000_000)));
    let one = [r#","max_uses":2"#, ""].map(tool).join(",");
    let error = searches(&format!(r#""tools":[{one}]"#)).expect_err("no bound");
    assert_eq!(error.param.as_deref(), Some("tools[1].max_uses"));
}

#[rstest]
#[case::no_tools("\"tools\":[]")]
#[case::null("\"tools\":null")]
#[case::a_tool_of_the_client("\"tools\":[{\"type\":\"custom\",\"max_uses\":0}]")]
#[case::a_tool_without_a_type("\"tools\":[{\"name\":\"web_search\"}]")]
#[case::elsewhere("\"tool\":[{\"type\":\"web_search_1\"}]")]
fn a_call_without_such_a_tool_has_no_fees(#[case] members: &str) {
    assert_eq!(searches(members), Ok(CallFees::default()));
}

#[test]
fn a_count_of_tokens_needs_no_bound() {
    let catalogue = catalogue("messages", "", SEARCH).expect("sound rules");
    let model = catalogue.find("m").expect("the model");
    let tools = r#""tools":[{"type":"web_search_1"}]"#;
    let fees = found(model, Endpoint::MessagesCountTokens, tools);
    assert_eq!(fees, Ok(CallFees::default()));
}

#[test]
fn only_a_tool_with_a_fee_is_not_refused() {
    let refused = |fees: &str, kind: &str| {
        let catalogue = catalogue("messages", "", fees).expect("sound rules");
        let model = catalogue.find("m").expect("the model");
        let body = format!(r#"{{"tools":[{{"type":"{kind}","max_uses":1}}]}}"#);
        let document = JsonDocument::parse(body.into()).expect("sound");
        let refusal = |endpoint| {
            let policy = model.vendor.field_policy(endpoint).expect("refusals");
            policy.find_refusal(&document, &model.price).is_some()
        };
        [refusal(Endpoint::Messages), refusal(Endpoint::Chat)]
    };
    assert_eq!(refused("", "web_search_20250305"), [true, true]);
    // What is translated stays refused.
    assert_eq!(refused(SEARCH, "web_search_20250305"), [false, true]);
    assert_eq!(refused(SEARCH, "web_sear"), [true, true]);
    assert_eq!(refused(SEARCH, "code_execution_1"), [true, true]);
    assert_eq!(refused(SEARCH, "custom"), [false, false]);
}

const OF_THE_BODY: &str = "[[fee]]\nendpoints = [\"responses\"]\nfield = \"tools[].type\"\n\
                           value = \"web_search\"\nper = \"tool_usage.web_search.num_requests\"\n\
                           usd = 0.01\nmost = \"$.max_tool_calls\"\ninput_tokens = \"2K\"\n";
const RESPONSES: &str = "[responses]\n\"r\" = { input = 1, output = 1, context = 1000 }\n";

#[test]
fn a_bound_of_the_body_is_one_for_all_tools() {
    let catalogue = catalogue("chat", RESPONSES, OF_THE_BODY).expect("sound rules");
    let model = catalogue.find("m").expect("the model");
    let tools = r#""tools":[{"type":"web_search"},{"type":"web_search"}]"#;
    let fees = found(model, Endpoint::Responses, &format!(r#"{tools},"max_tool_calls":4"#));
    let fees = fees.expect("a bound");
    assert_eq!((fees.rereads_max(), fees.input_tokens_max()), (5, 8_000));
    let error = found(model, Endpoint::Responses, tools).expect_err("no bound");
    assert_eq!(error.param.as_deref(), Some("max_tool_calls"));
    assert!(found(model, Endpoint::Chat, tools).is_ok_and(|fees| fees.is_empty()));
    let error = found(model, Endpoint::ResponsesCompact, &format!(r#"{tools},"max_tool_calls":4"#));
    assert_eq!(error.expect_err("refused").param.as_deref(), Some("tools[0].type"));
}

#[test]
fn a_field_may_be_an_object_and_its_bound_inside_of_it() {
    let fee = "[[fee]]\nendpoints = [\"chat\"]\nname = \"live_search\"\n\
               field = \"search_parameters\"\nper = \"usage.num_sources_used\"\nusd = 0.005\n\
               most = \"$.search_parameters.max_search_results\"\n";
    let catalogue = catalogue("chat", "", fee).expect("sound rules");
    let model = catalogue.find("m").expect("the model");
    let members = r#""search_parameters":{"mode":"auto","max_search_results":6}"#;
    let fees = found(model, Endpoint::Chat, members).expect("a bound");
    assert_eq!(fees.amount_max().map(nano), Ok(30_000_000));
    let error = found(model, Endpoint::Chat, r#""search_parameters":{"mode":"auto"}"#);
    let param = error.expect_err("no bound").param;
    assert_eq!(param.as_deref(), Some("search_parameters.max_search_results"));
}

#[rstest]
#[case::few(Some(2), 2, 20_000_000, None)]
#[case::none(Some(0), 0, 0, None)]
#[case::as_many_as_allowed(Some(3), 3, 30_000_000, None)]
#[case::more_than_allowed(Some(9), 3, 30_000_000, Some(9))]
#[case::nobody_knows(None, 3, 30_000_000, None)]
fn never_more_than_the_bound_is_charged(
    #[case] count: Option<u64>,
    #[case] uses: u64,
    #[case] amount: i64,
    #[case] rejected: Option<u64>,
) {
    let tools = r#""tools":[{"type":"web_search_20250305","max_uses":3}]"#;
    let fees = searches(tools).expect("a bound");
    let charged = fees.charge([count].into_iter()).expect("it fits");
    let amount = Money::from_nano(amount).expect("money");
    let name = "web_search".to_owned();
    let assumed = count.is_none();
    assert_eq!(charged, [ChargedFee { name, uses, amount, rejected_uses: rejected, assumed }]);
}

#[rstest]
#[case::as_reported(Some("0.008"), Some(2), Some(16_000_000))]
#[case::none_was_used(Some("0.008"), Some(0), Some(0))]
#[case::more_than_allowed(Some("0.008"), Some(9), Some(72_000_000))]
#[case::nobody_knows(Some("0.008"), None, None)]
#[case::nobody_knows_and_it_is_free(Some("0"), None, Some(0))]
#[case::free_at_the_vendor(Some("0"), Some(2), Some(0))]
#[case::beyond_all_amounts(Some("0.008"), Some(u64::MAX), None)]
#[case::no_known_cost(None, Some(2), None)]
#[case::no_known_cost_and_none_was_used(None, Some(0), Some(0))]
#[case::no_known_cost_and_nobody_knows(None, None, None)]
fn the_cost_of_uses_is_known_if_that_of_each_tool_that_was_used_is(
    #[case] cost: Option<&str>,
    #[case] count: Option<u64>,
    #[case] expected: Option<i64>,
) {
    let cost = cost.map(|cost| format!("cost = {cost}\n")).unwrap_or_default();
    let catalogue = catalogue("messages", "", &format!("{SEARCH}{cost}")).expect("sound rules");
    let model = catalogue.find("m").expect("the model");
    let tools = r#""tools":[{"type":"web_search_20250305","max_uses":3}]"#;
    let fees = found(model, Endpoint::Messages, tools).expect("a bound");
    let charged = fees.charge([count].into_iter()).expect("it fits");
    assert_eq!(fees.cost(&charged).map(nano), expected);
}

#[test]
fn a_tool_without_a_cost_hides_the_sum_only_if_it_was_used() {
    let fetch = SEARCH.replace("web_search", "web_fetch");
    let fees = format!("{SEARCH}cost = 0.008\n{fetch}");
    let catalogue = catalogue("messages", "", &fees).expect("sound rules");
    let model = catalogue.find("m").expect("the model");
    let tool = |name: &str| format!(r#"{{"type":"{name}_1","max_uses":3}}"#);
    let tools = format!(r#""tools":[{},{}]"#, tool("web_search"), tool("web_fetch"));
    let fees = found(model, Endpoint::Messages, &tools).expect("bounds");
    let cost = |searches, fetches| {
        let counts = [Some(searches), Some(fetches)];
        fees.cost(&fees.charge(counts.into_iter()).expect("it fits")).map(nano)
    };
    assert_eq!(cost(2, 0), Some(16_000_000));
    assert_eq!([cost(2, 1), cost(0, 1), cost(0, 4)], [None; 3]);
    assert_eq!(CallFees::default().cost(&[]), Some(Money::ZERO));
}

#[rstest]
#[case::as_rules_are_without_it("", 6)]
#[case::yes("rereads = true\n", 6)]
#[case::no("rereads = false\n", 0)]
fn each_use_is_another_reading_unless_the_rule_says_otherwise(
    #[case] key: &str,
    #[case] expected: u64,
) {
    let fee = format!("{SEARCH}input_tokens = \"2K\"\n{key}");
    let catalogue = catalogue("messages", "", &fee).expect("sound rules");
    let model = catalogue.find("m").expect("the model");
    let tools = r#""tools":[{"type":"web_search_1","max_uses":5}]"#;
    let fees = found(model, Endpoint::Messages, tools).expect("a bound");
    assert_eq!((fees.rereads_max(), fees.input_tokens_max()), (expected, 10_000));
}

#[test]
fn the_listing_has_the_fees_of_the_endpoints_of_a_model_times_the_factor_of_a_book() {
    let text = format!(
        "vendor = \"v\"\ndialect = \"chat\"\n{HEAD}{RESPONSES}{MODELS}{REFUSAL}{OF_THE_BODY}\
         cost = 0.001\n[[fee]]\nfield = \"search\"\nper = \"usage.n\"\n\
         usd = 5\nmost = \"search.most\"\n"
    );
    let books = "[book.low]\nfactor = \"0.8333\"\n\
                 [book.own.prices]\n\"m\" = { input = 1, output = 1 }\n";
    let sources = [("v.toml", text.as_str()), ("books.toml", books)];
    let sources = sources.map(|(file, text)| (file.to_owned(), text.to_owned()));
    let catalogue = Catalogue::parse(&sources, &[]).expect("sound rules");
    let listed = |model: &str, book: Option<&str>| {
        let book = book.and_then(crate::ledger::BookName::parse);
        let book = book.and_then(|name| catalogue.books.find(&name));
        let model = catalogue.find(model).expect("the model");
        model.listing("m", 0, book.map(|book| &**book))["pricing"]["fees"].clone()
    };
    let search = |usd: &str| {
        json!({
            "name": "web_search", "endpoints": ["/v1/responses"], "field": "tools[].type",
            "value": "web_search", "per": "tool_usage.web_search.num_requests",
            "most": "$.max_tool_calls", "usd": usd,
        })
    };
    let any = |endpoints: &[&str], usd: &str| {
        json!({
            "name": "search", "endpoints": endpoints, "field": "search", "value": null,
            "per": "usage.n", "most": "search.most", "usd": usd,
        })
    };
    let (one, both) = (&["/v1/responses"], &["/v1/chat/completions", "/v1/responses"]);
    assert_eq!(listed("r", None), json!([search("0.01"), any(one, "5.00")]));
    assert_eq!(listed("r", Some("low")), json!([search("0.008333"), any(one, "4.1665")]));
    assert_eq!(listed("m", None), json!([search("0.01"), any(both, "5.00")]));
    assert_eq!(listed("m", Some("low")), json!([search("0.008333"), any(both, "4.1665")]));
    let own = listed("m", Some("own"));
    assert_eq!(own, json!([search("0.01"), any(both, "5.00")]), "its own price has no factor");
}

#[rstest]
#[case::nothing(
    "[[fee]]\n",
    &[
        "v.toml:11: 'field' must be the path of a member such as tools[].type",
        "v.toml:11: 'name' must not be empty",
        "v.toml:11: 'per' must be the path of a count in the vendor's reply, such as \
         usage.server_tool_use.web_search_requests",
        "v.toml:11: 'usd' is required",
        "v.toml:11: 'most' must be the member that bounds the uses: one beside the field, such as \
         max_uses, or one of the body, such as $.max_tool_calls",
    ]
)]
#[case::free_of_charge(
    &SEARCH.replace("0.01", "0"),
    &["v.toml:11: 'usd' must be above 0"]
)]
#[case::less_than_a_nano(
    &SEARCH.replace("0.01", "0.0000000001"),
    &["v.toml:15: 'usd' = 0.0000000001: not a whole number of nano-USD per unit"]
)]
#[case::a_cost_below_a_nano(
    &format!("{SEARCH}cost = 0.0000000001\n"),
    &["v.toml:17: 'cost' = 0.0000000001: not a whole number of nano-USD per unit"]
)]
#[case::a_cost_that_is_no_number(
    &format!("{SEARCH}cost = \"0.008\"\n"),
    &["v.toml:17: 'cost' must be a number, not a text"]
)]
#[case::rereads_that_are_a_word(
    &format!("{SEARCH}rereads = \"no\"\n"),
    &["v.toml:17: 'rereads' must be true or false, not a text"]
)]
#[case::a_star_in_the_middle(
    &SEARCH.replace("web_search*", "web*search"),
    &["v.toml:11: 'value' must be a text, and may have one * at its end"]
)]
#[case::a_list_as_the_member(
    &SEARCH.replace("tools[].type", "tools[]"),
    &["v.toml:11: 'field' must be the path of a member such as tools[].type"]
)]
#[case::an_unknown_key(
    &format!("{SEARCH}usds = 1\n"),
    &["v.toml:17: unknown key 'usds'; closest is 'usd'"]
)]
#[case::translated(
    &format!("{SEARCH}endpoints = [\"chat\"]\n"),
    &["v.toml:11: 'chat' can have no fee: the tools of this vendor run for messages"]
)]
#[case::twice(
    &format!("{SEARCH}{SEARCH}"),
    &["v.toml:17: 'web_search' has a fee already; another tool needs another 'name'"]
)]
#[case::two_for_one_use(
    &format!("{SEARCH}{}", SEARCH.replace("value = \"web_search*\"", "value = \"web_find\"")),
    &["v.toml:17: 'per' has a fee already"]
)]
fn what_is_wrong_with_a_fee_is_told(#[case] fees: &str, #[case] expected: &[&str]) {
    assert_eq!(catalogue("messages", "", fees).expect_err("faults"), expected);
}

/// The rules as they are shipped, each with the fees that stand beside the configuration.
#[rstest]
#[case::vendor_a(
    include_str!("../../../lua-free-rules/vendor_a.toml"),
    include_str!("../../../conf/fees/vendor_a.toml"),
    ("lma-opus-5", Endpoint::Messages),
    r#""tools":[{"type":"web_search_20250305","name":"web_search","max_uses":5}]"#,
    50_000_000
)]
#[case::vendor_b(
    include_str!("../../../lua-free-rules/vendor_b.toml"),
    include_str!("../../../conf/fees/vendor_b.toml"),
    ("lmb-5.5", Endpoint::Responses),
    r#""tools":[{"type":"web_search"}],"max_tool_calls":5"#,
    50_000_000
)]
#[case::vendor_d(
    include_str!("../../../lua-free-rules/vendor_d.toml"),
    include_str!("../../../conf/fees/vendor_d.toml"),
    ("lmd-4.6", Endpoint::Chat),
    r#""search_parameters":{"mode":"auto","max_search_results":4}"#,
    100_000_000
)]
fn the_examples_of_fees_go_with_the_shipped_rules(
    #[case] shipped: &str,
    #[case] fees: &str,
    #[case] (id, endpoint): (&str, Endpoint),
    #[case] members: &str,
    #[case] amount: i64,
) {
    let name = shipped.split("vendor = \"").nth(1).and_then(|rest| rest.split('"').next());
    let name = name.expect("the name of the vendor");
    let parse = |text: String| Catalogue::parse(&[(format!("{name}.toml"), text)], &[]);
    let is_sold = |catalogue: &Catalogue| {
        let model = catalogue.find(id).expect("a model");
        let document = JsonDocument::parse(format!("{{{members}}}").into()).expect("sound");
        let policy = model.vendor.field_policy(endpoint).expect("refusals");
        policy.find_refusal(&document, &model.price).is_none()
    };
    assert!(!is_sold(&parse(shipped.to_owned()).expect("sound rules")), "it has no fee there");
    let with_fees = parse(format!("{shipped}\n{fees}")).expect("sound rules");
    assert!(is_sold(&with_fees));
    let model = with_fees.find(id).expect("a model");
    let found = found(model, endpoint, members).expect("a bound");
    assert_eq!(found.amount_max().map(nano), Ok(amount));
}

#[rstest]
#[case::of_any_version(ValuePattern::Prefix("web_search_".to_owned()), "web_search")]
#[case::of_one_version(ValuePattern::Text("web_search_20250305".to_owned()), "web_search")]
#[case::without_a_version(ValuePattern::Text("x_search".to_owned()), "x_search")]
#[case::with_a_number(ValuePattern::Text("x_search_v2".to_owned()), "x_search_v2")]
#[case::of_any_value(ValuePattern::Any, "search_parameters")]
fn a_tool_is_named_as_the_vendor_names_its_calls(#[case] value: ValuePattern, #[case] name: &str) {
    assert_eq!(default_name("search_parameters", &value), name);
}
