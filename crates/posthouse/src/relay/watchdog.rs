//! A look from outside: whether the program's threads still get round to renewing leases.
//!
//! A handler that blocks its thread, instead of waiting, may block every thread of the runtime, and then nothing is renewed, and
//! nobody in there can say so. This is a thread of its own.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::measures;

/// Beats for as long as somebody holds it.
pub(super) struct Heart {
    since: Instant,
    beat: AtomicU64,
}

impl Heart {
    fn beat(&self) {
        self.beat.store(self.age(), Ordering::Relaxed);
    }

    fn silent(&self) -> Duration {
        Duration::from_millis(self.age().saturating_sub(self.beat.load(Ordering::Relaxed)))
    }

    fn age(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Beats, watched by a thread, until it is dropped.
pub(super) async fn beat_for_ever(lease: Duration) {
    let heart = Arc::new(Heart {
        since: Instant::now(),
        beat: AtomicU64::new(0),
    });
    let (watched, patience) = (Arc::downgrade(&heart), lease / 3);
    let watching = thread::Builder::new().name("posthouse-watchdog".into());
    if let Err(error) = watching.spawn(move || watch(&watched, patience, cry)) {
        tracing::warn!(%error, "nobody watches whether threads are blocked");
    }
    loop {
        heart.beat();
        tokio::time::sleep(patience / 4).await;
    }
}

/// Ends when the heart is gone.
fn watch(heart: &Weak<Heart>, patience: Duration, tell: impl Fn(Duration)) {
    let mut told = false;
    while let Some(silent) = heart.upgrade().map(|heart| heart.silent()) {
        if is_news(silent > patience, &mut told) {
            tell(silent);
        }
        thread::sleep(patience / 4);
    }
}

/// Each stall is told once.
fn is_news(stalled: bool, told: &mut bool) -> bool {
    let before = std::mem::replace(told, stalled);
    stalled && !before
}

fn cry(silent: Duration) {
    measures::stalled();
    tracing::error!(
        ?silent,
        "the program's threads are blocked, and leases are not renewed: a handler must wait with .await, or go through spawn_blocking"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn each_stall_is_told_once() {
        let mut told = false;
        let news = [false, true, true, false, false, true, true].map(|stalled| is_news(stalled, &mut told));
        assert_eq!(news, [false, true, false, false, false, true, false]);
    }

    /// Real time, because a blocked thread is real; but nothing depends on how long it takes.
    #[test]
    fn a_heart_that_is_silent_is_noticed() {
        let heart = Arc::new(Heart {
            since: Instant::now(),
            beat: AtomicU64::new(0),
        });
        let (tell, told) = mpsc::channel();
        let (watched, patience) = (Arc::downgrade(&heart), Duration::from_millis(20));
        let watching = thread::spawn(move || watch(&watched, patience, |silent| tell.send(silent).unwrap()));
        assert!(told.recv().unwrap() > patience);
        drop(heart);
        watching.join().unwrap();
    }
}
