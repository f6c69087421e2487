//! What runs in the background for a relay, and ends with it.

use std::{
    future::Future,
    sync::{Arc, Mutex},
};
use tokio::task::JoinSet;

use super::locked;

#[derive(Default)]
pub(super) struct Tasks(Mutex<JoinSet<()>>);

impl Tasks {
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = locked(&self.0);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }
}

/// Ends them when it is dropped.
pub(super) struct EndTasks(pub Arc<Tasks>);

impl Drop for EndTasks {
    fn drop(&mut self) {
        locked(&self.0.0).abort_all();
    }
}
