//! Places at which a test ends the process, as if its machine had lost power.
//!
//! Only with the feature `failpoints`; without it nothing of this is compiled in. `FAILPOINTS="relay::after_send=2*off->return"` in the
//! environment sends SIGKILL to the process when it comes by that place for the third time. Other actions are those of the crate `fail`.

/// Reads the environment, once for each process.
#[cfg(feature = "failpoints")]
pub(super) fn begin() {
    static BEGUN: std::sync::Once = std::sync::Once::new();
    // Kept: dropped, it would forget all of them.
    BEGUN.call_once(|| std::mem::forget(fail::FailScenario::setup()));
}

/// The place of this name.
#[cfg(feature = "failpoints")]
pub(super) fn point(name: &str) {
    fail::fail_point!(name, |_| die());
}

/// Nothing is flushed, closed or told to anybody.
#[cfg(feature = "failpoints")]
fn die() {
    use rustix::process::{Signal, getpid, kill_process};
    if kill_process(getpid(), Signal::KILL).is_ok() {
        // Another thread may be the one that hears it; this one must not go on.
        loop {
            std::thread::park();
        }
    }
    std::process::abort();
}

#[cfg(not(feature = "failpoints"))]
pub(super) const fn begin() {}

#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub(super) const fn point(_: &str) {}
