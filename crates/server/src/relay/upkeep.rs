//! What a relay does beside delivering: it counts, and removes what ended long ago.

use metrics_exporter_prometheus::PrometheusHandle;
use posthouse::{Admin, Error};
use std::{sync::Arc, time::Duration};
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

/// Starts it for each store.
pub fn spawn(tasks: &mut JoinSet<()>, config: &Config, stores: &Arc<[Opened]>, measures: PrometheusHandle) {
    for opened in stores.iter() {
        tasks.spawn(count(opened.name.clone(), opened.store.admin(), measures.clone()));
        if let Some(age) = config.retention.ended {
            tasks.spawn(prune(opened.store.admin(), age));
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

async fn prune(admin: Arc<dyn Admin>, age: Duration) {
    let mut every = interval(PRUNE.0);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        match prune_all(&*admin, age).await {
            Ok(0) => {}
            Ok(messages) => tracing::info!(messages, "removed what ended long ago"),
            Err(error) => tracing::warn!(%error, "what ended long ago was not removed"),
        }
    }
}

/// Goes on until there is no more to remove.
async fn prune_all(admin: &dyn Admin, age: Duration) -> Result<u64, Error> {
    let mut removed = 0;
    loop {
        let pruned = admin.prune(age, PRUNE.1).await?;
        removed += pruned.messages;
        if !pruned.more {
            return Ok(removed);
        }
    }
}
