//! What runs in the background for a relay, and ends with it.

use std::{
    future::Future,
    sync::{Arc, Mutex},
};
use tokio::task::JoinSet;

use super::locked;

/// None when the relay has ended.
pub(super) struct Tasks(Mutex<Option<JoinSet<()>>>);

impl Tasks {
    pub fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(JoinSet::new()))))
    }

    /// Begins a task. After the end it is dropped, and what it holds with it.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut task = Some(task);
        if let Some(tasks) = &mut *locked(&self.0) {
            while tasks.try_join_next().is_some() {}
            if let Some(task) = task.take() {
                tasks.spawn(task);
            }
        }
    }
}

/// Ends them when it is dropped.
pub(super) struct EndTasks(pub Arc<Tasks>);

impl Drop for EndTasks {
    fn drop(&mut self) {
        // Not under the lock: what ends may begin something.
        let tasks = locked(&self.0.0).take();
        drop(tasks);
    }
}
