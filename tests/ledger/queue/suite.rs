//! What every store must do with jobs. The two stores are one, as two nodes see it.

use super::*;

/// Runs all of it. Each part leaves nothing that is due.
pub(super) async fn conforms(nodes: &[OpenStore; 2]) {
    without_money_nothing_is_kept(nodes).await;
    a_job_is_placed_with_its_money_once(nodes).await;
    an_idempotency_key_leads_to_its_first_job(nodes).await;
    so_many_jobs_are_under_way_and_no_more(nodes).await;
    a_job_is_claimed_once_and_the_longest_due_first(nodes).await;
    whoever_claims_after_a_lease_shuts_the_old_holder_out(nodes).await;
    a_lease_that_ran_out_unnoticed_is_still_good(nodes).await;
    a_save_that_is_repeated_counts_once(nodes).await;
    a_save_says_when_the_job_is_due_again(nodes).await;
    a_deleted_job_is_found_by_its_worker_only(nodes).await;
    pages_in_both_orders(nodes).await;
    accounts_do_not_find_each_others_jobs(nodes).await;
    what_is_removed_leaves_nothing(nodes).await;
    the_money_of_a_job_is_a_hold_like_any_other(nodes).await;
    a_body_may_be_large_and_any_bytes(nodes).await;
    the_secret_is_the_first_candidate(nodes).await;
}

/// Takes everything that is due, so that the next part begins with nothing.
async fn clear(queue: &dyn JobQueue) {
    for claim in claim_all(queue).await {
        assert_eq!(queue.remove_job(&claim).await, Ok(true), "{claim:?}");
    }
    assert_eq!(counts(queue).await, [0; 4]);
}

async fn without_money_nothing_is_kept([one, other]: &[OpenStore; 2]) {
    let nobody = name("nobody");
    let refused = place(&*one.queue, keyed(&nobody, "a", "k")).await;
    assert_eq!(refused, PlaceResult::NoAccount);
    let poor = funded(&*one.ledger, "poor", COST - 1).await;
    for _ in 0..2 {
        let refused = place(&*one.queue, keyed(&poor, "a", "k")).await;
        assert_eq!(refused, PlaceResult::Insufficient(nano(COST - 1)));
    }
    for account in [&nobody, &poor] {
        assert_eq!(found(&*other.queue, account, "a").await, None);
        assert_eq!(listed(&*other.queue, account, true, 10, None).await, "");
        assert_eq!(other.queue.delete_job(account, "a").await, Ok(None));
    }
    assert_eq!(claim_all(&*other.queue).await, []);
    assert_eq!(counts(&*other.queue).await, [0; 4]);
    assert_eq!(balances(&*one.ledger, &poor).await.available, nano(COST - 1));
    let credit = Operation::Credit { tx: "more".to_owned(), amount: nano(1) };
    assert_eq!(one.ledger.submit(&poor, credit).await, Ok(Outcome::Done));
    // Neither the id nor the key was used up.
    assert_eq!(place(&*other.queue, keyed(&poor, "a", "k")).await, PlaceResult::New(Vec::new()));
    assert_eq!(balances(&*one.ledger, &poor).await.available, Money::ZERO);
    clear(&*one.queue).await;
}

async fn a_job_is_placed_with_its_money_once([one, other]: &[OpenStore; 2]) {
    let account = funded(&*one.ledger, "once", 100).await;
    let first = keyed(&account, "a", "k");
    assert_eq!(place(&*one.queue, first.clone()).await, PlaceResult::New(Vec::new()));
    assert_eq!(found(&*other.queue, &account, "a").await, Some(first.job.clone()));
    assert_eq!(counts(&*other.queue).await, [1, 0, 0, 0]);
    // The same again, after an answer that was lost, however far the job is by now.
    assert_eq!(place(&*other.queue, first.clone()).await, PlaceResult::New(Vec::new()));
    let claim = claim_one(&*one.queue, LEASE_MS).await;
    assert_eq!((&claim.job, claim.deleted), (&first.job, false));
    let body = other.queue.read_body(&claim).await.expect("an answer");
    assert_eq!(body, Some(first.body.clone()));
    moved(&*one.queue, claim, JobStatus::InProgress, LEASE_MS).await;
    assert_eq!(place(&*other.queue, first.clone()).await, PlaceResult::New(Vec::new()));
    assert_eq!(counts(&*other.queue).await, [0, 1, 0, 0]);
    assert_eq!(balances(&*one.ledger, &account).await.held, nano(COST));
    // Another order of that id is a mistake, and changes nothing.
    let job = Job { seconds: 5, ..first.job.clone() };
    for wrong in [NewJob { job, ..first.clone() }, NewJob { key: None, ..first.clone() }] {
        other.queue.place_job(wrong).await.expect_err("another order");
    }
    // So is one whose id is another hold's.
    let (id, one_nano) = ("b".to_owned(), nano(1));
    let (wanted, least, lease_ms) = (one_nano, one_nano, LONG_MS);
    let hold = Operation::Hold { id, wanted, least, lease_ms, key: None, rates: Vec::new() };
    assert_eq!(one.ledger.submit(&account, hold).await, Ok(Outcome::Held(nano(1))));
    other.queue.place_job(order(&account, "b")).await.expect_err("another hold");
    let void = Operation::Void { id: "c".to_owned() };
    assert_eq!(one.ledger.submit(&account, void).await, Ok(Outcome::Voided));
    other.queue.place_job(order(&account, "c")).await.expect_err("a tombstone");
    assert_eq!(listed(&*one.queue, &account, true, 10, None).await, "a");
    assert_eq!(balances(&*one.ledger, &account).await.held, nano(COST + 1));
    assert_eq!(claim_all(&*one.queue).await, []);
    assert!(one.queue.delete_job(&account, "a").await.expect("an answer").is_some());
    clear(&*one.queue).await;
}

async fn an_idempotency_key_leads_to_its_first_job([one, other]: &[OpenStore; 2]) {
    let account = funded(&*one.ledger, "keys", COST).await;
    let first = NewJob { open_max: 1, ..keyed(&account, "a", "k") };
    assert_eq!(place(&*one.queue, first.clone()).await, PlaceResult::New(Vec::new()));
    // There is no money left, nor room for another; both come after the key.
    let again = NewJob { open_max: 1, ..keyed(&account, "b", "k") };
    let repeat = place(&*other.queue, again.clone()).await;
    assert_eq!(repeat, PlaceResult::AlreadyPlaced(Box::new(first.job.clone())));
    let crowded = NewJob { open_max: 1, ..keyed(&account, "b", "other") };
    assert_eq!(place(&*other.queue, crowded).await, PlaceResult::TooManyOpen);
    let poor = keyed(&account, "b", "other");
    assert_eq!(place(&*other.queue, poor).await, PlaceResult::Insufficient(Money::ZERO));
    // As it is now.
    moved(&*one.queue, claim_one(&*one.queue, LEASE_MS).await, JobStatus::Completed, LEASE_MS)
        .await;
    let now = Job { stage: stage(JobStatus::Completed), ..first.job.clone() };
    assert_eq!(
        place(&*other.queue, again.clone()).await,
        PlaceResult::AlreadyPlaced(Box::new(now.clone()))
    );
    // Another account's is another key.
    let rich = funded(&*one.ledger, "other-keys", 100).await;
    assert_eq!(place(&*one.queue, keyed(&rich, "b", "k")).await, PlaceResult::New(Vec::new()));
    assert_eq!(one.queue.delete_job(&account, "a").await, Ok(Some(now)));
    assert_eq!(place(&*other.queue, again.clone()).await, PlaceResult::Deleted);
    assert_eq!(
        place(&*other.queue, first).await,
        PlaceResult::New(Vec::new()),
        "the order itself again"
    );
    assert_eq!(balances(&*one.ledger, &account).await.held, nano(COST));
    clear(&*one.queue).await;
    // Once it is removed the key is free.
    assert_eq!(place(&*other.queue, again).await, PlaceResult::Insufficient(Money::ZERO));
}

async fn so_many_jobs_are_under_way_and_no_more([one, other]: &[OpenStore; 2]) {
    let (account, beside) = (funded(&*one.ledger, "bound", 100).await, name("beside-bound"));
    funded(&*one.ledger, "beside-bound", 100).await;
    let bounded = |id: &str| NewJob { open_max: 2, ..order(&account, id) };
    placed(&*one.queue, &beside, &["x", "y", "z"]).await;
    clear(&*one.queue).await;
    assert_eq!(place(&*one.queue, bounded("a")).await, PlaceResult::New(Vec::new()));
    assert_eq!(place(&*other.queue, bounded("b")).await, PlaceResult::New(Vec::new()));
    assert_eq!(place(&*one.queue, bounded("c")).await, PlaceResult::TooManyOpen);
    assert_eq!(
        place(&*one.queue, NewJob { open_max: 0, ..order(&account, "c") }).await,
        PlaceResult::TooManyOpen
    );
    assert_eq!(found(&*one.queue, &account, "c").await, None);
    assert_eq!(balances(&*one.ledger, &account).await.held, nano(2 * COST));
    let claims = claim_all(&*one.queue).await;
    assert_eq!(claims.len(), 2);
    // A job that was deleted is still under way; one that runs is too.
    assert!(one.queue.delete_job(&account, "a").await.expect("an answer").is_some());
    for (claim, status) in claims.into_iter().zip([JobStatus::InProgress, JobStatus::InProgress]) {
        moved(&*one.queue, claim, status, 0).await;
    }
    assert_eq!(place(&*other.queue, bounded("c")).await, PlaceResult::TooManyOpen);
    for claim in claim_all(&*one.queue).await {
        moved(&*one.queue, claim, JobStatus::Failed, 0).await;
    }
    assert_eq!(place(&*other.queue, bounded("c")).await, PlaceResult::New(Vec::new()));
    clear(&*one.queue).await;
}

async fn a_job_is_claimed_once_and_the_longest_due_first([one, other]: &[OpenStore; 2]) {
    let account = funded(&*one.ledger, "claims", 1_000).await;
    for id in ["c", "a", "d", "b", "e"] {
        placed(&*one.queue, &account, &[id]).await;
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    assert_eq!(one.queue.claim_due(LEASE_MS, 0).await, Ok(vec![]));
    let first = one.queue.claim_due(LEASE_MS, 2).await.expect("claims");
    assert_eq!(ids(&first), ["c", "a"]);
    let second = other.queue.claim_due(LEASE_MS, 2).await.expect("claims");
    assert_eq!(ids(&second), ["d", "b"]);
    let last = claim_all(&*one.queue).await;
    assert_eq!(ids(&last), ["e"]);
    assert_eq!(claim_all(&*other.queue).await, []);
    for claim in first.iter().chain(&second) {
        assert_eq!(other.queue.remove_job(claim).await, Ok(true));
        assert_eq!(one.queue.remove_job(claim).await, Ok(false), "it is gone");
    }
    assert_eq!(one.queue.delete_job(&account, "e").await.map(|job| job.is_some()), Ok(true));
    // Deleting ends nobody's lease.
    assert_eq!(claim_all(&*other.queue).await, []);
    assert_eq!(counts(&*one.queue).await, [1, 0, 0, 0]);
    assert_eq!(one.queue.remove_job(&last[0]).await, Ok(true));
}

async fn whoever_claims_after_a_lease_shuts_the_old_holder_out([one, other]: &[OpenStore; 2]) {
    let account = funded(&*one.ledger, "leases", 100).await;
    placed(&*one.queue, &account, &["a"]).await;
    let mut old = claim_one(&*one.queue, SHORT_MS).await;
    assert_eq!(claim_all(&*other.queue).await, [], "it is claimed");
    assert_eq!(one.queue.renew_claim(&old, SHORT_MS).await, Ok(true));
    tokio::time::sleep(SHORT_GONE).await;
    let new = claim_one(&*other.queue, LEASE_MS).await;
    assert!(new.revision > old.revision, "{new:?} after {old:?}");
    let before = old.clone();
    old.job.stage = stage(JobStatus::Failed);
    assert!(!save(&*one.queue, &mut old, GIVE_BACK).await);
    assert_eq!(old.revision, before.revision);
    assert_eq!(one.queue.renew_claim(&before, LEASE_MS).await, Ok(false));
    assert_eq!(one.queue.remove_job(&before).await, Ok(false));
    assert_eq!(found(&*one.queue, &account, "a").await, Some(new.job.clone()));
    assert_eq!(counts(&*one.queue).await, [1, 0, 0, 0]);
    // A save shuts out what it was made from, too.
    let mut saved = new.clone();
    saved.job.stage = stage(JobStatus::InProgress);
    assert!(save(&*other.queue, &mut saved, KEEP).await);
    assert!(saved.revision > new.revision);
    assert_eq!(other.queue.renew_claim(&new, LEASE_MS).await, Ok(false));
    assert!(!save(&*one.queue, &mut new.clone(), KEEP).await);
    assert_eq!(found(&*one.queue, &account, "a").await, Some(saved.job.clone()));
    assert_eq!(other.queue.remove_job(&saved).await, Ok(true));
    assert!(!save(&*one.queue, &mut saved, KEEP).await, "it is gone");
    assert_eq!(counts(&*one.queue).await, [0; 4]);
}

async fn a_lease_that_ran_out_unnoticed_is_still_good([one, other]: &[OpenStore; 2]) {
    let account = funded(&*one.ledger, "late", 100).await;
    placed(&*one.queue, &account, &["a"]).await;
    let mut claim = claim_one(&*one.queue, 0).await;
    tokio::time::sleep(Duration::from_millis(3)).await;
    assert!(save(&*one.queue, &mut claim, KEEP).await, "nobody else has it");
    assert_eq!(one.queue.renew_claim(&claim, LEASE_MS).await, Ok(true));
    assert_eq!(claim_all(&*other.queue).await, []);
    // What was given back is no claim.
    assert!(save(&*one.queue, &mut claim, GIVE_BACK).await);
    assert_eq!(one.queue.renew_claim(&claim, LEASE_MS).await, Ok(false));
    assert_eq!(one.queue.remove_job(&claim).await, Ok(false));
    assert!(!save(&*one.queue, &mut claim, KEEP).await);
    clear(&*other.queue).await;
}

async fn a_save_that_is_repeated_counts_once([one, other]: &[OpenStore; 2]) {
    let account = funded(&*one.ledger, "again", 100).await;
    placed(&*one.queue, &account, &["a"]).await;
    let mut claim = claim_one(&*one.queue, SHORT_MS).await;
    for (status, next) in [(JobStatus::InProgress, KEEP), (JobStatus::Completed, GIVE_BACK)] {
        claim.job.stage = stage(status);
        let before = claim.clone();
        assert!(save(&*one.queue, &mut claim, next).await);
        // Its answer was lost.
        let mut again = before.clone();
        assert!(save(&*other.queue, &mut again, next).await);
        assert_eq!(again, claim);
        // Something else is no repeat.
        let mut wrong = before;
        wrong.job.progress = 99;
        assert!(!save(&*other.queue, &mut wrong, next).await);
    }
    assert_eq!(found(&*one.queue, &account, "a").await, Some(claim.job.clone()));
    // After the next claim it is too late for that.
    let mut last = claim_one(&*one.queue, 0).await;
    let mut before = last.clone();
    assert!(save(&*one.queue, &mut last, KEEP).await);
    tokio::time::sleep(Duration::from_millis(3)).await;
    let new = claim_one(&*one.queue, LEASE_MS).await;
    assert!(!save(&*other.queue, &mut before, KEEP).await, "somebody else has it");
    assert_eq!(one.queue.remove_job(&new).await, Ok(true));
}

async fn a_save_says_when_the_job_is_due_again([one, other]: &[OpenStore; 2]) {
    let account = funded(&*one.ledger, "due", 100).await;
    placed(&*one.queue, &account, &["a"]).await;
    let mut claim = claim_one(&*one.queue, LEASE_MS).await;
    claim.job.progress = 40;
    claim.job.stage = stage(JobStatus::InProgress);
    assert!(save(&*one.queue, &mut claim, ClaimUpdate { due_ms: None, forget_body: true }).await);
    assert_eq!(other.queue.read_body(&claim).await, Ok(None));
    let (asked, due_ms) = (Instant::now(), 300);
    assert!(
        save(&*one.queue, &mut claim, ClaimUpdate { due_ms: Some(due_ms), forget_body: false })
            .await
    );
    let again = loop {
        let claims = other.queue.claim_due(LEASE_MS, 5).await.expect("claims");
        if let [again] = &claims[..] {
            break again.clone();
        }
        assert!(asked.elapsed() < Duration::from_secs(10), "it is never due");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    // The store's clock is not this one; both tell milliseconds.
    assert!(asked.elapsed() >= Duration::from_millis(due_ms - 5), "{:?}", asked.elapsed());
    assert_eq!(again.job, claim.job);
    assert!(again.revision > claim.revision);
    moved(&*other.queue, again, JobStatus::Completed, u64::MAX).await;
    assert_eq!(claim_all(&*one.queue).await, []);
    assert_eq!(counts(&*one.queue).await, [0, 0, 1, 0]);
    let ended = Job { progress: 40, stage: stage(JobStatus::Completed), ..job(&account, "a") };
    assert_eq!(found(&*one.queue, &account, "a").await, Some(ended.clone()));
    assert_eq!(one.queue.delete_job(&account, "a").await, Ok(Some(ended)));
    clear(&*other.queue).await;
}

async fn a_deleted_job_is_found_by_its_worker_only([one, other]: &[OpenStore; 2]) {
    let account = funded(&*one.ledger, "deleted", 100).await;
    placed(&*one.queue, &account, &["a", "b"]).await;
    let mut claims = claim_all(&*one.queue).await;
    let mut a = claims.remove(0);
    assert_eq!(other.queue.delete_job(&account, "a").await, Ok(Some(job(&account, "a"))));
    assert_eq!(other.queue.delete_job(&account, "a").await, Ok(None));
    assert_eq!(found(&*one.queue, &account, "a").await, None);
    assert_eq!(listed(&*one.queue, &account, true, 9, None).await, "b");
    assert_eq!(listed(&*one.queue, &account, true, 9, Some("a")).await, "?");
    // Its worker, in the middle of a step, goes on, and learns of it with the next save.
    assert_eq!(one.queue.read_body(&a).await, Ok(Some(Bytes::from_static(b"body of a"))));
    assert_eq!(one.queue.renew_claim(&a, LEASE_MS).await, Ok(true));
    a.job.stage = stage(JobStatus::InProgress);
    assert!(save(&*one.queue, &mut a, KEEP).await);
    assert!(a.deleted, "it was deleted");
    assert_eq!(counts(&*other.queue).await, [1, 1, 0, 0]);
    let later = ClaimUpdate { due_ms: Some(1_000), forget_body: false };
    assert!(save(&*one.queue, &mut a, later).await);
    assert_eq!(claim_all(&*other.queue).await, [], "its worker knew");
    // One that ends without its worker knowing is due at once, whatever that asked for.
    let mut b = claims.remove(0);
    assert_eq!(other.queue.delete_job(&account, "b").await, Ok(Some(job(&account, "b"))));
    b.job.stage = stage(JobStatus::Completed);
    assert!(save(&*one.queue, &mut b, later).await && b.deleted);
    let again = claim_one(&*other.queue, LEASE_MS).await;
    assert_eq!((again.job.id.as_str(), again.deleted), ("b", true));
    assert_eq!(again.job.stage, stage(JobStatus::Completed));
    moved(&*other.queue, again, JobStatus::Completed, 1_000).await;
    assert_eq!(claim_all(&*other.queue).await, [], "its worker knew");
    assert_eq!(counts(&*other.queue).await, [0, 1, 1, 0]);
    assert_eq!(listed(&*other.queue, &account, false, 9, None).await, "");
    tokio::time::sleep(Duration::from_millis(1_005)).await;
    clear(&*one.queue).await;
}

async fn pages_in_both_orders([one, other]: &[OpenStore; 2]) {
    let account = funded(&*one.ledger, "pages", 100).await;
    assert_eq!(listed(&*one.queue, &account, true, 2, None).await, "");
    placed(&*one.queue, &account, &["d", "a", "e", "c", "b"]).await;
    let cases = [
        (true, 9, None, "a b c d e"),
        (false, 9, None, "e d c b a"),
        (true, 5, None, "a b c d e"),
        (true, 4, None, "a b c d +"),
        (false, 4, None, "e d c b +"),
        (true, 2, Some("b"), "c d +"),
        (true, 3, Some("b"), "c d e"),
        (false, 2, Some("d"), "c b +"),
        (false, 1, Some("b"), "a"),
        (true, 9, Some("e"), ""),
        (false, 9, Some("a"), ""),
        (true, 0, None, "+"),
        (true, 9, Some("aa"), "?"),
        (false, 9, Some(""), "?"),
        (true, usize::MAX, None, "a b c d e"),
    ];
    for (ascending, limit, after, expected) in cases {
        let page = listed(&*other.queue, &account, ascending, limit, after).await;
        assert_eq!(page, expected, "{ascending} {limit} {after:?}");
    }
    assert!(one.queue.delete_job(&account, "c").await.expect("an answer").is_some());
    assert_eq!(listed(&*other.queue, &account, true, 2, Some("b")).await, "d e");
    assert_eq!(listed(&*other.queue, &account, true, 2, Some("c")).await, "?");
    clear(&*one.queue).await;
}

async fn accounts_do_not_find_each_others_jobs([one, other]: &[OpenStore; 2]) {
    let (ada, bob) = (funded(&*one.ledger, "ada", 100).await, name("bob"));
    funded(&*one.ledger, "bob", 100).await;
    placed(&*one.queue, &ada, &["same", "hers"]).await;
    assert_eq!(place(&*one.queue, order(&bob, "same")).await, PlaceResult::New(Vec::new()));
    assert_eq!(found(&*other.queue, &bob, "hers").await, None);
    assert_eq!(other.queue.delete_job(&bob, "hers").await, Ok(None));
    assert_eq!(listed(&*other.queue, &bob, true, 9, None).await, "same");
    assert_eq!(listed(&*other.queue, &bob, true, 9, Some("hers")).await, "?");
    assert_eq!(other.queue.delete_job(&bob, "same").await, Ok(Some(job(&bob, "same"))));
    assert_eq!(listed(&*other.queue, &ada, true, 9, None).await, "hers same");
    assert_eq!(found(&*other.queue, &ada, "same").await, Some(job(&ada, "same")));
    let claims = claim_all(&*one.queue).await;
    let of_bob: Vec<_> = claims.iter().filter(|claim| claim.job.account == bob).collect();
    assert!(claims.len() == 3 && of_bob.len() == 1 && of_bob[0].deleted, "{claims:?}");
    assert_eq!(other.queue.remove_job(of_bob[0]).await, Ok(true));
    assert_eq!(listed(&*other.queue, &ada, true, 9, None).await, "hers same");
    for claim in claims.iter().filter(|claim| claim.job.account == ada) {
        assert_eq!(other.queue.remove_job(claim).await, Ok(true));
    }
}

async fn what_is_removed_leaves_nothing([one, other]: &[OpenStore; 2]) {
    let account = funded(&*one.ledger, "removed", 100).await;
    assert_eq!(place(&*one.queue, keyed(&account, "a", "k")).await, PlaceResult::New(Vec::new()));
    let claim = claim_one(&*one.queue, LEASE_MS).await;
    assert_eq!(one.queue.remove_job(&claim).await, Ok(true));
    assert_eq!(found(&*other.queue, &account, "a").await, None);
    assert_eq!(other.queue.read_body(&claim).await, Ok(None));
    assert_eq!(other.queue.delete_job(&account, "a").await, Ok(None));
    assert_eq!(listed(&*other.queue, &account, true, 9, None).await, "");
    // Its money is the ledger's matter.
    assert_eq!(balances(&*one.ledger, &account).await.held, nano(COST));
    assert_eq!(place(&*other.queue, keyed(&account, "b", "k")).await, PlaceResult::New(Vec::new()));
    // The same id again, while its money is still held, is another job.
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert_eq!(place(&*other.queue, order(&account, "a")).await, PlaceResult::New(Vec::new()));
    let new = claim_all(&*other.queue).await;
    assert_eq!(one.queue.renew_claim(&claim, LEASE_MS).await, Ok(false));
    assert_eq!(one.queue.remove_job(&claim).await, Ok(false));
    assert_eq!(new.len(), 2);
    for claim in new {
        assert_eq!(one.queue.remove_job(&claim).await, Ok(true));
    }
}

async fn the_money_of_a_job_is_a_hold_like_any_other([one, other]: &[OpenStore; 2]) {
    let account = funded(&*one.ledger, "money", 100).await;
    placed(&*one.queue, &account, &["settled", "voided"]).await;
    let short = NewJob { lease_ms: 1, ..order(&account, "expired") };
    assert_eq!(place(&*one.queue, short).await, PlaceResult::New(Vec::new()));
    tokio::time::sleep(Duration::from_millis(5)).await;
    let swept = other.ledger.expire_holds().await.expect("a sweep");
    assert_eq!(swept.expired, 1, "{swept:?}");
    assert_eq!(balances(&*other.ledger, &account).await.held, nano(2 * COST));
    let settled = other.ledger.submit(&account, super::super::script::settle("settled", nano(7)));
    let posted = Outcome::Posted { amount: nano(7), written_off: Money::ZERO };
    assert_eq!(settled.await, Ok(posted));
    let void = Operation::Void { id: "voided".to_owned() };
    assert_eq!(other.ledger.submit(&account, void).await, Ok(Outcome::Voided));
    let after = balances(&*one.ledger, &account).await;
    assert_eq!((after.held, after.available), (Money::ZERO, nano(93)));
    // As much as there is, but not below the least, as with any hold.
    let quote = Quote { wanted: nano(1_000), least: nano(93) };
    let partial = NewJob { quote, ..order(&account, "partial") };
    assert_eq!(place(&*one.queue, partial).await, PlaceResult::New(Vec::new()));
    assert_eq!(balances(&*one.ledger, &account).await.held, nano(93));
    clear(&*one.queue).await;
}

async fn a_body_may_be_large_and_any_bytes([one, other]: &[OpenStore; 2]) {
    let account = funded(&*one.ledger, "bodies", 100).await;
    let large: Vec<u8> = (0..6_000_000_u32).map(|n| n.to_le_bytes()[n as usize % 3]).collect();
    for (id, body) in [("none", vec![]), ("large", large)] {
        let order = NewJob { body: body.into(), ..order(&account, id) };
        let body = order.body.clone();
        assert_eq!(place(&*one.queue, order).await, PlaceResult::New(Vec::new()));
        let claim = claim_one(&*other.queue, LEASE_MS).await;
        assert!(one.queue.read_body(&claim).await == Ok(Some(body)), "another body of {id}");
        assert_eq!(one.queue.remove_job(&claim).await, Ok(true));
        assert_eq!(one.queue.read_body(&claim).await, Ok(None));
    }
}

async fn the_secret_is_the_first_candidate([one, other]: &[OpenStore; 2]) {
    let (first, second) = ([255; 32], [0; 32]);
    assert_eq!(one.queue.get_or_set_secret(first).await, Ok(first));
    assert_eq!(other.queue.get_or_set_secret(second).await, Ok(first));
    assert_eq!(one.queue.get_or_set_secret(second).await, Ok(first));
}
