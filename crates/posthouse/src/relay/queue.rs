//! Who waits for a turn at a destination, and who sees to them.
//!
//! As many are seen to at a time as the destination takes. Whoever sees to one goes on with the next, so that a message that waits
//! costs a place in a list, and no task, no timer.

use std::{
    collections::VecDeque,
    future::Future,
    sync::{Arc, Mutex},
};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{
    line::{self, Guest, Unsent},
    locked,
    target::{EXTRA, Target},
};

/// How many are seen to before others have their turn on the thread.
const AT_A_STRETCH: u32 = 16;

#[derive(Default)]
pub(super) struct Queue(Mutex<State>);

#[derive(Default)]
struct State {
    waiting: VecDeque<Guest>,
    /// How many are seen to.
    busy: u32,
    /// Somebody looks after those who wait. Always, while there are any.
    kept: bool,
}

impl Queue {
    /// Waits for its turn, which may be now.
    pub fn come(&self, target: &Arc<Target>, guest: Guest) {
        let tasks = guest.tasks().clone();
        let mut state = locked(&self.0);
        state.waiting.push_back(guest);
        let host = state.host(target);
        let keeper = (!state.waiting.is_empty() && !state.kept).then(|| {
            state.kept = true;
            keep(Keeper::new(target))
        });
        // A runtime that ends drops what it is given at once, here: not under our lock, which that needs.
        drop(state);
        host.into_iter().for_each(|host| tasks.spawn(host));
        keeper.into_iter().for_each(|keeper| tasks.spawn(keeper));
    }

    /// Whoever saw to them may have come to grief.
    fn help(&self, target: &Arc<Target>) {
        loop {
            let mut state = locked(&self.0);
            let Some(tasks) = state.waiting.front().map(|guest| guest.tasks().clone()) else {
                return;
            };
            let Some(host) = state.host(target) else { return };
            drop(state);
            tasks.spawn(host);
        }
    }

    /// The next one. With none, one fewer is busy.
    fn next(&self) -> Option<Guest> {
        let mut state = locked(&self.0);
        let next = state.waiting.pop_front();
        if next.is_none() {
            state.busy -= 1;
        }
        next
    }

    /// What to wait for on behalf of those who wait: the stop of the first one's relay, and when to look at all of them. None when
    /// nobody waits, and then nobody keeps them.
    fn watch(&self) -> Option<(CancellationToken, Instant)> {
        let mut state = locked(&self.0);
        let Some(first) = state.waiting.front() else {
            state.kept = false;
            return None;
        };
        let soonest = state.waiting.iter().filter_map(Guest::patient_until).min();
        let latest = Instant::now() + EXTRA;
        Some((first.stopping(), soonest.map_or(latest, |at| at.min(latest))))
    }

    /// Those who wait no longer, and why.
    fn take_out(&self) -> Vec<(Guest, Unsent)> {
        let mut state = locked(&self.0);
        let mut out = Vec::new();
        for guest in std::mem::take(&mut state.waiting) {
            match guest.has_enough() {
                Some(why) => out.push((guest, why)),
                None => state.waiting.push_back(guest),
            }
        }
        out
    }
}

impl State {
    /// One more who sees to them, if the destination takes more.
    fn host(&mut self, target: &Arc<Target>) -> Option<impl Future<Output = ()> + Send + use<>> {
        if self.busy >= target.rules().concurrency {
            return None;
        }
        let first = self.waiting.pop_front()?;
        self.busy += 1;
        Some(see_to(Host::new(target), first))
    }
}

/// Sees to one after the other.
struct Host {
    target: Arc<Target>,
    done: bool,
}

impl Host {
    fn new(target: &Arc<Target>) -> Self {
        Self {
            target: target.clone(),
            done: false,
        }
    }
}

async fn see_to(mut host: Host, first: Guest) {
    let (mut next, mut seen_to) = (Some(first), 0_u32);
    while let Some(guest) = next {
        line::attend(guest).await;
        seen_to = seen_to.wrapping_add(1);
        if seen_to.is_multiple_of(AT_A_STRETCH) {
            // Who never waits must not keep the thread from everybody else.
            tokio::task::yield_now().await;
        }
        next = host.target.queue.next();
    }
    host.done = true;
}

impl Drop for Host {
    fn drop(&mut self) {
        if !self.done {
            locked(&self.target.queue.0).busy -= 1;
        }
    }
}

/// Looks after those who wait.
struct Keeper {
    target: Arc<Target>,
    done: bool,
}

impl Keeper {
    fn new(target: &Arc<Target>) -> Self {
        Self {
            target: target.clone(),
            done: false,
        }
    }
}

async fn keep(mut keeper: Keeper) {
    while let Some((stopping, at)) = keeper.target.queue.watch() {
        tokio::select! {
            biased;
            () = stopping.cancelled() => {}
            () = sleep_until(at) => {}
        }
        for (guest, why) in keeper.target.queue.take_out() {
            line::leave(guest, why);
        }
        keeper.target.queue.help(&keeper.target);
    }
    keeper.done = true;
}

impl Drop for Keeper {
    /// The relay has ended, and nobody comes to see to them.
    fn drop(&mut self) {
        if !self.done {
            let mut state = locked(&self.target.queue.0);
            let left = std::mem::take(&mut state.waiting);
            state.kept = false;
            drop(state);
            drop(left);
        }
    }
}
