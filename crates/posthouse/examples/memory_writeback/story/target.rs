//! The memory service: slow, sometimes busy, and unable to tell a text that it has from one that it has not. It knows a message by its
//! id, though, which is the same however often it is sent.

use posthouse::{Delivery, MessageId, Outcome};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Its memories. The topic of a message is the space that it goes to.
#[derive(Clone, Default)]
pub struct OpenMemory(Arc<Mutex<Shelf>>);

#[derive(Default)]
struct Shelf {
    /// The messages that asked, each time.
    asked: Vec<MessageId>,
    /// Those that were stored; their places are the ids of the memories.
    stored: Vec<MessageId>,
}

impl OpenMemory {
    /// Stores a memory, and answers its id.
    pub async fn store(&self, delivery: Delivery) -> Outcome {
        let space = delivery.topic.trim_start_matches("memory.");
        let slow = if space == "slow" { 1300 } else { 60 };
        tokio::time::sleep(Duration::from_millis(slow)).await;
        let mut shelf = self.shelf();
        shelf.asked.push(delivery.id);
        match (space, delivery.attempt) {
            ("nowhere", _) => Outcome::Reject {
                code: "unknown_space".into(),
                error: "there is no such space".into(),
            },
            ("down", _) | ("busy", 1 | 2) => Outcome::Retry {
                after: None,
                code: "http_503".into(),
                error: "try again later".into(),
            },
            _ => {
                let known = shelf.stored.iter().position(|of| *of == delivery.id);
                let at = known.unwrap_or_else(|| {
                    shelf.stored.push(delivery.id);
                    shelf.stored.len() - 1
                });
                Outcome::receipt(format!("mem_{}", at + 1))
            }
        }
    }

    /// How often it was asked for this message, and how many memories that made.
    pub fn seen(&self, id: MessageId) -> (usize, usize) {
        let shelf = self.shelf();
        let count = |of: &[MessageId]| of.iter().filter(|one| **one == id).count();
        (count(&shelf.asked), count(&shelf.stored))
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
