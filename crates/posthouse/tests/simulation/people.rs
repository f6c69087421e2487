//! Those who are no relays: producers and operators.

use fastrand::Rng;
use posthouse::{Admin, Enqueued, Filter, Message, MessageId, OnDead, OnDuplicate, State};
use posthouse_testkit::{
    Memory,
    simulation::{Fact, Fate, History},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::time::sleep;

use super::world::{Committed, DESTINATIONS};

const TOPICS: [&str; 4] = ["shop.sold", "shop.back", "bank.paid", "post.sent"];

/// Somebody who commits messages, or rolls them back.
pub struct Producer {
    pub memory: Memory,
    pub history: History,
    pub committed: Committed,
    pub names: Arc<AtomicUsize>,
    pub chance: Rng,
}

impl Producer {
    pub async fn run(mut self) {
        for _ in 0..self.chance.usize(3..10) {
            sleep(Duration::from_millis(self.chance.u64(0..1500))).await;
            self.transaction().await;
        }
    }

    async fn transaction(&mut self) {
        let (mut tx, mut written) = (self.memory.begin(), Vec::new());
        let slow_run = self.chance.u8(0..16) == 0;
        for _ in 0..if slow_run { 6 } else { self.chance.usize(1..5) } {
            let message = if slow_run {
                // Together they take longer than any lease, which must be renewed for those that wait.
                self.plain(TOPICS[0], Fate::Slow).order_key("slow")
            } else {
                self.message()
            };
            // A taken dedupe key, or a deadlock with another producer: nothing is written, and the rest goes on.
            if let Ok(Enqueued::New(_)) = tx.enqueue(message.clone()).await {
                written.push((message, self.history.now()));
            }
            if self.chance.u8(0..4) == 0 {
                sleep(Duration::from_millis(self.chance.u64(0..300))).await;
            }
        }
        let ids = written.iter().filter_map(|(m, _)| m.id);
        if self.chance.u8(0..4) == 0 {
            tx.rollback();
            self.history.add(Fact::RolledBack(ids.collect()));
        } else {
            tx.commit();
            let blocks = written
                .iter()
                .filter_map(|(m, _)| Some((m.id?, m.on_dead == OnDead::Block)));
            self.committed.lock().unwrap().extend(blocks);
            self.history.add(Fact::Committed(written));
        }
    }

    fn message(&mut self) -> Message {
        let topic = TOPICS[self.chance.usize(..TOPICS.len())];
        let fate = match self.chance.u8(0..24) {
            0 => Fate::Reject,
            1 => Fate::Fail,
            2 => Fate::Slow,
            _ => Fate::Fine,
        };
        let mut message = self
            .plain(topic, fate)
            .tenant(["", "acme", "globex"][self.chance.usize(..3)]);
        if self.chance.u8(0..10) < 6 {
            message = message.order_key(["red", "blue"][self.chance.usize(..2)]);
            message.on_dead = if self.chance.bool() {
                OnDead::Block
            } else {
                OnDead::Pass
            };
        }
        if self.chance.u8(0..8) == 0 {
            message = message.dedupe_key(format!("d{}", self.chance.u8(0..4)));
            message.on_duplicate = if self.chance.bool() {
                OnDuplicate::Keep
            } else {
                OnDuplicate::Refuse
            };
        }
        if self.chance.u8(0..6) == 0 {
            message = message.delay(Duration::from_millis(self.chance.u64(1..6000)));
        }
        if self.chance.u8(0..8) == 0 {
            message = message.deliver_in(Duration::from_millis(self.chance.u64(6000..15_000)));
        }
        message
    }

    /// Its payload is its fate and its name.
    pub fn plain(&mut self, topic: &str, fate: Fate) -> Message {
        let n = self.names.fetch_add(1, Ordering::Relaxed);
        let id = uuid::Builder::from_unix_timestamp_millis(
            n as u64,
            &self.chance.u128(..).to_be_bytes()[..10].try_into().unwrap(),
        );
        Message::bytes(topic, "text/plain", format!("{} {n}", fate.word())).id(MessageId(id.into_uuid()))
    }
}

/// Operators do something to some message now and then.
pub async fn operate(memory: Memory, history: History, committed: Committed, mut chance: Rng, length: Duration) {
    let end = history.now() + length;
    while history.now() < end {
        sleep(Duration::from_millis(chance.u64(100..2500))).await;
        if chance.u8(0..5) == 0 {
            let name = DESTINATIONS[chance.usize(..DESTINATIONS.len())];
            let paused = chance.bool();
            if paused {
                memory.pause(name, "op", "to see").await.unwrap();
            } else {
                memory.resume(name, "op", "to see").await.unwrap();
            }
            history.add(Fact::Paused(name.to_owned(), paused));
            continue;
        }
        let known = committed.lock().unwrap().clone();
        if known.is_empty() {
            continue;
        }
        // The young ones move, and among the dead there is something to replay.
        let mut id = known[chance.usize(..known.len())].0;
        let dead = Filter {
            state: Some([State::Dead, State::Quarantined][chance.usize(..2)]),
            ..Filter::default()
        };
        let (verb, done) = match chance.u8(0..9) {
            0..5 => {
                let found = memory.list(&dead).await.unwrap().messages;
                id = found.first().map_or(id, |view| view.id);
                ("replay", memory.replay(id, "op", "again", None).await)
            }
            5 => ("quarantine", memory.quarantine(id, "op", "odd").await),
            6 => ("cancel", memory.cancel(id, "op", "unwanted").await),
            7 => ("resolve", memory.resolve(id, "op", "by phone", "").await),
            _ => ("discard", memory.discard(id, "op", "old").await),
        };
        history.add(Fact::Operated {
            verb,
            id,
            done: done.is_ok(),
        });
    }
}
