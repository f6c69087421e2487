//! P13 and P14, of messages: one that has an entry in the ledger is sent under it, and its end is the entry's, in one transaction.

#![expect(missing_docs, reason = "the name of a case is its claim")]

use posthouse_core::{
    AttemptOutcome, Code, DeadReason, Enqueued, Lease, Message, MessageId, Outcome, RetryPolicy, Settlement, State,
    Store,
    ledger::{
        Answer, Begin, Begun, CONFLICT, Clearance, Conclusion, EntryFilter, EntryKey, EntryView, Fenced, Fingerprint,
        Hold, Keep, Kept, MESSAGE_RETRY_AFTER, Status,
    },
};
use std::time::Duration;

use super::tools::*;
use crate::{Fixture, MemoryFixture};

const RETENTION: Duration = Duration::from_secs(3600);

fn key() -> EntryKey {
    EntryKey::new("orders", "k")
}

fn print(of: &str) -> Fingerprint {
    Fingerprint::of_bytes(of.as_bytes())
}

fn ask() -> Begin {
    Begin::new(key(), print("a")).lease(LEASE).retention(RETENTION)
}

/// A message under the entry that all these cases are about, for what `of` says.
fn bound(of: &str) -> Message {
    message(of).ledger("orders", "k", print(of))
}

fn answer() -> Answer {
    Answer {
        status: Some(201),
        headers: [("location".to_owned(), "/orders/7".to_owned())].into(),
        body: b"\0made\xff".to_vec(),
        cut: false,
    }
}

fn kept() -> Kept {
    answer().kept(Keep::default())
}

fn answered(lease: &Lease) -> Settlement {
    Settlement::of(lease, Outcome::answered(answer()), &RetryPolicy::default(), 0.5)
}

async fn begin(store: &dyn Store) -> Begun {
    store.begin(&ask()).await.unwrap()
}

async fn acquire(store: &dyn Store) -> Hold {
    match begin(store).await {
        Begun::Acquired(hold) => hold,
        other => panic!("it was to go on: {other:?}"),
    }
}

async fn concluded(store: &dyn Store, hold: &Hold, end: Conclusion) {
    assert_eq!(store.conclude(hold, &end).await.unwrap(), Fenced::Done);
}

/// Begins, enqueues a message, and leaves the entry to it.
async fn left_to(fx: &dyn Fixture, message: Message) -> MessageId {
    let hold = acquire(&*fx.store().await).await;
    let mut tx = fx.begin().await;
    let Enqueued::New(id) = tx.enqueue(message).await.unwrap() else {
        panic!("the message was there already")
    };
    assert_eq!(tx.leave_in(&hold, id).await.unwrap(), Fenced::Done);
    tx.commit().await.unwrap();
    id
}

/// The same, and the message is claimed.
async fn left_and_claimed(fx: &dyn Fixture, message: Message) -> Lease {
    let id = left_to(fx, message).await;
    let lease = claim_one(&*fx.store().await, "w1").await.lease;
    assert_eq!((lease.id, lease.bound), (id, true));
    lease
}

async fn clear(fx: &dyn Fixture, lease: &Lease) -> Clearance {
    let store = fx.store().await;
    let mut answers = store.clear(std::slice::from_ref(lease)).await.unwrap();
    assert_eq!(answers.len(), 1);
    answers.remove(0)
}

async fn assert_settled(fx: &dyn Fixture, settlement: Settlement) {
    let verdict = settle(&*fx.store().await, settlement).await;
    assert!(verdict.is_settled(), "{verdict:?}");
}

async fn entry(fx: &dyn Fixture) -> Option<EntryView> {
    fx.admin().await.entry(&key()).await.unwrap()
}

async fn assert_busy(fx: &dyn Fixture) {
    let retry_after = MESSAGE_RETRY_AFTER;
    assert_eq!(begin(&*fx.store().await).await, Begun::Busy { retry_after });
}

#[track_caller]
fn assert_failed(begun: Begun, status: u16, error: &str) {
    assert_eq!(begun, Begun::Failed(Kept::failure(error).status(status)));
}

pub async fn what_a_message_was_answered_is_told_again(fx: &dyn Fixture) {
    let lease = left_and_claimed(fx, bound("a")).await;
    assert_busy(fx).await;
    assert_eq!(clear(fx, &lease).await, Clearance::Send);
    assert_settled(fx, answered(&lease)).await;
    assert_eq!(begin(&*fx.store().await).await, Begun::Replay(kept()));
    let found = entry(fx).await.unwrap();
    let expected = (Status::Succeeded, Some(lease.id), Some(fx.now().await.plus(RETENTION)));
    assert_eq!((found.status, found.message, found.expires_at), expected);
    fx.advance(RETENTION).await;
    acquire(&*fx.store().await).await;
}

pub async fn without_an_answer_the_receipt_is_told(fx: &dyn Fixture) {
    let lease = left_and_claimed(fx, bound("a")).await;
    assert_settled(fx, Settlement::delivered(&lease, Some("id 7"))).await;
    let kept = Answer::bytes("id 7").kept(Keep::default());
    assert_eq!(begin(&*fx.store().await).await, Begun::Replay(kept));
}

pub async fn of_an_answer_that_is_too_large_its_digest_is_kept(fx: &dyn Fixture) {
    let lease = left_and_claimed(fx, bound("a")).await;
    let large = Answer::bytes(vec![b'x'; 4097]).status(200);
    let outcome = Outcome::answered(large.clone());
    assert_settled(fx, Settlement::of(&lease, outcome, &RetryPolicy::default(), 0.5)).await;
    let told = large.kept(Keep::default());
    assert_eq!((&told.body, told.digest.is_some()), (&None, true));
    assert_eq!(begin(&*fx.store().await).await, Begun::Replay(told));
}

pub async fn nothing_in_an_answer_blocks_its_record(fx: &dyn Fixture) {
    let lease = left_and_claimed(fx, bound("a")).await;
    let odd = Answer {
        status: Some(7),
        headers: [("na\0me".to_owned(), "\0\u{7f}\u{fffd}\n".to_owned())].into(),
        body: vec![0, 255],
        cut: false,
    };
    let outcome = Outcome::answered(odd.clone());
    assert_settled(fx, Settlement::of(&lease, outcome, &RetryPolicy::default(), 0.5)).await;
    let told = odd.kept(Keep::default()).clean();
    assert_eq!((told.status, told.body.as_deref()), (None, Some(&[0, 255][..])));
    assert_eq!(begin(&*fx.store().await).await, Begun::Replay(told));
}

pub async fn what_is_told_of_the_entry_is_never_sent(fx: &dyn Fixture) {
    left_to(fx, bound("a").header("trace", "7")).await;
    let claimed = claim_one(&*fx.store().await, "w1").await;
    let headers: Vec<_> = claimed.delivery.headers.into_iter().collect();
    assert_eq!(headers, [("trace".to_owned(), "7".to_owned())]);
}

pub async fn of_a_message_without_one_nothing_is_asked(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("42")).await;
    assert!(!lease.bound);
    assert_eq!(clear(fx, &lease).await, Clearance::Send);
    assert_settled(fx, delivered(&lease)).await;
    let page = fx.admin().await.entries(&EntryFilter::default()).await.unwrap();
    assert_eq!((page.entries, page.next), (vec![], None));
}

pub async fn names_that_no_entry_can_have_are_refused(fx: &dyn Fixture) {
    let with = |scope: &str, key: &str| message("42").ledger(scope, key, print("a"));
    assert_eq!(field(offer(fx, with("", "k")).await), "scope");
    assert_eq!(field(offer(fx, with("s", "")).await), "key");
    assert_eq!(field(offer(fx, with("s", "\u{1}")).await), "key");
    assert_eq!(field(offer(fx, with("s", &"k".repeat(256))).await), "key");
    put(fx, with("'; -- \"{}\\", "$1 %s \u{1F980}")).await;
    let lease = claim_one(&*fx.store().await, "w1").await.lease;
    assert_eq!(clear(fx, &lease).await, Clearance::Send);
    assert_settled(fx, answered(&lease)).await;
    let odd = EntryKey::new("'; -- \"{}\\", "$1 %s \u{1F980}");
    let found = fx.admin().await.entry(&odd).await.unwrap().unwrap();
    assert_eq!(found.status, Status::Succeeded);
}

// Before the send.

/// W-105.
pub async fn what_is_done_is_not_sent_again(fx: &dyn Fixture) {
    let store = fx.store().await;
    let hold = acquire(&*store).await;
    concluded(&*store, &hold, Conclusion::Succeeded(kept())).await;
    let lease = put_and_claim(fx, bound("a")).await;
    let before = entry(fx).await;
    assert_eq!(clear(fx, &lease).await, Clearance::Done(kept()));
    assert_settled(fx, Settlement::duplicate(&lease, Some("made"))).await;
    assert_eq!(entry(fx).await, before);
    assert_eq!(state(fx, lease.id).await, State::Done);
}

pub async fn a_key_that_was_used_for_something_else_is_a_conflict(fx: &dyn Fixture) {
    let store = fx.store().await;
    let hold = acquire(&*store).await;
    concluded(&*store, &hold, Conclusion::Succeeded(kept())).await;
    let before = entry(fx).await;
    let lease = put_and_claim(fx, bound("b")).await;
    assert_eq!(clear(fx, &lease).await, Clearance::Conflict);
    assert_settled(fx, Settlement::conflict(&lease)).await;
    assert_eq!(entry(fx).await, before);
    let found = view(fx, lease.id).await;
    assert_eq!((found.state, found.reason), (State::Dead, Some(DeadReason::Conflict)));
    assert_eq!(found.last_code.as_deref(), Some(CONFLICT));
}

pub async fn a_message_that_finds_nothing_takes_the_entry(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, bound("a")).await;
    assert_eq!(entry(fx).await, None);
    assert_eq!(clear(fx, &lease).await, Clearance::Send);
    assert_eq!(clear(fx, &lease).await, Clearance::Send, "asked again");
    assert_busy(fx).await;
    assert_settled(fx, answered(&lease)).await;
    assert_eq!(begin(&*fx.store().await).await, Begun::Replay(kept()));
}

pub async fn also_when_a_holder_was_not_heard_of_again(fx: &dyn Fixture) {
    acquire(&*fx.store().await).await;
    let lease = put_and_claim(fx, bound("a")).await;
    assert_eq!(clear(fx, &lease).await, Clearance::Wait(LEASE));
    assert_settled(fx, Settlement::released(&lease, LEASE)).await;
    fx.advance(LEASE).await;
    let lease = claim_one(&*fx.store().await, "w1").await.lease;
    assert_eq!(clear(fx, &lease).await, Clearance::Send);
    assert_busy(fx).await;
}

pub async fn another_message_is_waited_for(fx: &dyn Fixture) {
    let first = left_and_claimed(fx, bound("a")).await;
    let second = put_and_claim(fx, bound("a")).await;
    assert_eq!(clear(fx, &second).await, Clearance::Wait(SECOND));
    fx.advance(SECOND * 7).await;
    assert_eq!(clear(fx, &second).await, Clearance::Wait(SECOND * 7));
    assert_settled(fx, answered(&first)).await;
    assert_eq!(clear(fx, &second).await, Clearance::Done(kept()));
}

/// Nobody would ever end it.
pub async fn who_has_lost_his_lease_takes_nothing(fx: &dyn Fixture) {
    let lost = put_and_claim(fx, bound("a")).await;
    assert_eq!(expire(fx).await, 1);
    assert_eq!(clear(fx, &lost).await, Clearance::Wait(Duration::ZERO));
    assert_eq!(entry(fx).await, None);
    let lease = claim_one(&*fx.store().await, "w2").await.lease;
    assert_eq!(clear(fx, &lease).await, Clearance::Send);
    assert_settled(fx, rejected(&lease)).await;
    assert_eq!(clear(fx, &lost).await, Clearance::Wait(Duration::ZERO));
    assert_eq!(entry(fx).await.map(|entry| entry.status), Some(Status::Failed));
}

pub async fn the_entry_of_another_tenant_has_nothing_to_do_with_it(fx: &dyn Fixture) {
    let store = fx.store().await;
    let hold = acquire(&*store).await;
    concluded(&*store, &hold, Conclusion::Succeeded(kept())).await;
    let lease = put_and_claim(fx, bound("b").tenant("other")).await;
    assert_eq!(clear(fx, &lease).await, Clearance::Send);
    assert_settled(fx, delivered(&lease)).await;
    let other = fx.admin().await.entry(&key().tenant("other")).await.unwrap().unwrap();
    assert_eq!((other.status, other.fingerprint), (Status::Succeeded, print("b")));
    assert_eq!(begin(&*store).await, Begun::Replay(kept()));
}

// How it ends.

pub async fn an_entry_that_a_message_has_is_not_past_its_time(fx: &dyn Fixture) {
    left_to(fx, bound("a")).await;
    assert_eq!(entry(fx).await.unwrap().expires_at, None);
    fx.advance(DAY * 40).await;
    assert_busy(fx).await;
    assert_eq!(
        fx.admin()
            .await
            .prune(&ended(Duration::ZERO, 100))
            .await
            .unwrap()
            .entries,
        0
    );
    assert_busy(fx).await;
}

pub async fn a_death_fails_the_entry_with_its_status(fx: &dyn Fixture) {
    let table = [
        (Some(Outcome::reject("http_404", "no such shop")), 404, "no such shop"),
        (Some(Outcome::reject("closed", "never")), 422, "never"),
        (Some(Outcome::unknown("timeout", "no answer")), 504, "no answer"),
        (Some(Outcome::retry("http_503", "busy")), 502, "busy"),
        (None, 410, "lapsed"),
    ];
    let policy = RetryPolicy {
        max_attempts: Some(1),
        ..RetryPolicy::default()
    };
    for (outcome, status, error) in table {
        let lease = left_and_claimed(fx, bound("a")).await;
        assert_eq!(clear(fx, &lease).await, Clearance::Send);
        let end = outcome.map(|outcome| Settlement::of(&lease, outcome, &policy, 0.5));
        assert_settled(fx, end.unwrap_or_else(|| Settlement::lapsed(&lease))).await;
        assert_failed(begin(&*fx.store().await).await, status, error);
        fx.advance(RETENTION).await;
    }
}

pub async fn a_retry_leaves_the_entry_to_the_message(fx: &dyn Fixture) {
    let lease = left_and_claimed(fx, bound("a")).await;
    assert_settled(fx, failed(&lease, 12)).await;
    assert_busy(fx).await;
    fx.advance(SECOND * 10).await;
    let lease = claim_one(&*fx.store().await, "w1").await.lease;
    assert_settled(fx, answered(&lease)).await;
    assert_eq!(begin(&*fx.store().await).await, Begun::Replay(kept()));
}

pub async fn a_lease_that_runs_out_is_heard_of(fx: &dyn Fixture) {
    left_to(fx, bound("a").max_attempts(2)).await;
    claim_one(&*fx.store().await, "w1").await;
    assert_eq!(expire(fx).await, 1);
    assert_busy(fx).await;
    claim_one(&*fx.store().await, "w1").await;
    assert_eq!(expire(fx).await, 1);
    assert_failed(begin(&*fx.store().await).await, 502, "lease_expired");
}

pub async fn a_deliver_by_that_passes_is_heard_of(fx: &dyn Fixture) {
    for message in [bound("a"), bound("a").order_key("k"), bound("a").delay(SECOND)] {
        left_to(fx, message.deliver_in(SECOND * 2)).await;
        fx.advance(SECOND * 2).await;
        assert_eq!(claim(&*fx.store().await, "w1", 10).await.len(), 0);
        assert_failed(begin(&*fx.store().await).await, 410, "lapsed");
        fx.advance(RETENTION).await;
    }
}

/// What nobody has stays free: nothing was done under it.
pub async fn a_death_of_a_message_that_had_nothing_leaves_nothing(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, bound("a")).await;
    assert_settled(fx, rejected(&lease)).await;
    let id = put(fx, bound("a")).await;
    fx.admin().await.cancel(id, "op", "enough").await.unwrap();
    put(fx, bound("a").deliver_in(SECOND)).await;
    fx.advance(SECOND).await;
    assert!(claim(&*fx.store().await, "w1", 10).await.is_empty());
    assert_eq!(entry(fx).await, None);
    acquire(&*fx.store().await).await;
}

pub async fn a_success_is_never_taken_back(fx: &dyn Fixture) {
    let store = fx.store().await;
    let lease = put_and_claim(fx, bound("a")).await;
    let hold = acquire(&*store).await;
    concluded(&*store, &hold, Conclusion::Succeeded(kept())).await;
    assert_settled(fx, rejected(&lease)).await;
    assert_eq!(begin(&*store).await, Begun::Replay(kept()));
}

pub async fn a_success_counts_after_a_failure(fx: &dyn Fixture) {
    let store = fx.store().await;
    let hold = acquire(&*store).await;
    concluded(&*store, &hold, Conclusion::Failed(Kept::failure("no stock"))).await;
    let lease = put_and_claim(fx, bound("a")).await;
    assert_eq!(clear(fx, &lease).await, Clearance::Send);
    assert_settled(fx, answered(&lease)).await;
    assert_eq!(begin(&*store).await, Begun::Replay(kept()));
}

pub async fn a_holder_goes_on_after_a_message_died(fx: &dyn Fixture) {
    let store = fx.store().await;
    let lease = put_and_claim(fx, bound("a")).await;
    let hold = acquire(&*store).await;
    assert_settled(fx, rejected(&lease)).await;
    concluded(&*store, &hold, Conclusion::Succeeded(kept())).await;
}

pub async fn a_settlement_that_lost_its_lease_tells_the_entry_nothing(fx: &dyn Fixture) {
    let lost = left_and_claimed(fx, bound("a")).await;
    assert_eq!(expire(fx).await, 1);
    let before = fx.dump().await;
    assert!(settle(&*fx.store().await, answered(&lost)).await.is_lost());
    assert!(settle(&*fx.store().await, rejected(&lost)).await.is_lost());
    assert_unchanged(fx, &before, "a lost settlement").await;
}

pub async fn each_of_a_batch_ends_its_own(fx: &dyn Fixture) {
    let of = |n: usize| message(&n.to_string()).ledger("batch", n.to_string(), print(&n.to_string()));
    let mut messages: Vec<_> = (0..6).map(of).collect();
    messages.extend([message("plain 1"), message("plain 2")]);
    put_all(fx, messages).await;
    let store = fx.store().await;
    let claimed = claim(&*store, "w1", 10).await;
    let leases: Vec<_> = claimed.iter().map(|claimed| claimed.lease.clone()).collect();
    let cleared = store.clear(&leases).await.unwrap();
    assert_eq!(cleared, vec![Clearance::Send; 8]);
    let batch: Vec<_> = leases
        .iter()
        .enumerate()
        .map(|(n, lease)| if n % 2 == 0 { answered(lease) } else { rejected(lease) })
        .collect();
    let verdicts = store.settle(&batch).await.unwrap();
    assert!(verdicts.iter().all(posthouse_core::Verdict::is_settled));
    let page = fx.admin().await.entries(&EntryFilter::default()).await.unwrap();
    let standing: Vec<_> = page
        .entries
        .iter()
        .map(|entry| (entry.key.as_str(), entry.status))
        .collect();
    let expected = |n: usize| {
        if n.is_multiple_of(2) {
            Status::Succeeded
        } else {
            Status::Failed
        }
    };
    let keys = ["0", "1", "2", "3", "4", "5"];
    let expected: Vec<_> = keys.iter().enumerate().map(|(n, key)| (*key, expected(n))).collect();
    assert_eq!(standing, expected);
    let repeated = store.settle(&batch).await.unwrap();
    assert!(repeated.iter().all(posthouse_core::Verdict::is_settled));
    assert_eq!(fx.admin().await.entries(&EntryFilter::default()).await.unwrap(), page);
}

// In the caller's transaction.

pub async fn leaving_it_to_a_message_is_undone_with_the_transaction(fx: &dyn Fixture) {
    let hold = acquire(&*fx.store().await).await;
    let before = fx.dump().await;
    let mut tx = fx.begin().await;
    let Enqueued::New(id) = tx.enqueue(bound("a")).await.unwrap() else {
        panic!("it is new")
    };
    assert_eq!(tx.leave_in(&hold, id).await.unwrap(), Fenced::Done);
    assert_eq!(
        tx.leave_in(&hold, id).await.unwrap(),
        Fenced::LeaseLost,
        "it is the message's now"
    );
    tx.rollback().await;
    assert_unchanged(fx, &before, "a rolled back transaction").await;
    concluded(&*fx.store().await, &hold, Conclusion::Succeeded(kept())).await;
}

pub async fn who_has_lost_it_leaves_it_to_nobody(fx: &dyn Fixture) {
    let hold = acquire(&*fx.store().await).await;
    fx.advance(LEASE).await;
    let before = fx.dump().await;
    let mut tx = fx.begin().await;
    let Enqueued::New(id) = tx.enqueue(bound("a")).await.unwrap() else {
        panic!("it is new")
    };
    assert_eq!(tx.leave_in(&hold, id).await.unwrap(), Fenced::LeaseLost);
    tx.rollback().await;
    assert_unchanged(fx, &before, "a rolled back transaction").await;
}

/// Any other would never end it, and the key would be busy for ever.
pub async fn it_is_left_to_no_message_that_is_not_under_it(fx: &dyn Fixture) {
    let hold = acquire(&*fx.store().await).await;
    for other in [
        message("42"),
        message("42").ledger("orders", "another", print("a")),
        bound("a").tenant("another"),
    ] {
        let mut tx = fx.begin().await;
        let id = tx.enqueue(other).await.unwrap().id();
        assert_eq!(field(tx.leave_in(&hold, id).await), "message_id");
        tx.rollback().await;
    }
    let ended = put_done(fx, bound("a").tenant("ended").ledger("orders", "k", print("a"))).await;
    let key = key().tenant("ended");
    let Begun::Replay(_) = fx
        .store()
        .await
        .begin(&Begin::new(key.clone(), print("a")))
        .await
        .unwrap()
    else {
        panic!("it was done")
    };
    fx.advance(DAY * 2).await;
    let Begun::Acquired(again) = fx.store().await.begin(&Begin::new(key, print("a"))).await.unwrap() else {
        panic!("it is long past")
    };
    let mut tx = fx.begin().await;
    assert_eq!(field(tx.leave_in(&again, ended).await), "message_id", "it has ended");
    tx.rollback().await;
    let before = fx.dump().await;
    let mut tx = fx.begin().await;
    let nobody = MessageId(uuid::Uuid::new_v4());
    assert_eq!(field(tx.leave_in(&hold, nobody).await), "message_id");
    tx.rollback().await;
    assert_unchanged(fx, &before, "a refusal").await;
}

/// A holder works in his transaction for long. What he has is not theirs, so no message waits for him: no settlement, no claim, no operator.
pub async fn nobody_waits_for_a_holder_who_works(fx: &dyn Fixture) {
    let store = fx.store().await;
    if !store.capabilities().parallel_callers {
        return;
    }
    let [refused, rejected_one, late, cancelled] = [bound("b"), bound("a"), bound("a").deliver_in(SECOND), bound("a")];
    let ids = put_all(fx, vec![refused, rejected_one]).await;
    let leases = claim(&*store, "w1", 2).await;
    let hold = acquire(&*store).await;
    let mut tx = fx.begin().await;
    assert_eq!(tx.reach_in(&hold, "half").await.unwrap(), Fenced::Done);
    assert_eq!(clear(fx, &leases[0].lease).await, Clearance::Conflict);
    assert_settled(fx, Settlement::conflict(&leases[0].lease)).await;
    assert_settled(fx, rejected(&leases[1].lease)).await;
    put(fx, late).await;
    let cancelled = put(fx, cancelled.delay(SECOND * 5)).await;
    fx.advance(SECOND).await;
    assert!(claim(&*store, "w1", 10).await.is_empty());
    fx.admin().await.cancel(cancelled, "op", "enough").await.unwrap();
    assert_eq!(state(fx, ids[1]).await, State::Dead);
    tx.rollback().await;
    concluded(&*store, &hold, Conclusion::Succeeded(kept())).await;
}

pub async fn a_handlers_transaction_ends_the_entry_too(fx: &dyn Fixture) {
    let lease = left_and_claimed(fx, bound("a")).await;
    let before = fx.dump().await;
    for commit in [false, true] {
        let mut tx = fx.begin().await;
        tx.note("handled").await;
        assert!(tx.settle_in(&answered(&lease)).await.unwrap().is_settled());
        if commit {
            tx.commit().await.unwrap();
            assert_eq!(begin(&*fx.store().await).await, Begun::Replay(kept()));
        } else {
            tx.rollback().await;
            assert_unchanged(fx, &before, "a rolled back settlement").await;
            assert_busy(fx).await;
        }
    }
    assert_eq!(fx.notes().await, ["handled"]);
}

// Operators.

/// W-104.
pub async fn a_replay_opens_the_entry_again(fx: &dyn Fixture) {
    let lease = left_and_claimed(fx, bound("a")).await;
    assert_settled(fx, rejected(&lease)).await;
    assert!(matches!(begin(&*fx.store().await).await, Begun::Failed(_)));
    let admin = fx.admin().await;
    admin
        .replay(lease.id, "op", "the shop is open again", None)
        .await
        .unwrap();
    assert_busy(fx).await;
    assert_eq!(entry(fx).await.unwrap().expires_at, None);
    let again = claim_one(&*fx.store().await, "w1").await.lease;
    assert_eq!(clear(fx, &again).await, Clearance::Send);
    assert_settled(fx, answered(&again)).await;
    assert_eq!(begin(&*fx.store().await).await, Begun::Replay(kept()));
}

pub async fn a_replay_opens_nothing_that_is_not_the_messages(fx: &dyn Fixture) {
    let store = fx.store().await;
    let lease = left_and_claimed(fx, bound("a")).await;
    assert_settled(fx, rejected(&lease)).await;
    fx.advance(RETENTION).await;
    let hold = acquire(&*store).await;
    concluded(&*store, &hold, Conclusion::Failed(Kept::failure("by hand"))).await;
    fx.admin().await.replay(lease.id, "op", "again", None).await.unwrap();
    assert_eq!(begin(&*store).await, Begun::Failed(Kept::failure("by hand")));
}

pub async fn what_operators_say_is_heard_of(fx: &dyn Fixture) {
    let admin = fx.admin().await;
    let id = left_to(fx, bound("a")).await;
    admin.cancel(id, "op", "not wanted any more").await.unwrap();
    assert_failed(begin(&*fx.store().await).await, 502, "cancelled");
    fx.advance(RETENTION).await;

    let id = left_to(fx, bound("a")).await;
    admin.quarantine(id, "op", "look at it").await.unwrap();
    assert_busy(fx).await;
    admin.resolve(id, "op", "the bank says so", "bank-4711").await.unwrap();
    let told = Answer::bytes("bank-4711").kept(Keep::default());
    assert_eq!(begin(&*fx.store().await).await, Begun::Replay(told));
    fx.advance(RETENTION).await;

    let id = left_to(fx, bound("a")).await;
    admin.quarantine(id, "op", "look at it").await.unwrap();
    admin.discard(id, "op", "never").await.unwrap();
    assert_failed(begin(&*fx.store().await).await, 502, "cancelled");
    fx.advance(RETENTION).await;

    let lease = left_and_claimed(fx, bound("a")).await;
    assert_settled(fx, rejected(&lease)).await;
    let before = entry(fx).await;
    admin.discard(lease.id, "op", "seen").await.unwrap();
    assert_eq!(entry(fx).await, before);
}

pub async fn entries_are_listed_page_by_page(fx: &dyn Fixture) {
    let (store, admin) = (fx.store().await, fx.admin().await);
    let mut all = Vec::new();
    for (tenant, scope, name) in [
        ("", "a", "1"),
        ("", "b", "1"),
        ("T", "a", "1"),
        ("T", "a", "2"),
        ("T", "b", "1"),
        ("t", "a", "1"),
    ] {
        let key = EntryKey::new(scope, name).tenant(tenant);
        let Begun::Acquired(hold) = store.begin(&Begin::new(key.clone(), print("a"))).await.unwrap() else {
            panic!("nobody has it")
        };
        if name == "2" {
            concluded(&*store, &hold, Conclusion::Failed(Kept::failure("no").status(409))).await;
        }
        all.push(key);
    }
    let mut filter = EntryFilter {
        limit: 4,
        ..EntryFilter::default()
    };
    let first = admin.entries(&filter).await.unwrap();
    filter.after = first.next.clone();
    let second = admin.entries(&filter).await.unwrap();
    let listed = first.entries.iter().chain(&second.entries);
    assert_eq!(listed.map(EntryView::entry_key).collect::<Vec<_>>(), all);
    assert_eq!((first.next, second.next), (Some(all[3].clone()), None));
    let of = |tenant: Option<&str>, scope: Option<&str>, status| EntryFilter {
        tenant: tenant.map(str::to_owned),
        scope: scope.map(str::to_owned),
        status,
        ..EntryFilter::default()
    };
    for (filter, count) in [
        (of(Some("T"), None, None), 3),
        (of(Some("T"), Some("b"), None), 1),
        (of(None, Some("a"), None), 4),
        (of(Some(""), None, None), 2),
        (of(None, None, Some(Status::Failed)), 1),
        (of(Some("nobody"), None, None), 0),
    ] {
        let page = admin.entries(&filter).await.unwrap();
        assert_eq!((page.entries.len(), page.next), (count, None), "{filter:?}");
    }
    let failed = admin.entry(&all[3]).await.unwrap().unwrap();
    assert_eq!((failed.status, failed.http_status), (Status::Failed, Some(409)));
    assert_eq!(failed.error.as_deref(), Some("no"));
    assert_eq!(admin.entry(&EntryKey::new("a", "9")).await.unwrap(), None);
}

// The rules.

/// The same of the store and of the reference.
macro_rules! in_both {
    ($fx:expr, $rules:expr, |$on:ident| $what:expr) => {{
        let one = {
            let $on: &dyn Fixture = $fx;
            $what
        };
        let two = {
            let $on: &dyn Fixture = &$rules;
            $what
        };
        [one, two]
    }};
}

/// Whatever happens to the messages of two keys and to their holders, the entries are as the rules say, and none is left to a message that has ended.
pub async fn entries_of_messages_are_as_the_rules_say(fx: &dyn Fixture) {
    let rules = MemoryFixture::new();
    let both: [&dyn Fixture; 2] = [fx, &rules];
    for seed in 0..10 {
        let mut chance = fastrand::Rng::with_seed(seed);
        let mut held: Vec<[Lease; 2]> = Vec::new();
        let mut holds: Vec<[Hold; 2]> = Vec::new();
        let mut ids: Vec<MessageId> = Vec::new();
        for step in 0..40 {
            let at = format!("seed {seed}, step {step}");
            let (lease, hold, id) = (
                chance.choice(&held).cloned(),
                chance.choice(&holds).cloned(),
                chance.choice(&ids).copied(),
            );
            let key = EntryKey::new(format!("random {seed}"), ["x", "y"][chance.usize(..2)]);
            let of = print(["a", "a", "a", "b"][chance.usize(..4)]);
            let lasts = SECOND * chance.u32(1..60);
            match (chance.u32(..20), lease, hold, id) {
                (0..=1, ..) => {
                    let ask = Begin::new(key.clone(), of).lease(SECOND * 20).retention(lasts);
                    let [one, two] = in_both!(fx, rules, |fx| fx.store().await.begin(&ask).await.unwrap());
                    match (one, two) {
                        (Begun::Acquired(one), Begun::Acquired(two)) => holds.push([one, two]),
                        (one, two) => assert_eq!(one, two, "{at}"),
                    }
                }
                (2..=4, _, hold, _) => {
                    let id = MessageId(uuid::Builder::from_random_bytes(chance.u128(..).to_be_bytes()).into_uuid());
                    let message = message(&at).id(id).max_attempts(2);
                    let message = message.ledger(&key.scope, &key.key, of);
                    let leaves = chance.bool();
                    let hold = hold.filter(|[hold, _]| leaves && hold.key == key);
                    let mut told = Vec::new();
                    for (which, fx) in both.into_iter().enumerate() {
                        let mut tx = fx.begin().await;
                        tx.enqueue(message.clone()).await.unwrap();
                        if let Some(hold) = &hold {
                            told.push(tx.leave_in(&hold[which], id).await.unwrap());
                        }
                        tx.commit().await.unwrap();
                    }
                    assert!(told.windows(2).all(|pair| pair[0] == pair[1]), "{at}: {told:?}");
                    ids.push(id);
                }
                (5..=6, ..) => {
                    let [mut one, mut two] = in_both!(fx, rules, |fx| claim(&*fx.store().await, "w", 1000).await);
                    one.sort_by_key(|claimed| claimed.lease.id);
                    two.sort_by_key(|claimed| claimed.lease.id);
                    assert_eq!(bodies(&one), bodies(&two), "{at}");
                    held.extend(one.into_iter().zip(two).map(|(one, two)| [one.lease, two.lease]));
                }
                (7..=9, Some(lease), ..) => {
                    let [one, two] = [clear(fx, &lease[0]).await, clear(&rules, &lease[1]).await];
                    assert_eq!(one, two, "{at}");
                }
                (10..=14, Some(lease), ..) => {
                    let end = [
                        answered,
                        rejected,
                        Settlement::lapsed,
                        |lease: &Lease| failed(lease, 2),
                        released,
                    ][chance.usize(..5)];
                    let one = settle(&*fx.store().await, end(&lease[0])).await;
                    let two = settle(&*rules.store().await, end(&lease[1])).await;
                    assert_eq!(one.is_settled(), two.is_settled(), "{at}: {one:?} {two:?}");
                }
                (15, _, Some(hold), _) => {
                    let end = [
                        Conclusion::Succeeded(kept()),
                        Conclusion::Failed(Kept::failure("no")),
                        Conclusion::Released { error: None },
                    ];
                    let end = &end[chance.usize(..3)];
                    let one = fx.store().await.conclude(&hold[0], end).await.unwrap();
                    let two = rules.store().await.conclude(&hold[1], end).await.unwrap();
                    assert_eq!(one, two, "{at}");
                }
                (16, _, _, Some(id)) => {
                    let verb = chance.usize(..4);
                    let [one, two] = in_both!(fx, rules, |fx| operated(fx, id, verb).await);
                    assert_eq!(one, two, "{at}");
                }
                (17, ..) => {
                    in_both!(fx, rules, |fx| repaired(fx).await);
                }
                _ => {
                    let by = SECOND * chance.u32(..20);
                    in_both!(fx, rules, |fx| fx.advance(by).await);
                }
            }
            for key in ["x", "y"].map(|name| EntryKey::new(format!("random {seed}"), name)) {
                let [one, two] = in_both!(fx, rules, |fx| fx.admin().await.entry(&key).await.unwrap());
                if let Some(left) = two
                    .as_ref()
                    .filter(|entry| entry.status == Status::InFlight && entry.lease_until.is_none())
                {
                    let ended = match left.message {
                        Some(id) => matches!(view(&rules, id).await.state, State::Done | State::Dead),
                        None => false,
                    };
                    assert!(!ended, "{at}: {left:?}");
                }
                // What is past its retention is as good as gone.
                let now = rules.now().await;
                let counts =
                    |entry: Option<EntryView>| entry.filter(|entry| entry.expires_at.is_none_or(|at| at > now));
                assert_eq!(counts(one).map(undated), counts(two).map(undated), "{at}: {key:?}");
            }
        }
    }
}

/// The two clocks began at different times.
fn undated(entry: EntryView) -> String {
    let times =
        [entry.lease_until, entry.expires_at].map(|at| at.map(|at| at.as_micros() - entry.created_at.as_micros()));
    let known = (
        entry.status,
        entry.message,
        entry.checkpoint,
        entry.http_status,
        entry.error,
    );
    format!(
        "{known:?} {:?} {:?} {:?} {times:?}",
        entry.result_bytes, entry.result_digest, entry.fingerprint
    )
}

async fn repaired(fx: &dyn Fixture) -> u32 {
    posthouse_core::repair(&*fx.store().await, 100).await.unwrap()
}

async fn operated(fx: &dyn Fixture, id: MessageId, verb: usize) -> Result<(), Code> {
    let admin = fx.admin().await;
    let told = match verb {
        0 => admin.replay(id, "op", "again", None).await,
        1 => admin.cancel(id, "op", "enough").await,
        2 => admin.resolve(id, "op", "seen", "").await,
        _ => admin.quarantine(id, "op", "look").await,
    };
    told.map_err(|error| error.code())
}

// With real concurrency.

/// Several messages of one key, claimed and cleared at the same time by many: one is sent.
pub async fn of_many_messages_of_one_key_one_is_sent(fx: &dyn Fixture) {
    put_all(fx, (0..16).map(|_| bound("a")).collect()).await;
    let claimed = claim(&*fx.store().await, "w1", 16).await;
    assert_eq!(claimed.len(), 16);
    let mut asked = Vec::new();
    for claimed in claimed {
        let store = fx.store().await;
        asked.push(tokio::spawn(async move {
            let leases = [claimed.lease];
            (store.clear(&leases).await.unwrap().remove(0), leases)
        }));
    }
    let mut sent = Vec::new();
    for task in asked {
        match task.await.unwrap() {
            (Clearance::Send, [lease]) => sent.push(lease),
            (Clearance::Wait(_), _) => {}
            (other, _) => panic!("{other:?}"),
        }
    }
    assert_eq!(sent.len(), 1);
    assert_settled(fx, answered(&sent[0])).await;
    let attempts = fx.admin().await.attempts(sent[0].id).await.unwrap();
    assert_eq!(attempts[0].outcome, AttemptOutcome::Delivered);
}
