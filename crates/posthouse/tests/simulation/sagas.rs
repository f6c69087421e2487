//! Worlds in which sagas are under way while everything goes wrong. Participants do a step once under its key, and refuse what was undone, as they are told to; in the
//! end it is asked of them what is left.

use fastrand::Rng;
use posthouse::{
    Admin, SagaId,
    saga::{
        Definition, HeldReason, Loaded, Role, SagaFilter, SagaRow, SagaState, Start, UndoState, Verb, drive, from_json,
        key,
    },
};
use posthouse_testkit::{
    Memory,
    simulation::{Fate, Part},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time::sleep;

use super::world::{SECOND, World};

/// What is done in these worlds: one after the other with a pivot, side by side, and with a deadline.
fn definitions() -> Vec<Definition> {
    let retry = r#""retry": { "max_attempts": 4, "base_ms": 100, "cap_ms": 1000 }, "compensate_retry": { "max_attempts": 6, "base_ms": 100, "cap_ms": 1000 }"#;
    let reserve = format!(
        r#"{{ "name": "reserve", "action_uri": "fn:shop.reserve", "compensate_uri": "fn:shop.back", "idempotent": true, {retry} }}"#
    );
    let charge = format!(
        r#"{{ "name": "charge", "action_uri": "fn:bank.charge", "verify_uri": "fn:bank.find", "verify_after_ms": 500, "compensate_uri": "fn:bank.refund", "pivot": true, {retry} }}"#
    );
    let ship = format!(
        r#"{{ "name": "ship", "action_uri": "fn:post.ship", "compensate_uri": "fn:post.stop", "idempotent": true, {retry} }}"#
    );
    let tagged = |step: &String| step.replacen('{', r#"{ "concurrency_tag": "x","#, 1);
    let whole = |name: &str, more: &str, steps: &[String]| {
        let steps = steps.join(", ");
        from_json(&format!(
            r#"{{ "name": "{name}", "version": 1, {more} "steps": [{steps}] }}"#
        ))
        .unwrap()
    };
    vec![
        whole("row", "", &[reserve.clone(), charge.clone(), ship.clone()]),
        whole("fork", "", &[tagged(&reserve), tagged(&ship), charge.clone()]),
        whole("short", r#""deadline_ms": 4000,"#, &[reserve, charge, ship]),
    ]
}

/// Those that were committed, and those that were not.
#[derive(Clone, Default)]
pub struct Begun(Arc<Mutex<(Vec<SagaId>, Vec<SagaId>)>>);

impl Begun {
    fn committed(&self) -> Vec<SagaId> {
        self.0.lock().unwrap().0.clone()
    }
}

/// Starts sagas for a while.
async fn begin(memory: Memory, begun: Begun, mut chance: Rng) {
    let definitions = definitions();
    for n in 0..chance.u64(4..12) {
        sleep(Duration::from_millis(chance.u64(0..1500))).await;
        let rest = chance.u128(..).to_be_bytes()[..10].try_into().unwrap();
        let id = SagaId(uuid::Builder::from_unix_timestamp_millis(n, &rest).into_uuid());
        let fate = [Fate::Fine, Fate::Fine, Fate::Fine, Fate::Reject, Fate::Fail, Fate::Slow][chance.usize(..6)];
        let definition = &definitions[chance.usize(..definitions.len())];
        let start = Start::new(id, definition, format!("k{n}"), fate.word()).unwrap();
        let mut tx = memory.begin();
        tx.start(start).await.unwrap();
        sleep(Duration::from_millis(chance.u64(0..200))).await;
        if chance.u8(0..5) == 0 {
            tx.rollback();
            begun.0.lock().unwrap().1.push(id);
        } else {
            tx.commit();
            begun.0.lock().unwrap().0.push(id);
        }
    }
}

/// Operators do something to some saga now and then: nothing that says of a step what the participant does not know.
async fn meddle(memory: Memory, begun: Begun, mut chance: Rng) {
    for _ in 0..chance.u8(0..12) {
        sleep(Duration::from_millis(chance.u64(200..2500))).await;
        let known = begun.committed();
        let Some(id) = known.get(chance.usize(..known.len().max(1))) else {
            continue;
        };
        let step = ["reserve", "charge", "ship"][chance.usize(..3)].to_owned();
        let verb = match chance.u8(0..8) {
            0 => Verb::Pause,
            1 => Verb::Quarantine,
            2 => Verb::Compensate { past_pivot: false },
            3 => Verb::Replay { again: false },
            4 => Verb::Replay { again: true },
            5 => Verb::Retry { step },
            _ => Verb::Resume,
        };
        // Most of them do not apply.
        let _ = drive::operate(&memory, *id, &verb, "op", "to see").await;
    }
}

/// Fills a world with sagas.
pub fn fill(world: &mut World) -> Begun {
    let begun = Begun::default();
    let (memory, chance) = (world.memory.clone(), world.chance.fork());
    world.others.spawn(begin(memory.clone(), begun.clone(), chance));
    if !world.calm {
        world.others.spawn(meddle(memory, begun.clone(), world.chance.fork()));
    }
    begun
}

async fn rows(memory: &Memory) -> Vec<SagaRow> {
    let filter = SagaFilter {
        limit: 1000,
        ..SagaFilter::default()
    };
    memory.sagas(&filter).await.unwrap().sagas
}

/// When the storm is over a person deals with what waits, until everything has come to an end.
pub async fn end_all(world: &mut World, begun: &Begun) -> Vec<String> {
    for round in 0..300 {
        let mut busy = Vec::new();
        for row in rows(&world.memory).await {
            if row.state.is_over() {
                continue;
            }
            let saga = drive::load(&world.memory, row.id).await.unwrap();
            let patience = round < 30;
            if let Some(verb) = next(&saga, patience, &mut world.chance) {
                drive::operate(&world.memory, row.id, &verb, "op", "at last").await.ok();
            }
            busy.push(format!("{} is {} ({:?})", row.id, row.state, row.reason));
        }
        // Those who still tell of something late are heard.
        if busy.is_empty() && settled(world, begun).await {
            return Vec::new();
        }
        sleep(SECOND).await;
    }
    let mut left = Vec::new();
    for row in rows(&world.memory).await.into_iter().filter(|row| !row.state.is_over()) {
        let saga = drive::load(&world.memory, row.id).await.unwrap();
        let log = world.memory.saga_log(row.id, 0, 1000).await.unwrap();
        left.push(format!(
            "a saga does not end: {:#?}\n{:#?}\n{log:#?}",
            saga.snapshot, saga.live
        ));
    }
    left
}

/// Whether nobody is at anything any more.
async fn settled(world: &World, begun: &Begun) -> bool {
    let counts = world.memory.counts().await.unwrap();
    let quiet = counts.ready.value + counts.scheduled.value + counts.leased.value == 0;
    quiet && rows(&world.memory).await.len() == begun.committed().len()
}

/// What a person would do about it.
fn next(saga: &Loaded, patience: bool, chance: &mut Rng) -> Option<Verb> {
    let view = saga.view();
    if view.row.paused || view.note.is_some() {
        return Some(Verb::Resume);
    }
    // Somebody wishes to be left alone for an hour.
    if let (false, Some(step)) = (patience, view.steps.iter().find(|step| step.message.is_some())) {
        return Some(Verb::Retry {
            step: step.name.clone(),
        });
    }
    let (SagaState::Held, Some(reason)) = (view.row.state, view.row.reason) else {
        return None;
    };
    let stuck = view.steps.iter().find(|step| step.stuck.is_some());
    let failed = view.steps.iter().find(|step| step.compensation == UndoState::Held);
    match (reason, stuck, failed) {
        (HeldReason::CompensationFailed, _, Some(step)) => Some(Verb::Retry {
            step: step.name.clone(),
        }),
        (_, Some(_), _) if chance.u8(0..3) == 0 => Some(Verb::Compensate { past_pivot: true }),
        (_, Some(step), _) => Some(Verb::Retry {
            step: step.name.clone(),
        }),
        _ => None,
    }
}

/// Steps up to the pivot whose first send began after the deadline, although no operator has retried one.
async fn sent_late(world: &World, saga: &Loaded, parts: &BTreeMap<String, Part>) -> Vec<String> {
    let (id, definition) = (saga.row.id, &saga.definition);
    let log = world.memory.saga_log(id, 0, 1000).await.unwrap();
    let again = ["retry", "replay", "replay_again"];
    let Some(deadline) = definition.deadline() else {
        return Vec::new();
    };
    if log
        .iter()
        .any(|line| line.actor == "op" && again.contains(&line.what.as_str()))
    {
        return Vec::new();
    }
    let now = world.memory.counts().await.unwrap().now.unwrap();
    let over_for = now.since(saga.row.created_at.plus(deadline));
    let mut late = Vec::new();
    for (at, def) in definition.steps().iter().enumerate() {
        let part = parts.get(&format!("{id}:{}#1", def.name)).copied().unwrap_or_default();
        let Some(ago) = part.began.map(|began| began.elapsed()) else {
            continue;
        };
        if definition.is_up_to_pivot(at) && ago < over_for {
            late.push(format!(
                "{id}:{} began {:?} after the deadline: {log:#?}",
                def.name,
                over_for - ago
            ));
        }
    }
    late
}

/// What is left, and what the sagas say is left.
pub async fn judge(world: &World, begun: &Begun) -> Vec<String> {
    let mut broken = Vec::new();
    let mut parts: BTreeMap<String, Part> = BTreeMap::new();
    for destination in &world.destinations {
        parts.extend(destination.steps());
    }
    let (committed, rolled_back) = begun.0.lock().unwrap().clone();
    let there: BTreeSet<SagaId> = rows(&world.memory).await.iter().map(|row| row.id).collect();
    if there != committed.iter().copied().collect() {
        broken.push(format!(
            "{} sagas were committed, and {} are there",
            committed.len(),
            there.len()
        ));
    }
    for id in rolled_back {
        if parts.keys().any(|key| key.starts_with(&id.to_string())) {
            broken.push(format!("something was done for {id}, which was never started"));
        }
    }
    for id in committed {
        let saga = drive::load(&world.memory, id).await.unwrap();
        for (def, step) in saga.definition.steps().iter().zip(&saga.snapshot.steps) {
            let forward = key(id, &def.name, step.run, Role::Do);
            let forward = forward.trim_end_matches(":do");
            let part = parts.get(forward).copied().unwrap_or_default();
            let is_left = part.done && !part.undone;
            match saga.row.state {
                SagaState::Completed if !is_left => {
                    broken.push(format!("{forward} is not done in a completed saga: {part:?}"));
                }
                SagaState::Compensated if is_left => {
                    broken.push(format!("{forward} is left of a compensated saga: {step:?}"));
                }
                _ => {}
            }
            if world.calm && part.came > 1 && saga.snapshot.input != Fate::Fail.word() {
                broken.push(format!("{forward} came {} times, and nothing went wrong", part.came));
            }
        }
        broken.extend(sent_late(world, &saga, &parts).await);
        // Earlier runs were all undone.
        let earlier = parts.iter().filter(|(key, _)| key.starts_with(&id.to_string()));
        for (key, part) in earlier {
            let current = saga.definition.steps().iter().zip(&saga.snapshot.steps);
            let mut current = current.map(|(def, step)| format!("{id}:{}#{}", def.name, step.run));
            if part.done && !part.undone && !current.any(|now| now == *key) {
                broken.push(format!("{key} is left of an earlier run"));
            }
        }
    }
    broken
}
