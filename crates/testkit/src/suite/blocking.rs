//! P10: what the end of a message does to its order key: `pass` or `block`, and the operator's hand on it.

use posthouse_core::{DeadReason, Message, MessageId, OnDead, Settlement, State};

use super::tools::*;
use crate::Fixture;

fn blocking(body: &str) -> Message {
    keyed("k", body).on_dead(OnDead::Block)
}

/// A dead message that blocks the key `k`, with two more behind it.
async fn blocked(fx: &dyn Fixture) -> MessageId {
    let id = put_dead(fx, blocking("1")).await;
    put_all(fx, line("k", &["2", "3"])).await;
    assert_held(fx, "a dead head").await;
    id
}

async fn assert_held(fx: &dyn Fixture, by: &str) {
    for worker in ["w1", "w2"] {
        assert!(
            claim(&*fx.store().await, worker, 10).await.is_empty(),
            "{by} does not hold the key"
        );
    }
}

async fn assert_next(fx: &dyn Fixture, expected: &[&str]) {
    assert_eq!(bodies(&claim(&*fx.store().await, "w1", 10).await), expected);
}

/// Claims and delivers until nothing is due, and tells what was sent. A claim may spend itself on burying what lapsed.
async fn drained(fx: &dyn Fixture) -> Vec<String> {
    let (store, mut sent) = (fx.store().await, Vec::new());
    for _ in 0..10 {
        let claimed = claim(&*store, "w1", 10).await;
        deliver(&*store, &claimed).await;
        sent.extend(bodies(&claimed));
    }
    sent
}

/// The rest of its run goes back uncounted, and the key waits for a person; other keys do not.
pub async fn a_dead_head_that_blocks_releases_its_run(fx: &dyn Fixture) {
    put_all(fx, vec![blocking("1"), keyed("k", "2"), keyed("k", "3")]).await;
    let store = fx.store().await;
    let run = leases(&claim(&*store, "w1", 10).await);
    assert_eq!(run.len(), 3);
    settle_all(&*store, &[rejected(&run[0])]).await;
    for lease in &run[1..] {
        assert!(settle(&*store, delivered(lease)).await.is_lost());
        let found = view(fx, lease.id).await;
        assert_eq!((found.state, found.attempts, found.epoch), (State::Pending, 0, 1));
    }
    assert_held(fx, "a rejected head").await;
    put_all(fx, vec![keyed("other", "4"), blocking("5")]).await;
    assert_next(fx, &["4"]).await;
    assert_sound(fx, &run.iter().map(|lease| lease.id).collect::<Vec<_>>()).await;
}

/// Its last attempt ran out while its holder kept the rest of the run: the rest goes back uncounted, and waits with the key.
pub async fn an_expired_head_that_blocks_releases_its_run(fx: &dyn Fixture) {
    let ids = put_all(
        fx,
        vec![blocking("1").max_attempts(1), keyed("k", "2"), keyed("k", "3")],
    )
    .await;
    let store = fx.store().await;
    let run = leases(&claim(&*store, "w1", 10).await);
    fx.advance(LEASE - SECOND).await;
    store.renew(&run[1..], LEASE).await.unwrap();
    fx.advance(SECOND * 2).await;
    assert_eq!(posthouse_core::repair(&*store, 10).await.unwrap(), 1);
    assert_eq!(state(fx, ids[0]).await, State::Dead);
    for lease in &run[1..] {
        assert!(settle(&*store, delivered(lease)).await.is_lost());
        let found = view(fx, lease.id).await;
        assert_eq!((found.state, found.attempts, found.epoch), (State::Pending, 0, 1));
    }
    assert_held(fx, "what ran out").await;
    fx.admin().await.resolve(ids[0], "op", "seen", "").await.unwrap();
    assert_next(fx, &["2", "3"]).await;
    assert_sound(fx, &ids).await;
}

/// Whatever it died of: the last failure, a lost lease, its deliver-by.
pub async fn every_death_of_a_holder_blocks(fx: &dyn Fixture) {
    let store = fx.store().await;
    for (n, reason) in [DeadReason::Exhausted, DeadReason::Exhausted, DeadReason::Lapsed]
        .into_iter()
        .enumerate()
    {
        let key = format!("k{n}");
        let head = put_and_claim(fx, keyed(&key, "1").on_dead(OnDead::Block).max_attempts(1)).await;
        let next = put(fx, keyed(&key, "2")).await;
        match n {
            0 => settle_all(&*store, &[failed(&head, 1)]).await,
            1 => assert_eq!(expire(fx).await, 1),
            _ => settle_all(&*store, &[Settlement::lapsed(&head)]).await,
        }
        assert_eq!(view(fx, head.id).await.reason, Some(reason));
        assert_held(fx, "what died").await;
        assert_sound(fx, &[head.id, next]).await;
    }
}

/// An operator says that it was delivered.
pub async fn resolve_unblocks(fx: &dyn Fixture) {
    let id = blocked(fx).await;
    fx.admin().await.resolve(id, "op", "seen", "").await.unwrap();
    assert_next(fx, &["2", "3"]).await;
}

/// An operator removes it.
pub async fn discard_unblocks(fx: &dyn Fixture) {
    let id = blocked(fx).await;
    fx.admin().await.discard(id, "op", "no longer wanted").await.unwrap();
    assert_next(fx, &["2", "3"]).await;
}

/// An operator gives it up.
pub async fn cancel_unblocks(fx: &dyn Fixture) {
    let id = blocked(fx).await;
    fx.admin().await.quarantine(id, "op", "to be looked at").await.unwrap();
    assert_held(fx, "a quarantined head").await;
    fx.admin().await.cancel(id, "op", "given up").await.unwrap();
    assert_next(fx, &["2", "3"]).await;
    assert_sound(fx, &[id]).await;
}

/// It still holds the head of its key, so it goes round again before those behind it.
pub async fn a_blocker_is_replayed_in_its_place(fx: &dyn Fixture) {
    let id = blocked(fx).await;
    fx.admin().await.replay(id, "op", "fixed", None).await.unwrap();
    put(fx, keyed("k", "4")).await;
    assert_next(fx, &["1", "2", "3", "4"]).await;
    assert_eq!(view(fx, id).await.epoch, 2);
}

/// Held by hand and replayed: still in its place.
pub async fn a_quarantined_blocker_is_replayed_in_its_place(fx: &dyn Fixture) {
    let id = blocked(fx).await;
    fx.admin().await.quarantine(id, "op", "hold").await.unwrap();
    fx.admin().await.replay(id, "op", "go", None).await.unwrap();
    assert_next(fx, &["1", "2", "3"]).await;
}

/// In the second generation as in the first.
pub async fn a_replayed_blocker_that_dies_blocks_again(fx: &dyn Fixture) {
    let id = blocked(fx).await;
    for _ in 0..3 {
        fx.admin().await.replay(id, "op", "again", None).await.unwrap();
        let run = claim(&*fx.store().await, "w1", 10).await;
        assert_eq!(bodies(&run), ["1", "2", "3"]);
        settle_all(&*fx.store().await, &[rejected(&run[0].lease)]).await;
        assert_held(fx, "what died again").await;
    }
    fx.admin().await.resolve(id, "op", "seen", "").await.unwrap();
    assert_next(fx, &["2", "3"]).await;
}

/// Each in its turn: what comes after an end may block as well.
pub async fn blockers_are_dealt_with_one_after_another(fx: &dyn Fixture) {
    let first = put_dead(fx, blocking("1")).await;
    let second = put(fx, blocking("2")).await;
    put(fx, keyed("k", "3")).await;
    fx.admin().await.discard(first, "op", "gone").await.unwrap();
    let run = leases(&claim(&*fx.store().await, "w1", 10).await);
    assert_eq!(run[0].id, second);
    settle_all(&*fx.store().await, &[rejected(&run[0])]).await;
    assert_held(fx, "the second").await;
    fx.admin().await.resolve(second, "op", "seen", "").await.unwrap();
    assert_next(fx, &["3"]).await;
}

/// It holds what comes after it, not what came before; replayed, it is where it was.
pub async fn a_quarantined_message_blocks_where_it_stands(fx: &dyn Fixture) {
    let ids = put_all(fx, vec![keyed("k", "1"), blocking("2"), keyed("k", "3")]).await;
    fx.admin().await.quarantine(ids[1], "op", "odd").await.unwrap();
    let store = fx.store().await;
    let run = claim(&*store, "w1", 10).await;
    assert_eq!(bodies(&run), ["1"]);
    deliver(&*store, &run).await;
    assert_held(fx, "a quarantined one").await;
    fx.admin().await.replay(ids[1], "op", "fine", None).await.unwrap();
    assert_next(fx, &["2", "3"]).await;
    assert_sound(fx, &ids).await;
}

/// One that passes is stepped over, and comes back at the tail.
pub async fn a_quarantined_message_that_passes_is_stepped_over(fx: &dyn Fixture) {
    let ids = put_all(fx, line("k", &["1", "2", "3"])).await;
    fx.admin().await.quarantine(ids[1], "op", "odd").await.unwrap();
    put(fx, keyed("k", "4")).await;
    fx.admin().await.replay(ids[1], "op", "fine", None).await.unwrap();
    assert_next(fx, &["1", "3", "4", "2"]).await;
    assert_sound(fx, &ids).await;
}

/// A person has decided: nobody waits for it, in whatever place it was.
pub async fn a_cancelled_message_never_blocks(fx: &dyn Fixture) {
    for cancelled in 0..3 {
        let ids = put_all(fx, vec![blocking("0"), blocking("1"), blocking("2")]).await;
        fx.admin().await.cancel(ids[cancelled], "op", "given up").await.unwrap();
        let mut expected = vec!["0", "1", "2"];
        expected.remove(cancelled);
        assert_eq!(drained(fx).await, expected);
        assert_sound(fx, &ids).await;
    }
}

/// What once let its key go does not hold it again, also when it is held by an operator afterwards: the later ones may have
/// passed it. So it comes back at the tail, behind the one that is in flight.
pub async fn a_cancelled_message_that_is_held_does_not_block_again(fx: &dyn Fixture) {
    let ids = put_all(fx, vec![blocking("1"), blocking("2"), blocking("3")]).await;
    let (admin, store) = (fx.admin().await, fx.store().await);
    admin.cancel(ids[0], "op", "given up").await.unwrap();
    let second = claim_one(&*store, "w1").await;
    assert_eq!(second.lease.id, ids[1]);
    admin.quarantine(ids[0], "op", "or perhaps not").await.unwrap();
    admin.replay(ids[0], "op", "no, send it", None).await.unwrap();
    assert!(claim(&*store, "w2", 10).await.is_empty(), "the key is in use");
    assert!(settle(&*store, delivered(&second.lease)).await.is_settled());
    assert_eq!(drained(fx).await, ["3", "1"]);
    assert_sound(fx, &ids).await;
}

/// Declared delivered before it was sent: nobody waits for it.
pub async fn a_resolved_message_is_stepped_over(fx: &dyn Fixture) {
    let ids = put_all(fx, vec![blocking("1"), blocking("2"), blocking("3")]).await;
    fx.admin()
        .await
        .resolve(ids[1], "op", "by telephone", "")
        .await
        .unwrap();
    assert_eq!(drained(fx).await, ["1", "3"]);
    assert_sound(fx, &ids).await;
}

/// Past its deliver-by it is dead without a grant; the next one goes, wherever it stood.
pub async fn a_lapsed_message_that_passes_is_stepped_over(fx: &dyn Fixture) {
    for lapsing in 0..3 {
        let key = format!("k{lapsing}");
        let some = (0..3).map(|n| match n == lapsing {
            true => keyed(&key, "never").deliver_in(SECOND),
            false => keyed(&key, &n.to_string()),
        });
        let ids = put_all(fx, some.collect()).await;
        fx.advance(SECOND * 2).await;
        let expected: Vec<_> = (0..3).filter(|n| *n != lapsing).map(|n| n.to_string()).collect();
        assert_eq!(drained(fx).await, expected);
        let found = view(fx, ids[lapsing]).await;
        assert_eq!(
            (found.state, found.reason, found.epoch),
            (State::Dead, Some(DeadReason::Lapsed), 0)
        );
        assert_sound(fx, &ids).await;
    }
}

/// One that blocks does so when it has lapsed, and is replayed in its place with a new deliver-by.
pub async fn a_lapsed_head_that_blocks_holds_its_key(fx: &dyn Fixture) {
    let id = put(fx, blocking("1").deliver_in(SECOND)).await;
    put(fx, keyed("k", "2")).await;
    fx.advance(SECOND * 2).await;
    assert!(drained(fx).await.is_empty());
    let found = view(fx, id).await;
    assert_eq!((found.state, found.reason), (State::Dead, Some(DeadReason::Lapsed)));
    assert_sound(fx, &[id]).await;
    fx.admin().await.replay(id, "op", "again", Some(DAY)).await.unwrap();
    assert_next(fx, &["1", "2"]).await;
}

/// An operator may hold what is dead; that changes nothing for those that passed it, nor where it comes back.
pub async fn a_dead_message_that_passed_does_not_block_when_held(fx: &dyn Fixture) {
    let id = put_dead(fx, keyed("k", "1")).await;
    put(fx, keyed("k", "2")).await;
    fx.admin().await.quarantine(id, "op", "evidence").await.unwrap();
    fx.admin().await.replay(id, "op", "go", None).await.unwrap();
    assert_next(fx, &["2", "1"]).await;
}

/// Enqueued with `pass`, sent by a route that says `block`: the key waits for a person, and the rest of the run goes back.
pub async fn a_route_makes_a_death_block(fx: &dyn Fixture) {
    let ids = put_all(fx, line("k", &["1", "2"])).await;
    let store = fx.store().await;
    let run = leases(&claim(&*store, "w1", 10).await);
    settle_all(&*store, &[rejected(&run[0].under(Some(OnDead::Block)))]).await;
    assert!(settle(&*store, delivered(&run[1])).await.is_lost());
    assert_held(fx, "a rejected head").await;
    fx.admin().await.resolve(ids[0], "op", "seen", "").await.unwrap();
    assert_next(fx, &["2"]).await;
    // Without a key there is nothing to block.
    let single = put_and_claim(fx, message("single")).await;
    settle_all(&*store, &[rejected(&single.under(Some(OnDead::Block)))]).await;
    assert_eq!(state(fx, single.id).await, State::Dead);
}

/// And the other way round: the rest of the run goes on.
pub async fn a_route_lets_a_death_pass(fx: &dyn Fixture) {
    put_all(fx, vec![blocking("1"), keyed("k", "2")]).await;
    let store = fx.store().await;
    let run = leases(&claim(&*store, "w1", 10).await);
    settle_all(&*store, &[rejected(&run[0].under(Some(OnDead::Pass)))]).await;
    assert!(settle(&*store, delivered(&run[1])).await.is_settled());
    put(fx, keyed("k", "3")).await;
    assert_next(fx, &["3"]).await;
}

/// Whoever ends it without a route (a repairer, a claim that finds it lapsed) goes by what was written last.
pub async fn the_word_of_the_last_settlement_stands(fx: &dyn Fixture) {
    let stamps = [(OnDead::Pass, OnDead::Block), (OnDead::Block, OnDead::Pass)];
    for (n, (before, after)) in stamps.into_iter().enumerate() {
        let key = format!("k{n}");
        let head = |body: &str| keyed(&key, body).on_dead(before).max_attempts(2);
        put(fx, head("expires")).await;
        let store = fx.store().await;
        let first = claim_one(&*store, "w1").await.lease;
        assert_eq!(first.on_dead, before);
        settle_all(&*store, &[failed(&first.under(Some(after)), 2)]).await;
        fx.advance(SECOND * 10).await;
        let again = claim_one(&*store, "w1").await.lease;
        assert_eq!((again.id, again.on_dead), (first.id, after));
        put(fx, keyed(&key, "behind")).await;
        fx.advance(LEASE * 2).await;
        assert_eq!(posthouse_core::repair(&*store, 10).await.unwrap(), 1);
        assert_eq!(state(fx, first.id).await, State::Dead);
        match after {
            OnDead::Block => assert_held(fx, "an expired head").await,
            OnDead::Pass => assert_eq!(drained(fx).await, ["behind"]),
        }
    }
    let lapses = keyed("lapses", "head").deliver_in(DAY);
    put(fx, lapses).await;
    let store = fx.store().await;
    let lease = claim_one(&*store, "w1").await.lease;
    settle_all(&*store, &[failed(&lease.under(Some(OnDead::Block)), 12)]).await;
    put(fx, keyed("lapses", "behind")).await;
    fx.advance(DAY * 2).await;
    assert!(drained(fx).await.is_empty());
    assert_eq!(state(fx, lease.id).await, State::Dead);
}
