//! Moderations: every text with the word "violence" is flagged.

use serde_json::{Value, json};

use super::asked::Asked;
use super::member::Member;
use super::record::Billed;
use super::refusal::Refusal;
use super::said::Said;
use super::usage::quoted;

const FLAGGING: &str = "violence";
const CATEGORIES: [&str; 13] = [
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/intent",
    "self-harm/instructions",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
];
/// Those which are looked for in images, too.
const OF_IMAGES: &str = "self-harm self-harm/intent self-harm/instructions sexual violence \
    violence/graphic";
const MODELS: &str = "omni-moderation-latest omni-moderation-2024-09-26";

/// What is judged at once.
struct Input {
    text: String,
    texts: usize,
    images: usize,
}

/// Judges, or tells why not. It costs nothing.
pub(super) fn answer(asked: &Asked) -> Result<Said, Refusal> {
    let body = asked.json()?;
    let root = Member::root(&body);
    root.only("input model")?;
    let inputs = inputs(&root.need("input")?)?;
    let model = match root.get("model") {
        Some(model) => model.one_of(MODELS)?,
        None => "omni-moderation-latest",
    };
    let results: Vec<_> = inputs.iter().map(|input| result(input).to_string()).collect();
    let body = format!(
        r#"{{"id":"modr-{:04}","model":{},"results":[{}]}}"#,
        asked.serial,
        quoted(model),
        results.join(",")
    );
    Ok(Said::whole(Billed::default(), body))
}

/// The inputs; parts of several kinds are one together.
fn inputs(input: &Member<'_>) -> Result<Vec<Input>, Refusal> {
    let of_text = |text: &str| Input { text: text.to_owned(), texts: 1, images: 0 };
    if input.value.is_string() {
        return Ok(vec![of_text(input.text()?)]);
    }
    let items = input.items()?;
    if items.is_empty() {
        return Err(input.invalid("empty array. Expected at least one item.").coded("empty_array"));
    }
    if items[0].value.is_string() {
        return items.iter().map(|item| item.text().map(of_text)).collect();
    }
    let mut all = Input { text: String::new(), texts: 0, images: 0 };
    for item in &items {
        if item.need("type")?.one_of("text image_url")? == "text" {
            item.only("type text")?;
            all.text.push_str(item.need("text")?.text()?);
            all.text.push('\n');
            all.texts += 1;
        } else {
            item.only("type image_url")?;
            let image = item.need("image_url")?;
            image.only("url")?;
            image.need("url")?.text_within(usize::MAX)?;
            all.images += 1;
        }
    }
    Ok(vec![all])
}

fn result(input: &Input) -> Value {
    let flagged = input.text.contains(FLAGGING);
    let is_hit = |category: &str| flagged && category == FLAGGING;
    let applied = |category: &str| {
        let of_images = OF_IMAGES.split(' ').any(|known| known == category);
        let text = (input.texts > 0).then_some("text");
        let image = (input.images > 0 && of_images).then_some("image");
        text.into_iter().chain(image).collect::<Vec<_>>()
    };
    let each = |value: &dyn Fn(&str) -> Value| {
        let pairs = CATEGORIES.iter().map(|category| ((*category).to_owned(), value(category)));
        pairs.collect::<Value>()
    };
    json!({
        "flagged": flagged,
        "categories": each(&|category| json!(is_hit(category))),
        "category_scores": each(&|category| json!(if is_hit(category) { 0.9375 } else { 0.0625 })),
        "category_applied_input_types": each(&|category| json!(applied(category))),
    })
}

#[cfg(test)]
mod tests {
    use super::super::asked::{Target, judge};
    use super::super::endpoint::Endpoint;
    use super::super::vendor::Vendor;
    use super::*;

    const AT: Target = Target { vendor: Vendor::B, endpoint: Endpoint::Moderations };

    #[test]
    fn moderations_are_checked() {
        let image = json!({"type": "image_url", "image_url": {"url": "https://a.test/b.png"}});
        judge(
            AT,
            &json!({"input": "hello"}),
            &[
                (json!({}), ""),
                (json!({"model": "omni-moderation-2024-09-26"}), ""),
                (json!({"model": "lmb-5.5"}), "Invalid value: 'lmb-5.5'"),
                (json!({"input": null}), "Missing required parameter: 'input'."),
                (json!({"input": []}), "empty array"),
                (json!({"input": ["a", 1]}), "expected a string"),
                (json!({"input": [image, {"type": "text", "text": "a"}]}), ""),
                (json!({"input": [{"type": "audio"}]}), "Invalid value: 'audio'"),
                (json!({"input": [{"type": "image_url", "image_url": "u"}]}), "an object"),
                (json!({"stream": true}), "Unknown parameter: 'stream'."),
            ],
        );
    }

    #[test]
    fn every_input_has_its_result() {
        let body = json!({"input": ["peace", "some violence", "war"]});
        let (reply, billed) = Asked::for_test(AT, "", &body).reply().expect("results");
        assert_eq!(billed, Some(Billed::default()));
        let results = reply["results"].as_array().expect("a list");
        let flags: Vec<_> = results.iter().map(|result| &result["flagged"]).collect();
        assert_eq!(flags, [&json!(false), &json!(true), &json!(false)]);
        for result in results {
            for name in ["categories", "category_scores", "category_applied_input_types"] {
                assert_eq!(result[name].as_object().map(serde_json::Map::len), Some(13));
            }
        }
        assert_eq!(results[1]["categories"]["violence"], true);
        assert_eq!(results[1]["categories"]["hate"], false);
        let mixed = json!({"input": [{"type": "text", "text": "a"},
            {"type": "image_url", "image_url": {"url": "u"}}]});
        let (reply, _) = Asked::for_test(AT, "", &mixed).reply().expect("a result");
        assert_eq!(reply["results"].as_array().map(Vec::len), Some(1));
        let types = &reply["results"][0]["category_applied_input_types"];
        assert_eq!(
            (&types["violence"], &types["hate"]),
            (&json!(["text", "image"]), &json!(["text"]))
        );
    }
}
