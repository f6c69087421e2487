//! Taking back what dead relays held.
//!
//! A message may be what killed its relay. Whatever was in flight with it lost an attempt; if all of it went out together again, it
//! would lose the next one too, and end up dead beside the one that is to blame. So leases that ran out are taken back one first,
//! then four, then sixteen, a moment apart: what kills its relay again does so in ever smaller company, and still a thousand messages
//! are taken over within the second that is promised.

use posthouse_core::{class, repair_telling};
use std::{sync::Mutex, time::Duration};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};

use super::{Engine, locked, measures, points::point};

/// How often it looks for leases that ran out, unless claims say that there are none.
const EVERY: Duration = Duration::from_millis(500);
/// How long it is believed that there are none. More than the poll of an idle relay, so that the next claim says it again.
const CLEAR: Duration = Duration::from_millis(700);
/// How long what was taken back has to show what it does.
const MOMENT: Duration = Duration::from_millis(100);
/// The most that are taken back at once.
const MOST: u32 = 1024;

/// Takes back what ran out, for as long as somebody wants it.
pub(super) async fn repair_for_ever(engine: &Engine) {
    let mut limit = 1;
    loop {
        point("relay::before_repair").await;
        let freed = repair_telling(&*engine.store, limit, &measures::saga_moved)
            .await
            .unwrap_or_else(|error| {
                tracing::warn!(class = class::of_error(&error), %error, "leases that ran out could not be taken back");
                measures::store_error(&error);
                0
            });
        measures::expired(freed);
        if freed > 0 {
            point("relay::after_repair").await;
            engine.look.notify_one();
        }
        let more = freed >= limit;
        limit = if more { (4 * limit).min(MOST) } else { 1 };
        if more {
            sleep(MOMENT).await;
            continue;
        }
        sleep(EVERY).await;
        engine.expiry.due().await;
    }
}

/// What claims say of leases that run out: an idle relay, which claims at each poll, need not ask for them too.
#[derive(Default)]
pub(super) struct Expiry {
    /// When a claim was asked for that saw none, unless a later one saw some.
    clear: Mutex<Option<Instant>>,
    some: Notify,
}

impl Expiry {
    /// A claim that was asked for at this time has said so; or nothing.
    pub fn heard(&self, asked: Instant, ran_out: Option<bool>) {
        let Some(ran_out) = ran_out else { return };
        *locked(&self.clear) = (!ran_out).then_some(asked);
        if ran_out {
            self.some.notify_one();
        }
    }

    /// Waits until it is time to look again: a claim has seen some, or none has said for a while that there are none.
    async fn due(&self) {
        loop {
            let clear = *locked(&self.clear);
            let Some(until) = clear.map(|at| at + CLEAR).filter(|until| *until > Instant::now()) else {
                return;
            };
            tokio::select! {
                biased;
                () = self.some.notified() => {}
                () = sleep_until(until) => {}
            }
        }
    }
}
