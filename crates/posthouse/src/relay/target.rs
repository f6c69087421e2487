//! A destination at work: who may send to it now.

use posthouse_core::{Circuit, Health, Meter, Outcome, Pace, breaker::Period, pace, presence::Breaker};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

use super::{
    destination::{Destination, Rules},
    measures::Measures,
    queue::Queue,
};

/// How long a message may be kept waiting for its turn under a rate. One that would wait longer is not taken at all.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long one may wait that is there because the destination is fast.
pub(super) const EXTRA: Duration = Duration::from_millis(250);

/// What a relay allows each of its destinations.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// The lease under which its sends happen.
    pub lease: Duration,
    /// The most messages in flight, unless it sends more than that at a time: the rest is for others.
    pub share: u32,
}

pub(super) struct Target {
    pub name: String,
    pub destination: Destination,
    /// Who is sent, and who waits for that.
    pub queue: Queue,
    pub measures: Measures,
    share: u32,
    since: Instant,
    gate: Mutex<Gate>,
}

struct Gate {
    /// Messages that are here: sent, or waiting for their turn.
    here: u32,
    circuit: Option<Circuit>,
    meter: Option<Meter>,
    pace: Pace,
    /// When the last send ended, or somebody came when nobody was here.
    moved: Duration,
}

/// Somebody's place at a destination; free again when dropped.
pub(super) struct Place {
    target: Arc<Target>,
    period: Option<Period>,
    /// When its turn is, if it has to wait for it under a rate.
    pub turn: Option<Instant>,
    /// It is there because the destination is fast, and goes back if it is not so any more.
    is_extra: bool,
}

impl Target {
    pub fn new(name: String, destination: Destination, bounds: Bounds) -> Self {
        let rules = &destination.rules;
        let gate = Gate {
            here: 0,
            circuit: rules.breaker.map(|policy| Circuit::new(policy, rules.concurrency)),
            meter: rules.rate.map(Meter::new),
            pace: Pace::default(),
            moved: Duration::ZERO,
        };
        Self {
            measures: Measures::of(&name),
            name,
            share: bounds.share,
            queue: Queue::default(),
            since: Instant::now(),
            gate: Mutex::new(gate),
            destination,
        }
    }

    pub fn rules(&self) -> &Rules {
        &self.destination.rules
    }

    /// How many more may come now.
    pub fn room(&self) -> u32 {
        self.gate().room(self, self.now())
    }

    /// How many more may come, if it is fast and in use: when it is full it is worth while to wait for it, and not to leave it.
    pub fn fast_room(&self) -> Option<u32> {
        let (gate, now) = (self.gate(), self.now());
        // So fast that its whole share is gone in a moment: one that sends little at a time would hold up the others.
        let sends = self.rules().concurrency;
        let soon = gate.pace.is_done_soon(self.share, sends, gate.silent(now));
        let fast = gate.is_well(now) && gate.meter.is_none() && soon;
        (fast && gate.here > 0).then(|| gate.room(self, now))
    }

    /// If it has no room, that is because it is at work, and neither broken nor held to a rate: it has some soon.
    pub fn is_busy(&self) -> bool {
        let gate = self.gate();
        gate.here > 0 && gate.meter.is_none() && gate.is_well(self.now())
    }

    /// From how much room on it is worth a claim of its own: a claim for each single message would cost more than it brings.
    pub fn worthwhile(&self) -> u32 {
        let rules = self.rules();
        let places = self.gate().most(self, self.now());
        let idle = rules.rate.map(|rate| Meter::new(rate).room(Duration::ZERO, PATIENCE));
        (idle.unwrap_or(u32::MAX).min(places) / 4).max(1)
    }

    /// When there may be room by itself, without anybody leaving.
    pub fn opens(&self) -> Option<Instant> {
        let (gate, now) = (self.gate(), self.now());
        let circuit = gate.circuit.as_ref().and_then(|circuit| circuit.opens_again(now));
        let meter = gate.meter.as_ref().map(|meter| meter.wait(now, PATIENCE));
        let meter = meter.filter(|wait| !wait.is_zero()).map(|wait| now + wait);
        circuit.max(meter).map(|at| self.since + at)
    }

    /// A place for a message that waits for its turn, or is sent. None when there is no room.
    pub fn enter(self: &Arc<Self>) -> Option<Place> {
        let (mut gate, now) = (self.gate(), self.now());
        if gate.room(self, now) == 0 {
            return None;
        }
        if gate.here == 0 {
            gate.moved = now;
        }
        let is_extra = gate.here >= pace::least(self.rules().concurrency);
        gate.here += 1;
        let wait = gate.meter.as_mut().map(|meter| meter.take(now));
        Some(Place {
            target: self.clone(),
            period: gate.circuit.as_mut().map(|circuit| circuit.period(now)),
            turn: wait.filter(|wait| !wait.is_zero()).map(|wait| Instant::now() + wait),
            is_extra,
        })
    }

    /// Nobody is here, and nothing is held against it.
    pub fn is_idle(&self) -> bool {
        let (gate, now) = (self.gate(), self.now());
        gate.here == 0
            && gate
                .circuit
                .as_ref()
                .is_none_or(|circuit| circuit.state(now) == Breaker::Closed)
    }

    pub fn health(&self) -> Health {
        let (gate, now) = (self.gate(), self.now());
        Health {
            destination: self.name.clone(),
            breaker: gate
                .circuit
                .as_ref()
                .map(|circuit| circuit.state(now))
                .unwrap_or_default(),
            limited: gate.meter.as_ref().is_some_and(|meter| meter.room(now, PATIENCE) == 0),
        }
    }

    fn now(&self) -> Duration {
        self.since.elapsed()
    }

    fn gate(&self) -> std::sync::MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gate {
    /// Sent or waiting, so that the next is at hand; while it is tried out, nobody waits.
    fn most(&self, target: &Target, now: Duration) -> u32 {
        let sends = target.rules().concurrency;
        let allowed = self.circuit.as_ref().and_then(|circuit| circuit.allows(now));
        allowed.unwrap_or_else(|| {
            let places = self.pace.places(sends, self.silent(now));
            places.min(target.share.max(pace::least(sends)))
        })
    }

    /// Nothing is held against it.
    fn is_well(&self, now: Duration) -> bool {
        let allowed = self.circuit.as_ref().and_then(|circuit| circuit.allows(now));
        allowed.is_none()
    }

    /// For how long none of the sends has ended.
    fn silent(&self, now: Duration) -> Duration {
        match self.here {
            0 => Duration::ZERO,
            _ => now.saturating_sub(self.moved),
        }
    }

    fn room(&self, target: &Target, now: Duration) -> u32 {
        let room = self.most(target, now).saturating_sub(self.here);
        let meter = self.meter.as_ref().map(|meter| meter.room(now, PATIENCE));
        meter.map_or(room, |meter| meter.min(room))
    }
}

impl Place {
    /// How long it may wait for others, from its turn on.
    pub fn patient_until(&self) -> Option<Instant> {
        self.is_extra.then(|| self.turn.unwrap_or_else(Instant::now) + EXTRA)
    }

    /// The destination has failed since it came.
    pub fn is_stale(&self) -> bool {
        let gate = self.target.gate();
        let current = gate.circuit.as_ref().zip(self.period);
        current.is_some_and(|(circuit, period)| !circuit.is_current(period))
    }

    /// What became of the send, and how long it took. Answers whether that changed the state of the breaker.
    pub fn report(&self, outcome: &Outcome, took: Duration, roll: f64) -> bool {
        // One that refuses a message is well.
        let well = !matches!(outcome, Outcome::Retry { .. } | Outcome::Unknown { .. });
        let (mut gate, now) = (self.target.gate(), self.target.now());
        gate.moved = now;
        match well {
            true => gate.pace.sent(took),
            false => gate.pace.failed(),
        }
        let (Some(circuit), Some(period)) = (gate.circuit.as_mut(), self.period) else {
            return false;
        };
        let before = circuit.state(now);
        circuit.report(period, well, now, roll);
        let after = circuit.state(now);
        self.target.measures.breaker(after);
        if before != after {
            let (from, to) = (before.as_str(), after.as_str());
            tracing::warn!(destination = self.target.name, from, to, "a breaker changed");
        }
        before != after
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.target.gate().here -= 1;
    }
}
