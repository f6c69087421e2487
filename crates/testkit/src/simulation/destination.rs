//! Destinations as they are: slow, forgetful about answers, in a panic.

use async_trait::async_trait;
use fastrand::Rng;
use posthouse_core::{
    Delivery, MessageId, Outcome, Transport, ledger,
    saga::{Role, Ticket},
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;

use super::{Answer, Fact, Gate, History, Sky, Weather, Who};

/// What a destination does with a message in any weather: the first word of its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It takes it.
    Fine,
    /// It refuses it for good.
    Reject,
    /// It always says: not now.
    Fail,
    /// It takes its time, nearly all that it has.
    Slow,
}

impl Fate {
    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Reject => "reject",
            Self::Fail => "fail",
            Self::Slow => "slow",
        }
    }

    fn of(delivery: &Delivery) -> Self {
        // What asks, or undoes, is taken as any other.
        if delivery.ticket.as_ref().is_some_and(|ticket| ticket.role != Role::Do) {
            return Self::Fine;
        }
        // A step of a saga brings its word as JSON.
        let payload = delivery.payload.strip_prefix(b"\"").unwrap_or(&delivery.payload);
        let all = [Self::Reject, Self::Fail, Self::Slow];
        let found = all.into_iter().find(|fate| payload.starts_with(fate.word().as_bytes()));
        found.unwrap_or(Self::Fine)
    }
}

/// A destination that all relays send to. It writes down what it has received.
pub struct Destination {
    name: String,
    weather: Weather,
    history: History,
    chance: Mutex<Rng>,
    lies: bool,
    steps: Mutex<BTreeMap<String, Part>>,
}

/// What a destination that takes part in sagas knows of a step, by the key under which that is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// It was done.
    pub done: bool,
    /// It was undone, and is not done any more after that.
    pub undone: bool,
    /// How often it came to be done.
    pub came: u32,
    /// When the first send of it began, in the time of the relays.
    pub began: Option<Instant>,
}

/// The key of a step without its role.
fn forward(ticket: &Ticket) -> &str {
    let key = ticket.key.as_str();
    key.rsplit_once(':').map_or(key, |(step, _)| step)
}

impl Destination {
    /// One of this name. One that `lies` says now and then that it has what it has not.
    pub fn new(name: &str, weather: Weather, history: History, seed: u64, lies: bool) -> Arc<Self> {
        let chance = Mutex::new(Rng::with_seed(seed));
        Arc::new(Self {
            name: name.to_owned(),
            weather,
            history,
            chance,
            lies,
            steps: Mutex::default(),
        })
    }

    /// The steps of sagas that it knows of.
    pub fn steps(&self) -> BTreeMap<String, Part> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes when the first send of a step begins.
    fn begins(&self, ticket: &Ticket) {
        if ticket.role == Role::Do {
            let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
            let part = steps.entry(forward(ticket).to_owned()).or_default();
            part.began.get_or_insert_with(Instant::now);
        }
    }

    /// Takes part in a saga, and says what it answers if anybody hears it.
    fn take_part(&self, ticket: &Ticket) -> Outcome {
        let forward = forward(ticket);
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let part = steps.entry(forward.to_owned()).or_default();
        let answer = || ledger::Answer::bytes(format!("\"{forward}\""));
        match ticket.role {
            Role::Do => {
                part.came += 1;
                if part.undone {
                    return Outcome::reject("undone", "it was undone before");
                }
                part.done = true;
                Outcome::answered(answer())
            }
            Role::Verify if part.done => Outcome::answered(answer()),
            Role::Verify => Outcome::answered(ledger::Answer::bytes("").status(204)),
            Role::Undo | Role::Timer => {
                part.undone = true;
                Outcome::delivered()
            }
        }
    }

    /// What happens to the next send that may take `timeout`.
    fn script(&self, fate: Fate, timeout: Duration, lease: Duration) -> Script {
        let mut chance = self.chance.lock().unwrap_or_else(PoisonError::into_inner);
        let ms = Duration::from_millis(1);
        let quick = Duration::from_millis(chance.u64(0..60));
        let slow = timeout.mul_f64(chance.f64() * 0.9);
        let script = |wait, receives, then| Script { wait, receives, then };
        if self.lies && chance.u8(0..10) == 0 {
            return script(quick, false, Then::Deliver);
        }
        match fate {
            Fate::Reject => return script(quick, false, Then::Reject),
            Fate::Fail => return script(quick, false, Then::Retry(None)),
            Fate::Slow => return script(timeout.mul_f64(0.9), true, Then::Deliver),
            Fate::Fine => {}
        }
        let roll = chance.u8(0..100);
        if self.weather.sky() != Sky::Storm {
            return script(if roll < 10 { slow } else { quick }, true, Then::Deliver);
        }
        match roll {
            0..8 => script(slow, true, Then::Deliver),
            8..10 => script(timeout - ms, true, Then::Deliver),
            10..12 => script(timeout, true, Then::Deliver),
            12..14 => script(timeout + ms, true, Then::Deliver),
            14..16 => script(lease, true, Then::Deliver),
            16..22 => script(quick, true, Then::Unknown),
            22..27 => script(quick, false, Then::Unknown),
            27..31 => script(quick, false, Then::Retry(None)),
            31..33 => script(quick, false, Then::Retry(Some(Duration::ZERO))),
            33..35 => script(quick, false, Then::Retry(Some(ms))),
            35..37 => script(quick, false, Then::Retry(Some(Duration::MAX))),
            37..39 => script(quick, false, Then::Panic),
            39..41 => script(quick, true, Then::Panic),
            41..44 => script(quick, false, Then::Hang),
            44..48 => script(quick, true, Then::Hang),
            48..50 => script(quick, false, Then::Reject),
            _ => script(quick, true, Then::Deliver),
        }
    }
}

/// How one send goes.
struct Script {
    wait: Duration,
    receives: bool,
    then: Then,
}

enum Then {
    Deliver,
    Retry(Option<Duration>),
    Reject,
    Unknown,
    Panic,
    Hang,
}

/// A relay's way to a destination.
pub struct Wire {
    to: Arc<Destination>,
    who: Who,
    gate: Gate,
    timeout: Duration,
    lease: Duration,
    under_way: Arc<AtomicUsize>,
}

impl Wire {
    /// The way of `who`, which waits for `timeout` under leases of `lease`; how many sends are `under_way` is counted.
    pub fn new(
        to: Arc<Destination>,
        who: Who,
        gate: Gate,
        timeout: Duration,
        lease: Duration,
        under_way: Arc<AtomicUsize>,
    ) -> Self {
        Self {
            to,
            who,
            gate,
            timeout,
            lease,
            under_way,
        }
    }
}

#[async_trait]
impl Transport for Wire {
    async fn send(&self, delivery: &Delivery) -> Outcome {
        let mut sending = Sending::begin(self, delivery);
        delivery.ticket.iter().for_each(|ticket| self.to.begins(ticket));
        self.gate.pass().await;
        let script = self.to.script(Fate::of(delivery), self.timeout, self.lease);
        tokio::time::sleep(script.wait).await;
        let mut taken = Outcome::receipt(format!("{}@{}", delivery.id, delivery.epoch));
        if script.receives {
            self.to.history.add(Fact::Received(delivery.id, delivery.epoch));
            if let Some(ticket) = &delivery.ticket {
                taken = self.to.take_part(ticket);
            }
        }
        let (code, error) = (|code: &str| code.to_owned(), "as it was told".to_owned());
        let outcome = match script.then {
            Then::Deliver => taken,
            Then::Retry(after) => Outcome::Retry {
                after,
                code: code("busy"),
                error,
            },
            Then::Reject => Outcome::Reject {
                code: code("no"),
                error,
            },
            Then::Unknown => Outcome::Unknown {
                code: code("reset"),
                error,
            },
            // Without the hook, which would tell the terminal.
            Then::Panic => std::panic::resume_unwind(Box::new("as it was told")),
            Then::Hang => std::future::pending().await,
        };
        self.gate.pass().await;
        sending.answer = Some(Answer::Said(outcome.clone()));
        outcome
    }
}

/// A send under way; dropped, it tells how it ended.
struct Sending<'a> {
    wire: &'a Wire,
    id: MessageId,
    epoch: u64,
    answer: Option<Answer>,
}

impl<'a> Sending<'a> {
    fn begin(wire: &'a Wire, delivery: &Delivery) -> Self {
        let Delivery {
            id,
            epoch,
            generation,
            attempt,
            ..
        } = *delivery;
        let (who, destination) = (wire.who, wire.to.name.clone());
        wire.to.history.add(Fact::Sent {
            who,
            destination,
            id,
            epoch,
            generation,
            attempt,
        });
        wire.under_way.fetch_add(1, Ordering::Relaxed);
        Self {
            wire,
            id,
            epoch,
            answer: None,
        }
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        let answer = match self.answer.take() {
            Some(answer) => answer,
            None if std::thread::panicking() => Answer::Panicked,
            None => Answer::GivenUp,
        };
        let (who, id, epoch) = (self.wire.who, self.id, self.epoch);
        self.wire.under_way.fetch_sub(1, Ordering::Relaxed);
        self.wire.to.history.add(Fact::Answered { who, id, epoch, answer });
    }
}
