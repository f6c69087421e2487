//! What happens to the messages of one line: one message without an order key, or those of a key, one after the other.

use posthouse_core::{
    Delivery, Effect, Error, Kind, Outcome, Receipt, Settlement, class,
    ledger::{Clearance, Kept, waits},
    saga::Report,
    topic::shown,
};
use std::{
    any::Any,
    collections::VecDeque,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tracing::{Instrument, Span};

use super::{
    Engine,
    destination::{Way, margin},
    held::Grip,
    load::Share,
    locked, measures,
    points::point,
    route::Route,
    sagas::Step,
    settler::Ending,
    target::{Place, Target},
    tasks::Tasks,
    tenants::Seat,
    transactional::{self, Grant},
};

/// How long a send that is given up may take to go.
const GONE_WITHIN: Duration = Duration::from_millis(100);
/// How often a lease is to be renewed before its send, and how long after each other, when somebody has it locked.
const RENEWALS: u32 = 5;
const BETWEEN_RENEWALS: Duration = Duration::from_millis(10);

/// A message that was granted, and what it takes up until it is settled.
pub(super) struct Work {
    pub grip: Grip,
    pub delivery: Arc<Delivery>,
    /// How long until its deliver-by, from its grant.
    pub deliver_within: Option<Duration>,
    /// When the store was asked for it, and when it answered: the grant was in between.
    pub asked: Instant,
    pub answered: Instant,
    /// Its lease stands for itself, and may be ended in a transaction that takes its time.
    pub apart: bool,
    pub _share: Share,
    /// Its part of what its tenant may have. Without one it goes back.
    pub seat: Option<Seat>,
}

/// The way to a message's destination, and its place there.
struct Door {
    route: Arc<Route>,
    place: Place,
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
    /// It was done before, under its key of the ledger.
    Done(Box<Kept>),
    /// Its key of the ledger was used for something else.
    Conflict,
    /// Somebody else is at it, under the same key of the ledger: it goes back for so long, uncounted.
    Wait(Duration),
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

/// What is still to be sent, one after the other: each begins when the one before it has ended.
pub(super) struct Line {
    pub engine: Arc<Engine>,
    rest: VecDeque<Work>,
    keyed: bool,
}

impl Line {
    /// Sends them, one after the other.
    pub fn begin(engine: &Arc<Engine>, first: Work, rest: VecDeque<Work>) {
        let line = Self {
            engine: engine.clone(),
            keyed: first.delivery.order_key.is_some(),
            rest,
        };
        line.come(first);
    }

    fn go_on(mut self) {
        match self.rest.pop_front() {
            Some(next) => self.come(next),
            None => self.over(),
        }
    }

    /// It comes to its destination.
    fn come(self, work: Work) {
        let span = process(&work);
        if work.delivery.kind == Kind::Timer && work.grip.lease().saga.is_some() {
            // It is sent nowhere: that it came is what it says.
            return self.end_step(work, span, None, Report::Sent(Outcome::delivered()), false);
        }
        match door(&self.engine, &work) {
            Ok(door) => {
                let target = door.route.target.clone();
                let guest = Guest {
                    patient_until: door.place.patient_until(),
                    door,
                    work,
                    line: self,
                    span,
                };
                target.queue.come(&target, guest);
            }
            Err(why) => self.end_unsent(work, span, why),
        }
    }

    /// After one of its messages.
    pub fn after(mut self, next: Next) {
        match next {
            Next::Go => self.go_on(),
            Next::Stop => self.over(),
            Next::Fail => {
                give_back(&self.engine, self.rest.drain(..));
                self.over();
            }
        }
    }

    fn over(self) {
        if self.keyed {
            // Nobody could claim what is behind them while they were under way, nor is anybody rung for it when they end.
            self.engine.look.notify_one();
        }
    }

    /// What became of a message of a saga is for that to say.
    fn end_step(self, work: Work, span: Span, target: Option<Arc<Target>>, report: Report, overdue: bool) {
        let engine = self.engine.clone();
        engine.settler.hand_in_step(Step {
            report,
            roll: engine.roll(),
            ending: Ending {
                target,
                overdue,
                line: Some(self),
                ..Ending::of(work, span)
            },
        });
    }

    fn end_unsent(self, work: Work, span: Span, why: Unsent) {
        let lease = work.grip.lease();
        let overdue = matches!(why, Unsent::Overdue);
        if lease.saga.is_some() {
            // Its saga decides what becomes of it.
            let report = match why {
                Unsent::Lapsed => Report::Lapsed,
                _ => Report::Released(Duration::ZERO),
            };
            return self.end_step(work, span, None, report, overdue);
        }
        let settlement = match why {
            // By our own clock, which began before the store was asked, its time may be over; by the store's it may not be.
            Unsent::Released | Unsent::Lost | Unsent::Overdue => Settlement::released(lease, Duration::ZERO),
            Unsent::Lapsed => Settlement::lapsed(lease),
            Unsent::Delivered(earlier) => Settlement::duplicate(lease, earlier.text.as_deref()),
            Unsent::Done(kept) => {
                let said = kept.body.as_deref().map(String::from_utf8_lossy);
                Settlement::duplicate(lease, said.as_deref())
            }
            Unsent::Conflict => Settlement::conflict(lease),
            Unsent::Wait(after) => Settlement::released(lease, waits(after, lease.standing.releases)),
        };
        let settler = self.engine.settler.clone();
        settler.hand_in(
            settlement,
            Ending {
                overdue,
                line: Some(self),
                ..Ending::of(work, span)
            },
        );
    }
}

/// A message at its destination, and what is to be sent after it.
pub(super) struct Guest {
    work: Work,
    door: Door,
    line: Line,
    /// How long it waits for others, if not for ever.
    patient_until: Option<Instant>,
    span: Span,
}

impl Guest {
    pub fn tasks(&self) -> &Arc<Tasks> {
        &self.line.engine.tasks
    }

    pub fn stopping(&self) -> CancellationToken {
        self.line.engine.stopping.clone()
    }

    pub fn patient_until(&self) -> Option<Instant> {
        self.patient_until
    }

    /// Why it waits no longer, if that is so.
    pub fn has_enough(&self) -> Option<Unsent> {
        if self.line.engine.stopping.is_cancelled() {
            return Some(Unsent::Released);
        }
        if self.work.grip.is_lost() {
            return Some(Unsent::Lost);
        }
        let late = self.patient_until.is_some_and(|at| at <= Instant::now());
        late.then_some(Unsent::Overdue)
    }
}

/// It goes, unsent.
pub(super) fn leave(guest: Guest, why: Unsent) {
    let Guest {
        work, door, line, span, ..
    } = guest;
    // Its place first: whoever hears of its end finds room.
    drop(door);
    line.end_unsent(work, span, why);
}

/// Sends it, and hands in what became of it.
pub(super) async fn attend(guest: Guest) {
    let Guest {
        work,
        door,
        mut line,
        span,
        ..
    } = guest;
    let engine = line.engine.clone();
    let sent = match line.rest.is_empty() {
        true => one(&engine, &work, &door).instrument(span.clone()).await,
        // Of its own, because it is large, and most lines are of one.
        false => {
            Box::pin(first(&engine, &work, &door, &mut line.rest))
                .instrument(span.clone())
                .await
        }
    };
    let target = door.route.target.clone();
    drop(door);
    match sent {
        Sent::Settle(settlement) => engine.settler.hand_in(
            *settlement,
            Ending {
                target: Some(target),
                line: Some(line),
                ..Ending::of(work, span)
            },
        ),
        Sent::Answered(outcome) => line.end_step(work, span, Some(target), Report::Sent(*outcome), false),
        Sent::Not(why) => line.end_unsent(work, span, why),
        Sent::Ended(next) => {
            drop(work);
            line.after(next);
            engine.freed();
        }
    }
}

/// What waits behind the first goes back when the relay stops, not when the first has ended.
async fn first(engine: &Engine, work: &Work, door: &Door, rest: &mut VecDeque<Work>) -> Sent {
    let one = one(engine, work, door);
    tokio::pin!(one);
    tokio::select! {
        biased;
        sent = &mut one => return sent,
        () = engine.stopping.cancelled() => {}
    }
    give_back(engine, rest.drain(..));
    one.await
}

/// The span of a message's processing, with the producer's own trace by name, and nothing of its content or keys.
fn process(work: &Work) -> Span {
    let delivery = &work.delivery;
    let traceparent = delivery.headers.get("traceparent");
    tracing::info_span!("outbox.process", outbox_id = %delivery.id, topic = %shown(&delivery.topic), attempt = delivery.attempt, epoch = delivery.epoch, traceparent)
}

/// It goes back, and nothing waits for that.
pub(super) fn give_back(engine: &Engine, rest: impl Iterator<Item = Work>) {
    for work in rest {
        let span = process(&work);
        if work.grip.lease().saga.is_some() {
            engine.settler.hand_in_step(Step {
                report: Report::Released(Duration::ZERO),
                roll: 0.5,
                ending: Ending::of(work, span),
            });
            continue;
        }
        let settlement = Settlement::released(work.grip.lease(), Duration::ZERO);
        engine.settler.hand_in(settlement, Ending::of(work, span));
    }
}

/// What became of a message's turn.
enum Sent {
    /// This is to be written.
    Settle(Box<Settlement>),
    /// This was answered, and its saga decides what is to be written.
    Answered(Box<Outcome>),
    /// Nothing was sent.
    Not(Unsent),
    /// It is settled already, or never will be.
    Ended(Next),
}

async fn one(engine: &Engine, work: &Work, door: &Door) -> Sent {
    let effect = match turn(engine, door, work).await {
        Ok(effect) => effect,
        Err(why) => return Sent::Not(why),
    };
    let target = &door.route.target;
    let grant = grant(engine, target, work);
    let outcome = send(engine, door, work, grant.clone()).await;
    match (grant.filter(|grant| grant.is_used()), outcome) {
        (Some(grant), answer) => Sent::Ended(transactional::read_back(engine, work, &grant, answer).await),
        (None, Some(outcome)) if work.grip.lease().saga.is_some() => Sent::Answered(Box::new(outcome)),
        (None, Some(outcome)) => {
            let rules = target.rules();
            let lease = work.grip.lease().under(rules.on_dead);
            let settlement = Settlement::of(&lease, outcome, &rules.retry, engine.roll());
            Sent::Settle(Box::new(match effect {
                Some(effect) => settlement.keeping(effect),
                None => settlement,
            }))
        }
        (None, None) => Sent::Ended(lost(engine, work).await),
    }
}

/// What a handler needs that settles by itself.
fn grant(engine: &Engine, target: &Target, work: &Work) -> Option<Arc<Grant>> {
    match target.destination.way {
        _ if work.grip.lease().saga.is_some() => None,
        Way::Send(_) => None,
        Way::Handle(_) => {
            let (rules, lasts) = (target.rules(), engine.settings.lease);
            let lease = work.grip.lease().under(rules.on_dead);
            Some(Grant::new(&lease, target, engine.roll(), lasts))
        }
    }
}

/// Whether it may come in: there is a route, and its destination has room.
fn door(engine: &Engine, work: &Work) -> Result<Door, Unsent> {
    let topic = &work.delivery.topic;
    let Some(route) = engine.routes.find(topic) else {
        engine.leave_topic(topic, &work.delivery.namespace);
        return Err(Unsent::Released);
    };
    let place = route.enter(topic).ok_or(Unsent::Released)?;
    if engine.is_paused(&route.target.name) {
        return Err(Unsent::Released);
    }
    Ok(Door { route, place })
}

/// Everything that must hold before a send begins. Answers for what its receipt is to be kept.
async fn turn(engine: &Engine, door: &Door, work: &Work) -> Result<Option<Effect>, Unsent> {
    may_begin(engine, door, work).await?;
    clear(engine, work).await?;
    let effect = new_effect(engine, &door.route, work).await?;
    cover(engine, &door.route, work).await?;
    point("relay::before_last_look").await;
    // It may have taken its time, and nothing begins after the stop.
    if engine.stopping.is_cancelled() {
        return Err(Unsent::Released);
    }
    match work.deliver_within {
        Some(within) if work.answered.elapsed() >= within => Err(Unsent::Lapsed),
        // Perhaps: the grant may have been a moment ago. The next claim judges it by the store's clock.
        Some(within) if work.asked.elapsed() >= within => Err(Unsent::Released),
        _ => Ok(effect),
    }
}

/// What sending it would do, where the destination wants nothing twice; unless that was done before. Asked as late as can be, and
/// without an answer nothing is sent.
async fn new_effect(engine: &Engine, route: &Route, work: &Work) -> Result<Option<Effect>, Unsent> {
    if !route.target.rules().reuse_receipts || work.grip.lease().saga.is_some() {
        return Ok(None);
    }
    let effect = Effect::of(&work.delivery, &route.target.name);
    let effects = [effect];
    match asked(engine, work, engine.store.earlier_receipts(&effects)).await? {
        Some(receipt) => Err(Unsent::Delivered(receipt)),
        None => Ok(Some(effect)),
    }
}

/// Whether its entry in the ledger lets it be sent, if it has one. It has it from then on, and without an answer nothing is sent.
async fn clear(engine: &Engine, work: &Work) -> Result<(), Unsent> {
    let lease = work.grip.lease();
    if !lease.bound {
        return Ok(());
    }
    let leases = std::slice::from_ref(lease);
    let clearance = asked(engine, work, engine.store.clear(leases)).await?;
    measures::cleared(&clearance);
    match clearance {
        Clearance::Send => Ok(()),
        Clearance::Done(kept) => Err(Unsent::Done(Box::new(kept))),
        Clearance::Conflict => Err(Unsent::Conflict),
        Clearance::Wait(after) => Err(Unsent::Wait(after)),
    }
}

/// The store's one answer to a question on whose answer the send depends.
async fn asked<T>(
    engine: &Engine,
    work: &Work,
    question: impl Future<Output = Result<Vec<T>, Error>>,
) -> Result<T, Unsent> {
    let answers = tokio::select! {
        biased;
        () = engine.stopping.cancelled() => return Err(Unsent::Released),
        () = work.grip.lost() => return Err(Unsent::Lost),
        answers = question => answers,
    };
    match answers.map(|mut answers| answers.pop()) {
        Ok(Some(answer)) => Ok(answer),
        Ok(None) => Err(Unsent::Released),
        Err(error) => {
            tracing::warn!(class = class::of_error(&error), %error, id = %work.grip.lease().id, "the store does not say whether it was done before");
            Err(Unsent::Released)
        }
    }
}

/// Waits until the destination's rate lets it, and looks whether it is still what it was when the message came.
async fn may_begin(engine: &Engine, door: &Door, work: &Work) -> Result<(), Unsent> {
    if engine.stopping.is_cancelled() {
        return Err(Unsent::Released);
    }
    if work.grip.is_lost() {
        return Err(Unsent::Lost);
    }
    if let Some(turn) = door.place.turn {
        tokio::select! {
            biased;
            () = engine.stopping.cancelled() => return Err(Unsent::Released),
            () = work.grip.lost() => return Err(Unsent::Lost),
            () = tokio::time::sleep_until(turn) => {}
        }
    }
    if door.place.is_stale() {
        return Err(Unsent::Overdue);
    }
    if engine.is_paused(&door.route.target.name) {
        return Err(Unsent::Released);
    }
    Ok(())
}

/// Never begins a send that its lease does not outlast; nor a handler that settles by itself, under a lease that stands with others, which would
/// wait for its transaction: to renew it alone gives it a place of its own.
async fn cover(engine: &Engine, route: &Route, work: &Work) -> Result<(), Unsent> {
    let target = &route.target;
    let needed = timeout(engine, target, work) + margin(engine.settings.lease);
    let alone = work.apart || matches!(target.destination.way, Way::Send(_));
    if alone && work.grip.remaining() >= needed {
        return Ok(());
    }
    let renewed = renew(engine, work).await;
    if work.grip.remaining() < needed || !alone && !renewed {
        return Err(Unsent::Released);
    }
    Ok(())
}

/// Whether its lease was renewed. One that stands with others may be locked for a moment, for their sake.
async fn renew(engine: &Engine, work: &Work) -> bool {
    let leases = [work.grip.lease().clone()];
    for _ in 0..RENEWALS {
        match engine.held.renew(&*engine.store, &leases).await {
            Ok(locked) if locked.is_empty() => return !work.grip.is_lost(),
            Ok(_) => tokio::time::sleep(BETWEEN_RENEWALS).await,
            Err(error) => {
                tracing::warn!(class = class::of_error(&error), %error, "a lease could not be renewed before its send");
                break;
            }
        }
    }
    false
}

/// One send, one outcome; none when the lease was lost meanwhile.
async fn send(engine: &Engine, door: &Door, work: &Work, grant: Option<Arc<Grant>>) -> Option<Outcome> {
    let (target, delivery) = (&door.route.target, &work.delivery);
    if delivery.attempt == 1 {
        target.measures.first_send(delivery);
    }
    point("relay::before_send").await;
    let began = Instant::now();
    let outcome = answer(engine, target, work, grant).await?;
    point("relay::after_send").await;
    let took = began.elapsed();
    measures::phase("send", took);
    if let Some(ticket) = &delivery.ticket {
        measures::step(ticket, took);
    }
    if door.place.report(&outcome, took, engine.roll()) {
        engine.news.notify_one();
    }
    // Of a step of a saga it says that this one cannot be done, not that the place is gone.
    if outcome.says_gone() && delivery.ticket.is_none() {
        pause(engine, &target.name).await;
    }
    Some(outcome)
}

/// How long a send may take: as long as the step of a saga says, if that fits into a lease, or else its destination.
fn timeout(engine: &Engine, target: &Target, work: &Work) -> Duration {
    let lease = engine.settings.lease;
    let own = work.delivery.ticket.as_ref().and_then(|ticket| ticket.timeout());
    own.map_or(target.rules().timeout, |own| own.min(lease - 2 * margin(lease)))
}

/// What the destination answers, or that there was no answer.
async fn answer(engine: &Engine, target: &Target, work: &Work, grant: Option<Arc<Grant>>) -> Option<Outcome> {
    let timeout = timeout(engine, target, work);
    let (way, delivery) = (target.destination.way.clone(), work.delivery.clone());
    let span = tracing::info_span!("broker.send", destination = target.name);
    let mut sending: Pin<Box<dyn Future<Output = Outcome> + Send>> =
        Box::pin(way.go(delivery, grant.clone()).instrument(span));
    if let Some(outcome) = at_once(&mut sending).await {
        return Some(outcome);
    }
    // On a task of its own, so that a panic ends nothing else. Whoever drops this ends the send too.
    let mut sending = AbortOnDropHandle::new(tokio::spawn(sending));
    let given_up = tokio::select! {
        biased;
        sent = &mut sending => return Some(sent.unwrap_or_else(|e| {
            e.try_into_panic().map_or_else(|_| Outcome::unknown("panic", "the send was aborted"), panicked)
        })),
        () = work.grip.lost() => None,
        () = tokio::time::sleep(timeout) => Some(Outcome::unknown("timeout", silence(engine, work, timeout))),
        () = engine.stopped.cancelled() => Some(Outcome::unknown("shutdown", "the relay stopped before there was an answer")),
    };
    // Gone before the next one begins; but one that blocks its thread is not waited for.
    sending.abort();
    tokio::time::timeout(GONE_WITHIN, sending).await.ok();
    // It may be about to settle, or have left that to a thread: what it did is in the store.
    if let Some(grant) = grant {
        grant.interrupt();
    }
    given_up
}

/// What is said of one who did not answer.
fn silence(engine: &Engine, work: &Work, timeout: Duration) -> String {
    match work.delivery.ticket.as_ref().and_then(|ticket| ticket.timeout()) {
        Some(own) if own > timeout => format!(
            "no answer within {timeout:?}, which is all that a lease of {:?} allows; the step asks for {own:?}",
            engine.settings.lease
        ),
        _ => format!("no answer within {timeout:?}"),
    }
}

/// The answer, if there is nothing to wait for: it needs no task and no timers then.
async fn at_once(sending: &mut Pin<Box<dyn Future<Output = Outcome> + Send>>) -> Option<Outcome> {
    let answered = poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| sending.as_mut().poll(context)));
        Poll::Ready(match polled {
            Ok(Poll::Pending) => None,
            Ok(Poll::Ready(outcome)) => Some(outcome),
            Err(panic) => Some(panicked(panic)),
        })
    });
    answered.await
}

/// Nothing more is sent to a destination that says it is gone, until an operator resumes it.
async fn pause(engine: &Engine, destination: &str) {
    tracing::error!(
        destination,
        "the destination says that it is gone for good; it is paused until somebody resumes it"
    );
    locked(&engine.gone).insert(destination.to_owned(), false);
    locked(&engine.paused).insert(destination.to_owned());
    let note = "it says that it is gone for good";
    match engine.store.gone(destination, &engine.settings.name, note).await {
        Ok(()) => drop(locked(&engine.gone).insert(destination.to_owned(), true)),
        Err(error) => {
            tracing::warn!(destination, %error, "other relays were not told that it is gone");
            locked(&engine.gone).remove(destination);
        }
    }
}

fn panicked(panic: Box<dyn Any + Send>) -> Outcome {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    Outcome::unknown("panic", text.unwrap_or_else(|| "the handler panicked".into()))
}

/// What was found in the place of the lease goes into the audit.
pub(super) async fn lost(engine: &Engine, work: &Work) -> Next {
    let lease = work.grip.lease();
    measures::lost();
    match engine.store.record_conflict(lease, &engine.settings.name).await {
        Ok(_) => tracing::warn!(class = class::CONFLICT, id = %lease.id, "a lease was lost"),
        Err(error) => {
            tracing::warn!(class = class::CONFLICT, id = %lease.id, %error, "a lease was lost, and the audit could not be told")
        }
    }
    Next::Fail
}
