//! What happens to the messages of one line: one message without an order key, or those of a key, one after the other.

use posthouse_core::{
    AttemptOutcome, Delivery, Effect, MessageId, Outcome, Receipt, Settlement, Verdict, class, topic::shown,
};
use std::{collections::VecDeque, sync::Arc, time::Duration};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument, Span};

use super::{
    Engine,
    destination::{Way, margin},
    held::Grip,
    load::Share,
    locked, measures,
    points::point,
    route::Route,
    target::{Place, Target},
    tenants::Seat,
    transactional::{self, Grant},
};

/// A message that was granted, and what it takes up until it is settled.
pub(super) struct Work {
    pub grip: Grip,
    pub delivery: Arc<Delivery>,
    /// How long until its deliver-by, from when it was asked for.
    pub deliver_within: Option<Duration>,
    /// When the store was asked for it.
    pub asked: Instant,
    /// Whether it may come in, if that is known already.
    pub door: Option<Result<Door, Unsent>>,
    pub _share: Share,
    /// Its part of what its tenant may have. Without one it goes back.
    pub seat: Option<Seat>,
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
    /// The same, because the destination is not what it was when it came. Nobody is rung for it.
    Overdue,
    /// Its deliver-by has passed.
    Lapsed,
    /// The same was delivered before, and this is what was returned.
    Delivered(Receipt),
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

/// Sends them in their order.
pub(super) async fn run(engine: Arc<Engine>, line: Vec<Work>) {
    let keyed = line.iter().any(|work| work.delivery.order_key.is_some());
    in_order(&engine, line).await;
    if keyed {
        // Nobody could claim what is behind them while they were under way, nor is anybody rung for it when they end.
        engine.look.notify_one();
    }
}

/// What cannot go on stops the rest, which goes back.
async fn in_order(engine: &Engine, line: Vec<Work>) {
    let mut line = VecDeque::from(line);
    while let Some(mut work) = line.pop_front() {
        let process = process(&work);
        let next = match line.is_empty() {
            true => one(engine, &mut work).instrument(process).await,
            // Of its own, because it is large, and most lines are of one.
            false => Box::pin(first(engine, &mut work, &mut line)).instrument(process).await,
        };
        drop(work);
        engine.freed();
        match next {
            Next::Go => {}
            Next::Stop => break,
            Next::Fail => return give_back(engine, line.drain(..)).await,
        }
    }
}

/// What waits behind the first goes back when the relay stops, not when the first has ended.
async fn first(engine: &Engine, work: &mut Work, rest: &mut VecDeque<Work>) -> Next {
    let one = one(engine, work);
    tokio::pin!(one);
    tokio::select! {
        biased;
        next = &mut one => next,
        () = engine.stopping.cancelled() => tokio::join!(one, give_back(engine, rest.drain(..))).0,
    }
}

/// The span of a message's processing, with the producer's own trace by name, and nothing of its content or keys.
fn process(work: &Work) -> Span {
    let delivery = &work.delivery;
    let traceparent = delivery.headers.get("traceparent");
    tracing::info_span!("outbox.process", outbox_id = %delivery.id, topic = %shown(&delivery.topic), attempt = delivery.attempt, epoch = delivery.epoch, traceparent)
}

pub(super) async fn give_back(engine: &Engine, rest: impl Iterator<Item = Work>) {
    for work in rest {
        // A lease that is lost as well is no news.
        engine
            .settler
            .settle(Box::new(Settlement::released(&work.grip.lease, Duration::ZERO)))
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
    let (lease, overdue) = (&work.grip.lease, matches!(turned, Err(Unsent::Overdue)));
    let mut destination = None;
    let settlement = match turned {
        Ok(turn) => {
            let target = &turn.door.route.target;
            destination = Some(target.clone());
            let grant = grant(engine, target, work);
            let outcome = send(engine, &turn.door, work, grant.clone()).await;
            match (grant.filter(|grant| grant.is_used()), outcome) {
                (Some(grant), answer) => return transactional::read_back(engine, work, &grant, answer).await,
                (None, Some(outcome)) => {
                    let rules = target.rules();
                    let lease = lease.under(rules.on_dead);
                    let settlement = Settlement::of(&lease, outcome, &rules.retry, engine.roll());
                    match turn.effect {
                        Some(effect) => settlement.keeping(effect),
                        None => settlement,
                    }
                }
                (None, None) => return lost(engine, work).await,
            }
        }
        // By our own clock, which began before the store was asked, its time may be over; by the store's it may not be.
        Err(Unsent::Released | Unsent::Lost | Unsent::Overdue) => Settlement::released(lease, Duration::ZERO),
        Err(Unsent::Lapsed) => Settlement::lapsed(lease),
        Err(Unsent::Delivered(earlier)) => Settlement::duplicate(lease, earlier.text.as_deref()),
    };
    let end = End::of(&settlement);
    let next = settle(engine, work, &end, Box::new(settlement)).await;
    if !matches!(next, Next::Fail) {
        tell(destination.as_ref().map_or("", |target| &target.name), &end);
    }
    if overdue {
        engine.look.notify_one();
    }
    next
}

/// What is told of a settlement.
pub(super) struct End {
    pub id: MessageId,
    pub attempts: u32,
    /// None if it was given back unsent.
    pub outcome: Option<AttemptOutcome>,
    pub next: posthouse_core::Next,
    pub code: Option<String>,
    stops_run: bool,
}

impl End {
    fn of(settlement: &Settlement) -> Self {
        Self {
            id: settlement.lease.id,
            attempts: settlement.step.standing.attempts,
            outcome: settlement.step.evidence,
            next: settlement.next(),
            code: settlement.code.clone(),
            stops_run: settlement.stops_run(),
        }
    }
}

/// What became of a message, for people and for measures.
fn tell(destination: &str, end: &End) {
    measures::settled(destination, end);
    let (code, attempts) = (end.code.as_deref(), end.attempts);
    match end.next {
        posthouse_core::Next::Done => tracing::debug!(destination, attempts, "done"),
        posthouse_core::Next::Pending(wait) if end.outcome.is_some() => {
            tracing::info!(destination, attempts, code, ?wait, "tried again");
        }
        posthouse_core::Next::Pending(_) => tracing::debug!("given back unsent"),
        posthouse_core::Next::Dead(reason) => {
            tracing::warn!(destination, attempts, code, reason = reason.as_str(), "dead");
        }
    }
}

/// What a handler needs that settles by itself.
fn grant(engine: &Engine, target: &Target, work: &Work) -> Option<Arc<Grant>> {
    match target.destination.way {
        Way::Send(_) => None,
        Way::Handle(_) => {
            let (rules, lasts) = (target.rules(), engine.settings.lease);
            let lease = work.grip.lease.under(rules.on_dead);
            Some(Grant::new(&lease, &rules.retry, engine.roll(), lasts))
        }
    }
}

/// Whether it may come in: there is a route, and its destination has room.
pub(super) fn door(engine: &Engine, work: &Work) -> Result<Door, Unsent> {
    let topic = &work.delivery.topic;
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
    point("relay::before_last_look").await;
    // It may have taken its time, and nothing begins after the stop.
    if engine.stopping.is_cancelled() {
        return Err(Unsent::Released);
    }
    match work.deliver_within {
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
    let effect = Effect::of(&work.delivery, &route.target.name);
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
        let sends = target.sends.clone().acquire_owned();
        match door.place.patience() {
            Some(patience) => tokio::time::timeout(patience, sends).await.ok()?.ok(),
            None => sends.await.ok(),
        }
    };
    tokio::select! {
        biased;
        () = engine.stopping.cancelled() => Err(Unsent::Released),
        () = work.grip.lost() => Err(Unsent::Lost),
        room = turn => match room {
            Some(room) if !door.place.is_stale() => Some(room).filter(|_| !engine.is_paused(&target.name)).ok_or(Unsent::Released),
            _ => Err(Unsent::Overdue),
        },
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

/// One send, one outcome; none when the lease was lost meanwhile.
async fn send(engine: &Engine, door: &Door, work: &Work, grant: Option<Arc<Grant>>) -> Option<Outcome> {
    let (target, delivery) = (&door.route.target, &work.delivery);
    if delivery.attempt == 1 {
        measures::first_send(&target.name, delivery);
    }
    point("relay::before_send").await;
    let began = Instant::now();
    let outcome = answer(engine, target, work, grant).await?;
    point("relay::after_send").await;
    let took = began.elapsed();
    measures::phase("send", took);
    if door.place.report(&outcome, took, engine.roll()) {
        engine.news.notify_one();
    }
    if outcome.says_gone() {
        pause(engine, &target.name).await;
    }
    Some(outcome)
}

/// What the destination answers, or that there was no answer. It is asked on a task of its own, so that a panic ends nothing else.
async fn answer(engine: &Engine, target: &Target, work: &Work, grant: Option<Arc<Grant>>) -> Option<Outcome> {
    let timeout = target.rules().timeout;
    let (way, delivery) = (target.destination.way.clone(), work.delivery.clone());
    let span = tracing::info_span!("broker.send", destination = target.name);
    // Whoever drops the line ends the send too.
    let mut sending = AbortOnDropHandle::new(tokio::spawn(way.go(delivery, grant.clone()).instrument(span)));
    let given_up = tokio::select! {
        biased;
        sent = &mut sending => return Some(sent.unwrap_or_else(|e| Outcome::unknown("panic", panic_text(e)))),
        () = work.grip.lost() => None,
        () = tokio::time::sleep(timeout) => Some(Outcome::unknown("timeout", format!("no answer within {timeout:?}"))),
        () = engine.stopped.cancelled() => Some(Outcome::unknown("shutdown", "the relay stopped before there was an answer")),
    };
    drop(sending);
    // It may be about to settle, or have left that to a thread: what it did is in the store.
    if let Some(grant) = grant {
        grant.interrupt();
    }
    given_up
}

/// Nothing more is sent to a destination that says it is gone, until an operator resumes it.
async fn pause(engine: &Engine, destination: &str) {
    tracing::error!(
        destination,
        "the destination says that it is gone for good; it is paused until somebody resumes it"
    );
    locked(&engine.gone).insert(destination.to_owned(), false);
    locked(&engine.paused).insert(destination.to_owned());
    let reason = "it says that it is gone for good";
    match engine.store.gone(destination, &engine.settings.name, reason).await {
        Ok(()) => drop(locked(&engine.gone).insert(destination.to_owned(), true)),
        Err(error) => {
            tracing::warn!(destination, %error, "other relays were not told that it is gone");
            locked(&engine.gone).remove(destination);
        }
    }
}

fn panic_text(e: tokio::task::JoinError) -> String {
    let Ok(panic) = e.try_into_panic() else {
        return "the send was aborted".into();
    };
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "the handler panicked".into())
}

/// Not waited for any longer than the lease is held; but what is given back unsent does no harm, however late.
async fn settle(engine: &Engine, work: &Work, end: &End, settlement: Box<Settlement>) -> Next {
    let next = if end.stops_run { Next::Stop } else { Next::Go };
    let dead = matches!(end.next, posthouse_core::Next::Dead(_));
    let class = end.outcome.map(|outcome| outcome.class(dead));
    let verdict = tokio::select! {
        biased;
        verdict = engine.settler.settle(settlement) => verdict,
        () = work.grip.over(), if end.outcome.is_some() => None,
    };
    match verdict {
        Some(Verdict::Settled) => {
            if let Some(class) = class {
                tracing::debug!(class, id = %end.id, attempt = work.delivery.attempt, topic = %shown(&work.delivery.topic), "settled");
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
pub(super) async fn lost(engine: &Engine, work: &Work) -> Next {
    let lease = &work.grip.lease;
    measures::lost();
    match engine.store.record_conflict(lease, &engine.settings.name).await {
        Ok(_) => tracing::warn!(class = class::CONFLICT, id = %lease.id, "a lease was lost"),
        Err(error) => {
            tracing::warn!(class = class::CONFLICT, id = %lease.id, %error, "a lease was lost, and the audit could not be told")
        }
    }
    Next::Fail
}
