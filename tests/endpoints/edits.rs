//! Edits: forms however their clients write them, and what becomes of the file in them.

use rstest::rstest;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::images::pictured;
use crate::sim::picture;
use crate::world::{Answer, EDIT_B, EDIT_D, Form, Offer, Sent, Store, World};

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn texts(offer: Offer) -> Form {
    Form::new().field("model", offer.model).field("prompt", "Redder, é 😀.")
}

/// A picture with a line of the form's own kind in it.
fn tricky() -> Vec<u8> {
    [picture(90).as_slice(), b"\r\n--tollgate\r\n\r\n--\r\n\0"].concat()
}

/// Sends a form, and proves that the vendor got the file and the texts.
async fn arrives(world: &World, offer: Offer, sent: &Sent, file: &[u8], media: &str) {
    pictured(&world.send(offer.path, sent).await);
    proves(world, offer, file, media);
}

fn proves(world: &World, offer: Offer, file: &[u8], media: &str) {
    let seen = world.sim.take_seen().remove(0);
    let [got] = seen.files.as_slice() else { panic!("{:?}", seen.files) };
    assert_eq!((got.len, &got.sha256), (file.len(), &digest(file)));
    assert_eq!((got.part.as_str(), got.content_type.as_str()), ("image", media));
    if offer == EDIT_B {
        let ending = media.strip_prefix("image/").expect("an image").replace("jpeg", "jpg");
        assert_eq!(got.name.as_deref(), Some(&*format!("image.{ending}")));
        let fields = [seen.field("model"), seen.field("prompt")];
        assert_eq!(fields, [Some(offer.model), Some("Redder, é 😀.")]);
    } else {
        let mut sent = seen.json();
        let url = sent["image"]["url"].take();
        let begin = format!("data:{media};base64,");
        assert!(url.as_str().is_some_and(|url| url.starts_with(&begin)), "{url}");
        let format = "b64_json";
        let image = json!({ "url": null });
        let (model, prompt) = (offer.model, "Redder, é 😀.");
        let expected =
            json!({"model": model, "prompt": prompt, "response_format": format, "image": image});
        assert_eq!(sent, expected);
    }
}

#[tokio::test]
async fn an_edit_that_names_no_model_is_for_the_default_of_the_rules() {
    let world = World::start(Store::Sqlite).run().await;
    let form = Form::new().field("prompt", "Redder.").file("image", "image/png", &picture(90));
    pictured(&world.send(EDIT_B.path, &form.sent()).await);
    let seen = world.sim.take_seen().remove(0);
    assert_eq!(seen.field("model"), Some("lmb-image-2"));
    let charge = world.charge().await;
    assert_eq!((&*charge.model, &*charge.endpoint), ("lmb-image-2", "image_edits"));
    let answer = world.call(crate::world::IMAGE_B, json!({ "model": null })).await;
    assert_eq!(answer.refusal(), (400, "missing_required_parameter".to_owned()));
}

#[rstest]
#[tokio::test]
async fn a_form_is_understood_however_it_is_written(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(EDIT_B, EDIT_D)] offer: Offer,
) {
    let world = World::start(store).run().await;
    let file = tricky();
    let png = "image/png";
    let usual = texts(offer).file("image", png, &file);
    let of_list = texts(offer).file("image[]", png, &file);
    let first = Form::new().file("image", png, &file).field("model", offer.model);
    let first = first.field("prompt", "Redder, é 😀.");
    let unknown = texts(offer).file("image", "application/octet-stream", &file);
    let unnamed = texts(offer).part("; name=\"image\"; filename=\"a.png\"", &file);
    let bare = texts(offer).part("; name=image; filename=a.png\r\nContent-Type: image/png", &file);
    for form in [usual.clone(), of_list, first, unknown, unnamed, bare] {
        arrives(&world, offer, &form.sent(), &file, png).await;
    }
    let mut quoted = usual.sent();
    quoted.media = quoted.media.replace("boundary=", "charset=utf-8; Boundary=\"") + "\"";
    arrives(&world, offer, &quoted, &file, png).await;
    let Sent { media, .. } = usual.sent();
    let chunked = world.sending(offer.path, &media, Some(&world.key));
    pictured(&Answer::read(chunked.body(usual.sent().in_chunks())).await);
    proves(&world, offer, &file, png);
    assert_eq!(world.settled(8).await.len(), 8);
}

#[rstest]
#[case::jpeg(b"\xff\xd8\xff\xe0 a jpeg", "application/octet-stream", "image/jpeg")]
#[case::webp(b"RIFF\x10\0\0\0WEBPVP8 ", "application/octet-stream", "image/webp")]
#[case::png_called_jpeg(b"\x89PNG\r\n\x1a\n", "image/jpeg", "image/png")]
#[case::as_declared(b"who knows", "image/webp", "image/webp")]
#[tokio::test]
async fn a_files_type_is_what_its_first_bytes_say_or_else_what_is_declared(
    #[values(EDIT_B, EDIT_D)] offer: Offer,
    #[case] file: &[u8],
    #[case] declared: &str,
    #[case] media: &str,
) {
    let world = World::start(Store::Sqlite).run().await;
    let form = texts(offer).file("image", declared, file);
    arrives(&world, offer, &form.sent(), file, media).await;
}

#[tokio::test]
async fn a_gif_is_called_a_gif_and_the_vendor_judges_it() {
    let world = World::start(Store::Sqlite).run().await;
    for offer in [EDIT_B, EDIT_D] {
        let form = texts(offer).file("image", "image/png", b"GIF89a and more");
        let answer = world.send(offer.path, &form.sent()).await;
        assert_eq!(answer.refusal().0, 400, "{answer:?}");
        assert!(answer.message().contains("image/gif"), "{answer:?}");
    }
    assert_eq!(world.sim.seen().len(), 2);
    world.free_of_charge().await;
}

#[rstest]
#[tokio::test]
async fn fields_of_a_form_reach_the_vendor_except_a_size_that_he_does_not_take(
    #[values(EDIT_B, EDIT_D)] offer: Offer,
) {
    let world = World::start(Store::Sqlite).run().await;
    let members = json!({ "size": "1024x1024", "n": 1, "user": "u" });
    pictured(&world.call(offer, members).await);
    let seen = world.sim.seen().remove(0);
    if offer == EDIT_B {
        assert_eq!((seen.field("size"), seen.field("user")), (Some("1024x1024"), Some("u")));
    } else {
        let sent = seen.json();
        assert_eq!((sent.get("size"), &sent["user"]), (None, &json!("u")));
        assert!(matches!(sent.get("n"), None | Some(serde_json::Value::Number(_))), "{sent}");
    }
}

/// Forms that are wrong: what is told of each, and of which field.
fn wrong(offer: Offer) -> Vec<(&'static str, Sent, &'static str, Option<&'static str>)> {
    let png = "image/png";
    let file = picture(0);
    let usual = || texts(offer).file("image", png, &file);
    let cut = |count: usize| {
        let mut sent = usual().sent();
        sent.bytes.truncate(sent.bytes.len() - count);
        sent
    };
    let with = |before: &[u8], after: &[u8]| {
        let sent = usual().sent();
        Sent { bytes: [before, &*sent.bytes, after].concat().into(), ..sent }
    };
    let called = |media: &str| Sent { media: media.to_owned(), ..usual().sent() };
    let (unsupported, value, form) = ("unsupported_parameter", "invalid_value", "invalid_form");
    let image = Some("image");
    let headless = usual().part("\r\nContent-Disposition: form-data", b"x");
    vec![
        ("a mask", usual().file("mask", png, &file).sent(), unsupported, Some("mask")),
        ("a mask as text", usual().field("mask", "x").sent(), unsupported, Some("mask")),
        ("an empty mask", usual().field("mask", "").sent(), unsupported, Some("mask")),
        ("a mask in a list", usual().file("mask[]", png, &file).sent(), unsupported, None),
        ("markup", usual().file("markup", png, &file).sent(), unsupported, Some("markup")),
        ("two images", usual().file("image", png, &file).sent(), value, image),
        ("two in a list", usual().file("image[]", png, &file).sent(), value, image),
        ("two images asked for", usual().field("n", "2").sent(), value, Some("n")),
        ("a field twice", usual().field("prompt", "b").sent(), form, None),
        ("another field twice", usual().field("user", "a").field("user", "b").sent(), form, None),
        ("an empty file", texts(offer).file("image", png, b"").sent(), value, image),
        ("no picture", texts(offer).file("image", "text/plain", b"hi").sent(), value, image),
        ("a text for an image", texts(offer).field("image", "dot").sent(), "", image),
        ("no name", headless.sent(), form, None),
        ("without its end", cut(20), form, None),
        ("without a part's end", cut(40), form, None),
        ("words before it", with(b"hello\r\n", b""), form, None),
        ("words after it", with(b"", b"hello"), form, None),
        ("nothing", Sent { bytes: Vec::new().into(), ..usual().sent() }, form, None),
        ("not multipart", called("application/x-www-form-urlencoded"), form, None),
        ("of another kind", called("multipart/mixed; boundary=tollgate-7d9f1c0b"), form, None),
        ("without a boundary", called("multipart/form-data"), form, None),
        ("with another boundary", called("multipart/form-data; boundary=other"), form, None),
    ]
}

#[rstest]
#[tokio::test]
async fn what_is_wrong_with_a_form_is_told_and_no_vendor_hears_of_it(
    #[values(EDIT_B, EDIT_D)] offer: Offer,
) {
    let world = World::start(Store::Sqlite).run().await;
    let mut odd = Vec::new();
    for (what, sent, code, param) in wrong(offer) {
        let answer = world.send(offer.path, &sent).await;
        let told = answer.json()["error"].clone();
        let fits = answer.status == 400
            && (code.is_empty() || told["code"] == code)
            && param.is_none_or(|param| told["param"] == param);
        if !fits || !world.sim.take_seen().is_empty() {
            odd.push(format!("{what}: {} {told}, not {code} at {param:?}", answer.status));
        }
    }
    assert!(odd.is_empty(), "{}", odd.join("\n"));
    world.free_of_charge().await;
}
