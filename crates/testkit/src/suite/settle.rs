//! P6, P8, P17: one outcome for each lease, written together with what it changes, whatever it says.

use posthouse_core::{
    AttemptOutcome, Backoff, DeadReason, Enqueued, Error, Kind, Lease, Message, Outcome, RetryPolicy, Settlement,
    State, Verdict, text,
};
use std::time::Duration;

use super::tools::*;
use crate::Fixture;

async fn assert_settled(fx: &dyn Fixture, settlement: Settlement) {
    let verdict = settle(&*fx.store().await, settlement).await;
    assert!(verdict.is_settled(), "{verdict:?}");
}

/// Done, with the receipt and the times by the store's clock.
pub async fn a_delivery_is_done_with_its_receipt(fx: &dyn Fixture) {
    let granted = fx.now().await;
    let lease = put_and_claim(fx, message("42")).await;
    fx.advance(SECOND * 3).await;
    assert_settled(fx, Settlement::delivered(&lease, Some("id 4711"))).await;
    let found = view(fx, lease.id).await;
    assert_eq!((found.state, found.finished_at), (State::Done, Some(fx.now().await)));
    assert_eq!((found.worker, found.lease_until, found.reason), (None, None, None));
    let attempts = fx.admin().await.attempts(lease.id).await.unwrap();
    assert_eq!(attempts.len(), 1);
    let row = &attempts[0];
    assert_eq!((row.epoch, row.generation, row.attempt), (1, 1, 1));
    assert_eq!(
        (row.outcome, row.receipt.as_deref()),
        (AttemptOutcome::Delivered, Some("id 4711"))
    );
    assert_eq!((row.worker.as_str(), row.token), ("w1", lease.token));
    assert_eq!((row.started_at, row.finished_at), (granted, fx.now().await));
}

/// Each ending with its state, its reason and its evidence.
pub async fn every_outcome_leaves_its_evidence(fx: &dyn Fixture) {
    type End = (
        fn(&Lease) -> Settlement,
        State,
        Option<DeadReason>,
        AttemptOutcome,
        Option<&'static str>,
    );
    let ends: [End; 6] = [
        (delivered, State::Done, None, AttemptOutcome::Delivered, None),
        (
            |l| Settlement::duplicate(l, Some("earlier")),
            State::Done,
            None,
            AttemptOutcome::Duplicate,
            None,
        ),
        (
            |l| Settlement::expanded(l, vec![]),
            State::Done,
            None,
            AttemptOutcome::Expanded,
            None,
        ),
        (
            |l| failed(l, 12),
            State::Pending,
            None,
            AttemptOutcome::Retry,
            Some("http_503"),
        ),
        (
            rejected,
            State::Dead,
            Some(DeadReason::Rejected),
            AttemptOutcome::Rejected,
            Some("http_422"),
        ),
        (
            Settlement::lapsed,
            State::Dead,
            Some(DeadReason::Lapsed),
            AttemptOutcome::Lapsed,
            Some("lapsed"),
        ),
    ];
    for (end, state, reason, outcome, code) in ends {
        let lease = put_and_claim(fx, message("42")).await;
        assert_settled(fx, end(&lease)).await;
        let found = view(fx, lease.id).await;
        assert_eq!((found.state, found.reason), (state, reason), "{outcome}");
        assert_eq!(found.last_code.as_deref(), code, "{outcome}");
        let attempts = fx.admin().await.attempts(lease.id).await.unwrap();
        assert_eq!(attempts.iter().map(|a| a.outcome).collect::<Vec<_>>(), [outcome]);
    }
}

/// Not before the backoff is over; then with the next attempt and epoch.
pub async fn a_failure_is_due_again_after_its_backoff(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("42")).await;
    let store = fx.store().await;
    assert_settled(fx, failed(&lease, 12)).await;
    let found = view(fx, lease.id).await;
    assert_eq!(
        (found.state, found.due_at),
        (State::Pending, Some(fx.now().await.plus(SECOND * 10)))
    );
    assert_eq!(found.last_error.as_deref(), Some("not now"));
    fx.advance(SECOND * 9).await;
    assert!(claim(&*store, "w1", 10).await.is_empty());
    fx.advance(SECOND).await;
    let again = claim_one(&*store, "w2").await;
    assert_eq!(
        (again.delivery.attempt, again.delivery.epoch, again.delivery.generation),
        (2, 2, 1)
    );
}

/// P8. The failure of the last attempt is dead, and stays so.
pub async fn the_last_failure_is_dead(fx: &dyn Fixture) {
    let id = put(fx, message("42")).await;
    let store = fx.store().await;
    for _ in 0..3 {
        let lease = claim_one(&*store, "w1").await.lease;
        assert_settled(fx, failed(&lease, 3)).await;
        fx.advance(SECOND * 10).await;
    }
    let found = view(fx, id).await;
    assert_eq!(
        (found.state, found.reason, found.attempts),
        (State::Dead, Some(DeadReason::Exhausted), 3)
    );
    fx.advance(DAY * 30).await;
    assert!(claim(&*store, "w1", 10).await.is_empty());
}

/// Nothing was sent: no evidence, the count is given back, due as told; the epoch stays raised.
pub async fn a_release_gives_the_count_back(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("42")).await;
    let store = fx.store().await;
    assert_settled(fx, Settlement::released(&lease, SECOND * 5)).await;
    let found = view(fx, lease.id).await;
    assert_eq!((found.state, found.attempts, found.epoch), (State::Pending, 0, 1));
    assert!(fx.admin().await.attempts(lease.id).await.unwrap().is_empty());
    fx.advance(SECOND * 4).await;
    assert!(claim(&*store, "w1", 10).await.is_empty());
    fx.advance(SECOND).await;
    let again = claim_one(&*store, "w1").await;
    assert_eq!((again.delivery.attempt, again.delivery.epoch), (1, 2));
}

/// A message that is claimed and put back for ever must end: after a hundred times in a row, putting it back counts.
pub async fn the_hundred_and_first_release_counts(fx: &dyn Fixture) {
    let id = put(fx, message("42")).await;
    let store = fx.store().await;
    for _ in 0..100 {
        let lease = claim_one(&*store, "w1").await.lease;
        assert_settled(fx, released(&lease)).await;
    }
    assert_eq!(view(fx, id).await.attempts, 0);
    let lease = claim_one(&*store, "w1").await.lease;
    assert_settled(fx, released(&lease)).await;
    let found = view(fx, id).await;
    assert_eq!((found.state, found.attempts, found.epoch), (State::Pending, 1, 101));
    let attempts = fx.admin().await.attempts(id).await.unwrap();
    assert_eq!(attempts.len(), 1);
    assert_eq!((attempts[0].outcome, attempts[0].epoch), (AttemptOutcome::Retry, 101));
    assert_eq!(attempts[0].code.as_deref(), Some("released_too_often"));
}

/// P17. However long it is to wait, the release is recorded.
pub async fn any_delay_of_a_release_can_be_recorded(fx: &dyn Fixture) {
    for after in [Duration::ZERO, Duration::from_nanos(1), DAY * 100_000, Duration::MAX] {
        let lease = put_and_claim(fx, message("42")).await;
        assert_settled(fx, Settlement::released(&lease, after)).await;
        assert_eq!(state(fx, lease.id).await, State::Pending, "{after:?}");
        fx.admin().await.cancel(lease.id, "op", "enough").await.unwrap();
    }
}

/// P4. Who did not hear the answer asks again, and is told that it won; nothing is written twice.
pub async fn a_repeated_settlement_is_settled(fx: &dyn Fixture) {
    let ends: [fn(&Lease) -> Settlement; 4] =
        [delivered, rejected, |l| failed(l, 12), |l| Settlement::released(l, DAY)];
    for end in ends {
        let lease = put_and_claim(fx, message("42")).await;
        assert_settled(fx, end(&lease)).await;
        let before = fx.dump().await;
        assert_settled(fx, end(&lease)).await;
        fx.advance(LEASE * 2).await;
        assert_settled(fx, end(&lease)).await;
        assert_unchanged(fx, &before, "a repetition").await;
        fx.advance(LEASE * 2).await;
        // Out of the way of the next round, where it went back.
        for late in claim(&*fx.store().await, "w2", 10).await {
            assert_settled(fx, delivered(&late.lease)).await;
        }
    }
}

/// The repetition is still one when the message has gone on since: another lease, another outcome.
pub async fn a_repetition_is_known_after_later_attempts(fx: &dyn Fixture) {
    let first = put_and_claim(fx, message("42")).await;
    assert_settled(fx, failed(&first, 12)).await;
    fx.advance(SECOND * 10).await;
    let second = claim_one(&*fx.store().await, "w2").await.lease;
    let before = fx.dump().await;
    assert_settled(fx, failed(&first, 12)).await;
    assert_unchanged(fx, &before, "a repetition").await;
    assert_settled(fx, delivered(&second)).await;
}

/// A second opinion under a token that has settled is not a repetition.
pub async fn another_outcome_under_an_old_token_is_refused(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("42")).await;
    assert_settled(fx, delivered(&lease)).await;
    let before = fx.dump().await;
    for other in [rejected(&lease), failed(&lease, 12), released(&lease)] {
        assert!(settle(&*fx.store().await, other).await.is_lost());
    }
    assert_unchanged(fx, &before, "a second opinion").await;
}

/// A release is remembered only until the message is claimed again: after that nobody can tell it from a stale one.
pub async fn a_repeated_release_is_refused_after_the_next_claim(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("42")).await;
    assert_settled(fx, released(&lease)).await;
    claim_one(&*fx.store().await, "w2").await;
    let before = fx.dump().await;
    assert!(settle(&*fx.store().await, released(&lease)).await.is_lost());
    assert_unchanged(fx, &before, "a release of the lease before").await;
}

/// The others of the batch are settled, and the answers come in its order.
pub async fn one_lost_lease_does_not_spoil_the_batch(fx: &dyn Fixture) {
    put_all(fx, vec![message("x"); 3]).await;
    let store = fx.store().await;
    let held = leases(&claim(&*store, "w1", 3).await);
    assert_settled(fx, delivered(&held[1])).await;
    let batch = [delivered(&held[0]), rejected(&held[1]), failed(&held[2], 12)];
    let verdicts = store.settle(&batch).await.unwrap();
    assert!(
        matches!(verdicts[..], [Verdict::Settled, Verdict::LeaseLost, Verdict::Settled]),
        "{verdicts:?}"
    );
    let mut states = Vec::new();
    for lease in &held {
        states.push(state(fx, lease.id).await);
    }
    assert_eq!(states, [State::Done, State::Done, State::Pending]);
}

/// The same when all that is reported is that they were delivered: those that are held end, the others change nothing.
pub async fn deliveries_are_settled_beside_a_lost_lease(fx: &dyn Fixture) {
    put_all(fx, vec![message("x"); 4]).await;
    let store = fx.store().await;
    let held = leases(&claim(&*store, "w1", 4).await);
    assert_settled(fx, rejected(&held[1])).await;
    assert_settled(fx, acknowledged(&held[3])).await;
    let batch: Vec<_> = held.iter().map(acknowledged).collect();
    let verdicts = store.settle(&batch).await.unwrap();
    let told: Vec<_> = verdicts.iter().map(Verdict::is_settled).collect();
    assert_eq!(
        told,
        [true, false, true, true],
        "lost is lost, and a repetition is known"
    );
    for (lease, expected) in held.iter().zip([State::Done, State::Dead, State::Done, State::Done]) {
        assert_eq!(state(fx, lease.id).await, expected);
        assert_eq!(fx.admin().await.attempts(lease.id).await.unwrap().len(), 1);
    }
    let before = fx.dump().await;
    assert!(store.settle(&batch).await.unwrap()[0].is_settled());
    assert_unchanged(fx, &before, "a repeated batch of deliveries").await;
}

/// Hundreds of settlements at once, each answered for itself.
pub async fn a_large_batch_is_settled_whole(fx: &dyn Fixture) {
    put_all(fx, vec![message("x"); 400]).await;
    let store = fx.store().await;
    let held = leases(&claim(&*store, "w1", 400).await);
    let batch: Vec<_> = held
        .iter()
        .enumerate()
        .map(|(n, l)| if n % 2 == 0 { delivered(l) } else { rejected(l) })
        .collect();
    let verdicts = store.settle(&batch).await.unwrap();
    assert_eq!(verdicts.iter().filter(|v| v.is_settled()).count(), 400);
    assert_eq!(
        (state(fx, held[0].id).await, state(fx, held[399].id).await),
        (State::Done, State::Dead)
    );
    assert!(store.settle(&[]).await.unwrap().is_empty());
}

/// The first wins; a second with the same outcome is its repetition, one with another is refused.
pub async fn the_same_lease_twice_in_a_batch_is_settled_once(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("42")).await;
    let batch = [delivered(&lease), delivered(&lease), rejected(&lease)];
    let verdicts = fx.store().await.settle(&batch).await.unwrap();
    assert!(
        matches!(verdicts[..], [Verdict::Settled, Verdict::Settled, Verdict::LeaseLost]),
        "{verdicts:?}"
    );
    assert_eq!(state(fx, lease.id).await, State::Done);
    assert_eq!(fx.admin().await.attempts(lease.id).await.unwrap().len(), 1);
}

/// They appear with the settlement, as children of the message.
pub async fn follow_ups_come_with_the_settlement(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("parent")).await;
    let children = vec![message("one"), message("two").tenant("acme").delay(SECOND)];
    assert_settled(fx, Settlement::expanded(&lease, children)).await;
    let first = claim(&*fx.store().await, "w1", 10).await;
    fx.advance(SECOND).await;
    let second = claim(&*fx.store().await, "w1", 10).await;
    assert_eq!(
        (bodies(&first), bodies(&second)),
        (vec!["one".to_owned()], vec!["two".to_owned()])
    );
    for child in first.iter().chain(&second) {
        assert_eq!(
            (child.delivery.kind, child.delivery.parent),
            (Kind::Child, Some(lease.id))
        );
    }
}

/// A loser leaves nothing behind.
pub async fn follow_ups_of_a_lost_lease_are_not_enqueued(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("parent")).await;
    fx.advance(LEASE).await;
    let before = fx.dump().await;
    let settlement = delivered(&lease).follow_ups(vec![message("child")]);
    assert!(settle(&*fx.store().await, settlement).await.is_lost());
    assert_unchanged(fx, &before, "a lost settlement").await;
}

/// Nor does a repetition write them a second time.
pub async fn a_repetition_does_not_repeat_its_follow_ups(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("parent")).await;
    let settlement = || delivered(&lease).follow_ups(vec![message("child")]);
    assert_settled(fx, settlement()).await;
    assert_settled(fx, settlement()).await;
    assert_eq!(count(fx).await, 2);
}

/// P6. Outcome and follow-ups are one change: one bad child, and the lease is as it was, to be settled otherwise.
pub async fn a_refused_follow_up_leaves_its_lease_untouched(fx: &dyn Fixture) {
    put(fx, message("taken").dedupe_key("d").delay(DAY)).await;
    let lease = put_and_claim(fx, message("parent")).await;
    let before = fx.dump().await;
    let invalid = delivered(&lease).follow_ups(vec![message("good"), message("bad").tenant("\0")]);
    match settle(&*fx.store().await, invalid).await {
        Verdict::Refused(Error::Invalid(invalid)) => assert_eq!(invalid.field, "tenant"),
        other => panic!("{other:?}"),
    }
    let conflict = delivered(&lease).follow_ups(vec![message("good"), message("other").dedupe_key("d")]);
    match settle(&*fx.store().await, conflict).await {
        Verdict::Refused(Error::DedupeConflict { key, .. }) => assert_eq!(key, "dedupe_key"),
        other => panic!("{other:?}"),
    }
    assert_unchanged(fx, &before, "a refused settlement").await;
    assert_settled(fx, failed(&lease, 12)).await;
}

/// The others of the batch are settled with their own follow-ups.
pub async fn a_poisoned_follow_up_spoils_no_other(fx: &dyn Fixture) {
    put(fx, message("taken").dedupe_key("d").delay(DAY)).await;
    put_all(fx, vec![message("x"); 3]).await;
    let store = fx.store().await;
    let held = leases(&claim(&*store, "w1", 3).await);
    let batch = [
        delivered(&held[0]).follow_ups(vec![message("a")]),
        delivered(&held[1]).follow_ups(vec![message("other").dedupe_key("d")]),
        delivered(&held[2]).follow_ups(vec![message("c")]),
    ];
    let verdicts = store.settle(&batch).await.unwrap();
    assert!(
        matches!(verdicts[..], [Verdict::Settled, Verdict::Refused(_), Verdict::Settled]),
        "{verdicts:?}"
    );
    assert_eq!(state(fx, held[1].id).await, State::Leased);
    let mut children = bodies(&claim(&*store, "w2", 10).await);
    children.sort();
    assert_eq!(children, ["a", "c"]);
}

/// It is there already, which is all that was wanted.
pub async fn a_duplicate_follow_up_is_no_error(fx: &dyn Fixture) {
    put_all(fx, vec![message("x"); 2]).await;
    let store = fx.store().await;
    let held = leases(&claim(&*store, "w1", 2).await);
    let child = || vec![message("child").dedupe_key("d")];
    let batch = [
        delivered(&held[0]).follow_ups(child()),
        delivered(&held[1]).follow_ups(child()),
    ];
    let verdicts = store.settle(&batch).await.unwrap();
    assert!(
        matches!(verdicts[..], [Verdict::Settled, Verdict::Settled]),
        "{verdicts:?}"
    );
    let children = claim(&*store, "w2", 10).await;
    assert_eq!(bodies(&children), ["child"]);
    assert_eq!(children[0].delivery.parent, Some(held[0].id));
    let again = offer(fx, message("child").dedupe_key("d")).await.unwrap();
    assert_eq!(again, Enqueued::Duplicate(children[0].lease.id));
}

/// P17. NUL, bytes that are no text, a megabyte, quotes and escapes: recorded, cleaned and cut.
pub async fn any_error_text_can_be_recorded(fx: &dyn Fixture) {
    let texts = [
        "a\0b\r\n\x1b[31m".to_owned(),
        text::error_bytes(b"\xff\xfe\x80 broken"),
        "€\0".repeat(1 << 19),
        "'; drop table x; -- \\ \" %s {} $1 ?1".to_owned(),
        "\u{fffe}\u{10ffff}\u{202e}\u{feff}".to_owned(),
        String::new(),
    ];
    for raw in texts {
        let lease = put_and_claim(fx, message("42")).await;
        let outcome = Outcome::Reject {
            code: raw.clone(),
            error: raw.clone(),
        };
        assert_settled(fx, Settlement::of(&lease, outcome, &RetryPolicy::default(), 0.5)).await;
        let found = view(fx, lease.id).await;
        assert_eq!(found.last_error, Some(text::error_text(&raw)));
        assert_eq!(found.last_code, Some(text::code(&raw)));
    }
}

/// P17. So is whatever a destination returned.
pub async fn any_receipt_can_be_recorded(fx: &dyn Fixture) {
    for raw in [
        "\0\x07".to_owned(),
        "€\0".repeat(1 << 19),
        "{\"id\": '\\u0000'}".to_owned(),
    ] {
        let lease = put_and_claim(fx, message("42")).await;
        assert_settled(fx, Settlement::delivered(&lease, Some(&raw))).await;
        let attempts = fx.admin().await.attempts(lease.id).await.unwrap();
        assert_eq!(attempts[0].receipt, Some(text::receipt(&raw)));
    }
}

/// The store itself knows the budget, so that an expiry, which has no route to ask, keeps it.
pub async fn the_routes_budget_is_stamped(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("42").max_attempts(12)).await;
    assert_settled(fx, failed(&lease, 2)).await;
    assert_eq!(view(fx, lease.id).await.max_attempts, 2);
    fx.advance(SECOND * 10).await;
    claim_one(&*fx.store().await, "w1").await;
    assert_eq!(expire(fx).await, 1);
    let found = view(fx, lease.id).await;
    assert_eq!((found.state, found.reason), (State::Dead, Some(DeadReason::Exhausted)));
}

/// A route that says how soon, and not how often, leaves the budget to the producer.
pub async fn without_a_routes_budget_the_messages_own_stays(fx: &dyn Fixture) {
    let policy = RetryPolicy {
        backoff: Backoff::Table(vec![SECOND]),
        ..RetryPolicy::default()
    };
    let failed = |lease: &Lease| Settlement::of(lease, Outcome::retry("down", "not now"), &policy, 0.5);
    let lease = put_and_claim(fx, message("42").max_attempts(2)).await;
    assert_settled(fx, failed(&lease)).await;
    let found = view(fx, lease.id).await;
    assert_eq!(
        (found.state, found.attempts, found.max_attempts),
        (State::Pending, 1, 2)
    );
    fx.advance(SECOND).await;
    let again = claim_one(&*fx.store().await, "w1").await.lease;
    assert_settled(fx, failed(&again)).await;
    let found = view(fx, lease.id).await;
    assert_eq!((found.state, found.reason), (State::Dead, Some(DeadReason::Exhausted)));
    assert_eq!((found.attempts, found.max_attempts), (2, 2));
}

/// A handler's own change, the settlement and its follow-ups commit together.
pub async fn settle_in_commits_with_the_handlers_change(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("42")).await;
    let mut tx = fx.begin().await;
    tx.note("handled 42").await;
    let verdict = tx
        .settle_in(&delivered(&lease).follow_ups(vec![message("child")]))
        .await
        .unwrap();
    assert!(verdict.is_settled(), "{verdict:?}");
    tx.commit().await.unwrap();
    assert_eq!(fx.notes().await, ["handled 42"]);
    assert_eq!(state(fx, lease.id).await, State::Done);
    assert_eq!(fx.admin().await.attempts(lease.id).await.unwrap().len(), 1);
    assert_eq!(bodies(&claim(&*fx.store().await, "w1", 10).await), ["child"]);
    assert_settled(fx, delivered(&lease)).await;
}

/// Or none of them does, and the lease is as it was.
pub async fn settle_in_rolls_back_with_the_handlers_change(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("42")).await;
    let before = fx.dump().await;
    let mut tx = fx.begin().await;
    tx.note("handled 42").await;
    let verdict = tx
        .settle_in(&delivered(&lease).follow_ups(vec![message("child")]))
        .await
        .unwrap();
    assert!(verdict.is_settled(), "{verdict:?}");
    tx.rollback().await;
    assert!(fx.notes().await.is_empty());
    assert_unchanged(fx, &before, "a rolled back settlement").await;
    assert_settled(fx, rejected(&lease)).await;
}

/// A handler that lost its lease is told before it commits anything.
pub async fn settle_in_refuses_a_lost_lease(fx: &dyn Fixture) {
    let stale = put_and_claim(fx, message("42")).await;
    assert_eq!(expire(fx).await, 1);
    let current = claim_one(&*fx.store().await, "w2").await.lease;
    let before = fx.dump().await;
    let mut tx = fx.begin().await;
    tx.note("handled 42").await;
    let verdict = tx.settle_in(&delivered(&stale)).await.unwrap();
    assert!(verdict.is_lost(), "{verdict:?}");
    tx.rollback().await;
    assert_unchanged(fx, &before, "a lost settlement").await;
    assert_settled(fx, delivered(&current)).await;
}

/// P14. A handler that did not hear of its commit and does all of it again does nothing again; not even twice in one transaction.
pub async fn settle_in_is_not_told_twice(fx: &dyn Fixture) {
    for (place, end) in [delivered as fn(&Lease) -> Settlement, rejected, released]
        .into_iter()
        .enumerate()
    {
        let lease = put_and_claim(fx, message("42")).await;
        let mut tx = fx.begin().await;
        tx.note(&format!("handled {place}")).await;
        assert!(tx.settle_in(&end(&lease)).await.unwrap().is_settled());
        assert!(tx.settle_in(&end(&lease)).await.unwrap().is_lost());
        tx.commit().await.unwrap();
        let before = fx.dump().await;
        let mut again = fx.begin().await;
        again.note("handled twice").await;
        let verdict = again.settle_in(&end(&lease)).await.unwrap();
        assert!(verdict.is_lost(), "{verdict:?}");
        again.rollback().await;
        assert_unchanged(fx, &before, "a repetition").await;
        assert_settled(fx, end(&lease)).await;
        if let Some(left) = claim(&*fx.store().await, "w2", 1).await.into_iter().next() {
            assert_settled(fx, delivered(&left.lease)).await;
        }
    }
    assert_eq!(fx.notes().await, ["handled 0", "handled 1", "handled 2"]);
}

/// P6. Whatever happens in between, the counted leases of a generation are 1, 2, 3, ... and epochs only rise.
pub async fn attempts_are_gapless_and_epochs_rise(fx: &dyn Fixture) {
    let id = put(fx, message("42")).await;
    let store = fx.store().await;
    for generation in 1..=2 {
        for _ in 0..2 {
            let lease = claim_one(&*store, "w1").await.lease;
            assert_settled(fx, released(&lease)).await;
            let lease = claim_one(&*store, "w1").await.lease;
            assert_settled(fx, failed(&lease, 12)).await;
            fx.advance(SECOND * 10).await;
            claim_one(&*store, "w2").await;
            assert_eq!(expire(fx).await, 1);
        }
        let lease = claim_one(&*store, "w1").await.lease;
        assert_settled(fx, rejected(&lease)).await;
        if generation == 1 {
            fx.admin().await.replay(id, "op", "again", None).await.unwrap();
        }
    }
    let attempts = fx.admin().await.attempts(id).await.unwrap();
    let numbers: Vec<_> = attempts.iter().map(|a| (a.generation, a.attempt)).collect();
    assert_eq!(
        numbers,
        (1..=2).flat_map(|g| (1..=5).map(move |a| (g, a))).collect::<Vec<_>>()
    );
    assert!(
        attempts.windows(2).all(|pair| pair[0].epoch < pair[1].epoch),
        "epochs rise"
    );
    assert_eq!(
        attempts.last().map(|a| a.epoch),
        Some(14),
        "a released lease has its epoch too"
    );
}

/// A settlement decided for a lease with a long wait keeps to it: the wish of a destination moves the due time.
pub async fn a_destinations_wish_moves_the_due_time(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("42")).await;
    let outcome = Outcome::Retry {
        after: Some(Duration::from_secs(90)),
        code: "http_429".to_owned(),
        error: "later".to_owned(),
    };
    assert_settled(fx, Settlement::of(&lease, outcome, &RetryPolicy::default(), 0.5)).await;
    assert_eq!(view(fx, lease.id).await.due_at, Some(fx.now().await.plus(SECOND * 90)));
}

/// Content that looks like a message of the store's own language is only content.
pub async fn hostile_names_are_only_names(fx: &dyn Fixture) {
    let name = "'; drop table messages; -- \\x00 $1 ?1 %s {}";
    let hostile = Message::bytes(name, name, name)
        .tenant(name)
        .namespace(name)
        .order_key(name)
        .dedupe_key(name);
    let lease = put_and_claim(fx, hostile.clone()).await;
    assert_settled(fx, delivered(&lease)).await;
    assert_eq!(offer(fx, hostile).await.unwrap(), Enqueued::Duplicate(lease.id));
    let found = view(fx, lease.id).await;
    assert_eq!(
        [&found.tenant, &found.namespace, &found.topic, &found.content_type],
        [name; 4]
    );
}
