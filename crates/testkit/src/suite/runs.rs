//! P10: a claim takes a run of consecutive messages of a key, and holds the key until the last of them is settled.

use posthouse_core::{AttemptOutcome, Claim, Claimed, Lease, Renewal, Settlement, State};

use super::{crew::*, tools::*};
use crate::Fixture;

/// The run of a key with these messages, all of them claimed by `w1`.
async fn run_of(fx: &dyn Fixture, bodies: &[&str]) -> Vec<Claimed> {
    put_all(fx, line("k", bodies)).await;
    let run = claim(&*fx.store().await, "w1", 100).await;
    assert_eq!(run.len(), bodies.len(), "the whole line in one run");
    run
}

/// Whatever the holder says of it, a lease that ended is ended.
async fn assert_gone(fx: &dyn Fixture, held: &[Lease]) {
    let (store, before) = (fx.store().await, fx.dump().await);
    for lease in held {
        for report in [
            delivered(lease),
            rejected(lease),
            failed(lease, 12),
            Settlement::lapsed(lease),
        ] {
            assert!(settle(&*store, report).await.is_lost());
        }
    }
    assert!(
        store
            .renew(held, LEASE)
            .await
            .unwrap()
            .iter()
            .all(|r| *r == Renewal::Lost)
    );
    assert_unchanged(fx, &before, "a report of a lease that had ended").await;
}

/// It is pending as if it had never been claimed, but for its epoch.
async fn assert_let_go(fx: &dyn Fixture, held: &[Lease]) {
    for lease in held {
        let found = view(fx, lease.id).await;
        assert_eq!(
            (found.state, found.attempts),
            (State::Pending, lease.standing.attempts - 1)
        );
        assert_eq!(
            (found.epoch, found.due_at),
            (lease.standing.epoch, Some(fx.now().await))
        );
        let epochs = fx.admin().await.attempts(lease.id).await.unwrap();
        assert!(epochs.iter().all(|attempt| attempt.epoch < lease.standing.epoch));
    }
}

/// The leases of `run` at these places are renewed; all others of it run out.
async fn renew_only(fx: &dyn Fixture, run: &[Lease], places: &[usize]) {
    let renewed: Vec<_> = places.iter().map(|at| run[*at].clone()).collect();
    fx.advance(LEASE - SECOND).await;
    let answers = fx.store().await.renew(&renewed, LEASE).await.unwrap();
    assert!(answers.iter().all(|answer| *answer == Renewal::Renewed), "{answers:?}");
    fx.advance(SECOND * 2).await;
}

/// How the leases of a message ended.
async fn outcomes(fx: &dyn Fixture, lease: &Lease) -> Vec<AttemptOutcome> {
    let attempts = fx.admin().await.attempts(lease.id).await.unwrap();
    attempts.iter().map(|attempt| attempt.outcome).collect()
}

/// Consecutive messages under one token, in order; the rest waits for the end of the run.
pub async fn a_run_is_cut_by_the_batch(fx: &dyn Fixture) {
    put_all(fx, line("k", &["1", "2", "3", "4", "5"])).await;
    let store = fx.store().await;
    let run = claim(&*store, "w1", 3).await;
    assert_eq!(bodies(&run), ["1", "2", "3"]);
    assert!(run.iter().all(|c| c.lease.token == run[0].lease.token));
    assert!(claim(&*store, "w2", 10).await.is_empty());
    deliver(&*store, &run).await;
    assert_eq!(bodies(&claim(&*store, "w2", 10).await), ["4", "5"]);
}

/// No further than the bytes allow; one message in any case.
pub async fn a_run_is_cut_by_its_bytes(fx: &dyn Fixture) {
    let large = "x".repeat(100);
    put_all(fx, line("k", &[&large, &large, &large, "small"])).await;
    let store = fx.store().await;
    for (most, expected) in [(250, 2), (10, 1), (10, 1)] {
        let run = store.claim(&Claim::new("w1", 10, LEASE).max_bytes(most)).await.unwrap();
        assert_eq!(run.len(), expected, "of at most {most} bytes");
        deliver(&*store, &run).await;
    }
}

/// Keyed and unkeyed messages are weighed together.
pub async fn bytes_are_weighed_over_keyed_and_unkeyed(fx: &dyn Fixture) {
    let large = "x".repeat(100);
    put_all(
        fx,
        vec![keyed("k", &large), message(&large), keyed("k", &large), message(&large)],
    )
    .await;
    let ask = Claim::new("w1", 10, LEASE).max_bytes(250);
    assert_eq!(fx.store().await.claim(&ask).await.unwrap().len(), 2);
}

/// A run in several keys at once: each in its own order.
pub async fn a_claim_holds_several_runs_in_order(fx: &dyn Fixture) {
    put_all(fx, numbered(5, 4)).await;
    let claimed = claim(&*fx.store().await, "w1", 20).await;
    assert_eq!(claimed.len(), 20);
    assert_in_order(&claimed.into_iter().map(|c| c.delivery).collect::<Vec<_>>());
}

/// While one message of the run is leased the key is held, however many of it are done: also against its own holder.
pub async fn a_run_half_settled_still_holds_its_key(fx: &dyn Fixture) {
    put_all(fx, line("k", &["1", "2", "3", "4"])).await;
    let store = fx.store().await;
    let run = claim(&*store, "w1", 2).await;
    for settled in 0..2 {
        for worker in ["w1", "w2"] {
            assert!(claim(&*store, worker, 10).await.is_empty(), "after {settled} settled");
        }
        deliver(&*store, &run[settled..=settled]).await;
    }
    assert_eq!(bodies(&claim(&*store, "w2", 10).await), ["3", "4"]);
}

/// The second failed: the third and the fourth must not be sent before it. They go back uncounted, in the same change.
pub async fn a_failure_in_a_run_releases_the_rest(fx: &dyn Fixture) {
    let run = leases(&run_of(fx, &["1", "2", "3", "4"]).await);
    let store = fx.store().await;
    settle_all(&*store, &[delivered(&run[0])]).await;
    settle_all(&*store, &[failed(&run[1], 12)]).await;
    assert_let_go(fx, &run[2..]).await;
    assert_gone(fx, &run[2..]).await;
    assert!(
        claim(&*store, "w2", 10).await.is_empty(),
        "the failed one holds the key"
    );
    fx.advance(SECOND * 10).await;
    let again = claim(&*store, "w2", 10).await;
    assert_eq!(bodies(&again), ["2", "3", "4"]);
    let told: Vec<_> = again.iter().map(|c| (c.delivery.attempt, c.delivery.epoch)).collect();
    assert_eq!(told, [(2, 2), (1, 2), (1, 2)]);
    deliver(&*store, &again).await;
    assert_sound(fx, &run.iter().map(|lease| lease.id).collect::<Vec<_>>()).await;
}

/// Put back in the middle: the rest goes with it.
pub async fn a_release_in_a_run_releases_the_rest(fx: &dyn Fixture) {
    let run = leases(&run_of(fx, &["1", "2", "3", "4"]).await);
    let store = fx.store().await;
    settle_all(&*store, &[Settlement::released(&run[1], SECOND * 5)]).await;
    assert_let_go(fx, &run[2..]).await;
    assert_gone(fx, &run[2..]).await;
    assert_eq!(
        state(fx, run[0].id).await,
        State::Leased,
        "what came before it is still being sent"
    );
    assert!(claim(&*store, "w2", 10).await.is_empty());
    settle_all(&*store, &[delivered(&run[0])]).await;
    assert!(claim(&*store, "w2", 10).await.is_empty());
    fx.advance(SECOND * 5).await;
    assert_eq!(bodies(&claim(&*store, "w2", 10).await), ["2", "3", "4"]);
}

/// A run of another key under the same token is not touched.
pub async fn a_failure_releases_its_own_key_only(fx: &dyn Fixture) {
    let mut both = line("k", &["1", "2"]);
    both.extend(line("other", &["3", "4"]));
    both.push(message("5"));
    put_all(fx, both).await;
    let store = fx.store().await;
    let claimed = claim(&*store, "w1", 10).await;
    let of = |body: &str| {
        claimed
            .iter()
            .find(|c| c.delivery.payload == body.as_bytes())
            .unwrap()
            .lease
            .clone()
    };
    settle_all(&*store, &[failed(&of("1"), 12)]).await;
    settle_all(
        &*store,
        &[delivered(&of("3")), delivered(&of("4")), delivered(&of("5"))],
    )
    .await;
    assert_let_go(fx, &[of("2")]).await;
}

/// A relay that reports the failure and puts back the rest in one batch is told that all of it is settled, twice.
pub async fn a_batch_may_settle_the_whole_run(fx: &dyn Fixture) {
    let run = leases(&run_of(fx, &["1", "2", "3", "4"]).await);
    let store = fx.store().await;
    let batch = [
        delivered(&run[0]),
        failed(&run[1], 12),
        released(&run[2]),
        released(&run[3]),
    ];
    settle_all(&*store, &batch).await;
    assert_let_go(fx, &run[2..]).await;
    let before = fx.dump().await;
    settle_all(&*store, &batch).await;
    assert_unchanged(fx, &before, "a repetition").await;
    fx.advance(SECOND * 10).await;
    assert_eq!(bodies(&claim(&*store, "w2", 10).await), ["2", "3", "4"]);
}

/// A report whose follow-up is refused ends nothing: its lease goes back with the run.
pub async fn a_refused_report_goes_back_with_its_run(fx: &dyn Fixture) {
    put(fx, message("taken").dedupe_key("d").delay(DAY)).await;
    let run = leases(&run_of(fx, &["1", "2"]).await);
    let store = fx.store().await;
    let refused = delivered(&run[1]).follow_ups(vec![message("other").dedupe_key("d")]);
    let verdicts = store.settle(&[failed_again(&run[0], 12), refused]).await.unwrap();
    assert!(verdicts[0].is_settled() && !verdicts[1].is_settled(), "{verdicts:?}");
    assert_let_go(fx, &run[1..]).await;
    assert_eq!(bodies(&claim(&*store, "w2", 10).await), ["1", "2"]);
}

/// The worker that puts back what was put back for it is not told that it lost something.
pub async fn a_release_of_what_was_let_go_is_settled(fx: &dyn Fixture) {
    let run = leases(&run_of(fx, &["1", "2"]).await);
    let store = fx.store().await;
    settle_all(&*store, &[failed(&run[0], 12)]).await;
    let before = fx.dump().await;
    settle_all(&*store, &[released(&run[1])]).await;
    assert_unchanged(fx, &before, "a release of what was let go").await;
}

/// However often the one before it fails, a message that was never sent has spent nothing.
pub async fn the_rest_of_a_run_is_never_counted(fx: &dyn Fixture) {
    let ids = put_all(fx, line("k", &["1", "2"])).await;
    let store = fx.store().await;
    for _ in 0..103 {
        let run = leases(&claim(&*store, "w1", 10).await);
        assert_eq!(run.len(), 2);
        settle_all(&*store, &[failed_again(&run[0], 500)]).await;
    }
    let found = view(fx, ids[1]).await;
    assert_eq!((found.state, found.attempts, found.epoch), (State::Pending, 0, 103));
    assert_sound(fx, &ids).await;
    // It was put back a hundred times in a row, though: putting it back by itself counts now.
    let run = leases(&claim(&*store, "w1", 10).await);
    settle_all(&*store, &[delivered(&run[0]), released(&run[1])]).await;
    let attempts = fx.admin().await.attempts(ids[1]).await.unwrap();
    assert_eq!(
        attempts.iter().map(|a| (a.epoch, a.outcome)).collect::<Vec<_>>(),
        [(104, AttemptOutcome::Retry)]
    );
}

/// It is dead, it lets the others pass, and they are under way already.
pub async fn a_rejected_head_that_passes_lets_its_run_go_on(fx: &dyn Fixture) {
    let run = leases(&run_of(fx, &["1", "2", "3"]).await);
    let store = fx.store().await;
    settle_all(&*store, &[rejected(&run[0])]).await;
    assert!(claim(&*store, "w2", 10).await.is_empty());
    settle_all(&*store, &[delivered(&run[1])]).await;
    settle_all(&*store, &[delivered(&run[2])]).await;
    assert_sound(fx, &run.iter().map(|lease| lease.id).collect::<Vec<_>>()).await;
}

/// A worker died with a run in hand: each lease is a lost attempt of its own, and the order holds.
pub async fn an_expired_run_loses_an_attempt_each(fx: &dyn Fixture) {
    let run = leases(&run_of(fx, &["1", "2", "3"]).await);
    let store = fx.store().await;
    settle_all(&*store, &[delivered(&run[0])]).await;
    assert_eq!(expire(fx).await, 2);
    for lease in &run[1..] {
        let attempts = fx.admin().await.attempts(lease.id).await.unwrap();
        assert_eq!(
            attempts.iter().map(|a| a.outcome).collect::<Vec<_>>(),
            [AttemptOutcome::LeaseExpired]
        );
    }
    put(fx, keyed("k", "4")).await;
    let again = claim(&*store, "w2", 10).await;
    assert_eq!(bodies(&again), ["2", "3", "4"]);
    let told: Vec<_> = again.iter().map(|c| (c.delivery.attempt, c.delivery.epoch)).collect();
    assert_eq!(told, [(2, 2), (2, 2), (1, 1)]);
    assert_sound(fx, &run.iter().map(|lease| lease.id).collect::<Vec<_>>()).await;
}

/// P4. The old holder comes back when another has the run: it can end nothing of it, nor have the rest of it let go.
pub async fn a_stale_run_is_refused_after_the_takeover(fx: &dyn Fixture) {
    let stale = leases(&run_of(fx, &["1", "2", "3"]).await);
    assert_eq!(expire(fx).await, 3);
    let store = fx.store().await;
    // Of the same name: the token is the fence.
    let current = claim(&*store, "w1", 10).await;
    assert_gone(fx, &stale).await;
    assert!(settle(&*store, released(&stale[0])).await.is_lost());
    deliver(&*store, &current).await;
}

/// The repairer frees a run lease by lease; until the last one is settled the key stays with the old claim.
pub async fn a_run_half_repaired_still_holds_its_key(fx: &dyn Fixture) {
    let run = leases(&run_of(fx, &["1", "2", "3"]).await);
    let store = fx.store().await;
    fx.advance(LEASE + SECOND).await;
    for lease in &run {
        assert!(claim(&*store, "w2", 10).await.is_empty());
        settle_all(&*store, &[Settlement::expired(lease)]).await;
    }
    assert_eq!(bodies(&claim(&*store, "w2", 10).await), ["1", "2", "3"]);
}

/// Past the deadline there is nothing left to give back: what ran out belongs to the repairer, and is counted.
pub async fn a_late_failure_releases_nothing(fx: &dyn Fixture) {
    let run = leases(&run_of(fx, &["1", "2"]).await);
    let store = fx.store().await;
    fx.advance(LEASE - SECOND).await;
    assert_eq!(store.renew(&run[..1], LEASE).await.unwrap(), [Renewal::Renewed]);
    fx.advance(SECOND * 2).await;
    // The first was renewed, the second ran out.
    settle_all(&*store, &[failed(&run[0], 12)]).await;
    assert_eq!(view(fx, run[1].id).await.state, State::Leased);
    assert_eq!(posthouse_core::repair(&*store, 10).await.unwrap(), 1);
    assert_eq!(view(fx, run[1].id).await.attempts, 1);
    fx.advance(SECOND * 10).await;
    assert_eq!(bodies(&claim(&*store, "w2", 10).await), ["1", "2"]);
}

/// The holder renewed all but the head. When the head goes back, the later ones must not be finished before it: they go back
/// too, uncounted, in the same change.
pub async fn an_expiry_lets_go_of_the_rest_of_its_run(fx: &dyn Fixture) {
    let run = leases(&run_of(fx, &["1", "2", "3"]).await);
    let store = fx.store().await;
    renew_only(fx, &run, &[1, 2]).await;
    assert_eq!(posthouse_core::repair(&*store, 10).await.unwrap(), 1);
    assert_eq!(outcomes(fx, &run[0]).await, [AttemptOutcome::LeaseExpired]);
    assert_let_go(fx, &run[1..]).await;
    assert_gone(fx, &run[1..]).await;
    let again = claim(&*store, "w2", 10).await;
    assert_eq!(bodies(&again), ["1", "2", "3"]);
    let told: Vec<_> = again.iter().map(|c| (c.delivery.attempt, c.delivery.epoch)).collect();
    assert_eq!(told, [(2, 2), (1, 2), (1, 2)]);
    deliver(&*store, &again).await;
    assert_sound(fx, &run.iter().map(|lease| lease.id).collect::<Vec<_>>()).await;
}

/// What came before it is still being sent; what comes after it goes back.
pub async fn an_expiry_in_a_run_lets_go_of_what_is_later(fx: &dyn Fixture) {
    let run = leases(&run_of(fx, &["1", "2", "3", "4"]).await);
    let store = fx.store().await;
    renew_only(fx, &run, &[0, 2, 3]).await;
    assert_eq!(posthouse_core::repair(&*store, 10).await.unwrap(), 1);
    assert_let_go(fx, &run[2..]).await;
    assert_gone(fx, &run[2..]).await;
    assert!(claim(&*store, "w2", 10).await.is_empty(), "the first is still leased");
    settle_all(&*store, &[delivered(&run[0])]).await;
    assert_eq!(bodies(&claim(&*store, "w2", 10).await), ["2", "3", "4"]);
    assert_sound(fx, &run.iter().map(|lease| lease.id).collect::<Vec<_>>()).await;
}

/// A lease that ran out is a lost attempt of its own, also when the one before it was repaired first; what is live behind both
/// goes back with the first of them.
pub async fn what_ran_out_as_well_is_not_let_go(fx: &dyn Fixture) {
    let run = leases(&run_of(fx, &["1", "2", "3"]).await);
    let store = fx.store().await;
    renew_only(fx, &run, &[2]).await;
    settle_all(&*store, &[Settlement::expired(&run[0])]).await;
    assert_let_go(fx, &run[2..]).await;
    assert_eq!(state(fx, run[1].id).await, State::Leased);
    assert!(claim(&*store, "w2", 10).await.is_empty(), "it still holds the key");
    assert_eq!(posthouse_core::repair(&*store, 10).await.unwrap(), 1);
    assert_eq!(outcomes(fx, &run[1]).await, [AttemptOutcome::LeaseExpired]);
    assert_eq!(bodies(&claim(&*store, "w2", 10).await), ["1", "2", "3"]);
    assert_sound(fx, &run.iter().map(|lease| lease.id).collect::<Vec<_>>()).await;
}

/// A repairer that reports the whole run is believed for what ran out. What it is wrong about goes back, uncounted.
pub async fn an_expiry_lets_go_of_what_is_wrongly_called_expired(fx: &dyn Fixture) {
    let run = leases(&run_of(fx, &["1", "2"]).await);
    let store = fx.store().await;
    renew_only(fx, &run, &[1]).await;
    let batch: Vec<_> = run.iter().map(Settlement::expired).collect();
    let verdicts = store.settle(&batch).await.unwrap();
    assert!(verdicts[0].is_settled() && verdicts[1].is_lost(), "{verdicts:?}");
    assert_let_go(fx, &run[1..]).await;
    assert_eq!(bodies(&claim(&*store, "w2", 10).await), ["1", "2"]);
}

/// A run of another key under the same token stays with its holder, and so does what has no key.
pub async fn an_expiry_lets_go_of_its_own_key_only(fx: &dyn Fixture) {
    put_all(fx, line("k", &["1", "2"])).await;
    put_all(fx, line("other", &["3", "4"])).await;
    put(fx, message("5")).await;
    let store = fx.store().await;
    let mut held = claim(&*store, "w1", 10).await;
    held.sort_by_key(|c| c.lease.seq);
    assert_eq!(bodies(&held), ["1", "2", "3", "4", "5"]);
    let held = leases(&held);
    renew_only(fx, &held, &[1, 2, 3, 4]).await;
    assert_eq!(posthouse_core::repair(&*store, 10).await.unwrap(), 1);
    assert_let_go(fx, &held[1..2]).await;
    settle_all(&*store, &held[2..].iter().map(delivered).collect::<Vec<_>>()).await;
}

/// Its last attempt ran out, it is dead and lets the others pass: nothing stands before them, so their holder goes on.
pub async fn an_expired_head_that_passes_leaves_its_run(fx: &dyn Fixture) {
    put_all(
        fx,
        vec![keyed("k", "1").max_attempts(1), keyed("k", "2"), keyed("k", "3")],
    )
    .await;
    let store = fx.store().await;
    let run = leases(&claim(&*store, "w1", 10).await);
    renew_only(fx, &run, &[1, 2]).await;
    assert_eq!(posthouse_core::repair(&*store, 10).await.unwrap(), 1);
    assert_eq!(state(fx, run[0].id).await, State::Dead);
    assert!(claim(&*store, "w2", 10).await.is_empty(), "the key is in use");
    settle_all(&*store, &[delivered(&run[1]), delivered(&run[2])]).await;
    assert_sound(fx, &run.iter().map(|lease| lease.id).collect::<Vec<_>>()).await;
}
