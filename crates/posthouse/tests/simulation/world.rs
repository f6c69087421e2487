//! A world made from a seed: relays, producers, operators, destinations, one store, and whoever breaks things.

use fastrand::Rng;
use posthouse::{Admin, Filter, MessageId, Relay, RetryPolicy, State, Store, relay::Destination as To};
use posthouse_core::{Claimed, retry::Backoff};
use posthouse_testkit::{
    Flaw, Memory, Wrapped, memory,
    simulation::{Destination, Fact, Fate, Faulty, Gate, History, Liar, Lie, Sky, Terms, Weather, Who, Wire},
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    task::{AbortHandle, JoinSet},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use super::people::{Producer, operate};

pub const SECOND: Duration = Duration::from_secs(1);
pub const DESTINATIONS: [&str; 3] = ["shop", "bank", "post"];
/// What producers have committed, and whether its death blocks its key.
pub type Committed = Arc<Mutex<Vec<(MessageId, bool)>>>;

/// A mistake in the world, which the judge must notice.
#[derive(Clone, Copy, Default)]
pub struct Planted {
    pub flaw: Option<Flaw>,
    pub lie: Option<Lie>,
    pub destination_lies: bool,
}

pub struct World {
    pub history: History,
    pub memory: Memory,
    pub weather: Weather,
    pub chance: Rng,
    /// Nothing ever goes wrong here.
    pub calm: bool,
    pub relays: Vec<Place>,
    pub destinations: Vec<Arc<Destination>>,
    /// What else goes on during the storm.
    pub others: JoinSet<()>,
    planted: Planted,
    retry: RetryPolicy,
    lives: usize,
    committed: Committed,
    names: Arc<AtomicUsize>,
    granted: Arc<Mutex<Vec<Claimed>>>,
    /// Relays that were told to stop.
    leaving: JoinSet<()>,
    thawing: JoinSet<()>,
}

/// A place for a relay: after a crash the next one is told the same.
pub struct Place {
    pub terms: Terms,
    pub running: Option<Running>,
}

pub struct Running {
    pub who: Who,
    gate: Gate,
    cancel: CancellationToken,
    abort: AbortHandle,
    over: tokio::task::JoinHandle<()>,
    under_way: Arc<AtomicUsize>,
}

impl World {
    /// Everything about it is decided by the seed. Its relays do not run yet.
    pub fn new(seed: u64, planted: Planted) -> Self {
        let (history, mut chance) = (History::begin(), Rng::with_seed(seed));
        let (calm, weather) = (seed.is_multiple_of(5), Weather::new(Sky::Clear));
        let started = tokio::time::Instant::now();
        let backoff = Backoff::Exponential {
            base: SECOND / 5,
            factor: 2.0,
            cap: 2 * SECOND,
            jitter: 0.3,
            floor: SECOND / 1000,
        };
        let most = chance.u32(2..7);
        let retry = RetryPolicy {
            // Half of the worlds have a route that sets no budget.
            max_attempts: (most % 2 == 0).then_some(most),
            backoff,
            longest_wish: 3 * SECOND,
        };
        // The budget of a message is that of its route from the beginning, or a change of it would look like a mistake.
        let options = memory::Options {
            seed: Some(seed),
            max_attempts: most,
            ..memory::Options::default()
        };
        let memory = Memory::open(
            options,
            Arc::new(move || memory::START.plus(started.elapsed())),
            planted.flaw,
        );
        let to = |name: &&str| {
            Destination::new(
                name,
                weather.clone(),
                history.clone(),
                chance.u64(..),
                planted.destination_lies,
            )
        };
        let destinations = DESTINATIONS.iter().map(to).collect();
        let relays = (0..chance.usize(2..=4))
            .map(|n| Place {
                terms: terms(n, &mut chance),
                running: None,
            })
            .collect();
        Self {
            history,
            memory,
            weather,
            calm,
            relays,
            destinations,
            others: JoinSet::new(),
            planted,
            retry,
            chance,
            lives: 0,
            committed: Arc::default(),
            names: Arc::default(),
            granted: Arc::default(),
            leaving: JoinSet::new(),
            thawing: JoinSet::new(),
        }
    }

    /// Messages are committed, relays crash, and the weather is bad; then it clears up, and all relays run.
    pub async fn storm(&mut self) {
        (0..self.relays.len()).for_each(|at| self.start(at));
        let mut others = std::mem::take(&mut self.others);
        for _ in 0..self.chance.usize(1..=3) {
            others.spawn(self.producer().run());
        }
        let length = SECOND * self.chance.u32(8..25);
        if self.calm {
            sleep(length).await;
        } else {
            others.spawn(operate(
                self.memory.clone(),
                self.history.clone(),
                self.committed.clone(),
                self.chance.fork(),
                length,
            ));
            let end = self.history.now() + length;
            while self.history.now() < end {
                sleep(Duration::from_millis(self.chance.u64(100..2000))).await;
                self.break_something().await;
            }
        }
        while others.join_next().await.is_some() {}
        self.turn(Sky::Clear);
        while self.thawing.join_next().await.is_some() {}
        (0..self.relays.len()).for_each(|at| self.start(at));
        for name in DESTINATIONS {
            if self.memory.resume(name, "op", "all is well").await.unwrap() {
                self.history.add(Fact::Paused(name.to_owned(), false));
            }
        }
    }

    async fn break_something(&mut self) {
        let at = self.chance.usize(..self.relays.len());
        match self.chance.u8(0..12) {
            0..3 => self.turn(Sky::Storm),
            3..5 => self.turn(Sky::Clear),
            5 => self.turn(Sky::Outage),
            6 => self.crash(at).await,
            7 => {
                let time = self.relays[at].terms.lease.mul_f64(self.chance.f64() * 1.5);
                self.freeze(at, time);
            }
            8 => self.stop(at),
            _ => self.start(at),
        }
    }

    pub fn turn(&self, sky: Sky) {
        if self.weather.sky() != sky {
            self.weather.turn(sky);
            self.history.add(Fact::Weather(sky));
        }
    }

    /// Begins a new life in this place, if nobody lives there.
    pub fn start(&mut self, at: usize) {
        if self.relays[at].running.is_some() {
            return;
        }
        let (who, gate, cancel) = (Who(self.lives), Gate::default(), CancellationToken::new());
        self.lives += 1;
        let (terms, under_way) = (self.relays[at].terms.clone(), Arc::new(AtomicUsize::new(0)));
        let mut store: Arc<dyn Store> = Arc::new(self.memory.clone());
        if let Some(lie) = self.planted.lie {
            let liar = Liar::new(lie, self.chance.u64(..), self.granted.clone());
            store = Arc::new(Wrapped::new(store, liar));
        }
        let seed = self.chance.u64(..);
        let line = Faulty::new(who, gate.clone(), self.weather.clone(), self.history.clone(), seed);
        let mut relay = Relay::builder(Arc::new(Wrapped::new(store, line)))
            .name(&*terms.name)
            .lease(terms.lease)
            .batch(terms.batch)
            .concurrency(terms.concurrency)
            .poll(terms.poll)
            .grace(terms.grace)
            .seed(self.chance.u64(..));
        for (name, to) in DESTINATIONS.iter().zip(&self.destinations) {
            let Some((timeout, at_a_time)) = terms.destinations.get(*name) else {
                continue;
            };
            let partner = to.clone();
            let wire = Wire::new(to.clone(), who, gate.clone(), *timeout, terms.lease, under_way.clone());
            let to = To::new(*name, wire)
                .timeout(*timeout)
                .concurrency(*at_a_time)
                .retry(self.retry.clone());
            relay = relay.route(format!("{name}.*"), to);
            // Where it takes part in sagas it is another destination, because nobody counts what is sent there.
            let wire = Wire::new(partner, who, gate.clone(), *timeout, terms.lease, under_way.clone());
            let steps = To::new(format!("{name} steps"), wire)
                .timeout(*timeout)
                .concurrency(*at_a_time);
            relay = relay.route(format!("fn:{name}.*"), steps);
        }
        self.history.add(Fact::Began(who, terms));
        let (told, history) = (cancel.clone(), self.history.clone());
        let task = tokio::spawn(relay.run(told));
        let abort = task.abort_handle();
        let over = tokio::spawn(async move {
            if let Ok(ended) = task.await {
                ended.unwrap();
                history.add(Fact::Stopped(who));
            }
        });
        self.relays[at].running = Some(Running {
            who,
            gate,
            cancel,
            abort,
            over,
            under_way,
        });
    }

    /// Kills it wherever it is. What is on its way to the store may still arrive.
    pub async fn crash(&mut self, at: usize) {
        let Some(running) = self.relays[at].running.take() else {
            return;
        };
        self.history.add(Fact::Crashed(running.who));
        running.gate.wall_up();
        running.abort.abort();
        running.over.await.ok();
        sleep(SECOND / 1000).await;
        let left = running.under_way.load(Ordering::Relaxed);
        if left > 0 {
            let what = format!("{} was dropped, and {left} of its sends go on", running.who);
            self.history.add(Fact::Broken(what));
        }
    }

    fn freeze(&mut self, at: usize, time: Duration) {
        let Some(running) = &self.relays[at].running else {
            return;
        };
        let (gate, history, who) = (running.gate.clone(), self.history.clone(), running.who);
        if gate.is_shut() {
            return;
        }
        history.add(Fact::Frozen(who));
        gate.shut();
        self.thawing.spawn(async move {
            sleep(time).await;
            gate.open();
            history.add(Fact::Thawed(who));
        });
    }

    /// Tells it to stop; whether it does is seen by the judge, and by [`World::left`].
    pub fn stop(&mut self, at: usize) {
        let Some(running) = self.relays[at].running.take() else {
            return;
        };
        self.history.add(Fact::Stopping(running.who));
        running.cancel.cancel();
        self.leaving.spawn(async move {
            running.over.await.ok();
        });
    }

    /// Waits until all that were told to stop have.
    pub async fn left(&mut self, most: Duration) {
        let all = async { while self.leaving.join_next().await.is_some() {} };
        if tokio::time::timeout(most, all).await.is_err() {
            self.history.add(Fact::Broken("a relay does not stop".into()));
        }
    }

    /// Waits until every message has ended; an operator frees the keys that are blocked.
    pub async fn quiet(&mut self, most: Duration) {
        let end = self.history.now() + most;
        loop {
            let counts = self.memory.counts().await.unwrap();
            if counts.ready.value + counts.scheduled.value + counts.leased.value == 0 {
                return;
            }
            if counts.blocked_keys.value > 0 {
                self.unblock().await;
            }
            if self.history.now() > end {
                return self
                    .history
                    .add(Fact::Broken(format!("messages do not end: {counts:?}")));
            }
            sleep(SECOND / 5).await;
        }
    }

    async fn unblock(&self) {
        let committed = self.committed.lock().unwrap().clone();
        for (id, _) in committed.into_iter().filter(|(_, blocks)| *blocks) {
            let view = self.memory.find(id).await.unwrap();
            if view.is_some_and(|view| matches!(view.state, State::Dead | State::Quarantined)) {
                let done = self.memory.resolve(id, "op", "by hand", "").await.is_ok();
                self.history.add(Fact::Operated {
                    verb: "resolve",
                    id,
                    done,
                });
            }
        }
    }

    /// Commits messages of one fate, one for each topic, or several.
    pub async fn put(&mut self, fate: Fate, topics: &[&str]) -> Vec<MessageId> {
        let mut producer = self.producer();
        let (mut tx, at, mut messages) = (self.memory.begin(), self.history.now(), Vec::new());
        for topic in topics {
            let message = producer.plain(topic, fate);
            tx.enqueue(message.clone()).await.unwrap();
            messages.push((message, at));
        }
        tx.commit();
        let ids = messages.iter().filter_map(|(m, _)| m.id).collect();
        self.history.add(Fact::Committed(messages));
        ids
    }

    /// When each of them was granted, from this time on; and to whom.
    pub fn grants(&self, id: MessageId, from: Duration) -> Vec<(Duration, Who)> {
        let facts = self.history.facts().into_iter().filter(|(at, _)| *at >= from);
        let of = |(at, fact)| match fact {
            Fact::Claimed { who, granted, .. } => granted.iter().any(|g| g.lease.id == id).then_some((at, who)),
            _ => None,
        };
        facts.filter_map(of).collect()
    }

    fn producer(&mut self) -> Producer {
        Producer {
            memory: self.memory.clone(),
            history: self.history.clone(),
            committed: self.committed.clone(),
            names: self.names.clone(),
            chance: self.chance.fork(),
        }
    }

    pub async fn leased(&self) -> Vec<String> {
        let filter = Filter {
            state: Some(State::Leased),
            ..Filter::default()
        };
        let held = self.memory.list(&filter).await.unwrap().messages;
        held.into_iter()
            .map(|m| format!("{} by {:?}", m.id, m.worker))
            .collect()
    }
}

/// What a relay is told. The first can send everywhere; now and then two have the same name.
fn terms(n: usize, chance: &mut Rng) -> Terms {
    let lease = SECOND * [2, 3, 5, 10][chance.usize(..4)];
    let mut destinations = BTreeMap::new();
    for name in DESTINATIONS {
        let timeout = Duration::from_millis(lease.mul_f64(0.2 + 0.6 * chance.f64()).as_millis() as u64);
        if n == 0 || chance.u8(0..6) > 0 {
            destinations.insert(name.to_owned(), (timeout, chance.u32(1..=8)));
        }
    }
    Terms {
        name: format!("relay-{}", if chance.u8(0..4) == 0 { 0 } else { n }),
        lease,
        batch: chance.u32(1..=20),
        concurrency: chance.u32(1..=16),
        poll: Duration::from_millis(chance.u64(200..=500)),
        grace: Duration::from_millis(chance.u64(300..=5000)),
        destinations,
    }
}
