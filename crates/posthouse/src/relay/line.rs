//! What happens to the messages of one line: one message without an order key, or those of a key, one after the other.

use posthouse_core::{Claimed, Effect, Outcome, Receipt, Settlement, Verdict, class};
use std::{sync::Arc, time::Duration};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};
use tokio_util::task::AbortOnDropHandle;

use super::{Engine, destination::margin, held::Grip, load::Share, route::Route, target::Place};

/// A message that was granted, and what it takes up until it is settled.
pub(super) struct Work {
    pub claimed: Claimed,
    pub grip: Grip,
    /// When the store was asked for it.
    pub asked: Instant,
    /// Whether it may come in, if that is known already.
    pub door: Option<Result<Door, Unsent>>,
    pub _share: Share,
}

/// The way to a message's destination, and its place there.
pub(super) struct Door {
    route: Arc<Route>,
    place: Place,
}

/// A message's turn at its destination.
struct Turn {
    door: Door,
    /// For what its receipt is to be kept.
    effect: Option<Effect>,
    _room: OwnedSemaphorePermit,
}

/// Why nothing is sent.
pub(super) enum Unsent {
    /// It goes back, uncounted.
    Released,
    /// Its deliver-by has passed.
    Lapsed,
    /// The same was delivered before, and this is what was returned.
    Delivered(Receipt),
    /// It is not ours any more.
    Lost,
}

/// How a line goes on after one of its messages.
enum Next {
    /// With the next one.
    Go,
    /// Not at all: the store has let go of the rest.
    Stop,
    /// Not at all, and the store does not know of it.
    Fail,
}

/// Sends them in their order. What cannot go on stops the rest, which goes back.
pub(super) async fn run(engine: Arc<Engine>, line: Vec<Work>) {
    let mut line = line.into_iter();
    for mut work in line.by_ref() {
        let next = one(&engine, &mut work).await;
        drop(work);
        engine.freed();
        match next {
            Next::Go => {}
            Next::Stop => break,
            Next::Fail => return give_back(&engine, line).await,
        }
    }
}

async fn give_back(engine: &Engine, rest: impl Iterator<Item = Work>) {
    for work in rest {
        // A lease that is lost as well is no news.
        engine
            .settler
            .settle(Settlement::released(&work.grip.lease, Duration::ZERO))
            .await;
    }
    engine.freed();
}

async fn one(engine: &Engine, work: &mut Work) -> Next {
    let door = work.door.take().unwrap_or_else(|| door(engine, work));
    let turned = match door {
        Ok(door) => turn(engine, door, work).await,
        Err(unsent) => Err(unsent),
    };
    let lease = &work.grip.lease;
    let settlement = match turned {
        Ok(turn) => match send(engine, &turn.door, work).await {
            Some(outcome) => {
                let retry = &turn.door.route.target.rules().retry;
                let settlement = Settlement::of(lease, outcome, retry, engine.roll());
                match turn.effect {
                    Some(effect) => settlement.keeping(effect),
                    None => settlement,
                }
            }
            None => return lost(engine, work).await,
        },
        Err(Unsent::Released) => Settlement::released(lease, Duration::ZERO),
        Err(Unsent::Lapsed) => Settlement::lapsed(lease),
        Err(Unsent::Delivered(earlier)) => Settlement::duplicate(lease, earlier.text.as_deref()),
        Err(Unsent::Lost) => return lost(engine, work).await,
    };
    settle(engine, work, settlement).await
}

/// Whether it may come in: there is a route, and its destination has room.
pub(super) fn door(engine: &Engine, work: &Work) -> Result<Door, Unsent> {
    let topic = &work.claimed.delivery.topic;
    let Some(route) = engine.routes.find(topic) else {
        engine.leave_topic(topic);
        return Err(Unsent::Released);
    };
    let place = route.enter(topic).ok_or(Unsent::Released)?;
    if engine.is_paused(&route.target.name) {
        return Err(Unsent::Released);
    }
    Ok(Door { route, place })
}

/// Everything that must hold before a send begins.
async fn turn(engine: &Engine, door: Door, work: &Work) -> Result<Turn, Unsent> {
    let room = room(engine, &door, work).await?;
    let effect = new_effect(engine, &door.route, work).await?;
    cover(engine, &door.route, work).await?;
    match work.claimed.deliver_within {
        Some(within) if work.asked.elapsed() >= within => Err(Unsent::Lapsed),
        _ => Ok(Turn {
            door,
            effect,
            _room: room,
        }),
    }
}

/// What sending it would do, where the destination wants nothing twice; unless that was done before. Asked as late as can be, and
/// without an answer nothing is sent.
async fn new_effect(engine: &Engine, route: &Route, work: &Work) -> Result<Option<Effect>, Unsent> {
    if !route.target.rules().reuse_receipts {
        return Ok(None);
    }
    let effect = Effect::of(&work.claimed.delivery, &route.target.name);
    let effects = [effect];
    let earlier = tokio::select! {
        biased;
        () = engine.stopping.cancelled() => return Err(Unsent::Released),
        () = work.grip.lost() => return Err(Unsent::Lost),
        earlier = engine.store.earlier_receipts(&effects) => earlier,
    };
    match earlier {
        Ok(mut answers) => answers
            .pop()
            .flatten()
            .map_or(Ok(Some(effect)), |receipt| Err(Unsent::Delivered(receipt))),
        Err(error) => {
            tracing::warn!(class = class::of_error(&error), %error, id = %work.grip.lease.id, "the store does not say whether it was delivered before");
            Err(Unsent::Released)
        }
    }
}

/// Waits for its turn, and until the destination can take one more.
async fn room(engine: &Engine, door: &Door, work: &Work) -> Result<OwnedSemaphorePermit, Unsent> {
    let target = &door.route.target;
    let turn = async {
        tokio::time::sleep_until(door.place.turn).await;
        target.sends.clone().acquire_owned().await
    };
    tokio::select! {
        biased;
        () = engine.stopping.cancelled() => Err(Unsent::Released),
        () = work.grip.lost() => Err(Unsent::Lost),
        room = turn => room.ok().filter(|_| !engine.is_paused(&target.name)).ok_or(Unsent::Released),
    }
}

/// Never begins a send that its lease does not outlast.
async fn cover(engine: &Engine, route: &Route, work: &Work) -> Result<(), Unsent> {
    let needed = route.target.rules().timeout + margin(engine.settings.lease);
    if work.grip.remaining() < needed {
        let leases = [work.grip.lease.clone()];
        if let Err(error) = engine.held.renew(&*engine.store, &leases).await {
            tracing::warn!(class = class::of_error(&error), %error, "a lease could not be renewed before its send");
        }
    }
    if work.grip.remaining() < needed {
        return Err(Unsent::Released);
    }
    Ok(())
}

/// One send, one outcome; none when the lease was lost meanwhile. It runs on a task of its own, so that a panic ends nothing else.
async fn send(engine: &Engine, door: &Door, work: &Work) -> Option<Outcome> {
    let target = &door.route.target;
    let timeout = target.rules().timeout;
    let (transport, delivery) = (target.destination.transport.clone(), work.claimed.delivery.clone());
    // Whoever drops the line ends the send too.
    let mut sending = AbortOnDropHandle::new(tokio::spawn(async move { transport.send(&delivery).await }));
    let unknown = |code: &str, error: String| Outcome::Unknown {
        code: code.into(),
        error,
    };
    let outcome = tokio::select! {
        biased;
        sent = &mut sending => sent.unwrap_or_else(|e| unknown("panic", panic_text(e))),
        () = work.grip.lost() => return None,
        () = tokio::time::sleep(timeout) => unknown("timeout", format!("no answer within {timeout:?}")),
        () = engine.stopped.cancelled() => return Some(unknown("shutdown", "the relay stopped before there was an answer".into())),
    };
    if door.place.report(&outcome, engine.roll()) {
        engine.news.notify_one();
    }
    Some(outcome)
}

fn panic_text(e: tokio::task::JoinError) -> String {
    let Ok(panic) = e.try_into_panic() else {
        return "the send was aborted".into();
    };
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "the handler panicked".into())
}

/// Not waited for any longer than the lease is held.
async fn settle(engine: &Engine, work: &Work, settlement: Settlement) -> Next {
    let next = if settlement.stops_run() { Next::Stop } else { Next::Go };
    let dead = matches!(settlement.next(), posthouse_core::Next::Dead(_));
    let class = settlement.step.evidence.map(|outcome| outcome.class(dead));
    let verdict = tokio::select! {
        biased;
        verdict = engine.settler.settle(settlement) => verdict,
        () = work.grip.lost() => None,
    };
    match verdict {
        Some(Verdict::Settled) => {
            if let Some(class) = class {
                let (id, attempt) = (work.grip.lease.id, work.claimed.delivery.attempt);
                tracing::debug!(class, %id, attempt, topic = work.claimed.delivery.topic, "settled");
            }
            next
        }
        Some(Verdict::Refused(error)) => {
            tracing::error!(%error, id = %work.grip.lease.id, "a settlement was refused; its lease is left to run out");
            Next::Fail
        }
        Some(Verdict::LeaseLost) | None => lost(engine, work).await,
    }
}

/// What was found in the place of the lease goes into the audit.
async fn lost(engine: &Engine, work: &Work) -> Next {
    let lease = &work.grip.lease;
    match engine.store.record_conflict(lease, &engine.settings.name).await {
        Ok(_) => tracing::warn!(class = class::CONFLICT, id = %lease.id, "a lease was lost"),
        Err(error) => {
            tracing::warn!(class = class::CONFLICT, id = %lease.id, %error, "a lease was lost, and the audit could not be told")
        }
    }
    Next::Fail
}
