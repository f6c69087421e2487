//! The one loop: settle what ran out, claim, hand out, sleep until there is more to do.

use posthouse_core::{Claimed, Error, repair};
use std::{collections::HashMap, sync::Arc, time::Duration};
use tokio::{
    task::{JoinHandle, JoinSet},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    Engine,
    line::{self, Work},
};

/// How long what a relay tells of itself holds, and how often it tells it.
const TOLD_FOR: Duration = Duration::from_secs(15);
/// Expired leases that one round takes back.
const REPAIRED: u32 = 200;
/// The wait after a round that failed; it doubles up to the second.
const WAITS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Runs until it is cancelled, and until everything that it holds is settled or given up.
pub(super) async fn run(engine: Arc<Engine>, settling: JoinHandle<()>, cancel: CancellationToken) {
    // Whoever drops this future ends everything that it has started.
    let (mut lines, mut upkeep) = (JoinSet::new(), JoinSet::new());
    let (renewing, telling) = (engine.clone(), engine.clone());
    upkeep.spawn(async move { renewing.held.renew_for_ever(&*renewing.store).await });
    upkeep.spawn(async move { tell_for_ever(&telling).await });
    let patience = async {
        cancel.cancelled().await;
        tokio::time::sleep(engine.settings.grace).await;
    };
    // Not cut off in the middle of a claim, which may have been granted; but a store that does not answer is not waited for.
    tokio::select! {
        biased;
        () = rounds(&engine, &mut lines, &cancel) => {}
        () = patience => {}
    }
    drain(&engine, lines).await;
    upkeep.shutdown().await;
    if let Err(error) = engine.store.leave(&engine.settings.name).await {
        tracing::warn!(%error, "the store was not told that this relay leaves");
    }
    // The last handle of the settler: it answers what it has, and ends.
    drop(engine);
    settling.await.ok();
}

async fn rounds(engine: &Arc<Engine>, lines: &mut JoinSet<()>, cancel: &CancellationToken) {
    let mut wait = WAITS.0;
    while !cancel.is_cancelled() {
        let rest = match round(engine, lines, cancel).await {
            Ok(rest) => {
                wait = WAITS.0;
                rest
            }
            Err(error) => {
                tracing::warn!(%error, "a round failed");
                let rest = Rest::For(wait);
                wait = (2 * wait).min(WAITS.1);
                rest
            }
        };
        tokio::select! {
            biased;
            () = cancel.cancelled() => {}
            () = rest.over(engine) => {}
        }
        while lines.try_join_next().is_some() {}
    }
}

/// How long the loop rests before its next round.
enum Rest {
    /// Not at all.
    None,
    /// Until a slot or a destination is free.
    UntilFree,
    /// Until the store wakes us, or something is free; not longer than the poll.
    UntilWoken,
    /// For this long.
    For(Duration),
}

impl Rest {
    async fn over(self, engine: &Engine) {
        match self {
            Self::None => {}
            Self::UntilFree => engine.changed.notified().await,
            Self::UntilWoken => tokio::select! {
                biased;
                () = engine.changed.notified() => {}
                () = woken(engine) => {}
            },
            Self::For(wait) => tokio::time::sleep(wait).await,
        }
    }
}

async fn woken(engine: &Engine) {
    let poll = engine.settings.poll;
    if let Err(error) = engine.store.wake(&engine.settings.name, poll).await {
        tracing::warn!(%error, "the store cannot wake this relay; it looks by itself");
        tokio::time::sleep(poll).await;
    }
}

/// Settles what ran out and takes what there is for the free slots; twice before a sleep.
async fn round(engine: &Arc<Engine>, lines: &mut JoinSet<()>, cancel: &CancellationToken) -> Result<Rest, Error> {
    repair(&*engine.store, REPAIRED).await?;
    let rest = take(engine, lines).await?;
    if !matches!(rest, Rest::UntilWoken) || cancel.is_cancelled() {
        return Ok(rest);
    }
    engine.store.asleep(&engine.settings.name, engine.settings.poll).await?;
    // What was committed before the store knew of our sleep rings for nobody.
    take(engine, lines).await
}

async fn take(engine: &Arc<Engine>, lines: &mut JoinSet<()>) -> Result<Rest, Error> {
    let free = engine.slots.available_permits().min(engine.settings.batch as usize);
    let Some(batch) = u32::try_from(free).ok().filter(|free| *free > 0) else {
        return Ok(Rest::UntilFree);
    };
    let asked = Instant::now();
    let claimed = engine.store.claim(&engine.claim(batch)).await?;
    let rest = if claimed.len() < free {
        Rest::UntilWoken
    } else {
        Rest::None
    };
    for line in by_key(claimed) {
        let line = line
            .into_iter()
            .filter_map(|claimed| work(engine, claimed, asked))
            .collect();
        lines.spawn(line::run(engine.clone(), line));
    }
    Ok(rest)
}

/// Only this loop takes slots, and it has looked how many are free.
fn work(engine: &Engine, claimed: Claimed, asked: Instant) -> Option<Work> {
    Some(Work {
        grip: engine.held.take(&claimed, asked),
        _slot: engine.slots.clone().try_acquire_owned().ok()?,
        claimed,
        asked,
    })
}

/// The messages of each key together, in their order; those without a key alone.
fn by_key(claimed: Vec<Claimed>) -> Vec<Vec<Claimed>> {
    let mut lines: Vec<Vec<Claimed>> = Vec::new();
    let mut keys: HashMap<(String, String, String), usize> = HashMap::new();
    for one in claimed {
        let d = &one.delivery;
        let Some(key) = d.order_key.clone() else {
            lines.push(vec![one]);
            continue;
        };
        let at = *keys
            .entry((d.namespace.clone(), d.tenant.clone(), key))
            .or_insert(lines.len());
        if at == lines.len() {
            lines.push(Vec::new());
        }
        lines[at].push(one);
    }
    lines
}

/// What is not sent yet goes back; what is, has the grace.
async fn drain(engine: &Engine, mut lines: JoinSet<()>) {
    engine.stopping.cancel();
    let grace = tokio::time::sleep(engine.settings.grace);
    tokio::pin!(grace);
    while !lines.is_empty() {
        tokio::select! {
            biased;
            _ = lines.join_next() => {}
            () = &mut grace, if !engine.stopped.is_cancelled() => engine.stopped.cancel(),
        }
    }
}

/// Tells of itself, and hears what operators have paused.
async fn tell_for_ever(engine: &Engine) {
    loop {
        match engine.store.heartbeat(&engine.told(), TOLD_FOR).await {
            Ok(pauses) => {
                for route in &engine.routes {
                    route.pause(pauses.iter().any(|pause| pause.destination == route.name));
                }
                engine.changed.notify_one();
            }
            Err(error) => tracing::warn!(%error, "the store was not told of this relay"),
        }
        tokio::time::sleep(TOLD_FOR / 3).await;
    }
}
