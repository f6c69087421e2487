//! Interleavings stepped by hand: one session stands open in the middle of its transaction while others go on.

use posthouse_core::{AttemptOutcome, Enqueued, Fate, Lease, LeaseToken, Renewal, Settlement, State};

use super::tools::*;
use crate::Fixture;

/// Two wait for the first with the same dedupe key. It rolls back: one of them creates the message, the other finds it.
pub async fn of_two_that_waited_one_creates(fx: &dyn Fixture) {
    if !parallel_callers(fx).await {
        let id = put(fx, message("42").dedupe_key("d")).await;
        let again = offer(fx, message("42").dedupe_key("d")).await.unwrap();
        return assert_eq!(again, Enqueued::Duplicate(id));
    }
    let mut first = fx.begin().await;
    first.enqueue(message("42").dedupe_key("d")).await.unwrap();
    if callers_retry(fx).await {
        let (mut second, mut third) = (fx.begin().await, fx.begin().await);
        let id = second.enqueue(message("42").dedupe_key("d")).await.unwrap().id();
        third.enqueue(message("42").dedupe_key("d")).await.unwrap();
        first.rollback().await;
        second.commit().await.unwrap();
        assert_told_to_retry(third, "the third").await;
        let again = offer(fx, message("42").dedupe_key("d")).await.unwrap();
        return assert_eq!(again, Enqueued::Duplicate(id));
    }
    let mut waiting = Vec::new();
    for _ in 0..2 {
        let mut tx = fx.begin().await;
        waiting.push(tokio::spawn(async move {
            let answer = tx.enqueue(message("42").dedupe_key("d")).await.unwrap();
            tx.commit().await.unwrap();
            answer
        }));
    }
    for one in &mut waiting {
        assert_waits(one, "who has the same dedupe key").await;
    }
    first.rollback().await;
    let mut answers = Vec::new();
    for one in waiting {
        answers.push(one.await.unwrap());
    }
    answers.sort_by_key(|answer| matches!(answer, Enqueued::Duplicate(_)));
    let id = answers[0].id();
    assert_eq!(answers, [Enqueued::New(id), Enqueued::Duplicate(id)]);
    assert_eq!(count(fx).await, 1);
}

/// The first commits: those that waited are answered with its message, or with the conflict.
pub async fn those_that_waited_are_told_by_the_commit(fx: &dyn Fixture) {
    let parallel = parallel_callers(fx).await;
    let mut first = fx.begin().await;
    let id = first.enqueue(message("42").dedupe_key("d")).await.unwrap().id();
    if !parallel {
        first.commit().await.unwrap();
        assert!(offer(fx, message("43").dedupe_key("d")).await.is_err());
        return assert_eq!(
            offer(fx, message("42").dedupe_key("d")).await.unwrap(),
            Enqueued::Duplicate(id)
        );
    }
    if callers_retry(fx).await {
        let mut second = fx.begin().await;
        second.enqueue(message("43").dedupe_key("d")).await.unwrap();
        first.commit().await.unwrap();
        assert_told_to_retry(second, "the second").await;
        assert!(offer(fx, message("43").dedupe_key("d")).await.is_err());
        return assert_eq!(
            offer(fx, message("42").dedupe_key("d")).await.unwrap(),
            Enqueued::Duplicate(id)
        );
    }
    let mut waiting = Vec::new();
    for body in ["42", "43"] {
        let mut tx = fx.begin().await;
        waiting.push(tokio::spawn(async move {
            let answer = tx.enqueue(message(body).dedupe_key("d")).await;
            tx.rollback().await;
            answer
        }));
        assert_waits(waiting.last_mut().unwrap(), "who has the same dedupe key").await;
    }
    first.commit().await.unwrap();
    let other = waiting.remove(1).await.unwrap();
    assert!(
        matches!(other, Err(posthouse_core::Error::DedupeConflict { .. })),
        "{other:?}"
    );
    assert_eq!(waiting.remove(0).await.unwrap().unwrap(), Enqueued::Duplicate(id));
}

/// P11. Numbers are drawn in one order and committed in the other; the same relay claims in between, each time what is new.
pub async fn commits_in_reverse_order_are_all_claimed(fx: &dyn Fixture) {
    let store = fx.store().await;
    if !parallel_callers(fx).await {
        for n in 0..5 {
            put(fx, message(&n.to_string())).await;
            assert_eq!(bodies(&claim(&*store, "w1", 10).await), [n.to_string()]);
        }
        return;
    }
    let mut open = Vec::new();
    for n in 0..5 {
        let mut tx = fx.begin().await;
        tx.enqueue(message(&n.to_string())).await.unwrap();
        open.push(tx);
    }
    for n in (0..5).rev() {
        assert!(claim(&*store, "w1", 10).await.is_empty());
        open.remove(n).commit().await.unwrap();
        let claimed = claim(&*store, "w1", 10).await;
        assert_eq!(bodies(&claimed), [n.to_string()]);
        deliver(&*store, &claimed).await;
    }
}

/// P11. In a line that is never empty, a commit that comes late is still found: a relay must not take what it has passed for all
/// that there can be.
pub async fn a_late_commit_in_a_busy_line_is_found(fx: &dyn Fixture) {
    let (store, parallel) = (fx.store().await, parallel_callers(fx).await);
    let mut late = None;
    if parallel {
        let mut tx = fx.begin().await;
        tx.enqueue(message("late")).await.unwrap();
        late = Some(tx);
    }
    for _ in 0..10 {
        put_all(fx, vec![message("x"); 2]).await;
        deliver(&*store, &claim(&*store, "w1", 1).await).await;
    }
    match late {
        Some(tx) => tx.commit().await.unwrap(),
        // With one writer nobody commits late.
        None => drop(put(fx, message("late")).await),
    }
    let mut found = Vec::new();
    for _ in 0..if parallel { 3 } else { 11 } {
        found.extend(bodies(&claim(&*store, "w1", 1).await));
    }
    assert!(found.contains(&"late".to_owned()), "{found:?}");
}

/// P11. A transaction that stays open for long delays nobody, and is not forgotten: keyed or not.
pub async fn an_old_open_transaction_holds_back_nobody(fx: &dyn Fixture) {
    let (store, parallel) = (fx.store().await, parallel_callers(fx).await);
    let old = vec![message("old"), keyed("old", "old")];
    let mut open = None;
    if parallel {
        let mut tx = fx.begin().await;
        tx.enqueue_all(old.clone()).await.unwrap();
        open = Some(tx);
    }
    for round in 0..10 {
        put_all(fx, vec![message("young"), message("young"), keyed("young", "young")]).await;
        let claimed = without_waiting("a claim", claim(&*store, "w1", 10)).await;
        assert_eq!(bodies(&claimed), ["young"; 3], "round {round}");
        deliver(&*store, &claimed).await;
        fx.advance(SECOND * 60).await;
    }
    match open {
        Some(tx) => tx.commit().await.unwrap(),
        None => drop(put_all(fx, old).await),
    }
    assert_eq!(bodies(&claim(&*store, "w1", 10).await), ["old"; 2]);
}

/// A handler's own transaction settles. Until its commit nobody else gets the message, not even past the deadline. Where callers do not wait for each other, whoever
/// takes it back past the deadline wins, and the handler's commit is told so: nothing of what he did has happened.
pub async fn a_handler_keeps_its_lease_until_its_commit(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, keyed("k", "1")).await;
    put(fx, keyed("k", "2")).await;
    let (store, parallel) = (fx.store().await, parallel_callers(fx).await);
    let mut handler = fx.begin().await;
    handler.note("handled").await;
    assert!(handler.settle_in(&delivered(&lease)).await.unwrap().is_settled());
    if callers_retry(fx).await {
        // To go on with the lease is not in his way.
        let renewed = store.renew(std::slice::from_ref(&lease), LEASE * 2).await.unwrap();
        assert_eq!(renewed, [Renewal::Renewed]);
        fx.advance(LEASE).await;
        assert_eq!(posthouse_core::repair(&*store, 10).await.unwrap(), 0);
        fx.advance(LEASE * 2).await;
        assert_eq!(posthouse_core::repair(&*store, 10).await.unwrap(), 1);
        assert_told_to_retry(handler, "a handler past his deadline").await;
        assert!(fx.notes().await.is_empty());
        assert_eq!(bodies(&claim(&*store, "w2", 10).await), ["1", "2"]);
        return assert_sound(fx, &[lease.id]).await;
    }
    if parallel {
        assert_eq!(
            state(fx, lease.id).await,
            State::Leased,
            "nothing is seen before the commit"
        );
        fx.advance(LEASE * 2).await;
        assert_eq!(
            without_waiting("a repairer", posthouse_core::repair(&*store, 10))
                .await
                .unwrap(),
            0
        );
        assert!(without_waiting("a claim", claim(&*store, "w2", 10)).await.is_empty());
        let renewed = without_waiting("a renewal", store.renew(std::slice::from_ref(&lease), LEASE)).await;
        assert_ne!(renewed.unwrap(), [Renewal::Renewed]);
    }
    handler.commit().await.unwrap();
    assert_eq!(
        (state(fx, lease.id).await, fx.notes().await),
        (State::Done, vec!["handled".to_owned()])
    );
    assert_eq!(bodies(&claim(&*store, "w2", 10).await), ["2"]);
    assert_sound(fx, &[lease.id]).await;
}

/// It rolls back after the deadline: then the lease has run out, like any other.
pub async fn a_handler_that_rolls_back_late_has_lost_its_lease(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("1")).await;
    let (store, parallel) = (fx.store().await, parallel_callers(fx).await);
    let mut handler = fx.begin().await;
    assert!(handler.settle_in(&delivered(&lease)).await.unwrap().is_settled());
    let waits = parallel && !callers_retry(fx).await;
    if waits {
        fx.advance(LEASE * 2).await;
        assert_eq!(posthouse_core::repair(&*store, 10).await.unwrap(), 0);
    }
    handler.rollback().await;
    if !waits {
        fx.advance(LEASE * 2).await;
    }
    assert!(settle(&*store, delivered(&lease)).await.is_lost());
    assert_eq!(posthouse_core::repair(&*store, 10).await.unwrap(), 1);
    assert_eq!(claim_one(&*store, "w2").await.delivery.attempt, 2);
    assert_sound(fx, &[lease.id]).await;
}

/// P4. Past the deadline a handler's settlement is lost, also while nobody has taken the lease back.
pub async fn a_handler_past_the_deadline_has_lost_its_lease(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("1")).await;
    fx.advance(LEASE + SECOND).await;
    let before = fx.dump().await;
    let mut handler = fx.begin().await;
    handler.note("handled").await;
    assert!(handler.settle_in(&delivered(&lease)).await.unwrap().is_lost());
    handler.rollback().await;
    assert!(fx.notes().await.is_empty());
    assert_unchanged(fx, &before, "a lost settlement").await;
    assert_eq!(posthouse_core::repair(&*fx.store().await, 10).await.unwrap(), 1);
    assert_sound(fx, &[lease.id]).await;
}

/// A second opinion on the same lease waits for the first, and counts only if the first is taken back.
pub async fn of_two_handlers_one_settles(fx: &dyn Fixture) {
    for commits in [true, false] {
        let lease = put_and_claim(fx, message("1")).await;
        let parallel = parallel_callers(fx).await;
        let mut first = fx.begin().await;
        assert!(first.settle_in(&delivered(&lease)).await.unwrap().is_settled());
        let (store, report) = (fx.store().await, rejected(&lease));
        if callers_retry(fx).await {
            assert!(settle(&*store, report).await.is_settled());
            assert_told_to_retry(first, "the first opinion").await;
            assert_eq!(state(fx, lease.id).await, State::Dead);
            assert_sound(fx, &[lease.id]).await;
            continue;
        }
        let mut second = tokio::spawn(async move { settle(&*store, report).await });
        if parallel {
            assert_waits(&mut second, "the second opinion").await;
        }
        match commits {
            true => first.commit().await.unwrap(),
            false => first.rollback().await,
        }
        assert_eq!(second.await.unwrap().is_settled(), !commits);
        assert_eq!(
            state(fx, lease.id).await,
            if commits { State::Done } else { State::Dead }
        );
        assert_sound(fx, &[lease.id]).await;
    }
}

/// A retry in a handler's transaction lets go of the rest of the run at its commit, not before.
pub async fn a_handler_lets_go_of_its_run_at_its_commit(fx: &dyn Fixture) {
    let ids = put_all(fx, line("k", &["1", "2"])).await;
    let store = fx.store().await;
    let run = leases(&claim(&*store, "w1", 10).await);
    for commits in [false, true] {
        let parallel = parallel_callers(fx).await;
        let mut handler = fx.begin().await;
        assert!(
            handler
                .settle_in(&failed_again(&run[0], 12))
                .await
                .unwrap()
                .is_settled()
        );
        if parallel {
            assert_eq!(state(fx, ids[1]).await, State::Leased);
        }
        match commits {
            true => handler.commit().await.unwrap(),
            false => handler.rollback().await,
        }
        let expected = if commits { State::Pending } else { State::Leased };
        assert_eq!((state(fx, ids[0]).await, state(fx, ids[1]).await), (expected, expected));
    }
    assert!(settle(&*store, delivered(&run[1])).await.is_lost());
    assert_eq!(bodies(&claim(&*store, "w2", 10).await), ["1", "2"]);
    assert_sound(fx, &ids).await;
}

/// The head of a run has run out while a handler's transaction settles the next of it. A repairer could put the head back only
/// together with what the handler has in hand: it does not wait for the handler, it leaves the run until the handler is through.
pub async fn a_run_that_a_handler_is_in_is_not_repaired(fx: &dyn Fixture) {
    for commits in [true, false] {
        let ids = put_all(fx, line("k", &["1", "2", "3"])).await;
        let (store, parallel) = (fx.store().await, parallel_callers(fx).await);
        let run = leases(&claim(&*store, "w1", 10).await);
        assert_eq!(run.len(), 3);
        fx.advance(LEASE - SECOND).await;
        store.renew(&run[1..], LEASE).await.unwrap();
        let mut handler = fx.begin().await;
        assert!(handler.settle_in(&delivered(&run[1])).await.unwrap().is_settled());
        if callers_retry(fx).await {
            // It is put back with what the handler has in hand, who is told so.
            fx.advance(SECOND * 2).await;
            assert_eq!(posthouse_core::repair(&*store, 10).await.unwrap(), 1);
            match commits {
                true => assert_told_to_retry(handler, "the handler").await,
                false => handler.rollback().await,
            }
            let again = claim(&*store, "w2", 10).await;
            assert_eq!(bodies(&again), ["1", "2", "3"]);
            deliver(&*store, &again).await;
            assert_sound(fx, &ids).await;
            continue;
        }
        if parallel {
            fx.advance(SECOND * 2).await;
            let repair = without_waiting("a repairer", posthouse_core::repair(&*store, 10)).await;
            assert_eq!(repair.unwrap(), 0);
            assert_eq!(
                (state(fx, ids[0]).await, state(fx, ids[2]).await),
                (State::Leased, State::Leased)
            );
            assert!(without_waiting("a claim", claim(&*store, "w2", 10)).await.is_empty());
        }
        match commits {
            true => handler.commit().await.unwrap(),
            false => handler.rollback().await,
        }
        if !parallel {
            fx.advance(SECOND * 2).await;
        }
        assert_eq!(posthouse_core::repair(&*store, 10).await.unwrap(), 1);
        assert_eq!(settle(&*store, delivered(&run[1])).await.is_settled(), commits);
        let again = claim(&*store, "w2", 10).await;
        let expected: &[&str] = if commits { &["1", "3"] } else { &["1", "2", "3"] };
        assert_eq!(bodies(&again), expected);
        deliver(&*store, &again).await;
        assert_sound(fx, &ids).await;
    }
}

/// Who does not know whether a handler's commit arrived asks what became of the lease, and is told what is committed: nothing while
/// the transaction is open, past the deadline too; then how it ended. To ask changes nothing.
pub async fn the_fate_of_a_handlers_commit_is_told(fx: &dyn Fixture) {
    let (store, parallel) = (fx.store().await, parallel_callers(fx).await);
    let ends: [fn(&Lease) -> Settlement; 3] = [delivered, rejected, |l| failed(l, 12)];
    for (at, end) in ends.into_iter().enumerate() {
        for commits in [false, true] {
            let lease = put_and_claim(fx, message("x")).await;
            let asked = std::slice::from_ref(&lease);
            let mut handler = fx.begin().await;
            assert!(handler.settle_in(&end(&lease)).await.unwrap().is_settled());
            let told = without_waiting("who asks", store.fates(asked)).await.unwrap();
            assert_eq!(told, [Fate::Held]);
            if parallel {
                fx.advance(LEASE * 2).await;
                let told = without_waiting("who asks late", store.fates(asked)).await.unwrap();
                assert_eq!(told, [Fate::Held]);
            }
            match commits {
                true => handler.commit().await.unwrap(),
                false => handler.rollback().await,
            }
            let before = fx.dump().await;
            let ended = [
                AttemptOutcome::Delivered,
                AttemptOutcome::Rejected,
                AttemptOutcome::Retry,
            ];
            let expected = if commits { Fate::Ended(ended[at]) } else { Fate::Held };
            assert_eq!(store.fates(asked).await.unwrap(), [expected]);
            assert_unchanged(fx, &before, "a question").await;
            if !commits {
                fx.advance(LEASE * 2).await;
                assert_eq!(posthouse_core::repair(&*store, 10).await.unwrap(), 1);
                let expired = Fate::Ended(AttemptOutcome::LeaseExpired);
                assert_eq!(store.fates(asked).await.unwrap(), [expired]);
                let next = claim_one(&*store, "w2").await;
                assert_eq!(
                    store.fates(asked).await.unwrap(),
                    [expired],
                    "what comes later is not ours"
                );
                deliver(&*store, &[next]).await;
            }
        }
    }
}

/// One answer for each lease, in order, also for what was released and for a token that never held anything.
pub async fn fates_are_told_in_order(fx: &dyn Fixture) {
    put_all(fx, vec![message("x"); 4]).await;
    let store = fx.store().await;
    let mut held = leases(&claim(&*store, "w1", 10).await);
    settle_all(&*store, &[delivered(&held[0]), Settlement::released(&held[2], DAY)]).await;
    held.push(Lease {
        token: LeaseToken(uuid::Uuid::new_v4()),
        ..held[1].clone()
    });
    let told = store.fates(&held).await.unwrap();
    let delivered = Fate::Ended(AttemptOutcome::Delivered);
    assert_eq!(told, [delivered, Fate::Held, Fate::Gone, Fate::Held, Fate::Gone]);
    assert!(store.fates(&[]).await.unwrap().is_empty());
}

/// A settlement that a handler has in hand is not overtaken by a batch of its own relay.
pub async fn a_batch_goes_on_beside_a_handler(fx: &dyn Fixture) {
    put_all(fx, vec![message("x"); 3]).await;
    let (store, parallel) = (fx.store().await, parallel_callers(fx).await);
    let held = leases(&claim(&*store, "handler", 10).await);
    let mut handler = fx.begin().await;
    assert!(handler.settle_in(&delivered(&held[1])).await.unwrap().is_settled());
    if parallel {
        let batch = [delivered(&held[0]), delivered(&held[2])];
        without_waiting("a batch", settle_all(&*store, &batch)).await;
        handler.commit().await.unwrap();
    } else {
        handler.commit().await.unwrap();
        settle_all(&*store, &[delivered(&held[0]), delivered(&held[2])]).await;
    }
    // The relay does not know what became of the handler's commit, and asks by settling again.
    settle_all(&*store, &[Settlement::delivered(&held[1], None)]).await;
    assert_sound(fx, &held.iter().map(|lease| lease.id).collect::<Vec<_>>()).await;
}
