//! What stands between a relay and the rest of the world.

use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;

/// Every call of a relay passes it, and so does every answer.
///
/// Shut, it is what a stopped process looks like from outside: nothing leaves, and answers are read after the thaw. It does not
/// model what a stopped process looks like from inside: there, timers stand still too, and fire together after the thaw.
#[derive(Clone, Default)]
pub struct Gate(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    opened: Notify,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Open,
    Shut,
    /// For ever: the process is gone.
    Gone,
}

impl Gate {
    /// Waits until it is open.
    pub async fn pass(&self) {
        // Ends when it is opened; what waits at the gate of a dead process waits for ever.
        loop {
            let opened = self.0.opened.notified();
            if self.state() == State::Open {
                return;
            }
            opened.await;
        }
    }

    /// Freezes the relay.
    pub fn shut(&self) {
        self.set(State::Shut);
    }

    /// Whether it is frozen.
    pub fn is_shut(&self) -> bool {
        self.state() == State::Shut
    }

    /// Lets it go on.
    pub fn open(&self) {
        self.set(State::Open);
        self.0.opened.notify_waiters();
    }

    /// The relay is dead: nothing of it passes ever again.
    pub fn wall_up(&self) {
        self.set(State::Gone);
    }

    fn state(&self) -> State {
        *self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: State) {
        let mut old = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        if *old != State::Gone {
            *old = state;
        }
    }
}
