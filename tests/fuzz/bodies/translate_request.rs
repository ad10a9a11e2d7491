//! Any chat body is refused, or becomes a messages body that the vendor takes.

use std::sync::LazyLock;

use bytes::Bytes;
use tollgate::catalogue::{Catalogue, Model};
use tollgate::dialect::Endpoint;
use tollgate::dialect::call::{ModelCall, ParsedBody};
use tollgate::dialect::json::{JsonDocument, JsonPatch};
use tollgate::dialect::translate::request::{Translation, TranslationContext};

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| {
    let rules = include_str!("../../../lua-free-rules/vendor_a.toml");
    let sources = [("vendor_a.toml".to_owned(), rules.to_owned())];
    Catalogue::parse(&sources, &[]).expect("sound rules")
});

pub(crate) fn run(data: &[u8]) {
    let Ok(seed) = JsonDocument::parse(Bytes::copy_from_slice(data)) else { return };
    // A golden file holds the body that it gives.
    let body = match seed.get("given") {
        Some(given) => Bytes::copy_from_slice(given.raw()),
        None => seed.body().clone(),
    };
    let Ok(parsed) = ParsedBody::parse(body, None) else { return };
    let models = CATALOGUE.models();
    let model = CATALOGUE.find(&parsed.model).unwrap_or(&models[data.len() % models.len()]);
    let Ok(call) = ModelCall::parse(parsed, Endpoint::Chat) else { return };
    let document = call.document;
    let policy = model.vendor.field_policy(Endpoint::Chat).expect("rules for chat");
    if policy.find_refusal(&document, &model.price).is_some() {
        return;
    }
    let mut patch = JsonPatch::new(&document);
    model.rewrite(Endpoint::Chat, &mut patch);
    let Ok(translation) = Translation::parse_chat(&document, &patch, context(model)) else {
        return;
    };
    let steps = translation.tool_loop_ids().len();
    let translated = translation.build_call();
    let built = translated.body_with_model(&model.id).concat();
    let shown = String::from_utf8_lossy(&built).into_owned();
    if let Err(fault) = JsonDocument::parse(Bytes::from(built.clone())) {
        panic!("{fault}: {shown}");
    }
    assert_eq!(super::checker::check(&built), Ok(()), "{shown}");
    for field in &translated.dropped_fields {
        // As in `messages[].name`; the last one may count those that it has no place for.
        let outermost = field.split(['.', '[']).next().unwrap_or_default();
        let is_told = field.starts_with("...") || document.get(outermost).is_some();
        assert!(is_told, "{field}: {shown}");
    }
    // Thinking that nobody saved changes nothing.
    let again = Translation::parse_chat(&document, &patch, context(model)).expect("read before");
    assert!(again.match_saved_thinking(&vec![None; steps]).is_none());
    assert_eq!(again.build_call().body_with_model(&model.id).concat(), built);
}

fn context(model: &Model) -> TranslationContext<'_> {
    TranslationContext {
        model: &model.id,
        account: "fuzz",
        json_schema: model.supports_json_schema,
    }
}
