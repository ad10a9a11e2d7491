//! The vendor who counts tokens, and takes a form for edits.

use serde_json::{Map, Value, json};

use super::super::asked::Asked;
use super::super::endpoint::Endpoint;
use super::super::faults::Fault;
use super::super::member::{Member, Verdict};
use super::super::multipart::{self, Part};
use super::super::record::Billed;
use super::super::refusal::Refusal;
use super::super::said::{Form, Said};

const FIELDS: &str = "model prompt n size quality background output_format output_compression \
    moderation stream partial_images user";
const EDIT_FIELDS: &str = "input_fidelity";
/// Fields that are no texts, though a form knows nothing else.
const NUMBERS: &str = "n output_compression partial_images";
const MODELS: &str = "image-2 image-1.5 image-1 image-1-mini";
const PROMPT_CHARACTERS_MAX: usize = 32_000;
const FILES_MAX: usize = 16;
const FILE_BYTES_MAX: usize = 50 << 20;
const MEDIA: [&str; 3] = ["image/jpeg", "image/png", "image/webp"];
const IMAGE_TOKENS: u64 = 256;
const BROKEN: &str = r#"{"input_tokens":-7,"output_tokens":3.75,"total_tokens":"many"}"#;

/// What is to be made.
struct Order {
    prompt_tokens: u64,
    count: u64,
    size: String,
    quality: String,
    background: String,
    output_format: String,
}

/// Makes images, or tells why not.
pub(super) fn answer(asked: &Asked) -> Result<Said, Refusal> {
    let (body, form) = if asked.endpoint == Endpoint::Edits {
        read_form(asked)?
    } else {
        (asked.json()?, Form::default())
    };
    let order = read(&body, asked.endpoint)?;
    if asked.faults.has(Fault::Moderated) {
        let message = format!(
            "Your request was rejected by the safety system. If you believe this is an error, \
             include the request ID req_vendor_{}.",
            asked.serial
        );
        return Err(Refusal::new(400, message).coded("moderation_blocked"));
    }
    let billed = bill(asked, &order, form.files.len() as u64);
    let mut reply = json!({
        "created": asked.created,
        "background": order.background,
        "data": entries(asked, order.count),
        "output_format": order.output_format,
        "quality": order.quality,
        "size": order.size,
    });
    if let Some(usage) = usage(asked, &billed) {
        reply["usage"] = usage;
    }
    Ok(Said { form, ..Said::whole(billed, reply.to_string()) })
}

/// Refuses a request that the vendor refuses.
fn read(body: &Value, endpoint: Endpoint) -> Result<Order, Refusal> {
    let root = Member::root(body);
    let more = if endpoint == Endpoint::Edits { EDIT_FIELDS } else { "" };
    root.only(&format!("{FIELDS} {more}"))?;
    let model = model(&root.need("model")?)?;
    let prompt = root.need("prompt")?.text_within(PROMPT_CHARACTERS_MAX)?;
    let count = root.get("n").map_or(Ok(1), |n| n.integer(1..=10))?;
    let choice = |name: &str, known: &str, usual: &'static str| {
        root.get(name).map_or(Ok(usual), |member| member.one_of(known)).map(str::to_owned)
    };
    let quality = choice("quality", "auto low medium high", "auto")?;
    let background = choice("background", "auto opaque transparent", "auto")?;
    let output_format = choice("output_format", "png jpeg webp", "png")?;
    choice("moderation", "auto low", "auto")?;
    choice("input_fidelity", "low high", "low")?;
    root.get("output_compression").map(|number| number.integer(0..=100)).transpose()?;
    root.get("user").map(|user| user.text()).transpose()?;
    for name in ["stream", "partial_images"] {
        let refusal = |member: Member<'_>| match member.value {
            Value::Bool(false) => Ok(()),
            value if *value == 0 => Ok(()),
            _ => Err(member
                .refusal("Your organization must be verified to stream this model.")
                .coded("unsupported_value")),
        };
        root.get(name).map_or(Ok(()), refusal)?;
    }
    let size = root.get("size").map_or(Ok("auto"), |size| size_of(&size, model))?;
    let known = |text: String, usual: &str| if text == "auto" { usual.to_owned() } else { text };
    Ok(Order {
        prompt_tokens: prompt.chars().count().div_ceil(4) as u64,
        count,
        size: known(size.to_owned(), "1024x1024"),
        quality: known(quality, "medium"),
        background: known(background, "opaque"),
        output_format,
    })
}

/// The model, without what stands before its first hyphen.
fn model<'a>(member: &Member<'a>) -> Result<&'a str, Refusal> {
    let named = member.text()?;
    let model = named.split_once('-').map(|(_, model)| model);
    model.filter(|model| MODELS.split(' ').any(|known| known == *model)).ok_or_else(|| {
        member
            .refusal(&format!("Invalid value: '{named}'. The value is no model for images."))
            .coded("invalid_value")
    })
}

fn size_of<'a>(member: &Member<'a>, model: &str) -> Result<&'a str, Refusal> {
    let known = "1024x1024 1024x1536 1536x1024 auto";
    if model != "image-2" {
        return member.one_of(known);
    }
    let asked = member.text()?;
    let length = |text: &str| {
        let length = text.parse::<u32>().ok();
        length.filter(|length| length.is_multiple_of(16) && (256..=3840).contains(length))
    };
    let sides = asked.split_once('x');
    match sides.and_then(|(width, height)| Some((length(width)?, length(height)?))) {
        Some((width, height)) if width * height <= 3840 * 2160 => Ok(asked),
        _ => member.one_of(known),
    }
}

/// The texts of a form as JSON, and its files.
fn read_form(asked: &Asked) -> Result<(Value, Form), Refusal> {
    let media = asked.content_type.split(';').next().unwrap_or_default().trim();
    if !media.eq_ignore_ascii_case("multipart/form-data") {
        let message = format!(
            "Unsupported content type: '{media}'. This API method only accepts \
             'multipart/form-data' requests, but you specified the header 'Content-Type: {media}'."
        );
        return Err(Refusal::new(400, message).coded("unsupported_content_type"));
    }
    let parts = multipart::parts(&asked.content_type, &asked.body)
        .map_err(|why| Refusal::new(400, format!("Could not parse multipart form: {why}.")))?;
    let mut form = Form::default();
    let mut masks = 0;
    let mut body = Map::new();
    let mut names: Vec<&str> = Vec::new();
    for part in &parts {
        let name = part.name.as_str();
        if !name.ends_with("[]") && names.contains(&name) {
            return Err(twice(name));
        }
        names.push(name);
        match name {
            "image" | "image[]" | "mask" => {
                file(part)?;
                let Part { filename, content_type, body, .. } = part;
                let content_type = content_type.as_deref().unwrap_or_default();
                let file = super::sent_file(name, filename.as_deref(), content_type, body);
                form.files.push(file);
                masks += usize::from(name == "mask");
            }
            _ => {
                let text = text_of(part)?;
                body.insert(name.to_owned(), typed(name, text));
                form.fields.push((name.to_owned(), text.to_owned()));
            }
        }
    }
    match form.files.len() - masks {
        0 => Err(Refusal::new(400, "Missing required parameter: 'image'.")
            .at("image")
            .coded("missing_required_parameter")),
        1..=FILES_MAX => Ok((Value::Object(body), form)),
        _ => {
            Err(Refusal::new(400, format!("Invalid 'image': at most {FILES_MAX} images."))
                .at("image"))
        }
    }
}

fn twice(name: &str) -> Refusal {
    let message = format!(
        "Duplicate parameter: '{name}'. You provided multiple values for this parameter, whereas \
         only one is allowed. If you are trying to provide a list of values, use the array syntax \
         instead e.g. '{name}[]=<value>'."
    );
    Refusal::new(400, message).at(name).coded("duplicate_parameter")
}

/// Refuses a file that the vendor refuses.
fn file(part: &Part<'_>) -> Verdict {
    let name = part.name.as_str();
    let refusal = |what: String, code| {
        Err(Refusal::new(400, format!("Invalid file '{name}': {what}")).at(name).coded(code))
    };
    if part.filename.is_none() {
        return refusal("expected a file, but got a string instead.".to_owned(), "invalid_type");
    }
    let media = part.content_type.as_deref().unwrap_or("application/octet-stream");
    if !MEDIA.contains(&media) {
        let what = format!(
            "unsupported mimetype ('{media}'). Supported file formats are 'image/jpeg', \
             'image/png', and 'image/webp'."
        );
        return refusal(what, "unsupported_file_mimetype");
    }
    match part.body.len() {
        0 => refusal("the file is empty.".to_owned(), "empty_file"),
        1..=FILE_BYTES_MAX => Ok(()),
        _ => refusal("the file is larger than 50 MB.".to_owned(), "file_above_max_size"),
    }
}

fn text_of<'a>(part: &Part<'a>) -> Result<&'a str, Refusal> {
    let name = part.name.as_str();
    let refusal = |what: &str| {
        Refusal::new(400, format!("Invalid type for '{name}': expected {what} instead."))
            .at(name)
            .coded("invalid_type")
    };
    if part.filename.is_some() {
        // Of names that nobody knows it is said later that they are unknown.
        return if format!("{FIELDS} {EDIT_FIELDS}").split(' ').any(|known| known == name) {
            Err(refusal("a string, but got a file"))
        } else {
            Ok("")
        };
    }
    std::str::from_utf8(part.body).map_err(|_| refusal("a text, but got bytes"))
}

/// A text of a form as the JSON that it stands for.
fn typed(name: &str, text: &str) -> Value {
    let number = NUMBERS.split(' ').any(|known| known == name);
    let flag = name == "stream";
    let read = if number || flag { serde_json::from_str(text).ok() } else { None };
    read.unwrap_or_else(|| Value::from(text))
}

fn entries(asked: &Asked, count: u64) -> Vec<Value> {
    let entry = if asked.faults.has(Fault::NoImage) {
        json!({})
    } else {
        json!({"b64_json": super::encoded_picture(asked)})
    };
    (0..count).map(|_| entry.clone()).collect()
}

fn bill(asked: &Asked, order: &Order, files: u64) -> Billed {
    let of_quality = match order.quality.as_str() {
        "low" => 272,
        "high" => 4160,
        _ => 1056,
    };
    let prompt_images = files * IMAGE_TOKENS;
    let prompt = order.prompt_tokens + prompt_images;
    let prompt = asked.faults.number(Fault::Prompt).unwrap_or(prompt);
    let completion = asked.faults.number(Fault::Completion).unwrap_or(of_quality * order.count);
    Billed {
        prompt,
        completion,
        total: prompt.saturating_add(completion),
        prompt_images: prompt_images.min(prompt),
        images: order.count,
        ..Billed::default()
    }
}

fn usage(asked: &Asked, billed: &Billed) -> Option<Value> {
    let Billed { prompt, completion, total, prompt_images, .. } = *billed;
    if asked.faults.has(Fault::NoUsage) {
        None
    } else if asked.faults.has(Fault::NullUsage) {
        Some(Value::Null)
    } else if asked.faults.has(Fault::BadUsage) {
        Some(serde_json::from_str(BROKEN).expect("broken, but JSON"))
    } else {
        let text = prompt - prompt_images;
        Some(json!({
            "input_tokens": prompt,
            "input_tokens_details": {"text_tokens": text, "image_tokens": prompt_images},
            "output_tokens": completion,
            "output_tokens_details": {"image_tokens": completion, "text_tokens": 0},
            "total_tokens": total,
        }))
    }
}
