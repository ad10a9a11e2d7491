//! Calls made by somebody who tries: to reach what is not his, or to smuggle a field past the
//! gateway.

use rstest::rstest;
use serde_json::{Value, json};

use crate::sim::picture;
use crate::world::{
    Answer, EDIT_B, EDIT_D, Form, MODERATION, Offer, RESPONSES, SPEECH, Sent, Store, World,
};

/// Members that name what was given to others, and how they hide it.
fn names_of_others() -> Vec<(&'static str, String)> {
    let content = r#""input":[{"type":"item_reference","id":"msg_x","content":"a"}]"#;
    let thought = r#""input":[{"type":"reasoning","id":"rs_x","summary":[],"content":[]}]"#;
    let kind = r#""input":[{"typ\u0065":"item_\u0072eference","\u0069d":"msg_x"}]"#;
    vec![
        ("an escaped name", r#""input":"a","previous_response\u005fid":"resp_x""#.to_owned()),
        ("an escaped conversation", r#""input":"a","conversati\u006fn":"conv_x""#.to_owned()),
        ("escaped inside", r#""input":"a","conversation":{"\u0069d":"conv_x"}"#.to_owned()),
        ("an escaped type", kind.to_owned()),
        ("a reference with content", content.to_owned()),
        ("a thought with content", thought.to_owned()),
        ("nulls for content", r#""input":[{"id":"ig_x","output":null,"content":null}]"#.to_owned()),
        ("far behind", far_behind()),
    ]
}

#[tokio::test]
async fn what_was_given_to_others_stays_theirs_however_it_is_named() {
    let world = World::start(Store::Sqlite).run().await;
    for (what, members) in names_of_others() {
        let body = format!(r#"{{"model":"lmb-5.5",{members}}}"#);
        let answer = Answer::read(world.request(RESPONSES.path).body(body)).await;
        let expected = (404, "not_found".to_owned());
        assert_eq!(answer.refusal_of(what), expected, "{what}: {answer:?}");
        assert_eq!(world.sim.seen().len(), 0, "{what}");
    }
    world.free_of_charge().await;
}

fn far_behind() -> String {
    let said = r#"{"role":"user","content":"a"},"#.repeat(3_000);
    format!(r#""input":[{said}{{"type":"item_reference","id":"msg_x"}}]"#)
}

/// Members for which there is no price.
const UNPRICED: [&str; 6] = [
    r#""backgr\u006fund":true"#,
    r#""tools":[{"t\u0079pe":"web\u005fsearch"}]"#,
    r#""input":[{"role":"user","content":"a","tools":[{"type":"mcp"}]}]"#,
    r#""input":[{"type":"image_generation_call","id":"ig_x"}]"#,
    r#""input":[{"type":"code_interpreter_call","id":"ci_x","code":"1","container_id":"cntr_x"}]"#,
    r#""tools":[{"name":"f"},{"type":null},{"type":["web_search"]}]"#,
];

#[tokio::test]
async fn what_has_no_price_is_found_however_it_is_written() {
    let world = World::start(Store::Sqlite).run().await;
    for members in UNPRICED {
        let input = if members.contains("\"input\"") { "" } else { r#","input":"a""# };
        let body = format!(r#"{{"model":"lmb-5.5"{input},{members}}}"#);
        let answer = Answer::read(world.request(RESPONSES.path).body(body)).await;
        assert_eq!(answer.status, 400, "{members}: {answer:?}");
        assert_eq!(world.sim.seen().len(), 0, "{members}: {answer:?}");
    }
    world.free_of_charge().await;
}

/// How many parts a body that reached the vendor has.
fn parts(body: &[u8]) -> usize {
    String::from_utf8_lossy(body).to_lowercase().matches("content-disposition: form-data").count()
}

#[tokio::test]
async fn the_name_of_a_field_smuggles_no_other_field() {
    let world = World::start(Store::Sqlite).run().await;
    for name in [
        r#"us"er"#,
        r#"us\"; filename=\"a"#,
        "us%22er",
        "user%0D%0AContent-Type: text/html",
        r#"user"; name="n"#,
    ] {
        for offer in [EDIT_B, EDIT_D] {
            let form = Form::new().field("model", offer.model).field("prompt", "Redder.");
            let form = form.field(name, "2").file("image", "image/png", &picture(0));
            world.send(offer.path, &form.sent()).await;
        }
        for seen in world.sim.take_seen() {
            if seen.vendor == "vendor_b" {
                let body = String::from_utf8_lossy(&seen.body).into_owned();
                assert_eq!(parts(&seen.body), 4, "{name}: {body:?}");
                assert!(!body.contains("\r\nContent-Type: text/html"), "{name}: {body:?}");
            }
            assert_eq!(seen.field("n"), None, "{name}");
        }
    }
    world.nothing_held().await;
}

#[tokio::test]
async fn a_file_that_holds_the_boundary_of_another_call_arrives_as_it_is() {
    let world = World::start(Store::Sqlite).run().await;
    assert_eq!(world.ask(EDIT_B).await.status, 200);
    let seen = world.sim.take_seen().remove(0);
    let media = seen.header("content-type").expect("a content type").to_owned();
    let boundary = media.split_once("boundary=").expect("a boundary").1.trim_matches('"');
    let part = "Content-Disposition: form-data; name=\"n\"\r\n\r\n10\r\n";
    let file = format!("\u{89}PNG\r\n--{boundary}\r\n{part}--{boundary}--\r\n");
    let form = Form::new().field("model", EDIT_B.model).field("prompt", &file);
    let form = form.file("image", "image/png", file.as_bytes());
    assert_eq!(world.send(EDIT_B.path, &form.sent()).await.status, 200);
    let seen = world.sim.take_seen().remove(0);
    assert_eq!((seen.files.len(), seen.files[0].len), (1, file.len()));
    assert_eq!((seen.field("n"), seen.field("prompt")), (None, Some(&*file)));
    world.settled(2).await;
}

#[tokio::test]
async fn a_part_of_the_wrong_kind_is_refused_and_no_vendor_hears_of_it() {
    let world = World::start(Store::Sqlite).run().await;
    let with_prompt = || Form::new().field("prompt", "a");
    for (what, form) in [
        ("no text", Form::new().part("; name=\"prompt\"", b"\xff\xfe")),
        ("a file for a text", Form::new().file("prompt", "text/plain", b"Redder.")),
        ("a file for the model", with_prompt().file("model", "text/plain", b"lmb-image-1")),
        ("another file", with_prompt().file("other", "image/png", b"\x89PNG")),
    ] {
        let form = form.file("image", "image/png", b"\x89PNG\r\n\x1a\n");
        let sent = form.field("model", EDIT_B.model).sent();
        let answer = world.send(EDIT_B.path, &sent).await;
        assert_eq!(answer.refusal_of(what).0, 400, "{what}: {answer:?}");
        assert_eq!(world.sim.seen().len(), 0, "{what}");
    }
    world.free_of_charge().await;
}

#[rstest]
#[tokio::test]
async fn headers_of_the_client_do_not_reach_the_vendor(
    #[values(RESPONSES, EDIT_B, EDIT_D, SPEECH, MODERATION)] offer: Offer,
) {
    let world = World::start(Store::Sqlite).run().await;
    let Sent { media, bytes } = offer.sent(&json!({}));
    let request = world.sending(offer.path, &media, Some(&world.key)).body(bytes);
    let request = request.header("cookie", "a=b").header("x-forwarded-for", "1.2.3.4");
    let request = request.header("vendor-organization", "mine").header("idempotency-key", "1");
    assert_eq!(Answer::read(request).await.status, 200);
    let seen = world.sim.seen().remove(0);
    for name in ["cookie", "x-forwarded-for", "vendor-organization"] {
        assert_eq!(seen.header(name), None, "{:?}", seen.headers);
    }
    assert!(!format!("{:?}", seen.headers).contains(&world.key));
    let length = seen.header("content-length").expect("a length");
    assert_eq!(length, seen.body_len.to_string());
}

#[tokio::test]
async fn a_stranger_is_told_so_before_he_has_sent_his_file() {
    let world = World::start(Store::Sqlite).run().await;
    let media = EDIT_B.sent(&json!({})).media;
    let head = format!(
        "POST /v1/images/edits HTTP/1.1\r\nhost: tollgate\r\nauthorization: Bearer sk-nobody\r\n\
         content-type: {media}\r\ncontent-length: 26000000\r\n\r\n"
    );
    let answers = world.raw(head.as_bytes()).await;
    assert_eq!((answers[0].status, answers[0].whole), (401, true), "{answers:?}");
}

#[tokio::test]
async fn a_client_that_waits_for_leave_to_send_its_file_gets_it() {
    let world = World::start(Store::Sqlite).run().await;
    let Sent { media, bytes } = EDIT_B.sent(&json!({}));
    let head = format!(
        "POST /v1/images/edits HTTP/1.1\r\nhost: tollgate\r\nauthorization: Bearer {}\r\n\
         content-type: {media}\r\ncontent-length: {}\r\nexpect: 100-continue\r\n\
         connection: close\r\n\r\n",
        world.key,
        bytes.len()
    );
    let answers = world.raw(&[head.as_bytes(), &bytes].concat()).await;
    assert_eq!(answers[0].status, 200, "{answers:?}");
    world.settled(1).await;
}

#[tokio::test]
async fn an_id_is_remembered_even_if_the_client_hangs_up_on_it() {
    let world = World::start(Store::Sqlite).vendor("vendor_b", &["chunk-delay=15"]).run().await;
    let mut stream = world.open_call(RESPONSES, json!({})).await;
    let first = stream.next().await.expect("an event");
    drop(stream);
    world.settled(1).await;
    let first: Value = serde_json::from_str(&first).expect("JSON");
    let next = json!({ "previous_response_id": first["response"]["id"] });
    assert_eq!(world.call(RESPONSES, next).await.status, 200);
    world.settled(2).await;
}

#[rstest]
#[tokio::test]
async fn what_a_response_goes_on_from_is_held_for_too(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
) {
    let faults = "prompt=100000;completion=10;delay=800";
    let world = World::start(store).vendor("vendor_b", &[faults]).run().await;
    let long = json!({ "stream": stream, "input": "a ".repeat(20_000) });
    let first = world.call(RESPONSES, long).await;
    let raw = String::from_utf8_lossy(&first.body).into_owned();
    let id = raw.split(r#""id":""#).nth(1).and_then(|rest| rest.split('"').next());
    let members = json!({ "previous_response_id": id, "max_output_tokens": 20 });
    let bytes = i64::try_from(RESPONSES.sent(&members).bytes.len()).expect("a short call");
    world.settled(1).await;
    let (answer, held) = world.held_during(RESPONSES, members).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(held, (bytes + 100_010) * 5_000 + 20 * 30_000);
    world.settled(2).await;
}
