//! Calls for a video become what the vendor takes, or are refused; what the vendor answers is read
//! as it is meant.

use bytes::Bytes;
use serde_json::{Value as Json, json};
use tollgate::dialect::CallError;
use tollgate::dialect::form::{FormLimits, FormReader};
use tollgate::dialect::images::SourceImage;
use tollgate::dialect::json::JsonDocument;
use tollgate::dialect::videos::{self, VideoProgress, VideoRefusal, VideoRequest};

use super::golden::{CHUNK_SIZES, Golden, goldens, is_refused, judge};

/// As the gateway has them, but for the size of the file.
const LIMITS: FormLimits =
    FormLimits { parts_max: 16, text_bytes_max: 1 << 20, file_bytes_max: 512 };

/// What a call reads as.
type Taken = (JsonDocument, Option<SourceImage>, VideoRequest);

/// Reads a golden call; a form comes in pieces of a size.
fn take(golden: &Golden, size: usize) -> Result<Taken, CallError> {
    let (document, file) = if let Some(given) = golden.bytes("given") {
        (JsonDocument::parse(given)?, None)
    } else {
        let form = golden.beside("form");
        let mut reader = FormReader::new(&golden.text("content_type"), LIMITS)?;
        for piece in form.chunks(size.min(form.len().max(1))) {
            reader.push(Bytes::copy_from_slice(piece))?;
        }
        videos::parse_form(reader.finish()?)?
    };
    let ask = videos::parse_request(&document, file.as_ref())?;
    Ok((document, file, ask))
}

#[test]
fn every_golden_video_becomes_what_is_expected_however_it_is_cut() {
    judge(&goldens("videos", 62), |golden| {
        CHUNK_SIZES.iter().try_for_each(|size| {
            let taken = take(golden, *size);
            let refused = golden.json("refused");
            if refused.is_object() {
                return is_refused(taken, &refused);
            }
            let (document, file, ask) = taken.map_err(|fault| format!("refused: {fault}"))?;
            is_asked(&ask, &golden.json("asked"))?;
            let made = videos::build_body(&document, &ask, file.as_ref());
            JsonDocument::parse(made.clone()).map_err(|fault| fault.to_string())?;
            let expected = golden.bytes("body").expect("a body");
            if made == expected {
                return Ok(());
            }
            Err(format!("\n  is  {}\n  not {}", made.escape_ascii(), expected.escape_ascii()))
        })
    });
}

fn is_asked(ask: &VideoRequest, expected: &Json) -> Result<(), String> {
    let VideoRequest { seconds, resolution, size, resolution_field: named_by, .. } = ask;
    let found = json!({
        "seconds": seconds, "resolution": resolution.name(), "size": size, "named_by": named_by,
    });
    if found == *expected { Ok(()) } else { Err(format!("it asks for {found}, not {expected}")) }
}

#[test]
fn every_golden_answer_on_a_video_is_read_as_it_is_meant() {
    judge(&goldens("videos_replies", 63), |golden| {
        let body = golden.bytes("given").map_or_else(|| golden.text("text").into(), Vec::from);
        let status = golden.json("status").as_u64().and_then(|status| u16::try_from(status).ok());
        let status = status.expect("a status");
        let found = match &*golden.text("to") {
            "submission" if status == 200 => json!(videos::parse_submitted_id(&body)),
            "submission" => {
                let VideoRefusal { is_blocked, message } = videos::parse_refusal(status, &body);
                json!({ "blocked": is_blocked, "message": message })
            }
            "question" => videos::parse_progress(status, &body).map_or(Json::Null, told),
            other => return Err(format!("an answer to a {other}")),
        };
        let expected = golden.json("expect");
        if found == expected { Ok(()) } else { Err(format!("\n  is  {found}\n  not {expected}")) }
    });
}

fn told(polled: VideoProgress) -> Json {
    match polled {
        VideoProgress::Pending { progress } => json!({ "pending": progress }),
        VideoProgress::Done { url, ticks } => json!({ "done": url, "ticks": ticks }),
        VideoProgress::Blocked { message } => json!({ "blocked": message }),
        VideoProgress::Failed { message } => json!({ "failed": message }),
        VideoProgress::NoFile { message } => json!({ "no_file": message }),
    }
}
