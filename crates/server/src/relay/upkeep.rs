//! What a relay does beside delivering: it counts, and removes what ended long ago.

use metrics_exporter_prometheus::PrometheusHandle;
use posthouse::{Admin, Error, Prune, PruneStates, Pruned, prune_all, relay::default_name};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use super::{Opened, measures};
use crate::config::Config;

/// How often messages are counted.
const COUNT: Duration = Duration::from_secs(15);
/// How often what is old is removed, and how much in one go: little, so that nobody waits for it.
const PRUNE: (Duration, u32) = (Duration::from_secs(60), 1000);
/// For how long a relay adds what it removes to the same audit row: a row each minute would bury what operators did.
const AUDITED: Duration = Duration::from_secs(24 * 3600);

/// Starts it for each store.
pub fn spawn(tasks: &mut JoinSet<()>, config: &Config, stores: &Arc<[Opened]>, measures: PrometheusHandle) {
    for opened in stores.iter() {
        tasks.spawn(count(opened.name.clone(), opened.store.admin(), measures.clone()));
        let (retention, name) = (&config.retention, &config.outbox.name);
        for (states, key, age) in [
            (PruneStates::Done, "retention.ended_days", retention.ended),
            (PruneStates::Dead, "retention.dead_days", retention.dead),
        ] {
            let Some(age) = age else { continue };
            let actor = name.clone().unwrap_or_else(default_name);
            tasks.spawn(Pruner::new(opened.store.admin(), Keep { states, key, age }, actor).run());
        }
    }
}

async fn count(name: String, admin: Arc<dyn Admin>, measures: PrometheusHandle) {
    let mut every = interval(COUNT);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        measures.run_upkeep();
        match admin.counts().await {
            Ok(counts) => measures::counts(&name, &counts),
            Err(error) => tracing::warn!(%error, "messages were not counted"),
        }
    }
}

/// Removes what is older than a key of `[retention]` says, in a store.
struct Pruner {
    admin: Arc<dyn Admin>,
    keep: Keep,
    actor: String,
    /// The audit row that it adds to, and since when.
    audit: Option<i64>,
    since: Instant,
}

impl Pruner {
    fn new(admin: Arc<dyn Admin>, keep: Keep, actor: String) -> Self {
        let (audit, since) = (None, Instant::now());
        Self {
            admin,
            keep,
            actor,
            audit,
            since,
        }
    }

    async fn run(mut self) {
        let mut every = interval(PRUNE.0);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            every.tick().await;
            let key = self.keep.key;
            match self.round().await {
                Ok(sum) if sum.is_empty() => {}
                Ok(sum) => tracing::info!(done = sum.done, dead = sum.dead, key, "removed old messages"),
                Err(error @ Error::Denied(_)) => {
                    tracing::error!(%error, key, "old messages were not removed: the relay's database role may not");
                }
                Err(error) => tracing::warn!(%error, key, "old messages were not removed"),
            }
        }
    }

    /// Removes all that is old now.
    async fn round(&mut self) -> Result<Pruned, Error> {
        if self.since.elapsed() >= AUDITED {
            (self.audit, self.since) = (None, Instant::now());
        }
        let prune = Prune {
            states: self.keep.states,
            note: self.keep.note(),
            audit: self.audit,
            ..Prune::done(self.keep.age, PRUNE.1, &*self.actor)
        };
        prune_all(&*self.admin, prune, |sum| self.audit = sum.audit).await
    }
}

/// A key of `[retention]`.
struct Keep {
    states: PruneStates,
    key: &'static str,
    age: Duration,
}

impl Keep {
    fn note(&self) -> String {
        format!("{} = {}", self.key, self.age.as_secs() / 86_400)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthouse::{AuditFilter, Message};
    use posthouse_testkit::Memory;

    const DAY: Duration = Duration::from_secs(86_400);

    /// Enqueues a message that is done and one that is dead, and lets two days pass.
    async fn one_of_each(memory: &Memory) {
        let mut tx = memory.begin();
        let (done, dead) = (
            Message::bytes("t", "text/plain", "1"),
            Message::bytes("t", "text/plain", "2"),
        );
        let done = tx.enqueue(done).await.unwrap().id();
        let dead = tx.enqueue(dead).await.unwrap().id();
        tx.commit();
        memory.resolve(done, "op", "seen", "").await.unwrap();
        memory.cancel(dead, "op", "withdrawn").await.unwrap();
        memory.advance(DAY * 2);
    }

    fn pruner(memory: &Arc<Memory>, states: PruneStates, key: &'static str) -> Pruner {
        let keep = Keep { states, key, age: DAY };
        Pruner::new(memory.clone(), keep, "relay-a".to_owned())
    }

    #[tokio::test]
    async fn retention_keeps_dead_letters_unless_they_have_a_key() {
        let memory = Arc::new(Memory::new());
        one_of_each(&memory).await;
        let mut ended = pruner(&memory, PruneStates::Done, "retention.ended_days");
        let sum = ended.round().await.unwrap();
        assert_eq!((sum.done, sum.dead), (1, 0));
        assert_eq!(memory.counts().await.unwrap().dead.value, 1);
        let mut dead = pruner(&memory, PruneStates::Dead, "retention.dead_days");
        let sum = dead.round().await.unwrap();
        assert_eq!((sum.done, sum.dead), (0, 1));
    }

    #[tokio::test]
    async fn rounds_of_a_day_share_an_audit_row() {
        let memory = Arc::new(Memory::new());
        let mut ended = pruner(&memory, PruneStates::Done, "retention.ended_days");
        for n in 1..=3 {
            one_of_each(&memory).await;
            assert_eq!(ended.round().await.unwrap().done, 1);
            assert!(ended.round().await.unwrap().is_empty(), "nothing is left");
            let filter = AuditFilter {
                action: Some("prune".to_owned()),
                ..AuditFilter::default()
            };
            let rows = memory.audit(&filter).await.unwrap();
            let told: Vec<_> = rows
                .iter()
                .map(|row| (&*row.actor, &*row.note, row.pruned.map(|pruned| pruned.done)))
                .collect();
            assert_eq!(told, [("relay-a", "retention.ended_days = 1", Some(n))]);
        }
    }
}
