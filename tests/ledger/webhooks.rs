//! The rows of webhooks, in all stores.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use tokio::sync::Barrier;
use tollgate::ledger::DeletionMark;
use tollgate::store::{self, OpenStore};
use tollgate::webhooks::{
    DueRow, RowBounds, RowPlace, WebhookRow, WebhookRowAdded, WebhookRowKind, WebhookStore,
};

use super::redis_cluster;
use super::redis_server::RedisServer;
use super::subject::{at, name, opened};

/// Two processes that use one store.
type Both = [OpenStore; 2];

const WIDE: RowBounds = RowBounds { of_owner: 100, in_all: Some(1_000) };
const NARROW: RowBounds = RowBounds { of_owner: 3, in_all: Some(7) };
const MESSAGE: WebhookRowKind = WebhookRowKind::Message;

async fn open_twice(url: &str) -> Both {
    [opened(url).await, store::open(&at(url.to_owned())).await.expect("a store")]
}

fn sqlite_url(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("ledger.db").display())
}

fn row(kind: WebhookRowKind, id: &str, owner: &str, created_at: i64) -> WebhookRow {
    WebhookRow {
        kind,
        id: id.to_owned(),
        owner: owner.to_owned(),
        created_at,
        due_at: None,
        version: 1,
        body: format!("{{\"id\":\"{id}\"}}"),
    }
}

fn message(id: &str, owner: &str, created_at: i64, due_at: i64) -> WebhookRow {
    WebhookRow { due_at: Some(due_at), ..row(MESSAGE, id, owner, created_at) }
}

async fn add(store: &dyn WebhookStore, row: &WebhookRow) -> WebhookRowAdded {
    store.add_row(row, WIDE, false).await.expect("an answer")
}

async fn found(store: &dyn WebhookStore, id: &str) -> Option<WebhookRow> {
    store.find_row(MESSAGE, id).await.expect("an answer")
}

async fn listed(store: &dyn WebhookStore, owner: Option<&str>, limit: u32) -> Vec<String> {
    let rows = store.list_rows(MESSAGE, owner, None, limit).await.expect("an answer");
    rows.into_iter().map(|row| row.id).collect()
}

async fn due(store: &dyn WebhookStore, now: i64) -> Vec<String> {
    let due = store.list_due_rows(MESSAGE, now, 100).await.expect("an answer");
    due.into_iter().map(|due| format!("{} {}", due.owner, due.id)).collect()
}

async fn rows_are_kept([first, second]: &Both) {
    let (first, second) = (&*first.webhooks, &*second.webhooks);
    assert_eq!((found(first, "m1").await, listed(first, None, 9).await.len()), (None, 0));
    // Owners and bodies may have whatever a name and JSON can have.
    let (odd, quoted) = ("a-b.c_1", "{\"a\":\"}{:tollgate:} \\u00e9 \n\"}");
    let strange =
        WebhookRow { body: quoted.to_owned(), ..message("m1", odd, 1_795_867_200_000, 50) };
    assert_eq!(add(first, &strange).await, WebhookRowAdded::Added);
    assert_eq!(found(second, "m1").await.as_ref(), Some(&strange));
    let again = WebhookRow { body: "{}".to_owned(), owner: "x".to_owned(), ..strange.clone() };
    assert_eq!(add(second, &again).await, WebhookRowAdded::Exists);
    assert_eq!(found(first, "m1").await.as_ref(), Some(&strange), "it stays as it is");
    // The same id of another kind is another row.
    let endpoint = row(WebhookRowKind::Endpoint, "m1", "", 3);
    assert_eq!(add(first, &endpoint).await, WebhookRowAdded::Added);
    assert_eq!(second.find_row(WebhookRowKind::Endpoint, "m1").await, Ok(Some(endpoint)));
    assert_eq!(found(second, "m1").await.as_ref(), Some(&strange));
    // Who has read an older version replaces nothing.
    let newer = WebhookRow { body: "{\"b\":2}".to_owned(), due_at: None, ..strange.clone() };
    assert_eq!(first.replace_row(&newer).await, Ok(true));
    assert_eq!(second.replace_row(&strange).await, Ok(false));
    let stored = WebhookRow { version: 2, ..newer.clone() };
    assert_eq!(found(second, "m1").await.as_ref(), Some(&stored));
    assert_eq!(second.replace_row(&message("m9", odd, 1, 1)).await, Ok(false), "there is none");
    assert_eq!(found(second, "m9").await, None);
    assert_eq!(first.remove_row(MESSAGE, "m1").await, Ok(true));
    assert_eq!(second.remove_row(MESSAGE, "m1").await, Ok(false));
    assert_eq!((found(first, "m1").await, listed(second, None, 9).await.len()), (None, 0));
    assert_eq!(add(second, &strange).await, WebhookRowAdded::Added, "it may be added anew");
    assert_eq!(first.remove_row(MESSAGE, "m1").await, Ok(true));
    assert_eq!(first.remove_row(WebhookRowKind::Endpoint, "m1").await, Ok(true));
}

async fn lists_are_in_order([first, second]: &Both) {
    let (first, second) = (&*first.webhooks, &*second.webhooks);
    // Of one moment there are several.
    for (number, created_at) in [10, 9, 10, 1_000_000_000_000, 10].into_iter().enumerate() {
        add(first, &message(&format!("m{number}"), "we_1", created_at, 1)).await;
    }
    add(first, &message("n1", "we_2", 20, 1)).await;
    assert_eq!(listed(second, Some("we_1"), 9).await, ["m3", "m4", "m2", "m0", "m1"]);
    assert_eq!(listed(second, None, 9).await, ["m3", "n1", "m4", "m2", "m0", "m1"]);
    assert_eq!(listed(second, Some("we"), 9).await, [""; 0]);
    let (mut before, mut paged) = (None, Vec::new());
    loop {
        let page = first.list_rows(MESSAGE, Some("we_1"), before.as_ref(), 2).await;
        let page = page.expect("an answer");
        let Some(last) = page.last() else { break };
        before = Some(last.place());
        paged.extend(page.into_iter().map(|row| row.id));
    }
    assert_eq!(paged, ["m3", "m4", "m2", "m0", "m1"]);
    // A place may be that of a row which is not there any more.
    let gone = RowPlace { created_at: 10, id: "m3".to_owned() };
    let rest = first.list_rows(MESSAGE, Some("we_1"), Some(&gone), 9).await.expect("an answer");
    assert_eq!(rest.into_iter().map(|row| row.id).collect::<Vec<_>>(), ["m2", "m0", "m1"]);
}

async fn what_is_due_is_told_once_an_owner([first, second]: &Both) {
    let (first, second) = (&*first.webhooks, &*second.webhooks);
    for number in 0..5 {
        add(first, &message(&format!("a{number}"), "we_a", number, 10 + 2 * number)).await;
    }
    add(first, &message("b0", "we_b", 1, 13)).await;
    let level = row(WebhookRowKind::Crossing, "c0", "acme", 1);
    add(first, &WebhookRow { due_at: Some(11), ..level.clone() }).await;
    add(first, &WebhookRow { id: "c1".to_owned(), due_at: None, ..level }).await;
    assert!(due(second, 9).await.is_empty());
    assert_eq!(due(second, 10).await, ["we_a a0"]);
    let all = ["we_a a0", "we_b b0"];
    assert_eq!(due(second, 1_000).await, all);
    let one = second.list_due_rows(MESSAGE, 1_000, 1).await.expect("an answer");
    let first_row = DueRow { id: "a0".to_owned(), owner: "we_a".to_owned() };
    assert_eq!(one, [first_row]);
    let levels = second.list_due_rows(WebhookRowKind::Crossing, 1_000, 9).await;
    assert_eq!(levels.expect("an answer").len(), 1);
    // What is put off makes way for the next one of its owner, and so does what is removed.
    let later = WebhookRow { due_at: Some(500), ..message("a0", "we_a", 0, 10) };
    assert_eq!(second.replace_row(&later).await, Ok(true));
    assert_eq!(due(first, 13).await, ["we_a a1", "we_b b0"]);
    assert_eq!(first.remove_row(MESSAGE, "a1").await, Ok(true));
    assert_eq!(first.remove_row(MESSAGE, "b0").await, Ok(true));
    assert_eq!(first.remove_row(WebhookRowKind::Crossing, "c0").await, Ok(true));
    assert_eq!(due(second, 14).await, ["we_a a2"]);
    let never = WebhookRow { due_at: None, ..message("a2", "we_a", 2, 14) };
    assert_eq!(first.replace_row(&never).await, Ok(true));
    assert_eq!(
        (due(second, 14).await.len(), due(second, 16).await),
        (0, vec!["we_a a3".to_owned()])
    );
}

async fn there_are_only_so_many([first, second]: &Both) {
    let (first, second) = (&*first.webhooks, &*second.webhooks);
    let adding = async |row: &WebhookRow, makes_room| {
        second.add_row(row, NARROW, makes_room).await.expect("an answer")
    };
    for number in 0..3 {
        let added = adding(&message(&format!("a{number}"), "a", 10 - number, 1), false).await;
        assert_eq!(added, WebhookRowAdded::Added);
    }
    assert_eq!(adding(&message("a3", "a", 20, 1), false).await, WebhookRowAdded::Full);
    assert_eq!(adding(&message("a2", "a", 8, 1), true).await, WebhookRowAdded::Exists);
    // The oldest one makes room, with what it was due for.
    let body = "{\"id\":\"a2\"}".to_owned();
    let added = adding(&message("a3", "a", 20, 30), true).await;
    assert_eq!(added, WebhookRowAdded::InPlaceOf(body));
    assert_eq!(listed(first, Some("a"), 9).await, ["a3", "a0", "a1"]);
    assert_eq!((found(first, "a2").await, due(first, 1).await.len()), (None, 1));
    for (number, owner) in ["b", "b", "b", "c"].into_iter().enumerate() {
        let added = adding(&message(&format!("{owner}{number}"), owner, 1, 1), false).await;
        assert_eq!(added, WebhookRowAdded::Added, "{number}");
    }
    // There is no room in all: not even that of another owner.
    for makes_room in [false, true] {
        assert_eq!(adding(&message("d0", "d", 1, 1), makes_room).await, WebhookRowAdded::Full);
    }
    let added = adding(&message("c9", "c", 9, 1), true).await;
    assert_eq!(added, WebhookRowAdded::InPlaceOf("{\"id\":\"c3\"}".to_owned()));
    // Rows of other kinds take no room of these.
    let other = row(WebhookRowKind::Crossing, "d0", "d", 1);
    assert_eq!(adding(&other, false).await, WebhookRowAdded::Added);
    assert_eq!(listed(first, None, 99).await.len(), 7);
}

/// Several processes claim the same row at the same time, again and again.
async fn of_many_who_claim_a_row_one_has_it([first, second]: &Both, rounds: u32) {
    for round in 0..rounds {
        let id = format!("m{round}");
        assert_eq!(
            add(&*first.webhooks, &message(&id, "we_1", 1, 1)).await,
            WebhookRowAdded::Added
        );
        let start = Arc::new(Barrier::new(4));
        let claims = [first, second, first, second].map(|store| {
            let (store, start, id) = (store.webhooks.clone(), start.clone(), id.clone());
            tokio::spawn(async move {
                let row = found(&*store, &id).await.expect("a row");
                start.wait().await;
                let claimed = WebhookRow { due_at: Some(60_000), ..row };
                store.replace_row(&claimed).await.expect("an answer")
            })
        });
        let mut winners = 0;
        for claim in claims {
            winners += u32::from(claim.await.expect("an answer"));
        }
        assert_eq!(winners, 1, "{round}");
    }
}

async fn what_is_of_an_account_goes_with_it([first, second]: &Both) {
    let (acme, other) = (name("acme"), name("other"));
    for account in [&acme, &other] {
        assert_eq!(first.ledger.open_account(account).await, Ok(true));
    }
    let store = &*first.webhooks;
    let about = |id: &str, endpoint: &str, account: &str| WebhookRow {
        body: format!(
            "{{\"event\":\"balance.low\",\"account\":\"{account}\",\"body\":\"{{}}\",\
             \"state\":\"pending\",\"tries\":0}}"
        ),
        ..message(id, endpoint, 1, 1)
    };
    for (id, owner) in [("we_acme", "acme"), ("we_other", "other"), ("we_all", "")] {
        add(store, &row(WebhookRowKind::Endpoint, id, owner, 1)).await;
    }
    for (id, endpoint, account) in [
        ("m1", "we_acme", "acme"),
        ("m2", "we_other", "other"),
        ("m3", "we_all", "acme"),
        ("m4", "we_all", "other"),
    ] {
        add(store, &about(id, endpoint, account)).await;
    }
    for number in 0..250 {
        add(store, &row(WebhookRowKind::Crossing, &format!("c{number}"), "acme", number)).await;
    }
    add(store, &row(WebhookRowKind::Crossing, "d", "other", 1)).await;
    second.eraser.erase_account(&acme).await.expect("an answer");
    assert_eq!(listed(store, None, 9).await.len(), 4, "it is not deleted");
    let marked = second.eraser.mark_deleted(&acme).await;
    assert!(matches!(marked, Ok(DeletionMark::Deleted(_))), "{marked:?}");
    second.eraser.erase_account(&acme).await.expect("erased");
    assert_eq!(listed(store, None, 9).await, ["m4", "m2"]);
    let endpoints = store.list_rows(WebhookRowKind::Endpoint, None, None, 9).await;
    assert_eq!(endpoints.expect("an answer").len(), 2);
    let levels = store.list_rows(WebhookRowKind::Crossing, None, None, 999).await;
    assert_eq!(levels.expect("an answer").len(), 1);
    assert_eq!(due(store, 9).await.len(), 2);
}

#[derive(Debug, Clone)]
enum Step {
    Add { id: u8, owner: u8, created_at: u8, due_at: Option<u8>, makes_room: bool },
    Replace { id: u8, is_current: bool, due_at: Option<u8> },
    Remove { id: u8 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let due_at = || proptest::option::of(0_u8..6);
    let step = prop_oneof![
        4 => (0_u8..12, 0_u8..4, 0_u8..4, due_at(), any::<bool>()).prop_map(
            |(id, owner, created_at, due_at, makes_room)| {
                Step::Add { id, owner, created_at, due_at, makes_room }
            }
        ),
        3 => (0_u8..12, any::<bool>(), due_at()).prop_map(|(id, is_current, due_at)| {
            Step::Replace { id, is_current, due_at }
        }),
        1 => (0_u8..12).prop_map(|id| Step::Remove { id }),
    ];
    prop::collection::vec(step, 1..60)
}

/// The rows as they should be, by their ids.
#[derive(Default)]
struct Model(BTreeMap<String, WebhookRow>);

impl Model {
    fn oldest_of(&self, owner: &str) -> Option<String> {
        let of_owner = self.0.values().filter(|row| row.owner == owner);
        of_owner.min_by_key(|row| row.place()).map(|row| row.id.clone())
    }

    fn add(&mut self, row: &WebhookRow, makes_room: bool) -> WebhookRowAdded {
        if self.0.contains_key(&row.id) {
            return WebhookRowAdded::Exists;
        }
        let of_owner = self.0.values().filter(|kept| kept.owner == row.owner).count();
        let is_full = of_owner >= NARROW.of_owner as usize
            || self.0.len() >= NARROW.in_all.map_or(usize::MAX, |most| most as usize);
        let mut added = WebhookRowAdded::Added;
        if is_full {
            let oldest = self.oldest_of(&row.owner).filter(|_| makes_room);
            let Some(oldest) = oldest.and_then(|id| self.0.remove(&id)) else {
                return WebhookRowAdded::Full;
            };
            added = WebhookRowAdded::InPlaceOf(oldest.body);
        }
        self.0.insert(row.id.clone(), row.clone());
        added
    }

    fn replace(&mut self, row: &WebhookRow) -> bool {
        let Some(kept) = self.0.get_mut(&row.id).filter(|kept| kept.version == row.version) else {
            return false;
        };
        *kept = WebhookRow { version: row.version + 1, ..row.clone() };
        true
    }

    /// The owners of what is due, each with the time of the first.
    fn due(&self, now: i64) -> BTreeMap<String, i64> {
        let mut due = BTreeMap::new();
        for row in self.0.values() {
            let Some(at) = row.due_at.filter(|at| *at <= now) else { continue };
            let first = due.entry(row.owner.clone()).or_insert(at);
            *first = at.min(*first);
        }
        due
    }
}

async fn run_steps(store: &dyn WebhookStore, steps: &[Step]) {
    let mut model = Model::default();
    for step in steps {
        match step {
            Step::Add { id, owner, created_at, due_at, makes_room } => {
                let new =
                    row(MESSAGE, &format!("m{id}"), &format!("o{owner}"), (*created_at).into());
                let new = WebhookRow { due_at: due_at.map(i64::from), ..new };
                let added = store.add_row(&new, NARROW, *makes_room).await.expect("an answer");
                assert_eq!(added, model.add(&new, *makes_room), "{step:?}");
            }
            Step::Replace { id, is_current, due_at } => {
                let known = model.0.get(&format!("m{id}")).cloned();
                let read = known.unwrap_or_else(|| row(MESSAGE, &format!("m{id}"), "o0", 0));
                let version = if *is_current { read.version } else { read.version + 1 };
                let body = format!("{{\"{step:?}\":0}}");
                let new = WebhookRow { version, body, due_at: due_at.map(i64::from), ..read };
                let replaced = store.replace_row(&new).await.expect("an answer");
                assert_eq!(replaced, model.replace(&new), "{step:?}");
            }
            Step::Remove { id } => {
                let removed = store.remove_row(MESSAGE, &format!("m{id}")).await;
                assert_eq!(removed, Ok(model.0.remove(&format!("m{id}")).is_some()), "{step:?}");
            }
        }
        let mut rows: Vec<_> = model.0.values().cloned().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.place()));
        assert_eq!(store.list_rows(MESSAGE, None, None, 99).await, Ok(rows), "{step:?}");
        for now in [2, 9] {
            let told = store.list_due_rows(MESSAGE, now, 99).await.expect("an answer");
            let mut first_times = Vec::new();
            for due in &told {
                let row = &model.0[&due.id];
                assert_eq!(row.owner, due.owner);
                first_times.push((due.owner.clone(), row.due_at.expect("a time")));
            }
            assert!(first_times.is_sorted_by_key(|(_, at)| *at), "{first_times:?}");
            assert_eq!(first_times.len(), model.due(now).len(), "each owner once");
            assert_eq!(first_times.into_iter().collect::<BTreeMap<_, _>>(), model.due(now));
        }
    }
}

/// A part of a test that is run on each store.
type Part = for<'a> fn(&'a Both) -> std::pin::Pin<Box<dyn Future<Output = ()> + 'a>>;

#[tokio::test]
async fn rows_of_webhooks_are_kept_by_both_stores() {
    let server = RedisServer::shared();
    let parts: [Part; 5] = [
        |both| Box::pin(rows_are_kept(both)),
        |both| Box::pin(lists_are_in_order(both)),
        |both| Box::pin(what_is_due_is_told_once_an_owner(both)),
        |both| Box::pin(there_are_only_so_many(both)),
        |both| Box::pin(what_is_of_an_account_goes_with_it(both)),
    ];
    for part in parts {
        let folder = tempfile::tempdir().expect("a folder");
        for url in [sqlite_url(folder.path()), server.fresh_url()] {
            part(&open_twice(&url).await).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_message_is_claimed_by_one_process() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), RedisServer::shared());
    for url in [sqlite_url(folder.path()), server.fresh_url()] {
        of_many_who_claim_a_row_one_has_it(&open_twice(&url).await, 40).await;
    }
}

#[tokio::test]
async fn rows_of_webhooks_are_kept_in_a_cluster() {
    let nodes = redis_cluster::start();
    let both = open_twice(&nodes[0].cluster_url()).await;
    rows_are_kept(&both).await;
    what_is_of_an_account_goes_with_it(&both).await;
}

#[test]
fn random_steps_leave_the_rows_of_the_model() {
    let server = RedisServer::shared();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let bounds = ProptestConfig {
        cases: 24,
        max_shrink_iters: 100,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(bounds, |(steps in steps())| {
        let folder = tempfile::tempdir().expect("a folder");
        runtime.block_on(async {
            for url in [sqlite_url(folder.path()), server.fresh_url()] {
                run_steps(&*opened(&url).await.webhooks, &steps).await;
            }
        });
    });
}
