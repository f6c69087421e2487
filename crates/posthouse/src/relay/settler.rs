//! Settlements on their way to the store: gathered for a moment, so that one call ends many leases. Then what follows from their end.

use posthouse_core::{AttemptOutcome, Bulk, Lease, MessageId, Settlement, Store, Verdict, class, topic::shown};
use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    sync::{mpsc, watch},
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep_until},
};
use tracing::{Instrument, Span};

use super::{
    Engine,
    line::{self, Line, Next, Work},
    locked, measures,
    points::point,
    sagas::{self, Step},
    target::Target,
};

/// The most that one call settles.
const MOST: usize = 1000;
/// How long the first waits for others, where they come in numbers.
const MOMENT: Duration = Duration::from_millis(2);
/// The most calls at a time, where the store can do several: while one waits for the disk, another is at work.
const CALLS: usize = 2;
/// The wait after a call that failed; it doubles up to the second.
const WAITS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// A message whose settlement is on its way, and what is to happen then.
pub(super) struct Ending {
    pub work: Work,
    pub span: Span,
    /// Where it was sent to.
    pub target: Option<Arc<Target>>,
    /// What goes on when it has ended. Without one, it is not even said that its lease was lost.
    pub line: Option<Line>,
    /// Nobody is rung for it.
    pub overdue: bool,
}

impl Ending {
    /// Of one that goes back, and nothing more.
    pub fn of(work: Work, span: Span) -> Self {
        Self {
            work,
            span,
            target: None,
            line: None,
            overdue: false,
        }
    }
}

/// What became of a message: decided, or to be decided on its saga.
enum Order {
    Plain(Box<(Settlement, End, Ending)>),
    OfSaga(Box<Step>),
}

/// Where lines hand in what became of their messages.
#[derive(Clone)]
pub(super) struct Settler {
    orders: mpsc::UnboundedSender<Order>,
    bulk: Arc<Mutex<Bulk>>,
}

impl Settler {
    /// Starts one. Its task ends when all handles are gone and everything is answered.
    pub fn start(store: Arc<dyn Store>, name: &str, freed: Arc<watch::Sender<()>>) -> (Self, JoinHandle<()>) {
        // As many as are in flight, which is bounded.
        let (orders, received) = mpsc::unbounded_channel();
        let bulk: Arc<Mutex<Bulk>> = Arc::default();
        let settling = tokio::spawn(work(store, name.to_owned(), freed, received, bulk.clone()));
        (Self { orders, bulk }, settling)
    }

    /// How settlements come in, of late.
    pub fn bulk(&self) -> Bulk {
        *locked(&self.bulk)
    }

    // Without a settler the relay has ended, and what it held is left to run out.
    pub fn hand_in(&self, settlement: Settlement, ending: Ending) {
        let end = End::of(&settlement);
        let _ = self.orders.send(Order::Plain(Box::new((settlement, end, ending))));
    }

    /// What becomes of it is for its saga to say.
    pub fn hand_in_step(&self, step: Step) {
        let _ = self.orders.send(Order::OfSaga(Box::new(step)));
    }
}

async fn work(
    store: Arc<dyn Store>,
    name: String,
    freed: Arc<watch::Sender<()>>,
    mut orders: mpsc::UnboundedReceiver<Order>,
    bulk: Arc<Mutex<Bulk>>,
) {
    let most = if store.capabilities().parallel_callers {
        CALLS
    } else {
        1
    };
    let mut calls = JoinSet::new();
    loop {
        let waits = locked(&bulk).waits();
        let Some(batch) = gather(&mut orders, waits).await else {
            break;
        };
        let lean = batch.iter().filter(|order| order.is_lean()).count();
        let claims: HashSet<_> = batch.iter().map(|order| order.lease().token).collect();
        locked(&bulk).ended(batch.len(), lean, claims.len());
        let (store, name, freed) = (store.clone(), name.clone(), freed.clone());
        calls.spawn(async move {
            let (plain, of_sagas) = apart(batch);
            tokio::join!(finish(&*store, plain), sagas::finish(&store, &name, of_sagas));
            // Once for all of them.
            freed.send_replace(());
        });
        if calls.len() >= most {
            calls.join_next().await;
        }
    }
    while calls.join_next().await.is_some() {}
}

impl Order {
    fn lease(&self) -> &Lease {
        match self {
            Self::Plain(order) => &order.0.lease,
            Self::OfSaga(step) => step.ending.work.grip.lease(),
        }
    }

    fn is_lean(&self) -> bool {
        matches!(self, Self::Plain(order) if order.0.is_plain())
    }
}

type Plain = Box<(Settlement, End, Ending)>;

/// Those that are decided, and those that their sagas decide.
fn apart(batch: Vec<Order>) -> (Vec<Plain>, Vec<Step>) {
    let (mut plain, mut of_sagas) = (Vec::new(), Vec::new());
    for order in batch {
        match order {
            Order::Plain(order) => plain.push(order),
            Order::OfSaga(step) => of_sagas.push(*step),
        }
    }
    (plain, of_sagas)
}

async fn gather(orders: &mut mpsc::UnboundedReceiver<Order>, waits: bool) -> Option<Vec<Order>> {
    let mut batch = Vec::new();
    // All that are there already.
    if orders.recv_many(&mut batch, MOST).await == 0 {
        return None;
    }
    if !waits {
        return Some(batch);
    }
    let moment = tokio::time::sleep(MOMENT);
    tokio::pin!(moment);
    while batch.len() < MOST {
        let room = MOST - batch.len();
        tokio::select! {
            biased;
            more = orders.recv_many(&mut batch, room) => if more == 0 {
                break;
            },
            () = &mut moment => break,
        }
    }
    Some(batch)
}

/// Asks until there is an answer, or nobody waits for it any more. To repeat a settlement that has won is answered the same.
async fn finish(store: &dyn Store, batch: Vec<Plain>) {
    let mut wait = WAITS.0;
    let (mut settlements, mut endings): (Vec<_>, Vec<_>) = batch
        .into_iter()
        .map(|order| {
            let (settlement, end, ending) = *order;
            (settlement, Some((end, ending)))
        })
        .unzip();
    loop {
        lose(&mut endings);
        if endings.iter().any(Option::is_none) {
            let waited_for = settlements.into_iter().zip(endings);
            (settlements, endings) = waited_for.filter(|(_, ending)| ending.is_some()).unzip();
        }
        if endings.is_empty() {
            return;
        }
        let asked = Instant::now();
        point("relay::before_settle").await;
        match settled(store, &settlements, &mut endings).await {
            Ok(verdicts) => {
                point("relay::after_settle").await;
                measures::phase("settle", asked.elapsed());
                for (waiting, verdict) in endings.into_iter().zip(verdicts) {
                    if let Some((end, ending)) = waiting {
                        ending.ended(&end, verdict);
                    }
                }
                return;
            }
            Err(error) => {
                tracing::warn!(class = class::of_error(&error), %error, settlements = settlements.len(), "settlements wait for the store");
                measures::store_error(&error);
                tokio::time::sleep(wait).await;
                wait = (2 * wait).min(WAITS.1);
            }
        }
    }
}

type Waiting = Option<(End, Ending)>;

/// Asks the store. Nobody waits for its answer any longer than the lease is held.
async fn settled(
    store: &dyn Store,
    settlements: &[Settlement],
    endings: &mut [Waiting],
) -> Result<Vec<Verdict>, posthouse_core::Error> {
    let asked = store.settle(settlements);
    tokio::pin!(asked);
    // Ends: each turn answers, or one fewer waits.
    loop {
        let first = endings.iter().flatten().filter_map(over_at).min();
        let over = async {
            match first {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            answer = &mut asked => return answer,
            () = over => lose(endings),
        }
    }
}

/// Until when an answer is waited for. What is given back unsent does no harm, however late.
fn over_at((end, ending): &(End, Ending)) -> Option<Instant> {
    end.outcome.map(|_| ending.work.grip.until())
}

/// Those whose leases are over are lost. A renewal that comes a moment after a settlement finds it gone, and that is no loss: what
/// counts is the time.
fn lose(endings: &mut [Waiting]) {
    let now = Instant::now();
    for waiting in endings {
        let over = waiting.as_ref().and_then(over_at).is_some_and(|at| at <= now);
        if let Some((_, ending)) = waiting.take_if(|_| over) {
            ending.lost();
        }
    }
}

impl Ending {
    pub fn ended(self, end: &End, verdict: Verdict) {
        match verdict {
            Verdict::Settled => {
                let delivery = &self.work.delivery;
                self.span.in_scope(|| {
                    if let Some(outcome) = end.outcome {
                        let dead = matches!(end.next, posthouse_core::Next::Dead(_));
                        tracing::debug!(class = outcome.class(dead), id = %end.id, attempt = delivery.attempt, topic = %shown(&delivery.topic), "settled");
                    }
                    tell(self.target.as_deref(), end);
                });
                if let (Some(line), Some(target)) = (&self.line, &self.target)
                    && end.outcome.is_some_and(AttemptOutcome::is_delivery)
                {
                    line.engine.delivered(&target.name);
                }
                self.goes_on(if end.stops_run { Next::Stop } else { Next::Go });
            }
            Verdict::Refused(error) => {
                self.span.in_scope(|| {
                    tracing::error!(%error, id = %end.id, "a settlement was refused; its lease is left to run out");
                });
                self.goes_on(Next::Fail);
            }
            // Of those that no saga decides none is stale.
            Verdict::LeaseLost | Verdict::Stale => self.lost(),
        }
    }

    /// Whose it is, if something goes on when it has ended.
    pub fn engine(&self) -> Option<Arc<Engine>> {
        self.line.as_ref().map(|line| line.engine.clone())
    }

    /// Its lease was lost. For one that goes back that is no news.
    fn lost(self) {
        let Some(engine) = self.engine() else { return };
        let (tasks, span) = (engine.tasks.clone(), self.span.clone());
        let telling = async move {
            let next = line::lost(&engine, &self.work).await;
            self.goes_on(next);
            engine.freed();
        };
        tasks.spawn(telling.instrument(span));
    }

    pub fn goes_on(self, next: Next) {
        let Self {
            work, line, overdue, ..
        } = self;
        drop(work);
        let Some(line) = line else { return };
        if overdue {
            line.engine.look.notify_one();
        }
        line.after(next);
    }
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
    pub fn of(settlement: &Settlement) -> Self {
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
fn tell(target: Option<&Target>, end: &End) {
    measures::settled(target.map(|target| &target.measures), end);
    let destination = target.map_or("", |target| &target.name);
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
