//! The world: one state of it, and what an action makes of it.

use posthouse_core::{Event, Lease, Order, RetryPolicy, Settlement};
use stateright::{Model, Property};
use std::sync::Arc;

use super::{
    actions::{Action, Fate, possible},
    bug::Bug,
    config::{Config, Start},
    ghost::Ghost,
    judge::{self, Promise, Wrongs},
    promises::{self, Tally},
    record::{Reach, number},
    store::Store,
    worker::{Held, How, Phase, Place, Run, is_over, put_away},
};

/// The model: what a run assumes, and what it came across.
pub struct Outbox {
    pub config: Config,
    pub policies: Vec<RetryPolicy>,
    pub tally: Arc<Tally>,
}

impl Outbox {
    pub fn new(config: Config) -> Self {
        Self {
            policies: (0..config.workers.len()).map(|w| config.policy(w)).collect(),
            tally: Arc::default(),
            config,
        }
    }
}

/// One state of everything.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct World {
    pub store: Store,
    pub producers: Vec<Producer>,
    pub workers: Vec<Run>,
    /// What the slow repairer saw.
    pub repairer: Option<Lease>,
    pub ghost: Ghost,
    /// The promises that were broken on the way here.
    pub wrongs: Wrongs,
}

/// How far a producer got with its message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Producer {
    Waiting,
    Open {
        pos: u8,
    },
    Committed,
    RolledBack,
    /// An operator discarded the message.
    Discarded,
}

/// What the world answered to an action, and so what somebody outside can know of it.
#[expect(clippy::large_enum_variant, reason = "there are a handful of them at a time")]
#[derive(Debug)]
pub enum Answer {
    Nothing,
    Committed {
        msg: usize,
        pos: u8,
    },
    Granted {
        line: usize,
        leases: Vec<Lease>,
    },
    Sent {
        lease: Lease,
        place: Place,
    },
    Settled {
        settlement: Settlement,
        won: bool,
        /// What was answered the first time, when this is a repetition of a settlement that was written.
        first: Option<bool>,
    },
    Renewed {
        lease: Lease,
        renewed: bool,
    },
    Operated {
        verb: Event,
        msg: usize,
        done: bool,
    },
    Ticked,
}

impl Model for Outbox {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.config)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        // One broken promise is enough: what follows from it explains nothing.
        if world.wrongs == Wrongs::default() {
            possible(&self.config, world, actions);
        }
    }

    fn next_state(&self, before: &World, action: Action) -> Option<World> {
        let mut after = before.clone();
        let answer = after.act(self, action);
        after.ghost.follow(&self.config, &before.store, &answer);
        after.wrongs |= judge::step(self, before, &answer, &after);
        self.tally.count(before, &answer);
        after.line_up(&self.config);
        Some(after)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promises::properties(&self.config)
    }

    fn within_boundary(&self, world: &World) -> bool {
        let within =
            |s: &posthouse_core::Standing| s.epoch <= self.config.grants && s.generation <= self.config.generations;
        world.store.records.iter().all(|r| within(&r.standing))
    }
}

impl World {
    fn new(config: &Config) -> Self {
        let messages = config.messages.len();
        let mut world = Self {
            store: Store::default(),
            producers: vec![Producer::Waiting; messages],
            workers: vec![Run::new(); config.workers.len()],
            repairer: None,
            ghost: Ghost::new(messages),
            wrongs: Wrongs::default(),
        };
        for msg in 0..messages {
            // Where producers take no turns, it does not matter who begins first, only who commits first.
            if config.start != Start::Producers(Order::Strict) || config.has(Bug::TurnAfterDraw) {
                world.begin(config, msg);
            }
            if config.start == Start::Committed {
                world.commit(config, msg);
            }
        }
        world
    }

    /// Whether no step on the way here broke this promise.
    pub fn keeps(&self, promise: Promise) -> bool {
        !self.wrongs.has(promise)
    }

    /// Workers that are alike may change places: what one can do, the other could have done.
    fn line_up(&mut self, config: &Config) {
        if config.workers.windows(2).all(|pair| pair[0] == pair[1]) {
            self.workers.sort_by_key(|run| run.first().map(|held| held.lease.token));
        }
    }

    fn act(&mut self, model: &Outbox, action: Action) -> Answer {
        let config = &model.config;
        match action {
            Action::Begin(msg) => self.begin(config, msg),
            Action::Commit(msg) => self.commit(config, msg),
            Action::RollBack(msg) => self.roll_back(msg),
            Action::Claim { worker, line } => self.claim(config, worker, line),
            Action::Send { worker, at } => self.send(worker, at),
            Action::Settle { worker, at, how, fate } => self.settle(model, worker, at, how, fate),
            Action::Repeat { worker, at } => self.repeat(model, worker, at),
            Action::Renew { worker, at } => self.renew(config, worker, at),
            Action::Crash { worker } => self.crash(worker),
            Action::See(msg) => self.see(config, msg),
            Action::RepairSeen => self.repair_seen(config),
            Action::Repair(msg) => self.repair(config, msg),
            Action::Operate { verb, msg } => self.operate(config, verb, msg),
            Action::Discard(msg) => self.discard(msg),
            Action::Tick => self.tick(),
        }
    }

    fn begin(&mut self, config: &Config, msg: usize) -> Answer {
        let pos = self.store.draw();
        self.producers[msg] = Producer::Open { pos };
        if config.has(Bug::DirtyRead) {
            self.store.insert(config, msg, pos);
        }
        Answer::Nothing
    }

    fn commit(&mut self, config: &Config, msg: usize) -> Answer {
        let Producer::Open { pos } = self.producers[msg] else {
            return Answer::Nothing;
        };
        self.producers[msg] = Producer::Committed;
        if !config.has(Bug::DirtyRead) {
            self.store.insert(config, msg, pos);
        }
        Answer::Committed { msg, pos }
    }

    fn roll_back(&mut self, msg: usize) -> Answer {
        self.producers[msg] = Producer::RolledBack;
        self.store.records.retain(|r| r.msg != msg);
        Answer::Nothing
    }

    fn claim(&mut self, config: &Config, worker: usize, line: usize) -> Answer {
        let leases = self.store.claim(config, line);
        let known = self.store.records.iter().fold(0, |known, r| known | 1 << r.msg);
        let pos = |lease: &Lease| self.store.find(number(lease.id)).map_or(0, |r| r.pos);
        let fresh = |lease: &Lease| Held {
            lease: lease.clone(),
            place: Place { pos: pos(lease), known },
            phase: Phase::Fresh,
        };
        self.workers[worker] = leases.iter().map(fresh).collect();
        Answer::Granted { line, leases }
    }

    fn send(&mut self, worker: usize, at: usize) -> Answer {
        let held = &mut self.workers[worker][at];
        held.phase = Phase::Sending;
        Answer::Sent {
            lease: held.lease.clone(),
            place: held.place,
        }
    }

    fn settle(&mut self, model: &Outbox, worker: usize, at: usize, how: How, fate: Fate) -> Answer {
        let settlement = how.settlement(&self.workers[worker][at].lease, &model.policies[worker]);
        if fate == Fate::Unwritten {
            self.workers[worker][at].phase = Phase::Unsure { how, won: None };
            return Answer::Nothing;
        }
        let reach = if fate == Fate::Torn { Reach::Torn } else { Reach::Whole };
        let won = self.store.settle(&model.config, &settlement, reach).is_settled();
        match fate {
            Fate::Unheard => self.workers[worker][at].phase = Phase::Unsure { how, won: Some(won) },
            Fate::Torn => self.workers[worker].clear(),
            Fate::Heard | Fate::Unwritten => self.put_away(&model.config, worker, at, &settlement, won),
        }
        let first = None;
        Answer::Settled { settlement, won, first }
    }

    fn repeat(&mut self, model: &Outbox, worker: usize, at: usize) -> Answer {
        let held = &self.workers[worker][at];
        let Phase::Unsure { how, won: first } = held.phase else {
            return Answer::Nothing;
        };
        let settlement = how.settlement(&held.lease, &model.policies[worker]);
        let won = self.store.settle(&model.config, &settlement, Reach::Whole).is_settled();
        self.put_away(&model.config, worker, at, &settlement, won);
        Answer::Settled { settlement, won, first }
    }

    fn put_away(&mut self, config: &Config, worker: usize, at: usize, settlement: &Settlement, won: bool) {
        put_away(
            config,
            &mut self.workers[worker],
            at,
            won && is_over(config, settlement),
        );
    }

    fn renew(&mut self, config: &Config, worker: usize, at: usize) -> Answer {
        let lease = self.workers[worker][at].lease.clone();
        let renewed = self.store.renew(config, &lease);
        // A lost lease cancels its dispatch.
        if !renewed {
            put_away(config, &mut self.workers[worker], at, false);
        }
        Answer::Renewed { lease, renewed }
    }

    fn crash(&mut self, worker: usize) -> Answer {
        self.workers[worker].clear();
        Answer::Nothing
    }

    fn see(&mut self, config: &Config, msg: usize) -> Answer {
        self.repairer = self.store.expired(config, msg);
        Answer::Nothing
    }

    fn repair_seen(&mut self, config: &Config) -> Answer {
        let lease = self.repairer.take();
        lease.map_or(Answer::Nothing, |lease| self.expire(config, &lease))
    }

    fn repair(&mut self, config: &Config, msg: usize) -> Answer {
        let lease = self.store.expired(config, msg);
        lease.map_or(Answer::Nothing, |lease| self.expire(config, &lease))
    }

    /// Expiry is a settlement like any other.
    fn expire(&mut self, config: &Config, lease: &Lease) -> Answer {
        let settlement = Settlement::expired(lease);
        let won = self.store.settle(config, &settlement, Reach::Whole).is_settled();
        let first = None;
        Answer::Settled { settlement, won, first }
    }

    fn operate(&mut self, config: &Config, verb: Event, msg: usize) -> Answer {
        let done = self.store.operate(config, msg, verb);
        Answer::Operated { verb, msg, done }
    }

    fn discard(&mut self, msg: usize) -> Answer {
        self.store.discard(msg);
        self.producers[msg] = Producer::Discarded;
        Answer::Nothing
    }

    fn tick(&mut self) -> Answer {
        self.store.tick();
        Answer::Ticked
    }
}
