//! P3, P4, P5: only the holder of the lease finishes the message, and a stale write changes nothing at all.

use posthouse_core::{
    AttemptOutcome, AuditFilter, Claim, DeadReason, Error, Fate, Lease, LeaseToken, MessageId, Renewal, Settlement,
    State, Verdict,
};
use std::time::Duration;
use uuid::Uuid;

use super::tools::*;
use crate::Fixture;

/// A lease that ran out, was repaired and is held by `w2` now; the message has budget left.
async fn taken_over(fx: &dyn Fixture) -> (Lease, Lease) {
    let stale = put_and_claim(fx, message("42")).await;
    assert_eq!(expire(fx).await, 1);
    let current = claim_one(&*fx.store().await, "w2").await.lease;
    assert_eq!(current.id, stale.id);
    (stale, current)
}

async fn assert_refused(fx: &dyn Fixture, settlement: Settlement, what: &str) {
    let before = fx.dump().await;
    let verdict = settle(&*fx.store().await, settlement).await;
    assert!(verdict.is_lost(), "{what} was answered {verdict:?}");
    assert_unchanged(fx, &before, what).await;
}

async fn assert_not_renewed(fx: &dyn Fixture, lease: &Lease, what: &str) {
    let before = fx.dump().await;
    let answer = fx
        .store()
        .await
        .renew(std::slice::from_ref(lease), LEASE)
        .await
        .unwrap();
    assert_eq!(answer, [Renewal::Lost], "{what}");
    assert_unchanged(fx, &before, what).await;
}

/// The first worker comes back after the second took over: whatever it reports is refused.
pub async fn stale_token_is_refused_by_settle(fx: &dyn Fixture) {
    let (stale, current) = taken_over(fx).await;
    for report in [
        delivered(&stale),
        acknowledged(&stale),
        rejected(&stale),
        failed(&stale, 12),
        Settlement::lapsed(&stale),
    ] {
        assert_refused(fx, report, "a stale settlement").await;
    }
    assert!(settle(&*fx.store().await, delivered(&current)).await.is_settled());
    assert_refused(fx, rejected(&stale), "a stale settlement after the end").await;
}

/// A stale renewal must not lengthen the lease of the one who holds it now.
pub async fn stale_token_is_refused_by_renew(fx: &dyn Fixture) {
    let (stale, _) = taken_over(fx).await;
    // Later than the grant, or a renewal that went through would write the deadline that is already there.
    fx.advance(SECOND).await;
    assert_not_renewed(fx, &stale, "a stale renewal").await;
}

/// A stale release must not take the message from the one who holds it now.
pub async fn stale_token_is_refused_by_release(fx: &dyn Fixture) {
    let (stale, _) = taken_over(fx).await;
    assert_refused(fx, released(&stale), "a stale release").await;
}

/// A repairer that looked before the takeover must not end the new lease: not while it lives, nor when it ran out.
pub async fn stale_token_is_refused_by_expiry(fx: &dyn Fixture) {
    let stale = put_and_claim(fx, message("42")).await;
    assert_eq!(expire(fx).await, 1);
    let lease = claim_one(&*fx.store().await, "w2").await.lease;
    let later = Lease {
        token: stale.token,
        ..lease
    };
    assert_refused(fx, Settlement::expired(&later), "a stale expiry").await;
    fx.advance(LEASE * 2).await;
    assert_refused(
        fx,
        Settlement::expired(&later),
        "a stale expiry of a lease that ran out",
    )
    .await;
}

/// Nobody repaired yet, and still the deadline counts, by the store's clock.
pub async fn an_expired_lease_cannot_be_used(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("42")).await;
    fx.advance(LEASE + SECOND).await;
    // First what a store may have a shorter way for.
    assert_refused(fx, acknowledged(&lease), "a late delivery without a receipt").await;
    assert_refused(fx, delivered(&lease), "a late delivery").await;
    assert_refused(fx, released(&lease), "a late release").await;
    assert_refused(fx, failed(&lease, 12), "a late failure").await;
    assert_not_renewed(fx, &lease, "a late renewal").await;
    assert_eq!(state(fx, lease.id).await, State::Leased);
}

/// At the deadline itself the lease is over: there is no instant in which both sides may act, and none in which nobody may.
pub async fn the_deadline_belongs_to_the_repairer(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("42")).await;
    fx.advance(LEASE - Duration::from_millis(1)).await;
    assert!(fx.store().await.expired(i64::MIN, 10).await.unwrap().is_empty());
    assert_refused(fx, Settlement::expired(&lease), "an early expiry").await;
    fx.advance(Duration::from_millis(1)).await;
    assert_refused(fx, delivered(&lease), "a delivery at the deadline").await;
    assert_eq!(
        fx.store().await.expired(i64::MIN, 10).await.unwrap(),
        std::slice::from_ref(&lease)
    );
    assert!(
        settle(&*fx.store().await, Settlement::expired(&lease))
            .await
            .is_settled()
    );
}

/// A renewal between the repairer's look and its settlement wins.
pub async fn a_renewed_lease_is_not_expired(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("42")).await;
    fx.advance(LEASE - SECOND).await;
    let renewed = fx
        .store()
        .await
        .renew(std::slice::from_ref(&lease), LEASE)
        .await
        .unwrap();
    assert_eq!(renewed, [Renewal::Renewed]);
    fx.advance(SECOND * 2).await;
    assert_refused(fx, Settlement::expired(&lease), "an expiry of a renewed lease").await;
    assert!(settle(&*fx.store().await, delivered(&lease)).await.is_settled());
}

/// A settlement between the repairer's look and its own wins, and the message does not come back.
pub async fn a_settled_lease_is_not_expired(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("42")).await;
    assert!(settle(&*fx.store().await, delivered(&lease)).await.is_settled());
    fx.advance(LEASE * 2).await;
    assert!(fx.store().await.expired(i64::MIN, 10).await.unwrap().is_empty());
    assert_refused(fx, Settlement::expired(&lease), "an expiry of a settled lease").await;
}

/// A name is a label: the second process of the same name is another worker.
pub async fn workers_of_one_name_are_told_apart(fx: &dyn Fixture) {
    let stale = put_and_claim(fx, message("42")).await;
    assert_eq!(expire(fx).await, 1);
    let current = claim_one(&*fx.store().await, "w1").await.lease;
    assert_refused(fx, delivered(&stale), "a namesake's settlement").await;
    assert_refused(fx, acknowledged(&stale), "a namesake's settlement without a receipt").await;
    assert_refused(fx, released(&stale), "a namesake's release").await;
    assert_not_renewed(fx, &stale, "a namesake's renewal").await;
    assert!(settle(&*fx.store().await, delivered(&current)).await.is_settled());
}

/// A guessed token, the token of another message, and a message that is not there.
pub async fn a_foreign_token_is_refused(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("42")).await;
    let other = put_and_claim(fx, message("43")).await;
    let guessed = Lease {
        token: LeaseToken(Uuid::new_v4()),
        ..lease.clone()
    };
    let swapped = Lease {
        token: other.token,
        ..lease.clone()
    };
    let nowhere = Lease {
        id: MessageId(Uuid::now_v7()),
        seq: i64::MAX,
        ..lease.clone()
    };
    for foreign in [guessed, swapped, nowhere] {
        assert_refused(fx, acknowledged(&foreign), "a foreign settlement without a receipt").await;
        assert_refused(fx, delivered(&foreign), "a foreign settlement").await;
        assert_refused(fx, released(&foreign), "a foreign release").await;
        assert_not_renewed(fx, &foreign, "a foreign renewal").await;
    }
    assert!(settle(&*fx.store().await, delivered(&lease)).await.is_settled());
}

/// A message that nobody holds cannot be settled with the token of its last holder.
pub async fn a_pending_message_has_no_holder(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("42")).await;
    assert!(settle(&*fx.store().await, released(&lease)).await.is_settled());
    assert_refused(fx, delivered(&lease), "a settlement after the release").await;
    assert_not_renewed(fx, &lease, "a renewal after the release").await;
}

/// The lost attempt is evidence like any other, and the next grant carries a higher epoch.
pub async fn a_takeover_records_the_lost_attempt_and_raises_the_epoch(fx: &dyn Fixture) {
    let granted = fx.now().await;
    let (stale, current) = taken_over(fx).await;
    assert_eq!((current.standing.epoch, current.standing.attempts), (2, 2));
    let attempts = fx.admin().await.attempts(stale.id).await.unwrap();
    assert_eq!(attempts.len(), 1);
    let lost = &attempts[0];
    assert_eq!((lost.epoch, lost.generation, lost.attempt), (1, 1, 1));
    assert_eq!(
        (lost.outcome, lost.worker.as_str()),
        (AttemptOutcome::LeaseExpired, "w1")
    );
    assert_eq!((lost.token, lost.code.as_deref()), (stale.token, Some("lease_expired")));
    assert_eq!((lost.started_at, lost.finished_at), (granted, fx.now().await));
}

/// P3, P4. The late word of its last holder ends no lease, even when it comes with words of the one who holds the message now.
pub async fn a_late_settlement_beside_those_of_a_newer_claim_ends_nothing(fx: &dyn Fixture) {
    let stale = put_and_claim(fx, message("42")).await;
    assert_eq!(expire(fx).await, 1);
    let ids = [stale.id, put(fx, message("another")).await];
    let store = fx.store().await;
    // Both in one claim, so under one token.
    let mut current = leases(&claim(&*store, "w2", 2).await);
    current.sort_by_key(|lease| ids.iter().position(|id| *id == lease.id));
    for (now, state) in [(&current[1], State::Leased), (&current[0], State::Done)] {
        let verdicts = store.settle(&[acknowledged(&stale), acknowledged(now)]).await.unwrap();
        let told: Vec<_> = verdicts.iter().map(|v| (v.is_lost(), v.is_settled())).collect();
        assert_eq!(told, [(true, false), (false, true)]);
        assert_eq!(view(fx, stale.id).await.state, state);
    }
    let attempts = fx.admin().await.attempts(stale.id).await.unwrap();
    let ends: Vec<_> = attempts.iter().map(|a| (a.epoch, a.outcome)).collect();
    assert_eq!(
        ends,
        [(1, AttemptOutcome::LeaseExpired), (2, AttemptOutcome::Delivered)]
    );
}

/// What ran out with budget left is due at once.
pub async fn an_expired_message_is_due_now(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("42")).await;
    assert_eq!(expire(fx).await, 1);
    let found = view(fx, lease.id).await;
    assert_eq!((found.state, found.due_at), (State::Pending, Some(fx.now().await)));
    assert_eq!((found.worker, found.lease_until), (None, None));
}

/// P8. A payload that kills its worker ends in dead after its budget, and is never claimed again.
pub async fn death_on_the_last_attempt_ends_in_dead(fx: &dyn Fixture) {
    let id = put(fx, message("poison").max_attempts(2)).await;
    let store = fx.store().await;
    for attempt in 1..=2 {
        let lease = claim_one(&*store, "w1").await.lease;
        assert_eq!(lease.standing.attempts, attempt);
        assert_eq!(expire(fx).await, 1);
    }
    let found = view(fx, id).await;
    assert_eq!((found.state, found.reason), (State::Dead, Some(DeadReason::Exhausted)));
    fx.advance(DAY).await;
    assert!(claim(&*store, "w1", 10).await.is_empty());
    let outcomes: Vec<_> = fx
        .admin()
        .await
        .attempts(id)
        .await
        .unwrap()
        .iter()
        .map(|a| a.outcome)
        .collect();
    assert_eq!(outcomes, [AttemptOutcome::LeaseExpired; 2]);
}

/// From now by the store's clock, not from the old deadline.
pub async fn a_renewal_moves_the_deadline(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("42")).await;
    let store = fx.store().await;
    for _ in 0..3 {
        fx.advance(LEASE - SECOND).await;
        assert_eq!(
            store.renew(std::slice::from_ref(&lease), LEASE).await.unwrap(),
            [Renewal::Renewed]
        );
        assert_eq!(view(fx, lease.id).await.lease_until, Some(fx.now().await.plus(LEASE)));
    }
    assert!(settle(&*store, delivered(&lease)).await.is_settled());
    let attempts = fx.admin().await.attempts(lease.id).await.unwrap();
    assert_eq!((attempts.len(), attempts[0].attempt), (1, 1), "a renewal is no attempt");
}

/// One answer for each lease, in the order they were given; the lost one spoils no other.
pub async fn renewals_are_answered_in_order(fx: &dyn Fixture) {
    put_all(fx, vec![message("x"); 3]).await;
    let store = fx.store().await;
    let held = leases(&claim(&*store, "w1", 3).await);
    assert!(settle(&*store, delivered(&held[1])).await.is_settled());
    let order = [held[2].clone(), held[1].clone(), held[0].clone()];
    let answers = store.renew(&order, LEASE).await.unwrap();
    assert_eq!(answers, [Renewal::Renewed, Renewal::Lost, Renewal::Renewed]);
    assert!(store.renew(&[], LEASE).await.unwrap().is_empty());
}

/// Who asks about two leases of one message at once, an old one and the one that holds, is answered about each by its own token: in whatever order, and also where the new one was
/// granted with many others, which are asked about with it.
pub async fn an_old_lease_beside_the_new_one_is_lost_alone(fx: &dyn Fixture) {
    let store = fx.store().await;
    let ended = Fate::Ended(AttemptOutcome::LeaseExpired);
    for others in [0, 39] {
        let stale = put_and_claim(fx, message("42")).await;
        assert_eq!(expire(fx).await, 1);
        put_all(fx, vec![message("x"); others]).await;
        let held = leases(&claim(&*store, "w2", 40).await);
        assert!(held.iter().any(|lease| lease.id == stale.id));
        for at in [0, held.len()] {
            fx.advance(SECOND).await;
            let (mut asked, mut renewals) = (held.clone(), vec![Renewal::Renewed; held.len()]);
            let mut fates = vec![Fate::Held; held.len()];
            asked.insert(at, stale.clone());
            renewals.insert(at, Renewal::Lost);
            fates.insert(at, ended);
            assert_eq!(store.renew(&asked, LEASE).await.unwrap(), renewals);
            assert_eq!(store.fates(&asked).await.unwrap(), fates);
        }
        let until = view(fx, stale.id).await.lease_until;
        assert_eq!(until, Some(fx.now().await.plus(LEASE)));
        settle_all(&*store, &held.iter().map(delivered).collect::<Vec<_>>()).await;
    }
}

/// However a store keeps the leases of one claim: what is not renewed runs out, although it was granted with what is.
pub async fn who_renews_one_lease_renews_no_other(fx: &dyn Fixture) {
    put_all(fx, vec![message("x"); 4]).await;
    let store = fx.store().await;
    let held = leases(&claim(&*store, "w1", 4).await);
    assert!(settle(&*store, delivered(&held[0])).await.is_settled());
    fx.advance(LEASE / 2).await;
    assert_eq!(store.renew(&held[1..2], LEASE).await.unwrap(), [Renewal::Renewed]);
    fx.advance(LEASE - SECOND).await;
    let mut over: Vec<_> = store.expired(i64::MIN, 10).await.unwrap();
    over.sort_by_key(|lease| lease.seq);
    let mut left = held[2..].to_vec();
    left.sort_by_key(|lease| lease.seq);
    assert_eq!(over, left);
    assert_refused(fx, delivered(&held[2]), "a settlement of what was not renewed").await;
    assert!(settle(&*store, delivered(&held[1])).await.is_settled());
    assert_eq!(posthouse_core::repair(&*store, 100).await.unwrap(), 2);
}

/// It stood with others, and stands alone since: it is found all the same.
pub async fn a_lease_that_was_renewed_alone_runs_out_too(fx: &dyn Fixture) {
    put_all(fx, vec![message("x"); 3]).await;
    let store = fx.store().await;
    let held = leases(&claim(&*store, "w1", 3).await);
    assert_eq!(store.renew(&held[..1], 2 * LEASE).await.unwrap(), [Renewal::Renewed]);
    fx.advance(LEASE + SECOND).await;
    assert_eq!(posthouse_core::repair(&*store, 100).await.unwrap(), 2);
    fx.advance(LEASE).await;
    assert_eq!(store.expired(i64::MIN, 10).await.unwrap(), &held[..1]);
    assert_eq!(posthouse_core::repair(&*store, 100).await.unwrap(), 1);
}

/// However the deadlines stand to the numbers: page after page, whoever looks comes to the last of them.
pub async fn a_pass_over_what_ran_out_reaches_its_end(fx: &dyn Fixture) {
    let store = fx.store().await;
    let mut held = Vec::new();
    for lease in [2 * LEASE, LEASE, 3 * LEASE] {
        put_all(fx, vec![message("x"); 4]).await;
        held = leases(&store.claim(&Claim::new("w1", 4, lease)).await.unwrap());
    }
    fx.advance(4 * LEASE).await;
    let (mut after, mut found) = (i64::MIN, Vec::new());
    loop {
        let page = store.expired(after, 4).await.unwrap();
        let Some(last) = page.last() else { break };
        after = last.seq;
        found.extend(page);
    }
    assert!(held.iter().all(|lease| found.contains(lease)), "{found:?}");
}

/// Delivered, failed, refused, given back and run out, out of one claim and partly in one call: each is what became of it alone.
pub async fn leases_of_one_claim_end_each_in_its_own_way(fx: &dyn Fixture) {
    put_all(fx, vec![message("x"); 40]).await;
    let store = fx.store().await;
    let held = leases(&claim(&*store, "w1", 40).await);
    let mut ends: Vec<_> = held[..30].iter().map(delivered).collect();
    ends[7] = failed(&held[7], 3);
    ends[11] = rejected(&held[11]);
    ends[13] = released(&held[13]);
    settle_all(&*store, &ends).await;
    assert!(settle(&*store, delivered(&held[30])).await.is_settled());
    assert!(settle(&*store, rejected(&held[31])).await.is_settled());
    // The answer was lost, and it is said again.
    settle_all(&*store, &ends).await;
    fx.advance(LEASE + SECOND).await;
    assert_eq!(posthouse_core::repair(&*store, 100).await.unwrap(), 8);
    for (at, lease) in held.iter().enumerate() {
        let attempts = fx.admin().await.attempts(lease.id).await.unwrap();
        let outcomes: Vec<_> = attempts.iter().map(|attempt| attempt.outcome).collect();
        let (state, evidence) = match at {
            7 => (State::Pending, Some(AttemptOutcome::Retry)),
            11 | 31 => (State::Dead, Some(AttemptOutcome::Rejected)),
            13 => (State::Pending, None),
            0..31 => (State::Done, Some(AttemptOutcome::Delivered)),
            _ => (State::Pending, Some(AttemptOutcome::LeaseExpired)),
        };
        assert_eq!(self::state(fx, lease.id).await, state, "the one at {at}");
        assert_eq!(outcomes, Vec::from_iter(evidence), "the one at {at}");
    }
}

/// A lease too long to be repaired is not given by renewal either.
pub async fn a_senseless_renewal_is_refused(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("42")).await;
    let before = fx.dump().await;
    for by in [Duration::ZERO, Duration::MAX] {
        let answer = fx.store().await.renew(std::slice::from_ref(&lease), by).await;
        assert!(
            matches!(&answer, Err(Error::Invalid(invalid)) if invalid.field == "lease"),
            "{answer:?}"
        );
    }
    assert_unchanged(fx, &before, "a refused renewal").await;
}

/// Page after page, each lease once, and none that still lives.
pub async fn expired_leases_are_paged_forward(fx: &dyn Fixture) {
    put_all(fx, vec![message("x"); 5]).await;
    let store = fx.store().await;
    let mut all = leases(&claim(&*store, "w1", 5).await);
    all.sort_by_key(|lease| lease.seq);
    fx.advance(LEASE + SECOND).await;
    put_and_claim(fx, message("alive")).await;
    let (mut found, mut after) = (Vec::new(), i64::MIN);
    loop {
        let page = store.expired(after, 2).await.unwrap();
        assert!(page.len() <= 2);
        let Some(last) = page.last() else { break };
        after = last.seq;
        found.extend(page);
    }
    assert_eq!(found, all);
}

/// Past the deadline the repairers win against the returning worker, and of all of them one writes the outcome.
pub async fn of_returning_worker_and_repairers_one_wins(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("42")).await;
    fx.advance(LEASE + SECOND).await;
    let mut rivals = Vec::new();
    for n in 0..8 {
        let (store, lease) = (fx.store().await, lease.clone());
        let report = if n % 2 == 0 {
            Settlement::expired(&lease)
        } else {
            delivered(&lease)
        };
        rivals.push(async move { settle(&*store, report).await });
    }
    let verdicts = at_once(rivals).await;
    let settled = |from: usize| verdicts.iter().skip(from).step_by(2).filter(|v| v.is_settled()).count();
    assert_eq!((settled(0) > 0, settled(1)), (true, 0), "{verdicts:?}");
    // A repairer waits for nobody, so one that met another in the act may have been told that the lease is lost; one that comes
    // after it repeats a settlement that won, and is told so.
    let late = settle(&*fx.store().await, Settlement::expired(&lease)).await;
    assert!(late.is_settled(), "{late:?}");
    let attempts = fx.admin().await.attempts(lease.id).await.unwrap();
    assert_eq!(
        attempts.iter().map(|a| a.outcome).collect::<Vec<_>>(),
        [AttemptOutcome::LeaseExpired]
    );
    assert_eq!(state(fx, lease.id).await, State::Pending);
}

/// Several workers report different outcomes under one token at once: one outcome is written, with the state it reports.
pub async fn of_contradicting_reports_one_wins(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("42")).await;
    let reports = [
        delivered(&lease),
        rejected(&lease),
        failed(&lease, 12),
        Settlement::duplicate(&lease, None),
    ];
    let mut rivals = Vec::new();
    for report in reports {
        let store = fx.store().await;
        rivals.push(async move { settle(&*store, report).await });
    }
    let won = at_once(rivals)
        .await
        .iter()
        .filter(|verdict| verdict.is_settled())
        .count();
    assert_eq!(won, 1);
    let attempts = fx.admin().await.attempts(lease.id).await.unwrap();
    assert_eq!(attempts.len(), 1);
    let expected = match attempts[0].outcome {
        AttemptOutcome::Rejected => State::Dead,
        AttemptOutcome::Retry => State::Pending,
        _ => State::Done,
    };
    assert_eq!(state(fx, lease.id).await, expected);
}

/// What the loser found in its place goes into the audit, and changes nothing else.
pub async fn a_conflict_is_recorded(fx: &dyn Fixture) {
    let (stale, current) = taken_over(fx).await;
    let before = view(fx, stale.id).await;
    let found = fx.store().await.record_conflict(&stale, "w1").await.unwrap();
    assert_eq!(
        (found.state, found.worker.as_deref(), found.epoch),
        (State::Leased, Some("w2"), 2)
    );
    assert!(found.recorded);
    let audit = fx.admin().await.audit(&AuditFilter::of(stale.id)).await.unwrap();
    assert_eq!(audit.len(), 1);
    assert_eq!(
        (audit[0].action.as_str(), audit[0].actor.as_str()),
        ("outbox_flush_conflict", "w1")
    );
    for part in ["epoch 1", "leased", "w2", "epoch 2"] {
        assert!(
            audit[0].note.contains(part),
            "{part:?} is missing in {:?}",
            audit[0].note
        );
    }
    assert_eq!(view(fx, stale.id).await, before);
    assert!(matches!(
        settle(&*fx.store().await, delivered(&current)).await,
        Verdict::Settled
    ));
}

/// There is nothing to find in the place of a message that is gone.
pub async fn a_conflict_over_a_missing_message_is_not_found(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("42")).await;
    let gone = Lease {
        id: MessageId(Uuid::now_v7()),
        ..lease
    };
    let answer = fx.store().await.record_conflict(&gone, "w1").await;
    assert!(
        matches!(&answer, Err(Error::NotFound(id)) if *id == gone.id),
        "{answer:?}"
    );
}

/// A worker that only thinks that it lost its lease holds it still: there is nothing to record, and the answer says so.
pub async fn a_lease_that_holds_is_no_conflict(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("42")).await;
    let before = fx.dump().await;
    let found = fx.store().await.record_conflict(&lease, "w1").await.unwrap();
    assert_eq!(
        (found.state, found.worker.as_deref(), found.epoch),
        (State::Leased, Some("w1"), 1)
    );
    assert!(!found.recorded);
    assert_unchanged(fx, &before, "a conflict that is none").await;
}

/// Past its deadline it is lost, also when nobody else has taken it yet.
pub async fn a_lease_that_ran_out_is_a_conflict(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("42")).await;
    fx.advance(LEASE).await;
    let found = fx.store().await.record_conflict(&lease, "w1").await.unwrap();
    assert!(found.recorded);
    assert_eq!(
        fx.admin().await.audit(&AuditFilter::of(lease.id)).await.unwrap().len(),
        1
    );
}
