//! Videos: asked for once, asked after until they are there, and fetched from elsewhere.
//!
//! Every third question is answered with nothing but a status while a video is pending, beginning
//! with the second. What becomes of a video is decided when it is asked for, by the faults in that
//! address, and before them by words in the prompt, so that one address can show all outcomes:
//!
//! ```text
//! [blocked]     as moderated=prompt
//! [withheld]    as moderated=output
//! [late]        as moderated=late
//! [denied]      as moderated=denied
//! [fails]       as fails=internal_error
//! [expires]     as fails=expired
//! [gone]        as fails=gone
//! [never]       as never
//! [lost-file]   done, but its file is not found
//! [slow MS]     as video-ms=MS
//! ```

use serde_json::{Value, json};

use super::asked::Asked;
use super::endpoint::Endpoint;
use super::faults::Fault;
use super::member::Member;
use super::record::{Billed, Record};
use super::refusal::Refusal;
use super::said::{Form, Said, Words};

mod end;
mod film;
mod order;
mod shelf;

#[cfg(test)]
mod roads;
#[cfg(test)]
mod tests;

pub(crate) use film::{film, footage};
pub(super) use shelf::Shelf;
pub(crate) use shelf::{Calls, Video};

use end::End;
use order::Order;

/// Takes an order, tells of a video, or gives its file.
pub(super) fn answer(asked: &Asked, record: &Record) -> Result<Said, Refusal> {
    match asked.endpoint {
        Endpoint::Submit => submit(asked, record),
        Endpoint::Poll => poll(asked, record),
        _ => file(asked, record),
    }
}

fn submit(asked: &Asked, record: &Record) -> Result<Said, Refusal> {
    let body = asked.json()?;
    let order = Order::read(&Member::root(&body))?;
    let (end, takes_ms) = end::of(&asked.faults, &order.prompt)?;
    let input = order.image.as_ref().and_then(|_| asked.faults.number(Fault::ImageTicks));
    let ticks = asked.faults.number(Fault::Ticks);
    let ticks = ticks.unwrap_or_else(|| order.ticks.saturating_add(input.unwrap_or_default()));
    let billed = end.is_billed().then_some(ticks);
    let form = Form { files: order.file.clone().into_iter().collect(), ..Form::default() };
    let seconds = order.seconds;
    let id = record.videos.begin(asked, order, end, takes_ms, billed);
    let billed = billed.map(|ticks| Billed { seconds, ticks, ..Billed::default() });
    let words = Words::Whole(json!({"request_id": id}).to_string());
    Ok(Said { billed, form, ..Said::free(200, words) })
}

fn poll(asked: &Asked, record: &Record) -> Result<Said, Refusal> {
    let place = &asked.place;
    let video = record.videos.find(&place.job).filter(|video| video.key == place.key);
    let unknown = || Refusal::new(404, format!("Deferred request {} not found.", place.job));
    let video = video.ok_or_else(unknown)?;
    let told = |status, body: &Value| Ok(Said::free(status, Words::Whole(body.to_string())));
    if !video.is_over() {
        if video.polls % 3 == 2 {
            return Ok(Said::free(202, Words::Whole(String::new())));
        }
        return told(202, &json!({"status": "pending", "progress": video.progress()}));
    }
    match video.end {
        End::Done | End::Lost | End::Withheld => told(200, &done(asked, &video)),
        End::Expired => told(200, &json!({"status": "expired", "progress": 0})),
        End::Silent => told(200, &json!({"status": "failed", "progress": 0})),
        End::Failed(code, message) => {
            let error = json!({"code": code, "message": message});
            told(200, &json!({"status": "failed", "progress": 0, "error": error}))
        }
        End::Gone | End::Never => Err(unknown()),
    }
}

fn done(asked: &Asked, video: &Video) -> Value {
    let withheld = video.end == End::Withheld;
    let mut told = json!({"duration": video.seconds, "respect_moderation": !withheld});
    if withheld {
        told["url"] = json!("");
    } else if let Some(url) = file_url(asked, &video.id) {
        told["url"] = json!(url);
    }
    let mut reply = json!({"status": "done", "progress": 100, "model": video.model});
    reply["video"] = told;
    let faults = &asked.faults;
    if faults.has(Fault::NullUsage) {
        reply["usage"] = Value::Null;
    } else if faults.has(Fault::BadUsage) {
        reply["usage"] = json!({"cost_in_usd_ticks": -7.5});
    } else if !faults.has(Fault::NoUsage) {
        let ticks = faults.number(Fault::Ticks).or(video.billed);
        reply["usage"] = json!({"cost_in_usd_ticks": ticks});
    }
    reply
}

/// Where the file is said to be: on the host that was asked, under the same faults, unless they
/// say otherwise.
fn file_url(asked: &Asked, id: &str) -> Option<String> {
    let place = &asked.place;
    let faults = if place.faults.is_empty() { "" } else { &format!("/{}", place.faults) };
    let path =
        format!("/{}{faults}/{}/files/{id}.mp4", asked.vendor.name(), asked.vendor.version());
    let (scheme, host) = place.origin.split_once("://")?;
    let (name, port) = host.rsplit_once(':').unwrap_or((host, "80"));
    if let Some(port) = asked.faults.number(Fault::UrlPort) {
        return Some(format!("{scheme}://{name}:{port}{path}"));
    }
    Some(match asked.faults.word(Fault::Url) {
        Some("none") => return None,
        Some("empty") => String::new(),
        Some("relative") => path,
        Some("scheme") => format!("file://{path}"),
        Some("metadata") => format!("http://169.254.169.254{path}"),
        Some(_) if name == "localhost" => format!("{scheme}://127.0.0.1:{port}{path}"),
        Some(_) => format!("{scheme}://localhost:{port}{path}"),
        None => format!("{}{path}", place.origin),
    })
}

fn file(asked: &Asked, record: &Record) -> Result<Said, Refusal> {
    let place = &asked.place;
    if asked.faults.has(Fault::Redirect) {
        let (vendor, id) = (asked.vendor, &place.job);
        let path = format!("{}/{}/files/{id}.mp4", vendor.name(), vendor.version());
        return Ok(Said::free(302, Words::Moved(format!("{}/{path}", place.origin))));
    }
    let video = record.videos.find(&place.job);
    let video = video.filter(|video| video.end == End::Done && video.is_over());
    let video = video.ok_or_else(|| Refusal::new(404, "The file does not exist."))?;
    let film = match asked.faults.number(Fault::ReplyBytes) {
        Some(length) => {
            footage(&video.id, usize::try_from(length).expect("an address space of 64 bits"))
        }
        None => film(&video.id, video.seconds),
    };
    Ok(Said::free(200, Words::File("video/mp4", film)))
}
