//! However a form is cut, it reads the same or is refused for the same; and what was read as the
//! edit of an image reads the same again from the body that a vendor gets.

use bytes::Bytes;
use tollgate::dialect::form::{Form, FormError, FormLimits, FormReader, PartContent};
use tollgate::dialect::images;

const LIMITS: FormLimits =
    FormLimits { parts_max: 16, text_bytes_max: 1 << 10, file_bytes_max: 1 << 12 };
/// Not to be guessed in a real body; here a body that has it is left out.
const BOUNDARY: &str = "boundary-of-the-body-for-a-vendor";

pub(crate) fn run(data: &[u8]) {
    let Some((size, rest)) = data.split_first() else { return };
    // The first line may be the content-type.
    let end = rest.iter().position(|b| *b == b'\n').unwrap_or(0);
    let first = std::str::from_utf8(&rest[..end]).unwrap_or_default().trim_end();
    let (content_type, body) = if first.starts_with("multipart/") {
        (first, &rest[end + 1..])
    } else {
        ("multipart/form-data; boundary=XX", rest)
    };
    let body = Bytes::copy_from_slice(body);
    let whole = read_in_pieces(content_type, &body, usize::MAX);
    let cut = read_in_pieces(content_type, &body, usize::from(*size).max(1));
    assert_eq!(whole.as_ref().map(describe_parts), cut.as_ref().map(describe_parts));
    let Ok(form) = whole else { return };
    let Ok((fields, file)) = images::parse_edit_form(form) else { return };
    if body.windows(BOUNDARY.len()).any(|window| window == BOUNDARY.as_bytes()) {
        return;
    }
    let sent: Vec<_> = images::build_edit_form(&fields, &file, BOUNDARY).chunks().collect();
    let content_type = format!("multipart/form-data; boundary={BOUNDARY}");
    let again =
        read_in_pieces(&content_type, &sent.concat().into(), usize::MAX).expect("a form of ours");
    let (fields_again, file_again) = images::parse_edit_form(again).expect("an edit of ours");
    assert_eq!(fields.body(), fields_again.body());
    assert_eq!(file.media_type, file_again.media_type);
    assert_eq!(file.content.concat(), file_again.content.concat());
}

fn read_in_pieces(content_type: &str, body: &Bytes, size: usize) -> Result<Form, FormError> {
    let mut reader = FormReader::new(content_type, LIMITS)?;
    let mut rest = body.clone();
    while !rest.is_empty() {
        let piece = rest.split_to(size.min(rest.len()));
        if let Err(fault) = reader.push(piece.clone()) {
            assert_eq!(reader.push(piece), Err(fault.clone()), "a fault was forgotten");
            return Err(fault);
        }
    }
    reader.finish()
}

/// The parts, with what files hold in one.
fn describe_parts(form: &Form) -> Vec<(String, Option<String>, Vec<u8>)> {
    let parts = form.parts.iter().map(|part| match &part.content {
        PartContent::Text(text) => (part.name.clone(), None, text.clone().into_bytes()),
        PartContent::File(file) => {
            let content = file.content.concat();
            assert_eq!(content.len(), file.length);
            assert!(content.len() <= LIMITS.file_bytes_max);
            (part.name.clone(), Some(format!("{file:?}")), content)
        }
    });
    parts.collect()
}
