//! Forms that edit an image become what each vendor takes, or are refused.

use std::sync::LazyLock;

use bytes::Bytes;
use serde_json::Value as Json;
use tollgate::catalogue::vendor::ImageEditFormat;
use tollgate::catalogue::{Catalogue, Model};
use tollgate::dialect::call::{ModelCall, ParsedBody, RequestKind};
use tollgate::dialect::form::{FormLimits, FormReader};
use tollgate::dialect::json::{JsonDocument, JsonPatch};
use tollgate::dialect::{CallError, Endpoint, images};

use super::golden::{CHUNK_SIZES, Golden, goldens, is_refused, judge, rules};

/// As the gateway has them, but for the size of the file.
const LIMITS: FormLimits =
    FormLimits { parts_max: 16, text_bytes_max: 1 << 20, file_bytes_max: 512 };
/// The boundary of forms for vendors.
const BOUNDARY: &str = "golden";
const AT_LEAST: usize = 82;

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| rules(&["vendor_b", "vendor_d"]));

fn model(id: &str) -> &'static Model {
    CATALOGUE.find(id).unwrap_or_else(|| panic!("no model '{id}'"))
}

/// One whose vendor takes forms.
fn of_forms() -> &'static Model {
    model("lmb-image-1")
}

/// One whose vendor takes JSON.
fn of_json() -> &'static Model {
    model("lmd-imagine-image")
}

/// Reads a form that comes in pieces of a size.
fn take(content_type: &str, form: &[u8], size: usize) -> Result<ParsedBody, CallError> {
    let mut reader = FormReader::new(content_type, LIMITS)?;
    for piece in form.chunks(size.min(form.len().max(1))) {
        reader.push(Bytes::copy_from_slice(piece))?;
    }
    let (document, file) = images::parse_edit_form(reader.finish()?)?;
    ParsedBody::from_form(document, Some(file), None)
}

/// The body for a model's vendor, made the way that the gateway makes it.
fn body(model: &Model, opened: ParsedBody) -> Result<Bytes, CallError> {
    let call = ModelCall::parse(opened, Endpoint::ImageEdits)?;
    let screen = model.vendor.field_policy(Endpoint::ImageEdits).expect("rules for edits");
    if let Some(refused) = screen.find_refusal(&call.document, &model.price) {
        let (param, message) = (Some(refused.path), refused.rule.reason);
        return Err(CallError { code: "unsupported_parameter", param, message });
    }
    let mut draft = JsonPatch::new(&call.document);
    model.rewrite(Endpoint::ImageEdits, &mut draft);
    draft.set("model", Json::from(&*model.id).to_string());
    let fields = JsonDocument::parse(Bytes::from(draft.finish().concat()))?;
    let RequestKind::Image { file: Some(file) } = &call.kind else { panic!("no file") };
    let payload = match model.vendor.image_edits {
        ImageEditFormat::Form => images::build_edit_form(&fields, file, BOUNDARY),
        ImageEditFormat::Json => images::build_edit_json(&fields, file),
    };
    let body = payload.chunks().collect::<Vec<_>>().concat();
    assert_eq!(body.len(), payload.length(), "the length that is announced");
    Ok(body.into())
}

#[test]
fn every_golden_form_becomes_what_is_expected_however_it_is_cut() {
    judge(&goldens("image_edits", AT_LEAST), |golden| {
        CHUNK_SIZES.iter().try_for_each(|size| {
            let opened = take(&golden.text("content_type"), &golden.beside("form"), *size);
            let made = |model| opened.clone().and_then(|opened| body(model, opened));
            let refused = golden.json("refused");
            if refused.is_object() {
                is_refused(made(of_forms()), &refused)?;
                return is_refused(made(of_json()), &refused);
            }
            let opened = opened.clone().map_err(|fault| format!("refused: {fault}"))?;
            let media_type = opened.file.map(|file| file.media_type);
            if media_type.as_deref() != Some(&*golden.text("media_type")) {
                return Err(format!("the image is {media_type:?}"));
            }
            is_form(golden, made(of_forms()))?;
            match golden.json("vendor_d_refuses") {
                Json::Null => is_json(golden, made(of_json())),
                refused => is_refused(made(of_json()), &refused),
            }
        })
    });
}

fn is_form(golden: &Golden, made: Result<Bytes, CallError>) -> Result<(), String> {
    let made = made.map_err(|fault| format!("refused: {fault}"))?;
    let expected = golden.beside("vendor_b.form");
    if made == expected {
        return Ok(());
    }
    let (made, expected) = (made.escape_ascii(), expected.escape_ascii());
    Err(format!("\n  is  {made}\n  not {expected}"))
}

fn is_json(golden: &Golden, made: Result<Bytes, CallError>) -> Result<(), String> {
    let made = made.map_err(|fault| format!("refused: {fault}"))?;
    let made = JsonDocument::parse(made).map_err(|fault| fault.to_string())?;
    let made: Json = serde_json::from_slice(made.body()).map_err(|fault| fault.to_string())?;
    let expected = golden.json("vendor_d");
    if made == expected { Ok(()) } else { Err(format!("\n  is  {made}\n  not {expected}")) }
}

/// The golden forms that are taken.
fn taken() -> Vec<Golden> {
    let goldens = goldens("image_edits", AT_LEAST).into_iter();
    let taken: Vec<_> = goldens.filter(|golden| golden.json("refused").is_null()).collect();
    assert!(taken.len() >= 33, "{} forms are taken", taken.len());
    taken
}

#[test]
fn a_form_cut_at_any_byte_is_refused() {
    judge(&taken(), |golden| {
        let form = golden.beside("form");
        for kept in 0..form.trim_ascii_end().len() {
            match take(&golden.text("content_type"), &form[..kept], usize::MAX) {
                Err(CallError { code: "invalid_form", .. }) => {}
                other => return Err(format!("after {kept} bytes it is {other:?}")),
            }
        }
        Ok(())
    });
}

#[test]
fn what_a_vendor_gets_as_a_form_reads_as_the_same_edit() {
    judge(&taken(), |golden| {
        let form = golden.beside("vendor_b.form");
        let content_type = format!("multipart/form-data; boundary={BOUNDARY}");
        let again = take(&content_type, &form, 7).and_then(|opened| body(of_forms(), opened));
        is_form(golden, again)
    });
}
