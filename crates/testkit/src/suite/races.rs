//! Two sessions that want the same thing at the same moment. Exactly one gets it, and what is left behind is sound.

use posthouse_core::{Admin, AttemptOutcome, AuditFilter, Claimed, Error, MessageId, Renewal, State, Store, Verdict};
use std::{collections::BTreeSet, sync::Arc};
use tokio::sync::Barrier;

use super::tools::*;
use crate::Fixture;

/// Where a message stands, and what its evidence is.
async fn told(admin: &dyn Admin, id: MessageId) -> (Option<State>, Vec<AttemptOutcome>) {
    let (found, attempts) = (admin.find(id).await.unwrap(), admin.attempts(id).await.unwrap());
    let outcomes = attempts.iter().map(|attempt| attempt.outcome).collect();
    (found.map(|found| found.state), outcomes)
}

/// Several relays' handles.
async fn handles(fx: &dyn Fixture, n: usize) -> Vec<Arc<dyn Store>> {
    let mut stores = Vec::new();
    for _ in 0..n {
        stores.push(fx.store().await);
    }
    stores
}

/// Whether an operator's verb won; if not, it was refused for the state it found, or for finding nothing.
fn won(answer: Result<(), Error>) -> bool {
    match answer {
        Ok(()) => true,
        Err(Error::IllegalState { .. } | Error::NotFound(_)) => false,
        Err(other) => panic!("{other}"),
    }
}

/// The worker reports while the deadline passes: either it is done, or the attempt is lost and it is due again.
pub async fn of_settle_and_repair_one_wins(fx: &dyn Fixture) {
    let (worker, repairer, admin) = (fx.store().await, fx.store().await, fx.admin().await);
    let mut ids = Vec::new();
    for round in 0..50 {
        let body = if round % 2 == 0 { message("x") } else { keyed("k", "x") };
        let id = put(fx, body.max_attempts(1)).await;
        let lease = claim_one(&*worker, "w1").await.lease;
        let (store, report) = (worker.clone(), delivered(&lease));
        let returning = tokio::spawn(async move { settle(&*store, report).await });
        fx.advance(LEASE).await;
        let repaired = posthouse_core::repair(&*repairer, 10).await.unwrap();
        let verdict = returning.await.unwrap();
        // The repairer may have looked just before the worker's report was there; nobody reports any more.
        let late = posthouse_core::repair(&*repairer, 10).await.unwrap();
        assert_eq!(verdict.is_settled(), repaired + late == 0, "round {round}: {verdict:?}");
        let expected = if verdict.is_settled() {
            (Some(State::Done), vec![AttemptOutcome::Delivered])
        } else {
            (Some(State::Dead), vec![AttemptOutcome::LeaseExpired])
        };
        assert_eq!(told(&*admin, id).await, expected, "round {round}");
        ids.push(id);
    }
    assert_sound(fx, &ids).await;
}

/// Eight times the same report, follow-up included, because nobody heard the answer: all are told that it won, once it is
/// written.
pub async fn the_same_report_at_once_is_written_once(fx: &dyn Fixture) {
    let (stores, admin) = (handles(fx, 8).await, fx.admin().await);
    for round in 1..=5 {
        let lease = put_and_claim(fx, message("parent")).await;
        let mut rivals = Vec::new();
        for store in stores.iter().cloned() {
            let report = delivered(&lease).follow_ups(vec![message("child").delay(DAY)]);
            rivals.push(async move { settle(&*store, report).await });
        }
        let verdicts = at_once(rivals).await;
        assert!(verdicts.iter().all(Verdict::is_settled), "{verdicts:?}");
        let written = (Some(State::Done), vec![AttemptOutcome::Delivered]);
        assert_eq!(told(&*admin, lease.id).await, written);
        assert_eq!(count(fx).await, 2 * round, "one child each");
    }
}

/// A renewal while the deadline passes: the lease is held on, or it is lost; not both, not neither.
pub async fn of_renew_and_repair_one_wins(fx: &dyn Fixture) {
    let (worker, repairer, admin) = (fx.store().await, fx.store().await, fx.admin().await);
    let mut ids = Vec::new();
    for round in 0..30 {
        let id = put(fx, message("x").max_attempts(1)).await;
        let lease = claim_one(&*worker, "w1").await.lease;
        fx.advance(LEASE - SECOND).await;
        let (store, held) = (worker.clone(), lease.clone());
        let renewing = tokio::spawn(async move {
            // Whoever has the message in hand just now is about to say whose it is.
            loop {
                match store.renew(std::slice::from_ref(&held), LEASE).await.unwrap()[..] {
                    [Renewal::Locked] => tokio::task::yield_now().await,
                    [answer] => return answer,
                    _ => panic!("one answer for one lease"),
                }
            }
        });
        fx.advance(SECOND).await;
        posthouse_core::repair(&*repairer, 10).await.unwrap();
        let answer = renewing.await.unwrap();
        posthouse_core::repair(&*repairer, 10).await.unwrap();
        match answer {
            Renewal::Renewed => settle_all(&*worker, &[delivered(&lease)]).await,
            _ => {
                let lost = (Some(State::Dead), vec![AttemptOutcome::LeaseExpired]);
                assert_eq!(told(&*admin, id).await, lost, "round {round}");
            }
        }
        ids.push(id);
    }
    assert_sound(fx, &ids).await;
}

/// P9. Of eight replays of a keyed message one wins, and it stands in its key once.
pub async fn of_replays_of_a_keyed_message_one_wins(fx: &dyn Fixture) {
    let id = put_dead(fx, keyed("k", "x")).await;
    for generation in 2..6 {
        let mut rivals = Vec::new();
        for n in 0..8 {
            let admin = fx.admin().await;
            rivals.push(async move { won(admin.replay(id, &format!("op{n}"), "go", None).await) });
        }
        assert_eq!(at_once(rivals).await.into_iter().filter(|won| *won).count(), 1);
        let run = claim(&*fx.store().await, "w1", 10).await;
        assert_eq!(
            run.iter()
                .map(|c| (c.lease.id, c.delivery.generation))
                .collect::<Vec<_>>(),
            [(id, generation)]
        );
        settle_all(&*fx.store().await, &[rejected(&run[0].lease)]).await;
    }
    assert_sound(fx, &[id]).await;
}

/// Two operators disagree about a dead message: it goes round again or it is gone.
pub async fn of_replay_and_discard_one_wins(fx: &dyn Fixture) {
    let mut admins = Vec::new();
    for _ in 0..6 {
        admins.push(fx.admin().await);
    }
    for round in 0..10 {
        let id = put_dead(fx, keyed(&format!("k{round}"), "x")).await;
        let mut rivals = Vec::new();
        for (n, admin) in admins.iter().cloned().enumerate() {
            rivals.push(async move {
                match n % 2 {
                    0 => won(admin.replay(id, "op", "go", None).await),
                    _ => won(admin.discard(id, "op", "gone").await),
                }
            });
        }
        let answers = at_once(rivals).await;
        assert_eq!(
            answers.iter().filter(|won| **won).count(),
            1,
            "round {round}: {answers:?}"
        );
        let replayed = answers.iter().step_by(2).any(|won| *won);
        let found = fx.admin().await.find(id).await.unwrap();
        assert_eq!(found.map(|found| found.state), replayed.then_some(State::Pending));
        deliver(&*fx.store().await, &claim(&*fx.store().await, "w1", 10).await).await;
    }
}

/// Workers take while an operator holds or gives up: each message goes to one of them.
async fn claim_against(fx: &dyn Fixture, cancel: bool) {
    let some = (0..40).map(|n| match n % 2 {
        0 => message("x"),
        _ => keyed(&format!("k{}", n % 8), "x"),
    });
    let ids = put_all(fx, some.collect()).await;
    let start = Arc::new(Barrier::new(5));
    let mut workers = Vec::new();
    for n in 0..3 {
        let (store, start) = (fx.store().await, start.clone());
        workers.push(async move {
            start.wait().await;
            let mut taken: Vec<Claimed> = Vec::new();
            for _ in 0..20 {
                taken.extend(claim(&*store, &format!("w{n}"), 2).await);
                tokio::task::yield_now().await;
            }
            taken
        });
    }
    let mut operators = Vec::new();
    for half in [ids[..20].to_vec(), ids[20..].to_vec()] {
        let (admin, start) = (fx.admin().await, start.clone());
        operators.push(async move {
            start.wait().await;
            let mut stopped = Vec::new();
            for id in half.into_iter().rev() {
                let answer = match cancel {
                    true => admin.cancel(id, "op", "stop").await,
                    false => admin.quarantine(id, "op", "stop").await,
                };
                if won(answer) {
                    stopped.push(id);
                }
                tokio::task::yield_now().await;
            }
            stopped
        });
    }
    let (taken, stopped) = tokio::join!(at_once(workers), at_once(operators));
    let taken: BTreeSet<_> = taken.into_iter().flatten().map(|c| c.lease.id).collect();
    let stopped: BTreeSet<_> = stopped.into_iter().flatten().collect();
    assert!(taken.is_disjoint(&stopped), "taken and stopped");
    let admin = fx.admin().await;
    for id in &ids {
        let expected = match (taken.contains(id), stopped.contains(id), cancel) {
            (true, ..) => State::Leased,
            (_, true, true) => State::Dead,
            (_, true, false) => State::Quarantined,
            _ => State::Pending,
        };
        assert_eq!(told(&*admin, *id).await.0, Some(expected));
    }
    assert_sound(fx, &ids).await;
}

/// Never leased and quarantined.
pub async fn of_claim_and_quarantine_one_wins(fx: &dyn Fixture) {
    claim_against(fx, false).await;
}

/// Never leased and cancelled.
pub async fn of_claim_and_cancel_one_wins(fx: &dyn Fixture) {
    claim_against(fx, true).await;
}

/// Eight relays at one key: one gets the run, whole, and the others nothing.
pub async fn of_claims_of_one_key_one_wins(fx: &dyn Fixture) {
    let stores = handles(fx, 8).await;
    for round in 0..20 {
        put_all(fx, line("k", &["1", "2", "3"])).await;
        let start = Arc::new(Barrier::new(stores.len()));
        let rivals = stores.iter().cloned().enumerate().map(|(n, store)| {
            let start = start.clone();
            async move {
                start.wait().await;
                claim(&*store, &format!("w{n}"), 10).await
            }
        });
        let mut runs = at_once(rivals.collect()).await;
        runs.retain(|run| !run.is_empty());
        assert_eq!(
            runs.iter().map(|run| bodies(run)).collect::<Vec<_>>(),
            [["1", "2", "3"]],
            "round {round}"
        );
        deliver(&*stores[0], &runs[0]).await;
    }
}

/// A worker fails the first of a run while another of its tasks reports the second: the second is done or let go.
pub async fn of_a_failure_and_the_next_report_one_is_first(fx: &dyn Fixture) {
    let (one, two, admin) = (fx.store().await, fx.store().await, fx.admin().await);
    let mut all = Vec::new();
    for round in 0..30 {
        let ids = put_all(fx, line("k", &["1", "2", "3"])).await;
        let run = leases(&claim(&*one, "w1", 10).await);
        let (fails, reports) = (failed_again(&run[0], 12), delivered(&run[1]));
        let (store, other) = (one.clone(), two.clone());
        let failure = tokio::spawn(async move { settle(&*store, fails).await });
        let report = tokio::spawn(async move { settle(&*other, reports).await });
        assert!(failure.await.unwrap().is_settled());
        let reported = report.await.unwrap().is_settled();
        let expected = if reported { State::Done } else { State::Pending };
        assert_eq!(told(&*admin, ids[1]).await.0, Some(expected), "round {round}");
        assert_eq!(
            told(&*admin, ids[2]).await,
            (Some(State::Pending), vec![]),
            "round {round}"
        );
        let again = claim(&*one, "w1", 10).await;
        assert_eq!(again.len(), if reported { 2 } else { 3 });
        deliver(&*one, &again).await;
        all.extend(ids);
    }
    assert_sound(fx, &all).await;
}

/// P10. The head of a run is repaired while its holder reports the next one: either the report was first, or the next one went
/// back with the head.
pub async fn of_an_expiry_and_the_next_report_one_is_first(fx: &dyn Fixture) {
    let (holder, repairer, admin) = (fx.store().await, fx.store().await, fx.admin().await);
    let mut all = Vec::new();
    for round in 0..30 {
        let ids = put_all(fx, line("k", &["1", "2", "3"])).await;
        let run = leases(&claim(&*holder, "w1", 10).await);
        fx.advance(LEASE - SECOND).await;
        holder.renew(&run[1..], LEASE).await.unwrap();
        fx.advance(SECOND).await;
        let (store, other, reports) = (repairer.clone(), holder.clone(), delivered(&run[1]));
        let repair = tokio::spawn(async move { posthouse_core::repair(&*store, 10).await.unwrap() });
        let report = tokio::spawn(async move { settle(&*other, reports).await });
        let repaired = repair.await.unwrap();
        let reported = report.await.unwrap().is_settled();
        // The repairer leaves a run of which somebody has a message in hand, for the next repair.
        let late = posthouse_core::repair(&*repairer, 10).await.unwrap();
        assert_eq!(repaired + late, 1, "round {round}");
        let expected = if reported { State::Done } else { State::Pending };
        assert_eq!(told(&*admin, ids[1]).await.0, Some(expected), "round {round}");
        let let_go = (Some(State::Pending), vec![]);
        assert_eq!(told(&*admin, ids[2]).await, let_go, "round {round}");
        let again = claim(&*holder, "w1", 10).await;
        assert_eq!(again.len(), if reported { 2 } else { 3 });
        deliver(&*holder, &again).await;
        all.extend(ids);
    }
    assert_sound(fx, &all).await;
}

/// A blocked key is opened while four relays look at it: one gets it.
pub async fn an_unblocked_key_is_claimed_once(fx: &dyn Fixture) {
    let (stores, operator) = (handles(fx, 4).await, fx.admin().await);
    for round in 0..9 {
        let key = format!("k{round}");
        let head = put_dead(fx, keyed(&key, "1").on_dead(posthouse_core::OnDead::Block)).await;
        put_all(fx, line(&key, &["2", "3"])).await;
        let mut relays = Vec::new();
        for (n, store) in stores.iter().cloned().enumerate() {
            relays.push(async move {
                let mut taken = Vec::new();
                for _ in 0..5 {
                    taken.extend(claim(&*store, &format!("w{n}"), 10).await);
                    tokio::task::yield_now().await;
                }
                taken
            });
        }
        let admin = &operator;
        let (taken, opened) = tokio::join!(at_once(relays), async move {
            match round % 3 {
                0 => admin.resolve(head, "op", "seen", "").await,
                1 => admin.discard(head, "op", "gone").await,
                _ => admin.replay(head, "op", "again", None).await,
            }
        });
        opened.unwrap();
        let mut taken: Vec<_> = taken.into_iter().flatten().collect();
        taken.extend(claim(&*stores[0], "last", 10).await);
        let expected: &[_] = if round % 3 == 2 { &["1", "2", "3"] } else { &["2", "3"] };
        assert_eq!(bodies(&taken), expected, "round {round}");
        assert!(
            taken.iter().all(|c| c.lease.token == taken[0].lease.token),
            "one holder"
        );
        deliver(&*fx.store().await, &taken).await;
    }
}

/// Retention meets an operator: what was replayed stays, whole; what was removed is gone, whole.
pub async fn of_prune_and_replay_one_wins(fx: &dyn Fixture) {
    let mut ids = Vec::new();
    for n in 0..12 {
        ids.push(put_dead(fx, keyed(&format!("k{}", n % 3), "x")).await);
    }
    fx.advance(DAY * 2).await;
    let (pruner, operator, dead) = (fx.admin().await, fx.admin().await, ids.clone());
    let pruning = tokio::spawn(async move {
        let mut pruned = 0;
        for _ in 0..8 {
            pruned += pruner.prune(&ended(DAY, 2)).await.unwrap().messages();
            tokio::task::yield_now().await;
        }
        pruned
    });
    let mut replayed = Vec::new();
    for id in dead.into_iter().rev() {
        if won(operator.replay(id, "op", "again", None).await) {
            replayed.push(id);
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(pruning.await.unwrap() as usize + replayed.len(), ids.len());
    assert_eq!(count(fx).await, replayed.len());
    assert_sound(fx, &replayed).await;
    let admin = fx.admin().await;
    for id in &ids {
        let (found, attempts) = told(&*admin, *id).await;
        let there = replayed.contains(id);
        assert_eq!((found.is_some(), attempts.len()), (there, usize::from(there)));
    }
    assert_eq!(claim(&*fx.store().await, "w1", 100).await.len(), replayed.len());
}

/// Producers that take no turns commit while relays look: whoever finds the key, all its leases are one claim's.
pub async fn of_late_commits_and_claims_one_holds_the_key(fx: &dyn Fixture) {
    let (stores, parallel) = (handles(fx, 4).await, parallel_callers(fx).await);
    for round in 0..25 {
        let mut late = Vec::new();
        if parallel {
            for n in 0..3 {
                let mut tx = fx.begin().await;
                tx.enqueue(keyed("k", &n.to_string()).relaxed()).await.unwrap();
                late.push(async move { tx.commit().await.unwrap() });
            }
        }
        put(fx, keyed("k", "3").relaxed()).await;
        let relays = stores.iter().cloned().enumerate().map(|(n, store)| async move {
            let mut taken = Vec::new();
            for _ in 0..4 {
                taken.extend(claim(&*store, &format!("w{n}"), 10).await);
            }
            taken
        });
        let (taken, _) = tokio::join!(at_once(relays.collect()), at_once(late));
        let taken: Vec<_> = taken.into_iter().flatten().collect();
        assert!(!taken.is_empty(), "round {round}");
        assert!(
            taken.iter().all(|c| c.lease.token == taken[0].lease.token),
            "round {round}: two claims hold a key"
        );
        deliver(&*stores[0], &taken).await;
        deliver(&*stores[0], &claim(&*stores[0], "last", 10).await).await;
    }
}

/// Which messages somebody has replayed, by the audit, read page by page.
async fn replayed_by(admin: &dyn Admin, actor: &str) -> Vec<MessageId> {
    let mut filter = AuditFilter {
        actor: Some(actor.to_owned()),
        action: Some("replay".to_owned()),
        limit: 300,
        ..AuditFilter::default()
    };
    let mut ids = Vec::new();
    loop {
        let page = admin.audit(&filter).await.unwrap();
        let Some(last) = page.last() else { return ids };
        filter.before = Some(last.n);
        ids.extend(page.iter().filter_map(|line| line.id));
    }
}

/// P9. Two operators send the same thousand dead messages round again: each goes once, and the audit tells who did which.
pub async fn two_operators_replay_each_dead_message_once(fx: &dyn Fixture) {
    let store = fx.store().await;
    let some = (0..1000).map(|n| match n % 5 {
        0 => keyed(&format!("k{}", n % 50), "x"),
        _ => message("x"),
    });
    let ids = put_all(fx, some.collect()).await;
    let claimed = claim(&*store, "w1", 1000).await;
    let batch: Vec<_> = claimed.iter().map(|c| rejected(&c.lease)).collect();
    settle_all(&*store, &batch).await;
    let start = Arc::new(Barrier::new(2));
    let mut operators = Vec::new();
    for name in ["ada", "bob"] {
        let (admin, start, ids) = (fx.admin().await, start.clone(), ids.clone());
        operators.push(async move {
            start.wait().await;
            let mut mine = Vec::new();
            for id in ids {
                if won(admin.replay(id, name, "again", None).await) {
                    mine.push(id);
                }
            }
            mine
        });
    }
    let answers = at_once(operators).await;
    let sets: Vec<BTreeSet<_>> = answers.iter().map(|mine| mine.iter().copied().collect()).collect();
    assert!(sets[0].is_disjoint(&sets[1]), "two have replayed the same");
    let all: BTreeSet<_> = sets[0].union(&sets[1]).copied().collect();
    assert_eq!(all, ids.iter().copied().collect());
    let admin = fx.admin().await;
    for (name, mine) in ["ada", "bob"].into_iter().zip(&answers) {
        let mut audited = replayed_by(&*admin, name).await;
        audited.reverse();
        assert_eq!(audited, *mine, "the audit of {name}");
    }
    let again = claim(&*store, "w1", 2000).await;
    assert_eq!(again.len(), 1000);
    assert!(
        again
            .iter()
            .all(|c| c.delivery.generation == 2 && c.delivery.attempt == 1)
    );
    assert_sound(fx, &ids).await;
}

/// A worker reports while an operator wants the message: what is in flight is nobody's but the worker's, so the report always
/// stands, and the operator gets what the report made of it or nothing.
async fn settle_against(fx: &dyn Fixture, cancel: bool) {
    let (worker, operator, admin) = (fx.store().await, fx.admin().await, fx.admin().await);
    let mut ids = Vec::new();
    for round in 0..40 {
        let body = if round % 4 < 2 { message("x") } else { keyed("k", "x") };
        let lease = put_and_claim(fx, body).await;
        let fails = round % 2 == 0;
        let report = if fails { failed(&lease, 5) } else { delivered(&lease) };
        let (store, id) = (worker.clone(), lease.id);
        let reporting = tokio::spawn(async move { settle(&*store, report).await });
        let mut answer = false;
        for _ in 0..3 {
            answer |= won(match cancel {
                true => operator.cancel(id, "op", "stop").await,
                false => operator.quarantine(id, "op", "stop").await,
            });
            tokio::task::yield_now().await;
        }
        assert!(reporting.await.unwrap().is_settled(), "round {round}");
        let (expected, outcome) = match (fails, answer, cancel) {
            (false, won, _) => {
                assert!(!won, "round {round}: what was delivered was stopped");
                (State::Done, AttemptOutcome::Delivered)
            }
            (true, false, _) => (State::Pending, AttemptOutcome::Retry),
            (true, true, true) => (State::Dead, AttemptOutcome::Retry),
            (true, true, false) => (State::Quarantined, AttemptOutcome::Retry),
        };
        assert_eq!(
            told(&*admin, id).await,
            (Some(expected), vec![outcome]),
            "round {round}"
        );
        if expected == State::Pending {
            admin.resolve(id, "op", "not needed", "").await.unwrap();
        }
        ids.push(id);
    }
    assert_sound(fx, &ids).await;
}

/// Never quarantined while it is in flight.
pub async fn a_settlement_wins_against_quarantine(fx: &dyn Fixture) {
    settle_against(fx, false).await;
}

/// Never cancelled while it is in flight.
pub async fn a_settlement_wins_against_cancel(fx: &dyn Fixture) {
    settle_against(fx, true).await;
}

/// Of those who pause at once one is told as the one who did, of those who resume one ended it; and after both at once it is
/// paused or not, as everybody is told.
pub async fn of_pause_and_resume_one_is_last(fx: &dyn Fixture) {
    let mut admins = Vec::new();
    for _ in 0..6 {
        admins.push(fx.admin().await);
    }
    let (admin, store) = (fx.admin().await, fx.store().await);
    for round in 0..10 {
        let start = Arc::new(Barrier::new(admins.len()));
        let each = |verb: fn(usize) -> bool| {
            let rivals = admins.iter().cloned().enumerate().map(|(n, admin)| {
                let (start, actor) = (start.clone(), format!("op{n}"));
                async move {
                    start.wait().await;
                    if verb(n) {
                        admin.pause("shop", &actor, "stop").await.map(|()| false).unwrap()
                    } else {
                        admin.resume("shop", &actor, "go").await.unwrap()
                    }
                }
            });
            at_once(rivals.collect())
        };
        each(|_| true).await;
        let stands = admin.pauses().await.unwrap();
        assert_eq!(stands.len(), 1, "round {round}");
        let ended = each(|_| false).await;
        assert_eq!(
            ended.iter().filter(|ended| **ended).count(),
            1,
            "round {round}: {ended:?}"
        );
        each(|n| n % 2 == 0).await;
        let left = admin.pauses().await.unwrap();
        let relay = posthouse_core::Relay {
            name: "r1".into(),
            ..Default::default()
        };
        assert_eq!(store.heartbeat(&relay, LEASE).await.unwrap(), left);
        assert_eq!(admin.resume("shop", "op", "go").await.unwrap(), left.len() == 1);
        assert!(admin.pauses().await.unwrap().is_empty());
    }
    let all = AuditFilter {
        limit: 1000,
        ..AuditFilter::default()
    };
    let lines = admin.audit(&all).await.unwrap();
    assert_eq!(lines.len(), 10 * (3 * admins.len() + 1), "every word is in the audit");
}
