//! Any chat body is refused, or becomes a messages body that the vendor takes.
#![no_main]

use std::sync::LazyLock;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tollgate::catalogue::{Catalogue, Model};
use tollgate::dialect::Endpoint;
use tollgate::dialect::call::{Call, Opened};
use tollgate::dialect::json::{Document, Draft};
use tollgate::dialect::translate::request::{Manner, Translation};

#[path = "../../translation/checker.rs"]
mod checker;

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| {
    let rules = include_str!("../../../lua-free-rules/vendor_a.toml");
    let sources = [("vendor_a.toml".to_owned(), rules.to_owned())];
    Catalogue::parse(&sources, &[]).expect("sound rules")
});

fuzz_target!(|data: &[u8]| {
    let Ok(seed) = Document::parse(Bytes::copy_from_slice(data)) else { return };
    // A golden file holds the body that it gives.
    let body = match seed.get("given") {
        Some(given) => Bytes::copy_from_slice(given.raw()),
        None => seed.body().clone(),
    };
    let Ok(opened) = Opened::parse(body, None) else { return };
    let models = CATALOGUE.models();
    let model = CATALOGUE.find(&opened.model).unwrap_or(&models[data.len() % models.len()]);
    let Ok(call) = Call::parse(opened, Endpoint::Chat) else { return };
    let document = call.document;
    let screen = model.vendor.screen(Endpoint::Chat).expect("rules for chat");
    if screen.check(&document, &model.price).is_some() {
        return;
    }
    let mut draft = Draft::new(&document);
    model.rewrite(Endpoint::Chat, &mut draft);
    let Ok(translation) = Translation::read(&document, &draft, manner(model)) else { return };
    let steps = translation.loop_ids().len();
    let translated = translation.finish();
    let made = translated.with_model(&model.id).concat();
    let shown = String::from_utf8_lossy(&made).into_owned();
    if let Err(fault) = Document::parse(Bytes::from(made.clone())) {
        panic!("{fault}: {shown}");
    }
    assert_eq!(checker::check(&made), Ok(()), "{shown}");
    assert!(translated.dropped.iter().all(|field| document.get(field).is_some()));
    // Blocks that nobody kept change nothing.
    let again = Translation::read(&document, &draft, manner(model)).expect("read before");
    assert!(again.restored(&vec![None; steps]).is_none());
    assert_eq!(again.finish().with_model(&model.id).concat(), made);
});

fn manner(model: &Model) -> Manner<'_> {
    Manner { model: &model.id, account: "fuzz", json_schema: model.json_schema }
}
