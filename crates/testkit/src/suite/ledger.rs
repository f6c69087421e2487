//! P13 and P14. The ledger: one holder at a time, his end is told to all, and nobody else's is touched.

#![expect(missing_docs, reason = "the name of a case is its claim")]

use posthouse_core::{
    Error, LeaseToken, MessageId, Store,
    ledger::{Answer, Begin, Begun, Conclusion, EntryKey, Fenced, Fingerprint, Hold, Keep, Kept},
};
use std::{sync::Arc, time::Duration};

use super::tools::*;
use crate::{Fixture, MemoryFixture};

const LEASE: Duration = Duration::from_secs(30);
const RETENTION: Duration = Duration::from_secs(3600);

fn key() -> EntryKey {
    EntryKey::new("orders", "k")
}

fn print(of: &str) -> Fingerprint {
    Fingerprint::of_bytes(of.as_bytes())
}

fn ask(of: &str) -> Begin {
    Begin::new(key(), print(of)).lease(LEASE).retention(RETENTION)
}

fn made(body: &str) -> Kept {
    Answer::bytes(body).status(201).kept(Keep::default())
}

fn success(body: &str) -> Conclusion {
    Conclusion::Succeeded(made(body))
}

fn failure() -> Conclusion {
    Conclusion::Failed(no_stock())
}

fn no_stock() -> Kept {
    Kept::failure("no stock").status(422)
}

fn released() -> Conclusion {
    Conclusion::Released { error: None }
}

async fn begin(store: &dyn Store, ask: &Begin) -> Begun {
    store.begin(ask).await.unwrap()
}

/// Begins, and goes on.
async fn acquire(store: &dyn Store, ask: &Begin) -> Hold {
    match begin(store, ask).await {
        Begun::Acquired(hold) => hold,
        other => panic!("it was to go on: {other:?}"),
    }
}

async fn conclude(store: &dyn Store, hold: &Hold, conclusion: Conclusion) -> Fenced {
    store.conclude(hold, &conclusion).await.unwrap()
}

/// Asserts that nothing in the store changes meanwhile.
macro_rules! unchanged {
    ($fx:expr, $work:expr) => {{
        let before = $fx.dump().await;
        let answer = $work;
        assert_eq!($fx.dump().await, before, "nothing was to change");
        answer
    }};
}

pub async fn the_first_goes_on(fx: &dyn Fixture) {
    let store = fx.store().await;
    let hold = acquire(&*store, &ask("a")).await;
    assert_eq!(
        (&hold.key, hold.taken_over, hold.checkpoint.as_deref()),
        (&key(), false, None)
    );
}

pub async fn the_second_is_told_how_long_the_first_may_take(fx: &dyn Fixture) {
    let store = fx.store().await;
    acquire(&*store, &ask("a")).await;
    fx.advance(SECOND * 10).await;
    let again = unchanged!(fx, begin(&*store, &ask("a")).await);
    assert_eq!(
        again,
        Begun::Busy {
            retry_after: SECOND * 20
        }
    );
}

pub async fn an_answer_is_told_again_byte_by_byte(fx: &dyn Fixture) {
    let store = fx.store().await;
    let hold = acquire(&*store, &ask("a")).await;
    let mut answer = Answer::bytes(b"\0\xff not text\r\n".to_vec()).status(299);
    answer.headers.insert("location".into(), "/orders/42?größe=1".into());
    let kept = answer.kept(Keep::default());
    assert_eq!(
        conclude(&*store, &hold, Conclusion::Succeeded(kept.clone())).await,
        Fenced::Done
    );
    for _ in 0..2 {
        let again = unchanged!(fx, begin(&*store, &ask("a")).await);
        assert_eq!(again, Begun::Replay(kept.clone()));
    }
}

pub async fn an_empty_answer_is_an_answer(fx: &dyn Fixture) {
    let store = fx.store().await;
    let hold = acquire(&*store, &ask("a")).await;
    let kept = Answer::default().kept(Keep::default());
    assert_eq!(
        conclude(&*store, &hold, Conclusion::Succeeded(kept.clone())).await,
        Fenced::Done
    );
    assert_eq!(kept.body.as_deref(), Some(&b""[..]));
    assert_eq!(begin(&*store, &ask("a")).await, Begun::Replay(kept));
}

pub async fn of_a_large_answer_the_digest_is_kept(fx: &dyn Fixture) {
    let store = fx.store().await;
    for (n, keep) in [Keep::Result { most: 3 }, Keep::Digest].into_iter().enumerate() {
        let ask = Begin::new(EntryKey::new("orders", format!("k{n}")), print("a"));
        let hold = acquire(&*store, &ask).await;
        let kept = Answer::bytes("four").status(200).kept(keep);
        assert_eq!(
            conclude(&*store, &hold, Conclusion::Succeeded(kept.clone())).await,
            Fenced::Done
        );
        assert_eq!((kept.body.as_ref(), kept.digest.is_some()), (None, true));
        assert_eq!(begin(&*store, &ask).await, Begun::Replay(kept));
    }
}

pub async fn a_failure_for_good_is_told_again(fx: &dyn Fixture) {
    let store = fx.store().await;
    let hold = acquire(&*store, &ask("a")).await;
    assert_eq!(conclude(&*store, &hold, failure()).await, Fenced::Done);
    assert_eq!(
        unchanged!(fx, begin(&*store, &ask("a")).await),
        Begun::Failed(no_stock())
    );
}

pub async fn what_was_let_go_of_is_free_at_once(fx: &dyn Fixture) {
    let store = fx.store().await;
    let hold = acquire(&*store, &ask("a")).await;
    assert_eq!(conclude(&*store, &hold, released()).await, Fenced::Done);
    let next = acquire(&*store, &ask("a")).await;
    assert!(!next.taken_over && next.token != hold.token);
}

pub async fn what_was_let_go_of_is_free_for_something_else(fx: &dyn Fixture) {
    let store = fx.store().await;
    let hold = acquire(&*store, &ask("a")).await;
    assert_eq!(conclude(&*store, &hold, released()).await, Fenced::Done);
    let next = acquire(&*store, &ask("b")).await;
    assert_eq!(conclude(&*store, &next, success("b")).await, Fenced::Done);
    assert_eq!(begin(&*store, &ask("a")).await, Begun::Mismatch);
    assert_eq!(begin(&*store, &ask("b")).await, Begun::Replay(made("b")));
}

pub async fn something_else_is_a_mismatch_while_it_is_in_flight(fx: &dyn Fixture) {
    let store = fx.store().await;
    acquire(&*store, &ask("a")).await;
    assert_eq!(unchanged!(fx, begin(&*store, &ask("b")).await), Begun::Mismatch);
}

pub async fn something_else_is_a_mismatch_after_the_holders_time(fx: &dyn Fixture) {
    let store = fx.store().await;
    acquire(&*store, &ask("a")).await;
    fx.advance(LEASE).await;
    assert_eq!(unchanged!(fx, begin(&*store, &ask("b")).await), Begun::Mismatch);
}

pub async fn something_else_is_a_mismatch_after_success(fx: &dyn Fixture) {
    let store = fx.store().await;
    let hold = acquire(&*store, &ask("a")).await;
    assert_eq!(conclude(&*store, &hold, success("a")).await, Fenced::Done);
    assert_eq!(unchanged!(fx, begin(&*store, &ask("b")).await), Begun::Mismatch);
}

pub async fn something_else_is_a_mismatch_after_failure(fx: &dyn Fixture) {
    let store = fx.store().await;
    let hold = acquire(&*store, &ask("a")).await;
    assert_eq!(conclude(&*store, &hold, failure()).await, Fenced::Done);
    assert_eq!(unchanged!(fx, begin(&*store, &ask("b")).await), Begun::Mismatch);
}

pub async fn something_else_is_a_mismatch_when_half_is_done(fx: &dyn Fixture) {
    let store = fx.store().await;
    let hold = acquire(&*store, &ask("a")).await;
    reach(fx, &hold, "charged").await;
    assert_eq!(conclude(&*store, &hold, released()).await, Fenced::Done);
    assert_eq!(unchanged!(fx, begin(&*store, &ask("b")).await), Begun::Mismatch);
    assert_eq!(acquire(&*store, &ask("a")).await.checkpoint.as_deref(), Some("charged"));
}

pub async fn tenants_and_scopes_have_nothing_to_do_with_each_other(fx: &dyn Fixture) {
    let store = fx.store().await;
    // They would run together if they were joined.
    let keys = [
        EntryKey::new("s", "k"),
        EntryKey::new("s", "k").tenant("t"),
        EntryKey::new("k", "s"),
        EntryKey::new("sk", "k"),
        EntryKey::new("s", "kk"),
        EntryKey::new("s", "k").tenant("ts"),
        EntryKey::new("ss", "k").tenant("t"),
    ];
    for (n, key) in keys.iter().enumerate() {
        let ask = Begin::new(key.clone(), print(&n.to_string()));
        let hold = acquire(&*store, &ask).await;
        assert_eq!(conclude(&*store, &hold, success(&n.to_string())).await, Fenced::Done);
    }
    for (n, key) in keys.iter().enumerate() {
        let ask = Begin::new(key.clone(), print(&n.to_string()));
        assert_eq!(begin(&*store, &ask).await, Begun::Replay(made(&n.to_string())));
    }
}

pub async fn a_holder_who_is_not_heard_of_is_replaced(fx: &dyn Fixture) {
    let store = fx.store().await;
    acquire(&*store, &ask("a")).await;
    fx.advance(LEASE - Duration::from_millis(1)).await;
    assert!(matches!(begin(&*store, &ask("a")).await, Begun::Busy { .. }));
    fx.advance(Duration::from_millis(1)).await;
    assert!(
        acquire(&*store, &ask("a")).await.taken_over,
        "and his effect may be there"
    );
}

pub async fn a_late_end_changes_nothing(fx: &dyn Fixture) {
    let store = fx.store().await;
    let late = acquire(&*store, &ask("a")).await;
    fx.advance(LEASE).await;
    for end in [success("late"), failure(), released()] {
        assert_eq!(unchanged!(fx, conclude(&*store, &late, end).await), Fenced::LeaseLost);
    }
}

pub async fn a_late_end_does_not_overwrite_a_new_holder(fx: &dyn Fixture) {
    let store = fx.store().await;
    let late = acquire(&*store, &ask("a")).await;
    fx.advance(LEASE).await;
    let next = acquire(&*store, &ask("a")).await;
    for end in [success("late"), failure(), released()] {
        assert_eq!(unchanged!(fx, conclude(&*store, &late, end).await), Fenced::LeaseLost);
    }
    assert_eq!(conclude(&*store, &next, success("next")).await, Fenced::Done);
    assert_eq!(
        unchanged!(fx, conclude(&*store, &late, success("late")).await),
        Fenced::LeaseLost
    );
    assert_eq!(begin(&*store, &ask("a")).await, Begun::Replay(made("next")));
}

pub async fn an_end_with_an_invented_token_changes_nothing(fx: &dyn Fixture) {
    let store = fx.store().await;
    let hold = acquire(&*store, &ask("a")).await;
    let forged = Hold {
        token: LeaseToken(uuid::Uuid::new_v4()),
        ..hold
    };
    for end in [success("forged"), failure(), released()] {
        assert_eq!(unchanged!(fx, conclude(&*store, &forged, end).await), Fenced::LeaseLost);
    }
    assert_eq!(
        unchanged!(fx, store.renew_hold(&forged, LEASE).await.unwrap()),
        Fenced::LeaseLost
    );
}

pub async fn an_end_of_nothing_changes_nothing(fx: &dyn Fixture) {
    let store = fx.store().await;
    let hold = acquire(&*store, &ask("a")).await;
    let elsewhere = Hold {
        key: EntryKey::new("orders", "other"),
        ..hold
    };
    assert_eq!(
        unchanged!(fx, conclude(&*store, &elsewhere, success("x")).await),
        Fenced::LeaseLost
    );
}

pub async fn an_end_that_was_not_heard_may_be_told_again(fx: &dyn Fixture) {
    let store = fx.store().await;
    for (n, end) in [success("a"), failure(), released()].into_iter().enumerate() {
        let hold = acquire(&*store, &Begin::new(EntryKey::new("orders", n.to_string()), print("a"))).await;
        assert_eq!(conclude(&*store, &hold, end.clone()).await, Fenced::Done);
        fx.advance(LEASE * 2).await;
        assert_eq!(unchanged!(fx, conclude(&*store, &hold, end).await), Fenced::Before);
    }
}

pub async fn an_end_is_never_changed(fx: &dyn Fixture) {
    let store = fx.store().await;
    let ends = [success("a"), failure(), released()];
    for (n, first) in ends.iter().enumerate() {
        let hold = acquire(&*store, &Begin::new(EntryKey::new("orders", n.to_string()), print("a"))).await;
        assert_eq!(conclude(&*store, &hold, first.clone()).await, Fenced::Done);
        for (m, second) in ends.iter().enumerate().filter(|(m, _)| *m != n) {
            let verdict = unchanged!(fx, conclude(&*store, &hold, second.clone()).await);
            assert_eq!(verdict, Fenced::LeaseLost, "{n} then {m}");
        }
    }
}

pub async fn the_first_answer_stands(fx: &dyn Fixture) {
    let store = fx.store().await;
    let hold = acquire(&*store, &ask("a")).await;
    assert_eq!(conclude(&*store, &hold, success("first")).await, Fenced::Done);
    let again = unchanged!(fx, conclude(&*store, &hold, success("second")).await);
    assert_eq!(again, Fenced::Before);
    assert_eq!(begin(&*store, &ask("a")).await, Begun::Replay(made("first")));
}

pub async fn a_renewal_of_an_entry_moves_its_deadline(fx: &dyn Fixture) {
    let store = fx.store().await;
    let hold = acquire(&*store, &ask("a")).await;
    fx.advance(LEASE / 2).await;
    assert_eq!(store.renew_hold(&hold, LEASE * 2).await.unwrap(), Fenced::Done);
    fx.advance(LEASE).await;
    assert_eq!(begin(&*store, &ask("a")).await, Begun::Busy { retry_after: LEASE });
    assert_eq!(conclude(&*store, &hold, success("a")).await, Fenced::Done);
}

pub async fn a_renewal_after_the_deadline_is_refused(fx: &dyn Fixture) {
    let store = fx.store().await;
    let hold = acquire(&*store, &ask("a")).await;
    fx.advance(LEASE).await;
    assert_eq!(
        unchanged!(fx, store.renew_hold(&hold, LEASE).await.unwrap()),
        Fenced::LeaseLost
    );
}

pub async fn a_renewal_after_the_end_is_refused(fx: &dyn Fixture) {
    let store = fx.store().await;
    let hold = acquire(&*store, &ask("a")).await;
    assert_eq!(conclude(&*store, &hold, success("a")).await, Fenced::Done);
    assert_eq!(
        unchanged!(fx, store.renew_hold(&hold, LEASE).await.unwrap()),
        Fenced::LeaseLost
    );
}

pub async fn retention_starts_with_the_end(fx: &dyn Fixture) {
    let store = fx.store().await;
    let hold = acquire(&*store, &ask("a")).await;
    fx.advance(LEASE / 2).await;
    assert_eq!(conclude(&*store, &hold, success("a")).await, Fenced::Done);
    fx.advance(RETENTION - SECOND).await;
    assert_eq!(begin(&*store, &ask("a")).await, Begun::Replay(made("a")));
    fx.advance(SECOND).await;
    assert!(
        !acquire(&*store, &ask("b")).await.taken_over,
        "it is as if nothing had been there"
    );
}

pub async fn a_lease_outlives_a_short_retention(fx: &dyn Fixture) {
    let store = fx.store().await;
    let short = ask("a").retention(SECOND);
    let hold = acquire(&*store, &short).await;
    fx.advance(SECOND * 2).await;
    assert!(matches!(begin(&*store, &short).await, Begun::Busy { .. }));
    assert_eq!(clean_up(fx).await, 0);
    assert_eq!(conclude(&*store, &hold, success("a")).await, Fenced::Done);
}

pub async fn bad_keys_are_refused_by_name(fx: &dyn Fixture) {
    let store = fx.store().await;
    let long = "x".repeat(256);
    let refused = [
        (EntryKey::new("", "k"), "scope"),
        (EntryKey::new("s", ""), "key"),
        (EntryKey::new("s", "k\0"), "key"),
        (EntryKey::new("s\n", "k"), "scope"),
        (EntryKey::new("s", &long), "key"),
        (EntryKey::new(&long, "k"), "scope"),
        (EntryKey::new("s", "k").tenant(&long), "tenant"),
    ];
    for (key, field) in refused {
        let answer = store.begin(&Begin::new(key, print("a"))).await;
        assert!(
            matches!(&answer, Err(Error::Invalid(i)) if i.field == field),
            "{field}: {answer:?}"
        );
    }
    let fits = EntryKey::new(&long[1..], "ä".repeat(127)).tenant(&long[1..]);
    acquire(&*store, &Begin::new(fits, print("a"))).await;
}

pub async fn bad_leases_are_refused_by_name(fx: &dyn Fixture) {
    let store = fx.store().await;
    let day = Duration::from_secs(24 * 3600);
    for lease in [Duration::ZERO, Duration::from_micros(1), day + SECOND] {
        let answer = store.begin(&ask("a").lease(lease)).await;
        assert!(matches!(answer, Err(Error::Invalid(i)) if i.field == "lease"));
    }
    let answer = store.begin(&ask("a").retention(day * 10_000)).await;
    assert!(matches!(answer, Err(Error::Invalid(i)) if i.field == "retention"));
    let hold = acquire(&*store, &ask("a").lease(day)).await;
    assert!(matches!(store.renew_hold(&hold, Duration::ZERO).await, Err(Error::Invalid(i)) if i.field == "lease"));
}

pub async fn whatever_a_failure_says_can_be_kept(fx: &dyn Fixture) {
    let store = fx.store().await;
    let hold = acquire(&*store, &ask("a")).await;
    let raw = format!("NUL \0 escape \x1b {}", "long ".repeat(100_000));
    let kept = Kept::failure(raw);
    assert_eq!(
        conclude(&*store, &hold, Conclusion::Failed(kept.clone())).await,
        Fenced::Done
    );
    assert_eq!(begin(&*store, &ask("a")).await, Begun::Failed(kept));
}

pub async fn whatever_an_answer_holds_can_be_kept(fx: &dyn Fixture) {
    let store = fx.store().await;
    let hold = acquire(&*store, &ask("a")).await;
    let raw = Kept {
        status: Some(7),
        headers: [("x-\0name".to_owned(), "NUL \0 line\r\nbreak".to_owned())].into(),
        body: Some(vec![0; 5000]),
        digest: None,
        error: Some("NUL \0".repeat(1000)),
    };
    assert_eq!(
        conclude(&*store, &hold, Conclusion::Succeeded(raw.clone())).await,
        Fenced::Done
    );
    let kept = raw.clean();
    assert_eq!((kept.status, &*kept.headers["x- name"]), (None, "NUL   line  break"));
    assert_eq!(begin(&*store, &ask("a")).await, Begun::Replay(kept));
}

pub async fn who_was_not_heard_of_is_not_forgotten_with_his_lease(fx: &dyn Fixture) {
    let store = fx.store().await;
    let short = ask("a").retention(SECOND * 10);
    acquire(&*store, &short).await;
    fx.advance(LEASE).await;
    assert_eq!(clean_up(fx).await, 0);
    assert_eq!(begin(&*store, &ask("b")).await, Begun::Mismatch);
    assert!(acquire(&*store, &short).await.taken_over);
    fx.advance(LEASE + SECOND * 10).await;
    assert!(!acquire(&*store, &ask("b")).await.taken_over);
}

// In the caller's transaction.

pub async fn the_effect_and_its_record_commit_together(fx: &dyn Fixture) {
    let store = fx.store().await;
    let hold = acquire(&*store, &ask("a")).await;
    let mut tx = fx.begin().await;
    tx.note("charged").await;
    assert_eq!(tx.conclude_in(&hold, &success("a")).await.unwrap(), Fenced::Done);
    tx.commit().await.unwrap();
    assert_eq!(fx.notes().await, ["charged"]);
    assert_eq!(begin(&*store, &ask("a")).await, Begun::Replay(made("a")));
}

pub async fn the_effect_and_its_record_roll_back_together(fx: &dyn Fixture) {
    let store = fx.store().await;
    let hold = acquire(&*store, &ask("a")).await;
    let mut tx = fx.begin().await;
    tx.note("charged").await;
    assert_eq!(tx.conclude_in(&hold, &success("a")).await.unwrap(), Fenced::Done);
    tx.rollback().await;
    assert_eq!(fx.notes().await, Vec::<String>::new());
    assert!(
        matches!(begin(&*store, &ask("a")).await, Begun::Busy { .. }),
        "it is still held"
    );
    assert_eq!(conclude(&*store, &hold, released()).await, Fenced::Done);
}

/// Who does not hear that his commit went well does it again, and is told in time.
pub async fn an_effect_that_is_done_again_is_told_to_roll_back(fx: &dyn Fixture) {
    let store = fx.store().await;
    let hold = acquire(&*store, &ask("a")).await;
    for told in [Fenced::Done, Fenced::Before] {
        let mut tx = fx.begin().await;
        tx.note("charged").await;
        assert_eq!(tx.conclude_in(&hold, &success("a")).await.unwrap(), told);
        match told {
            Fenced::Done => tx.commit().await.unwrap(),
            _ => tx.rollback().await,
        }
    }
    assert_eq!(fx.notes().await, ["charged"]);
}

pub async fn a_step_that_is_done_again_is_told_to_roll_back(fx: &dyn Fixture) {
    let store = fx.store().await;
    let hold = acquire(&*store, &ask("a")).await;
    reach(fx, &hold, "charged").await;
    let mut tx = fx.begin().await;
    assert_eq!(tx.reach_in(&hold, "charged").await.unwrap(), Fenced::Before);
    assert_eq!(tx.reach_in(&hold, "booked").await.unwrap(), Fenced::Done);
    tx.rollback().await;
}

pub async fn a_renewal_in_a_transaction_counts_with_its_commit(fx: &dyn Fixture) {
    let store = fx.store().await;
    for commits in [true, false] {
        let ask = Begin::new(EntryKey::new("orders", commits.to_string()), print("a")).lease(LEASE);
        let hold = acquire(&*store, &ask).await;
        let mut tx = fx.begin().await;
        assert_eq!(tx.renew_in(&hold, LEASE * 3).await.unwrap(), Fenced::Done);
        match commits {
            true => tx.commit().await.unwrap(),
            false => tx.rollback().await,
        }
        fx.advance(LEASE * 2).await;
        let told = if commits { Fenced::Done } else { Fenced::LeaseLost };
        assert_eq!(conclude(&*store, &hold, success("a")).await, told);
    }
}

pub async fn a_late_holder_is_told_in_time_to_roll_back(fx: &dyn Fixture) {
    let store = fx.store().await;
    let late = acquire(&*store, &ask("a")).await;
    fx.advance(LEASE).await;
    let next = acquire(&*store, &ask("a")).await;
    assert_eq!(conclude(&*store, &next, success("next")).await, Fenced::Done);
    let mut tx = fx.begin().await;
    tx.note("charged twice").await;
    assert_eq!(
        tx.conclude_in(&late, &success("late")).await.unwrap(),
        Fenced::LeaseLost
    );
    tx.rollback().await;
    assert_eq!(begin(&*store, &ask("a")).await, Begun::Replay(made("next")));
}

pub async fn nobody_waits_for_a_holders_transaction(fx: &dyn Fixture) {
    let store = fx.store().await;
    if !store.capabilities().parallel_callers {
        return;
    }
    let hold = acquire(&*store, &ask("a")).await;
    let mut tx = fx.begin().await;
    assert_eq!(tx.conclude_in(&hold, &success("a")).await.unwrap(), Fenced::Done);
    // Also when his time is up: what he does may be committed any moment.
    fx.advance(LEASE).await;
    if callers_retry(fx).await {
        // Nobody can see him. Who takes over wins, and he is told so.
        let next = acquire(&*store, &ask("a")).await;
        assert!(next.taken_over);
        return assert_told_to_retry(tx, "the late holder").await;
    }
    assert!(matches!(begin(&*store, &ask("a")).await, Begun::Busy { .. }));
    tx.commit().await.unwrap();
    assert_eq!(begin(&*store, &ask("a")).await, Begun::Replay(made("a")));
}

async fn reach(fx: &dyn Fixture, hold: &Hold, point: &str) {
    let mut tx = fx.begin().await;
    assert_eq!(tx.reach_in(hold, point).await.unwrap(), Fenced::Done);
    tx.commit().await.unwrap();
}

pub async fn who_takes_over_goes_on_from_the_last_point(fx: &dyn Fixture) {
    let store = fx.store().await;
    let first = acquire(&*store, &ask("a")).await;
    reach(fx, &first, "booked").await;
    reach(fx, &first, "charged").await;
    fx.advance(LEASE).await;
    let next = acquire(&*store, &ask("a")).await;
    assert_eq!((next.taken_over, next.checkpoint.as_deref()), (true, Some("charged")));
}

pub async fn a_point_that_was_rolled_back_was_not_reached(fx: &dyn Fixture) {
    let store = fx.store().await;
    let first = acquire(&*store, &ask("a")).await;
    let mut tx = fx.begin().await;
    tx.note("charged").await;
    assert_eq!(tx.reach_in(&first, "charged").await.unwrap(), Fenced::Done);
    tx.rollback().await;
    fx.advance(LEASE).await;
    assert_eq!(acquire(&*store, &ask("a")).await.checkpoint, None);
}

pub async fn a_late_holder_reaches_nothing(fx: &dyn Fixture) {
    let store = fx.store().await;
    let late = acquire(&*store, &ask("a")).await;
    fx.advance(LEASE).await;
    let mut tx = fx.begin().await;
    assert_eq!(tx.reach_in(&late, "charged").await.unwrap(), Fenced::LeaseLost);
    tx.rollback().await;
}

async fn clean_up(fx: &dyn Fixture) -> u64 {
    fx.admin()
        .await
        .prune(&ended(Duration::from_secs(1), 1000))
        .await
        .unwrap()
        .entries
}

pub async fn cleaning_up_removes_what_is_past_its_retention_and_nothing_else(fx: &dyn Fixture) {
    let store = fx.store().await;
    for n in 0..30 {
        let short = Begin::new(EntryKey::new("orders", n.to_string()), print("a"))
            .lease(LEASE)
            .retention(SECOND * 10);
        let hold = acquire(&*store, &short).await;
        let end = match n % 3 {
            0 => success("a"),
            1 => failure(),
            _ => continue,
        };
        assert_eq!(conclude(&*store, &hold, end).await, Fenced::Done);
    }
    let long = acquire(&*store, &ask("a")).await;
    assert_eq!(conclude(&*store, &long, success("a")).await, Fenced::Done);
    fx.advance(SECOND * 11).await;
    assert_eq!(clean_up(fx).await, 20, "holders stay, and who was not heard of since");
    fx.advance(LEASE).await;
    assert_eq!(clean_up(fx).await, 10);
    assert_eq!(begin(&*store, &ask("a")).await, Begun::Replay(made("a")));
}

pub async fn cleaning_up_goes_in_steps(fx: &dyn Fixture) {
    let store = fx.store().await;
    for n in 0..10 {
        let short = Begin::new(EntryKey::new("orders", n.to_string()), print("a")).retention(SECOND);
        let hold = acquire(&*store, &short).await;
        assert_eq!(conclude(&*store, &hold, success("a")).await, Fenced::Done);
    }
    fx.advance(SECOND * 2).await;
    let admin = fx.admin().await;
    let step = async || admin.prune(&ended(Duration::from_secs(1), 4)).await.unwrap().entries;
    assert_eq!([step().await, step().await, step().await, step().await], [4, 4, 2, 0]);
}

/// Whatever is asked in whatever order: every answer is that of the rules.
pub async fn it_answers_as_the_rules_do(fx: &dyn Fixture) {
    let rules = MemoryFixture::new();
    let (store, reference) = (fx.store().await, rules.store().await);
    for seed in 0..40 {
        let mut chance = fastrand::Rng::with_seed(seed);
        let mut holds: Vec<(Hold, Hold)> = Vec::new();
        for step in 0..30 {
            let at = format!("seed {seed}, step {step}");
            let hold = chance.choice(&holds).cloned();
            match (chance.u32(..9), hold) {
                (0..=2, _) | (_, None) => {
                    let what = ["a", "a", "b"][chance.usize(..3)];
                    let ask = Begin::new(EntryKey::new("random", seed.to_string()), print(what));
                    let ask = ask.lease(SECOND * 20).retention(SECOND * chance.u32(1..60));
                    match (begin(&*store, &ask).await, begin(&*reference, &ask).await) {
                        (Begun::Acquired(one), Begun::Acquired(two)) => {
                            let same = (one.taken_over, &one.checkpoint) == (two.taken_over, &two.checkpoint);
                            assert!(same, "{at}: {one:?} {two:?}");
                            holds.push((one, two));
                        }
                        (one, two) => assert_eq!(one, two, "{at}"),
                    }
                }
                (3..=5, Some((one, two))) => {
                    let end = [success("made"), failure(), released()][chance.usize(..3)].clone();
                    let told = conclude(&*store, &one, end.clone()).await;
                    assert_eq!(told, conclude(&*reference, &two, end).await, "{at}");
                }
                (6, Some((one, two))) => {
                    let lease = SECOND * chance.u32(1..40);
                    let told = store.renew_hold(&one, lease).await.unwrap();
                    assert_eq!(told, reference.renew_hold(&two, lease).await.unwrap(), "{at}");
                }
                (7, Some((one, two))) => {
                    let told = reaches(fx, &one, &at).await;
                    assert_eq!(told, reaches(&rules, &two, &at).await, "{at}");
                }
                (_, Some(_)) => {
                    let by = SECOND * chance.u32(..25);
                    fx.advance(by).await;
                    rules.advance(by).await;
                }
            }
        }
    }
}

async fn reaches(fx: &dyn Fixture, hold: &Hold, point: &str) -> Fenced {
    let mut tx = fx.begin().await;
    let told = tx.reach_in(hold, point).await.unwrap();
    tx.commit().await.unwrap();
    told
}

// With real concurrency.

pub async fn of_fifty_at_once_one_goes_on(fx: &dyn Fixture) {
    let store = fx.store().await;
    let mut goes_on = Vec::new();
    let asked: Vec<_> = (0..50)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.begin(&ask("a")).await.unwrap() })
        })
        .collect();
    for task in asked {
        match task.await.unwrap() {
            Begun::Acquired(hold) => goes_on.push(hold),
            Begun::Busy { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(goes_on.len(), 1);
    assert_eq!(conclude(&*store, &goes_on[0], success("a")).await, Fenced::Done);
}

pub async fn of_fifty_who_take_over_one_goes_on(fx: &dyn Fixture) {
    let store = fx.store().await;
    acquire(&*store, &ask("a")).await;
    fx.advance(LEASE).await;
    let asked: Vec<_> = (0..50)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { matches!(store.begin(&ask("a")).await.unwrap(), Begun::Acquired(_)) })
        })
        .collect();
    let mut goes_on = 0;
    for task in asked {
        goes_on += u32::from(task.await.unwrap());
    }
    assert_eq!(goes_on, 1);
}

// The inbox.

pub async fn the_inbox_tells_the_first_time_from_the_others(fx: &dyn Fixture) {
    let id = MessageId(uuid::Uuid::new_v4());
    for first in [true, false, false] {
        let mut tx = fx.begin().await;
        assert_eq!(tx.once("mailer", id).await.unwrap(), first);
        tx.commit().await.unwrap();
    }
    let mut tx = fx.begin().await;
    assert!(
        tx.once("printer", id).await.unwrap(),
        "consumers have nothing to do with each other"
    );
    tx.rollback().await;
}

pub async fn the_inbox_is_kept_as_long_as_somebody_may_deliver_again(fx: &dyn Fixture) {
    let (here, elsewhere) = (put_done(fx, message("42")).await, MessageId(uuid::Uuid::new_v4()));
    for id in [here, elsewhere] {
        let mut tx = fx.begin().await;
        assert!(tx.once("mailer", id).await.unwrap());
        tx.commit().await.unwrap();
    }
    let (admin, had) = (fx.admin().await, async |id| {
        let mut tx = fx.begin().await;
        let first = tx.once("mailer", id).await.unwrap();
        tx.rollback().await;
        !first
    });
    fx.advance(DAY).await;
    assert_eq!(admin.prune(&ended(DAY * 2, 10)).await.unwrap().inbox, 0);
    put_done(fx, message("43")).await;
    assert_eq!(
        admin.prune(&ended(DAY, 1)).await.unwrap().inbox,
        1,
        "one of each at a time"
    );
    // The message went with the same call, or what is elsewhere did; the other one goes with the next.
    assert_eq!(admin.prune(&ended(DAY, 10)).await.unwrap().inbox, 1);
    assert!(!had(here).await && !had(elsewhere).await);
    let alive = put(fx, message("44")).await;
    let mut tx = fx.begin().await;
    assert!(tx.once("mailer", alive).await.unwrap());
    tx.commit().await.unwrap();
    fx.advance(DAY * 2).await;
    assert_eq!(admin.prune(&ended(DAY, 10)).await.unwrap().inbox, 0);
    assert!(had(alive).await);
}

pub async fn bad_consumers_are_refused_by_name(fx: &dyn Fixture) {
    let id = MessageId(uuid::Uuid::new_v4());
    for consumer in ["", "a\0b", &"x".repeat(256)] {
        let mut tx = fx.begin().await;
        let answer = tx.once(consumer, id).await;
        assert!(
            matches!(&answer, Err(Error::Invalid(i)) if i.field == "consumer"),
            "{answer:?}"
        );
        tx.rollback().await;
    }
}

pub async fn what_was_rolled_back_was_not_the_first_time(fx: &dyn Fixture) {
    let id = MessageId(uuid::Uuid::new_v4());
    let mut tx = fx.begin().await;
    assert!(tx.once("mailer", id).await.unwrap());
    tx.rollback().await;
    let mut tx = fx.begin().await;
    assert!(tx.once("mailer", id).await.unwrap());
    assert!(!tx.once("mailer", id).await.unwrap(), "nor in one transaction");
    tx.commit().await.unwrap();
}
