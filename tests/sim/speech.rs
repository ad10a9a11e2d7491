//! Speech: bytes of a format, as many as there are characters to speak.

use super::asked::Asked;
use super::faults::Fault;
use super::member::Member;
use super::noise;
use super::record::Billed;
use super::refusal::Refusal;
use super::said::{Said, Words};

const FIELDS: &str = "model input voice response_format speed instructions stream_format";
const VOICES: &str = "alloy ash coral echo fable onyx nova sage shimmer";
const INPUT_CHARACTERS_MAX: usize = 4096;
const HEAD_BYTES: usize = 16;
const BYTES_OF_CHARACTER: usize = 64;
const PIECE_BYTES: usize = 1024;

/// A format: its name, its media type, and how its bytes begin.
type Format = (&'static str, &'static str, &'static [u8]);

const FORMATS: [Format; 6] = [
    ("mp3", "audio/mpeg", b"ID3\x04"),
    ("opus", "audio/opus", b"OggS"),
    ("aac", "audio/aac", b"\xff\xf1"),
    ("flac", "audio/flac", b"fLaC"),
    ("wav", "audio/wav", b"RIFF"),
    ("pcm", "audio/pcm", b""),
];

/// Speaks, or tells why not.
pub(super) fn answer(asked: &Asked) -> Result<Said, Refusal> {
    let body = asked.json()?;
    let root = Member::root(&body);
    root.only(FIELDS)?;
    let model = root.need("model")?.text()?;
    if !model.starts_with("tts-1") {
        let message =
            format!("The model `{model}` does not exist or you do not have access to it.");
        return Err(Refusal::new(404, message));
    }
    let input = root.need("input")?.text_within(INPUT_CHARACTERS_MAX)?;
    let voice = root.need("voice")?.one_of(VOICES)?;
    let names = FORMATS.map(|(name, ..)| name).join(" ");
    let format = root.get("response_format").map_or(Ok("mp3"), |format| format.one_of(&names))?;
    root.get("speed").map(|speed| speed.decimal(0.25..=4.0)).transpose()?;
    root.get("instructions").map(|text| text.text()).transpose()?;
    root.get("stream_format").map(|format| format.one_of("audio")).transpose()?;
    let characters = input.chars().count();
    let length = asked.faults.number(Fault::ReplyBytes).map_or_else(
        || HEAD_BYTES + BYTES_OF_CHARACTER * characters,
        |length| usize::try_from(length).expect("an address space of 64 bits"),
    );
    let sound = sound(input, voice, format, length);
    let size = match asked.faults.number(Fault::Chunks) {
        Some(count) => {
            let count = usize::try_from(count.max(1)).expect("an address space of 64 bits");
            sound.len().div_ceil(count)
        }
        None => PIECE_BYTES,
    };
    let pieces = sound.chunks(size.max(1)).map(<[u8]>::to_vec).collect();
    let billed = Billed { characters: characters as u64, ..Billed::default() };
    let media = FORMATS.iter().find(|(name, ..)| *name == format).map_or("", |(_, media, _)| media);
    Ok(Said::new(billed, billed, Words::Pieces(media, pieces)))
}

/// So many bytes of speech; unless told otherwise the simulator makes 16, and 64 per character.
///
/// They are noise from the FNV-1a of `voice:format:input`, with the bytes by which the format is
/// known written over its beginning.
pub(crate) fn sound(input: &str, voice: &str, format: &str, length: usize) -> Vec<u8> {
    let seed = noise::fnv(format!("{voice}:{format}:{input}").as_bytes());
    let mut sound: Vec<u8> = noise::bytes(seed).take(length).collect();
    let known = FORMATS.iter().find(|(name, ..)| *name == format);
    let magic = known.map_or(&b""[..], |(.., magic)| magic);
    for (byte, known) in sound.iter_mut().zip(magic) {
        *byte = *known;
    }
    sound
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::asked::{Target, judge};
    use super::super::endpoint::Endpoint;
    use super::super::record::Record;
    use super::super::vendor::Vendor;
    use super::*;

    const AT: Target = Target { vendor: Vendor::B, endpoint: Endpoint::Speech };

    fn call() -> Value {
        json!({"model": "tts-1", "input": "hello", "voice": "alloy"})
    }

    fn spoken(body: &Value, faults: &str) -> (&'static str, Vec<Vec<u8>>, u64) {
        let said = Asked::for_test(AT, faults, body).say(&Record::default());
        let Ok(Said { words: Words::Pieces(media, pieces), billed: Some(billed), .. }) = said
        else {
            panic!("nothing is spoken")
        };
        (media, pieces, billed.characters)
    }

    #[test]
    fn speech_is_checked() {
        let long = "é".repeat(INPUT_CHARACTERS_MAX);
        judge(
            AT,
            &call(),
            &[
                (json!({}), ""),
                (json!({"model": "tts-1-hd", "response_format": "pcm", "speed": 0.25}), ""),
                (json!({"model": null}), "Missing required parameter: 'model'."),
                (json!({"model": "lmb-5.5"}), "does not exist"),
                (json!({"input": ""}), "empty string"),
                (json!({"input": long}), ""),
                (json!({"input": long.clone() + "é"}), "maximum length 4096"),
                (json!({"voice": null}), "Missing required parameter: 'voice'."),
                (json!({"voice": "mickey"}), "Invalid value: 'mickey'"),
                (json!({"response_format": "midi"}), "Invalid value: 'midi'"),
                (json!({"speed": 4.5}), "Invalid 'speed'"),
                (json!({"stream_format": "sse"}), "Invalid value: 'sse'"),
                (json!({"stream": true}), "Unknown parameter: 'stream'."),
            ],
        );
    }

    #[test]
    fn speech_is_as_long_as_its_text() {
        let (media, pieces, characters) = spoken(&call(), "");
        assert_eq!((media, characters), ("audio/mpeg", 5));
        assert_eq!(pieces.concat(), sound("hello", "alloy", "mp3", 16 + 5 * 64));
        assert!(pieces.concat().starts_with(b"ID3"));
        let body = json!({"model": "tts-1", "input": "naïve".repeat(20), "voice": "nova",
            "response_format": "wav"});
        let (media, pieces, characters) = spoken(&body, "");
        assert_eq!((media, characters, pieces.len()), ("audio/wav", 100, 7));
        assert_eq!(spoken(&body, "chunks=3").1.len(), 3);
        assert_eq!(spoken(&body, "reply-bytes=5").1.concat().len(), 5);
    }
}
