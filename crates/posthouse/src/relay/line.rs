//! What happens to the messages of one line: one message without an order key, or those of a key, one after the other.

use posthouse_core::{Claimed, Outcome, Settlement, Verdict};
use std::{sync::Arc, time::Duration};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use super::{
    Engine,
    held::Grip,
    route::{Place, Route, Way, margin},
    transactional::{self, Grant},
};

/// A message that was granted, and the slot that it takes until it is settled.
pub(super) struct Work {
    pub claimed: Claimed,
    pub grip: Grip,
    /// When the store was asked for it.
    pub asked: Instant,
    pub _slot: OwnedSemaphorePermit,
}

/// A message's turn at its destination.
struct Turn {
    route: Arc<Route>,
    _place: Place,
    _room: OwnedSemaphorePermit,
}

/// Why nothing is sent.
enum Unsent {
    /// It goes back, uncounted.
    Released,
    /// Its deliver-by has passed.
    Lapsed,
    /// It is not ours any more.
    Lost,
}

/// How a line goes on after one of its messages.
pub(super) enum Next {
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
    for work in line.by_ref() {
        let next = one(&engine, &work).await;
        drop(work);
        engine.changed.notify_one();
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
    engine.changed.notify_one();
}

async fn one(engine: &Engine, work: &Work) -> Next {
    let lease = &work.grip.lease;
    let settlement = match turn(engine, work).await {
        Ok(turn) => {
            let grant = grant(engine, &turn.route, work);
            let outcome = send(engine, &turn.route, work, grant.clone()).await;
            match (grant.filter(|grant| grant.is_used()), outcome) {
                (Some(grant), answer) => return transactional::read_back(engine, work, &grant, answer).await,
                (None, Some(outcome)) => Settlement::of(lease, outcome, &turn.route.retry, engine.roll()),
                (None, None) => return lost(engine, work).await,
            }
        }
        Err(Unsent::Released) => Settlement::released(lease, Duration::ZERO),
        Err(Unsent::Lapsed) => Settlement::lapsed(lease),
        Err(Unsent::Lost) => return lost(engine, work).await,
    };
    settle(engine, work, settlement).await
}

/// What a handler needs that settles by itself.
fn grant(engine: &Engine, route: &Route, work: &Work) -> Option<Arc<Grant>> {
    match route.way {
        Way::Send(_) => None,
        Way::Handle(_) => {
            let (lease, lasts) = (&work.grip.lease, engine.settings.lease);
            Some(Grant::new(lease, &route.retry, engine.roll(), lasts))
        }
    }
}

/// Everything that must hold before a send begins.
async fn turn(engine: &Engine, work: &Work) -> Result<Turn, Unsent> {
    let topic = &work.claimed.delivery.topic;
    let Some(route) = engine.route(topic) else {
        engine.leave_topic(topic);
        return Err(Unsent::Released);
    };
    let place = route.enter(topic).ok_or(Unsent::Released)?;
    let room = room(engine, &route, work).await?;
    cover(engine, &route, work).await?;
    match work.claimed.deliver_within {
        Some(within) if work.asked.elapsed() >= within => Err(Unsent::Lapsed),
        _ => Ok(Turn {
            route,
            _place: place,
            _room: room,
        }),
    }
}

/// Waits until the destination can take one more.
async fn room(engine: &Engine, route: &Route, work: &Work) -> Result<OwnedSemaphorePermit, Unsent> {
    tokio::select! {
        biased;
        () = engine.stopping.cancelled() => Err(Unsent::Released),
        () = work.grip.lost() => Err(Unsent::Lost),
        room = route.room.clone().acquire_owned() => room.ok().filter(|_| !route.is_paused()).ok_or(Unsent::Released),
    }
}

/// Never begins a send that its lease does not outlast.
async fn cover(engine: &Engine, route: &Route, work: &Work) -> Result<(), Unsent> {
    let needed = route.timeout + margin(engine.settings.lease);
    if work.grip.remaining() < needed {
        let leases = [work.grip.lease.clone()];
        if let Err(error) = engine.held.renew(&*engine.store, &leases).await {
            tracing::warn!(%error, "a lease could not be renewed before its send");
        }
    }
    if work.grip.remaining() < needed {
        return Err(Unsent::Released);
    }
    Ok(())
}

/// One send, one outcome; none when the lease was lost meanwhile. It runs on a task of its own, so that a panic ends nothing else.
async fn send(engine: &Engine, route: &Route, work: &Work, grant: Option<Arc<Grant>>) -> Option<Outcome> {
    let (way, delivery) = (route.way.clone(), work.claimed.delivery.clone());
    let held = grant.clone();
    let mut sending = tokio::spawn(way.go(delivery, grant));
    let unknown = |code: &str, error: String| Outcome::Unknown {
        code: code.into(),
        error,
    };
    let outcome = tokio::select! {
        biased;
        sent = &mut sending => return Some(sent.unwrap_or_else(|e| unknown("panic", panic_text(e)))),
        () = work.grip.lost() => None,
        () = tokio::time::sleep(route.timeout) => Some(unknown("timeout", format!("no answer within {:?}", route.timeout))),
        () = engine.stopped.cancelled() => Some(unknown("shutdown", "the relay stopped before there was an answer".into())),
    };
    sending.abort();
    // It may be about to settle, or have left that to a thread: what it did is in the store.
    if let Some(grant) = held {
        grant.interrupt();
    }
    outcome
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
    let verdict = tokio::select! {
        biased;
        verdict = engine.settler.settle(settlement) => verdict,
        () = work.grip.lost() => None,
    };
    match verdict {
        Some(Verdict::Settled) => next,
        Some(Verdict::Refused(error)) => {
            tracing::error!(%error, id = %work.grip.lease.id, "a settlement was refused; its lease is left to run out");
            Next::Fail
        }
        Some(Verdict::LeaseLost) | None => lost(engine, work).await,
    }
}

/// What was found in the place of the lease goes into the audit.
pub(super) async fn lost(engine: &Engine, work: &Work) -> Next {
    let lease = &work.grip.lease;
    match engine.store.record_conflict(lease, &engine.settings.name).await {
        Ok(_) => tracing::warn!(id = %lease.id, "a lease was lost"),
        Err(error) => tracing::warn!(id = %lease.id, %error, "a lease was lost, and the audit could not be told"),
    }
    Next::Fail
}
