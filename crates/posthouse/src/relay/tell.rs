//! What a relay tells the store of itself, and what it hears there of pauses.

use posthouse_core::class;
use std::time::Duration;
use tokio::time::{sleep, timeout};

use super::{Engine, locked, points::point};

/// How long what a relay tells of itself holds, and how often it tells it.
const TOLD_FOR: Duration = Duration::from_secs(15);
/// Between two tellings at the least.
const PAUSE: Duration = Duration::from_millis(500);

/// Tells of itself, and hears what operators have paused.
pub(super) async fn tell_for_ever(engine: &Engine) {
    loop {
        // Of these its answer will know; of what is found gone meanwhile it may not.
        let known = locked(&engine.gone).clone();
        let told = engine.store.heartbeat(&engine.told(), TOLD_FOR).await;
        point("relay::after_heartbeat").await;
        match told {
            Ok(pauses) => {
                let mut gone = locked(&engine.gone);
                gone.retain(|destination, _| known.get(destination) != Some(&true));
                let paused = pauses.into_iter().map(|pause| pause.destination);
                let now = paused.chain(gone.keys().cloned()).collect();
                drop(gone);
                let before = std::mem::replace(&mut *locked(&engine.paused), now);
                if before != *locked(&engine.paused) {
                    engine.freed();
                }
            }
            Err(error) => {
                tracing::warn!(class = class::of_error(&error), %error, "the store was not told of this relay")
            }
        }
        // What changes is told soon, but not each flicker.
        sleep(PAUSE).await;
        timeout(TOLD_FOR / 3, engine.news.notified()).await.ok();
    }
}
