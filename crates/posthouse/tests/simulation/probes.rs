//! Questions to a world that has come to rest: does it still keep its times?

use posthouse_testkit::simulation::{Fact, Fate, Sky};
use std::time::Duration;
use tokio::time::sleep;

use super::world::{SECOND, World};

/// The way to the store and back, a few times.
const WAY: Duration = Duration::from_millis(100);

/// One of them, by chance.
pub async fn ask(world: &mut World) {
    // What was resumed is heard of with the next heartbeat.
    sleep(6 * SECOND).await;
    match world.chance.u8(0..4) {
        0 => nobody_is_woken(world).await,
        1 if !world.calm => a_relay_dies(world).await,
        2 if !world.calm => the_store_comes_back(world).await,
        _ => all_are_stopped(world).await,
    }
    world.quiet(120 * SECOND).await;
}

/// L1: what is due is claimed within the poll interval.
async fn nobody_is_woken(world: &mut World) {
    world.turn(Sky::Deaf);
    sleep(SECOND).await;
    let since = world.history.now();
    let poll = world
        .relays
        .iter()
        .map(|place| place.terms.poll)
        .max()
        .unwrap_or_default();
    // One alone: there is a relay that can send it, and it may have one slot.
    let topic = ["shop.sold", "bank.paid", "post.sent"][world.chance.usize(..3)];
    let ids = world.put(Fate::Fine, &[topic]).await;
    sleep(poll + WAY).await;
    if ids.iter().any(|id| world.grants(*id, since).is_empty()) {
        let what = format!("L1: a due message was not claimed within the poll interval of {poll:?}");
        world.history.add(Fact::Broken(what));
    }
    world.turn(Sky::Clear);
}

/// L2: a dead relay's work is taken over within its lease and a second.
async fn a_relay_dies(world: &mut World) {
    let since = world.history.now();
    let id = world.put(Fate::Slow, &["shop.sold"]).await[0];
    sleep(WAY).await;
    let Some((_, who)) = world.grants(id, since).last().copied() else {
        return;
    };
    let at = world
        .relays
        .iter()
        .position(|place| place.running.as_ref().is_some_and(|r| r.who == who));
    let (Some(at), true) = (
        at,
        world.relays.iter().any(|place| {
            place.running.as_ref().is_some_and(|r| r.who != who) && place.terms.destinations.contains_key("shop")
        }),
    ) else {
        return;
    };
    let lease = world.relays[at].terms.lease;
    world.crash(at).await;
    let died = world.history.now();
    sleep(lease + SECOND).await;
    if world.grants(id, died).is_empty() {
        let what = format!("L2: the work of {who} was not taken over within {lease:?} and a second");
        world.history.add(Fact::Broken(what));
    }
    world.start(at);
}

/// L3: the store is away for a while, and everything goes on within ten seconds after that.
async fn the_store_comes_back(world: &mut World) {
    world.turn(Sky::Outage);
    let time = Duration::from_millis(world.chance.u64(1000..20_000));
    sleep(time).await;
    let topic = ["shop.sold", "bank.paid", "post.sent"][world.chance.usize(..3)];
    let ids = world.put(Fate::Fine, &[topic]).await;
    world.turn(Sky::Clear);
    let since = world.history.now();
    sleep(10 * SECOND).await;
    if ids.iter().any(|id| world.grants(*id, since).is_empty()) {
        world.history.add(Fact::Broken(
            "L3: ten seconds after the outage a message still waits".into(),
        ));
    }
}

/// L6: all exit within their grace, and hold nothing. How long it took is for the judge.
async fn all_are_stopped(world: &mut World) {
    world.put(Fate::Slow, &["shop.sold"; 12]).await;
    world.put(Fate::Slow, &["bank.paid"; 12]).await;
    sleep(Duration::from_millis(world.chance.u64(1..1500))).await;
    let grace = world
        .relays
        .iter()
        .map(|place| place.terms.grace)
        .max()
        .unwrap_or_default();
    (0..world.relays.len()).for_each(|at| world.stop(at));
    world.left(grace + SECOND).await;
    let held = world.leased().await;
    if !held.is_empty() {
        world
            .history
            .add(Fact::Broken(format!("L6: nobody is left, and they are held: {held:?}")));
    }
    (0..world.relays.len()).for_each(|at| world.start(at));
}
