//! The order for a video, checked as the vendor does.

use super::super::images;
use super::super::member::Member;
use super::super::record::SentFile;
use super::super::refusal::Refusal;

const FIELDS: &str =
    "model prompt duration seconds aspect_ratio resolution image generate_audio user";
const RATIOS: &str = "1:1 16:9 9:16 4:3 3:4 3:2 2:3";
const PROMPT_CHARACTERS_MAX: usize = 32_000;
const SECONDS_USUAL: u64 = 8;
const SECONDS_MAX: u64 = 15;

/// The models, and the ticks of a second by resolution.
const MODELS: [(&str, &[(&str, u64)]); 2] = [
    ("imagine-video", &[("480p", 500_000_000), ("720p", 700_000_000)]),
    (
        "imagine-video-1.5",
        &[("480p", 800_000_000), ("720p", 1_400_000_000), ("1080p", 2_500_000_000)],
    ),
];

/// What is asked for.
#[derive(Clone, Debug)]
pub(super) struct Order {
    pub(super) model: String,
    pub(super) prompt: String,
    pub(super) seconds: u64,
    pub(super) resolution: String,
    pub(super) aspect_ratio: Option<String>,
    pub(super) audio: bool,
    /// The address of the image to begin with, as it came.
    pub(super) image: Option<String>,
    /// The image that came in a data URI.
    pub(super) file: Option<SentFile>,
    /// Its list price.
    pub(super) ticks: u64,
}

impl Order {
    /// Reads an order, or tells why it is none.
    pub(super) fn read(root: &Member<'_>) -> Result<Order, Refusal> {
        let mut names = root.value.as_object().into_iter().flat_map(|object| object.keys());
        if let Some(name) = names.find(|name| !FIELDS.split(' ').any(|known| known == *name)) {
            return Err(Refusal::new(400, format!("Argument not supported: {name}")));
        }
        let model = root.need("model")?.text()?;
        let rates = rates_of(model)?;
        let prompt = root.need("prompt")?.text_within(PROMPT_CHARACTERS_MAX)?;
        let seconds = seconds(root)?;
        let ratio = root.get("aspect_ratio").map(|ratio| ratio.one_of(RATIOS)).transpose()?;
        let resolution = root.get("resolution");
        let resolution = resolution.map_or(Ok("480p"), |word| word.one_of("480p 720p 1080p"))?;
        let rate = rates.iter().find(|(known, _)| *known == resolution).ok_or_else(|| {
            let message = format!("resolution {resolution} is not supported by model {model}");
            Refusal::new(400, message)
        })?;
        let audio = root.get("generate_audio").map_or(Ok(true), |audio| audio.boolean())?;
        root.get("user").map(|user| user.text()).transpose()?;
        let image = root.get("image").map(|image| {
            image.only("url")?;
            image.need("url")?.text()
        });
        let image = image.transpose()?;
        Ok(Order {
            model: model.to_owned(),
            prompt: prompt.to_owned(),
            seconds,
            resolution: resolution.to_owned(),
            aspect_ratio: ratio.map(str::to_owned),
            audio,
            file: image.map(images::source).transpose()?.flatten(),
            image: image.map(str::to_owned),
            ticks: seconds * rate.1,
        })
    }
}

fn rates_of(model: &str) -> Result<&'static [(&'static str, u64)], Refusal> {
    let name = model.split_once('-').map(|(_, name)| name);
    let known = MODELS.iter().find(|(known, _)| name == Some(*known));
    known.map(|(_, rates)| *rates).ok_or_else(|| {
        let team = "team sim-account does not have access to it";
        Refusal::new(404, format!("The model {model} does not exist or your {team}."))
    })
}

/// A number, or the same as a text, under either of two names.
fn seconds(root: &Member<'_>) -> Result<u64, Refusal> {
    let given = match (root.get("duration"), root.get("seconds")) {
        (None, None) => return Ok(SECONDS_USUAL),
        (Some(_), Some(_)) => {
            return Err(Refusal::new(400, "Only one of duration and seconds can be given"));
        }
        (Some(given), None) | (None, Some(given)) => given,
    };
    match given.value.as_str() {
        None => given.integer(1..=SECONDS_MAX),
        Some(text) => {
            let number = text.parse().ok().filter(|number| (1..=SECONDS_MAX).contains(number));
            number.ok_or_else(|| given.invalid(&format!("'{text}' is not from 1 to {SECONDS_MAX}")))
        }
    }
}
