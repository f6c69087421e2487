//! What can happen next.

use posthouse_core::{Event, State};

use super::{
    bug::Bug,
    config::{Config, Start},
    record::number,
    worker::{How, Phase, in_turn},
    world::{Producer, World},
};

/// One thing that happens. Whoever does it, it is one transaction, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A producer takes its turn and writes its message.
    Begin(usize),
    /// A producer commits.
    Commit(usize),
    /// A producer gives up.
    RollBack(usize),
    /// A worker claims, beginning with this line.
    Claim { worker: usize, line: usize },
    /// A worker begins to send.
    Send { worker: usize, at: usize },
    /// A worker settles what it heard, or releases.
    Settle {
        worker: usize,
        at: usize,
        how: How,
        fate: Fate,
    },
    /// A worker that did not hear the answer settles again.
    Repeat { worker: usize, at: usize },
    /// A worker asks for more time.
    Renew { worker: usize, at: usize },
    /// A worker dies and comes back with its name and nothing else.
    Crash { worker: usize },
    /// The slow repairer sees a lease that ran out.
    See(usize),
    /// The slow repairer settles what it saw.
    RepairSeen,
    /// Another repairer settles a lease that ran out.
    Repair(usize),
    /// An operator acts.
    Operate { verb: Event, msg: usize },
    /// An operator removes a message.
    Discard(usize),
    /// Time passes.
    Tick,
}

/// What becomes of a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It is written, and the worker hears so.
    Heard,
    /// It is written, and the answer is lost.
    Unheard,
    /// It never arrives, and the worker cannot tell.
    Unwritten,
    /// The worker dies in the middle of it.
    Torn,
}

/// Everything that can happen next.
pub fn possible(config: &Config, world: &World, actions: &mut Vec<Action>) {
    for msg in 0..config.messages.len() {
        produce(config, world, msg, actions);
        repair(config, world, msg, actions);
        operate(config, world, msg, actions);
    }
    for worker in 0..world.workers.len() {
        work(config, world, worker, actions);
    }
    if world.repairer.is_some() {
        actions.push(Action::RepairSeen);
    }
    actions.push(Action::Tick);
}

fn produce(config: &Config, world: &World, msg: usize, actions: &mut Vec<Action>) {
    match world.producers[msg] {
        Producer::Waiting if has_turn(config, world, msg) => actions.push(Action::Begin(msg)),
        Producer::Open { .. } => actions.extend([Action::Commit(msg), Action::RollBack(msg)]),
        _ => {}
    }
}

/// Producers of a strict key wait for each other, and so does a replay that puts a message at the tail.
fn has_turn(config: &Config, world: &World, msg: usize) -> bool {
    let relaxed = config.start == Start::Producers(posthouse_core::Order::Relaxed) || config.has(Bug::TurnAfterDraw);
    let open = |other: usize| matches!(world.producers[other], Producer::Open { .. });
    relaxed || (0..config.messages.len()).all(|other| !(config.same_line(msg, other) && open(other)))
}

fn repair(config: &Config, world: &World, msg: usize, actions: &mut Vec<Action>) {
    if world.store.expired(config, msg).is_none() {
        return;
    }
    actions.push(Action::Repair(msg));
    if config.slow_repair && world.repairer.is_none() {
        actions.push(Action::See(msg));
    }
}

fn operate(config: &Config, world: &World, msg: usize, actions: &mut Vec<Action>) {
    let Some(record) = world.store.find(msg) else { return };
    let verbs = config.verbs.iter().copied();
    let allowed = |verb: &Event| *verb != Event::Replay || has_turn(config, world, msg);
    actions.extend(verbs.filter(allowed).map(|verb| Action::Operate { verb, msg }));
    if config.discards && matches!(record.standing.state, State::Dead | State::Quarantined) {
        actions.push(Action::Discard(msg));
    }
}

fn work(config: &Config, world: &World, worker: usize, actions: &mut Vec<Action>) {
    let run = &world.workers[worker];
    if run.is_empty() {
        actions.extend(config.lines().map(|line| Action::Claim { worker, line }));
        return;
    }
    actions.push(Action::Crash { worker });
    for (at, held) in run.iter().enumerate() {
        match held.phase {
            Phase::Fresh => dispatch(config, world, worker, at, actions),
            Phase::Spoiled => release(config, worker, at, actions),
            Phase::Sending => reply(config, worker, at, actions),
            Phase::Unsure { .. } => unsure(config, worker, at, actions),
        }
        if config.renews && !matches!(held.phase, Phase::Unsure { .. }) {
            actions.push(Action::Renew { worker, at });
        }
    }
}

fn dispatch(config: &Config, world: &World, worker: usize, at: usize, actions: &mut Vec<Action>) {
    if may_send(config, world, worker, at) {
        actions.push(Action::Send { worker, at });
    }
    let record = world.store.find(number(world.workers[worker][at].lease.id));
    if record.is_some_and(|r| r.lapses_in == Some(0)) {
        settle(config, worker, at, How::Lapsed, actions);
    }
    release(config, worker, at, actions);
}

/// A careful worker sends in turn, and looks at the clock before it does; a pause may still come between the two.
fn may_send(config: &Config, world: &World, worker: usize, at: usize) -> bool {
    let run = &world.workers[worker];
    let in_turn = in_turn(config, run, at) || config.has(Bug::SendAhead);
    in_turn && (config.late_sends || world.ghost.is_live(&run[at].lease))
}

fn reply(config: &Config, worker: usize, at: usize, actions: &mut Vec<Action>) {
    for how in config.replies.iter().copied() {
        settle(config, worker, at, how, actions);
    }
    if config.has(Bug::ReleaseAfterSend) {
        settle(config, worker, at, How::Released, actions);
    }
}

fn unsure(config: &Config, worker: usize, at: usize, actions: &mut Vec<Action>) {
    actions.push(Action::Repeat { worker, at });
    if config.has(Bug::SendTwice) {
        actions.push(Action::Send { worker, at });
    }
}

fn release(config: &Config, worker: usize, at: usize, actions: &mut Vec<Action>) {
    if config.releases {
        settle(config, worker, at, How::Released, actions);
    }
}

fn settle(config: &Config, worker: usize, at: usize, how: How, actions: &mut Vec<Action>) {
    let act = |fate| Action::Settle { worker, at, how, fate };
    actions.push(act(Fate::Heard));
    if config.lost_answers {
        actions.extend([act(Fate::Unheard), act(Fate::Unwritten)]);
    }
    if config.has(Bug::EvidenceApart) || config.has(Bug::MoveApart) {
        actions.push(act(Fate::Torn));
    }
}
