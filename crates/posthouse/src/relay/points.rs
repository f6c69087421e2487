//! Places at which a test ends the process, as if its machine had lost power, or holds it up.
//!
//! Only with the feature `failpoints`; without it nothing of this is compiled in. `FAILPOINTS="relay::after_send=2*off->return"` in the
//! environment sends SIGKILL to the process when it comes by that place for the third time. With `1*return(FILE)` who comes by makes that
//! file and goes on when it is gone; everybody else goes on meanwhile. Other actions are those of the crate `fail`.

/// Reads the environment, once for each process.
#[cfg(feature = "failpoints")]
pub(super) fn begin() {
    static BEGUN: std::sync::Once = std::sync::Once::new();
    // Kept: dropped, it would forget all of them.
    BEGUN.call_once(|| std::mem::forget(fail::FailScenario::setup()));
}

/// The place of this name.
#[cfg(feature = "failpoints")]
pub(super) async fn point(name: &str) {
    let Some(file) = met(name) else { return };
    if std::fs::write(&file, "").is_err() {
        die();
    }
    // Whoever made the test sees it, and takes it away.
    while std::path::Path::new(&file).exists() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// The file to wait for, if there is one.
#[cfg(feature = "failpoints")]
fn met(name: &str) -> Option<String> {
    fail::fail_point!(name, |file: Option<String>| Some(file.unwrap_or_else(|| die())));
    None
}

/// Nothing is flushed, closed or told to anybody.
#[cfg(feature = "failpoints")]
fn die() -> ! {
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
pub(super) async fn point(_: &str) {}
