//! The vendor who tells a price, and takes JSON for everything.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::super::asked::Asked;
use super::super::endpoint::Endpoint;
use super::super::faults::Fault;
use super::super::member::Member;
use super::super::record::{Billed, SentFile};
use super::super::refusal::Refusal;
use super::super::said::{Form, Said};

const FIELDS: &str = "model prompt n aspect_ratio resolution quality response_format user";
const EDIT_FIELDS: &str = "image images";
const RATIOS: &str = "auto 1:1 16:9 9:16 4:3 3:4 3:2 2:3 2:1 1:2 19.5:9 9:19.5 20:9 9:20";
const PROMPT_CHARACTERS_MAX: usize = 32_000;
const FILES_MAX: usize = 3;
/// The models, and the ticks of an image.
const MODELS: [(&str, u64); 3] = [
    ("imagine-image", 200_000_000),
    ("imagine-image-2.0", 600_000_000),
    ("imagine-image-quality", 500_000_000),
];
/// Of an image that is edited.
const INPUT_TICKS: u64 = 20_000_000;

/// Makes images, or tells why not.
pub(super) fn answer(asked: &Asked) -> Result<Said, Refusal> {
    let body = asked.json()?;
    let root = Member::root(&body);
    let edits = asked.endpoint == Endpoint::Edits;
    only_known(&root, edits)?;
    let ticks_each = ticks_of(root.need("model")?.text()?)?;
    root.need("prompt")?.text_within(PROMPT_CHARACTERS_MAX)?;
    let count = root.get("n").map_or(Ok(1), |n| n.integer(1..=10))?;
    for (name, known) in
        [("aspect_ratio", RATIOS), ("resolution", "1k 1.5k 2k"), ("quality", "low medium high")]
    {
        root.get(name).map(|member| member.one_of(known)).transpose()?;
    }
    root.get("user").map(|user| user.text()).transpose()?;
    let format = root.get("response_format").map(|format| format.one_of("url b64_json"));
    let by_url = format.transpose()? != Some("b64_json");
    let files = if edits { sources(&root)? } else { Sources::default() };
    let cost = ticks_each * count + INPUT_TICKS * files.count;
    let ticks = asked.faults.number(Fault::Ticks).unwrap_or(cost);
    let billed = Billed { images: count, ticks, ..Billed::default() };
    let entries: Vec<_> = (0..count).map(|number| entry(asked, by_url, number)).collect();
    let mut reply = json!({"data": entries});
    if asked.faults.has(Fault::NullUsage) {
        reply["usage"] = Value::Null;
    } else if asked.faults.has(Fault::BadUsage) {
        reply["usage"] = json!({"cost_in_usd_ticks": -7.5});
    } else if !asked.faults.has(Fault::NoUsage) {
        reply["usage"] = json!({"cost_in_usd_ticks": ticks});
    }
    let form = Form { files: files.sent, ..Form::default() };
    Ok(Said { form, ..Said::whole(billed, reply.to_string()) })
}

fn only_known(root: &Member<'_>, edits: bool) -> Result<(), Refusal> {
    let more = if edits { EDIT_FIELDS } else { "" };
    let known = format!("{FIELDS} {more}");
    let mut names = root.value.as_object().into_iter().flat_map(|object| object.keys());
    match names.find(|name| !known.split(' ').any(|known| known == *name)) {
        Some(name) => Err(Refusal::new(400, format!("Argument not supported: {name}"))),
        None => Ok(()),
    }
}

fn ticks_of(model: &str) -> Result<u64, Refusal> {
    let name = model.split_once('-').map(|(_, name)| name);
    let known = MODELS.iter().find(|(known, _)| name == Some(*known));
    known.map(|(_, ticks)| *ticks).ok_or_else(|| {
        let team = "team sim-account does not have access to it";
        Refusal::new(404, format!("The model {model} does not exist or your {team}."))
    })
}

/// The images to edit.
#[derive(Default)]
struct Sources {
    count: u64,
    /// Those which came with the request itself.
    sent: Vec<SentFile>,
}

fn sources(root: &Member<'_>) -> Result<Sources, Refusal> {
    let images = match (root.get("image"), root.get("images")) {
        (Some(image), None) => vec![image],
        (None, Some(images)) => images.items()?,
        (None, None) => return Err(Refusal::new(400, "Missing required field: image")),
        (Some(_), Some(_)) => {
            return Err(Refusal::new(400, "Only one of image and images can be given"));
        }
    };
    if images.is_empty() || images.len() > FILES_MAX {
        return Err(Refusal::new(400, format!("Between 1 and {FILES_MAX} images are supported")));
    }
    let mut sources = Sources { count: images.len() as u64, sent: Vec::new() };
    for image in &images {
        image.only("url type")?;
        image.get("type").map(|kind| kind.one_of("image_url")).transpose()?;
        sources.sent.extend(source(image.need("url")?.text()?)?);
    }
    Ok(sources)
}

/// The file of a data URI; none of an address elsewhere.
pub(super) fn source(url: &str) -> Result<Option<SentFile>, Refusal> {
    let Some(data) = url.strip_prefix("data:") else {
        let known = ["https://", "http://"].iter().any(|scheme| url.starts_with(scheme));
        let message = "Invalid image url: expected an http(s) address or a base64 data URI";
        return if known { Ok(None) } else { Err(Refusal::new(400, message)) };
    };
    let refusal = |what: &str| Refusal::new(400, format!("Invalid data URI of an image: {what}"));
    let (media, encoded) =
        data.split_once(";base64,").ok_or_else(|| refusal("it is not in base64"))?;
    if !["image/png", "image/jpeg", "image/webp"].contains(&media) {
        return Err(refusal(&format!("unsupported content-type {media}")));
    }
    let bytes = STANDARD.decode(encoded).map_err(|error| refusal(&error.to_string()))?;
    if bytes.is_empty() {
        return Err(refusal("it is empty"));
    }
    Ok(Some(super::sent_file("image", None, media, &bytes)))
}

fn entry(asked: &Asked, by_url: bool, number: u64) -> Value {
    let mut entry = json!({"revised_prompt": "", "mime_type": "image/png"});
    let moderated = asked.faults.has(Fault::Moderated);
    if moderated {
        entry["respect_moderation"] = json!(false);
    }
    let (name, value) = if by_url {
        let place = format!("{:06}/{number}.png", asked.serial);
        ("url", format!("https://images.vendor-d.example/{place}"))
    } else {
        ("b64_json", if moderated { String::new() } else { super::encoded_picture(asked) })
    };
    if !asked.faults.has(Fault::NoImage) {
        entry[name] = json!(if moderated { String::new() } else { value });
    }
    entry
}
