//! The dispatcher: a relay that gives each snapshot to the quota policy's plugin.

use super::{Chat, Failure, NAMESPACE, TOPIC, UsageSnapshot};
use posthouse::{
    Backoff, Outcome, Relay, RetryPolicy, Store,
    relay::{Destination, local},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

/// Tells people what happens.
pub type Say = Arc<dyn Fn(String) + Send + Sync>;

/// What goes wrong at the billing system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// It is busy for so many calls.
    Busy(u32),
    /// The replica dies when the first snapshot is booked, before it can report that.
    Death,
}

/// The plugin that forwards usage to the billing system.
pub struct QuotaPolicy<C> {
    chat: C,
    say: Say,
    fault: Fault,
    calls: AtomicU32,
    /// How often and how soon a snapshot is published again.
    pub retry: RetryPolicy,
}

impl<C: Chat> QuotaPolicy<C> {
    pub fn new(chat: C, fault: Fault, say: Say) -> Self {
        Self {
            chat,
            say,
            fault,
            calls: AtomicU32::new(0),
            retry: RetryPolicy {
                max_attempts: Some(8),
                backoff: Backoff::Exponential {
                    base: Duration::from_millis(100),
                    factor: 2.0,
                    cap: Duration::from_secs(60),
                    jitter: 0.3,
                    floor: Duration::from_millis(1),
                },
                ..RetryPolicy::default()
            },
        }
    }

    /// May be called any number of times with the same snapshot: the billing system books a key once.
    async fn publish_usage(&self, usage: UsageSnapshot) -> Result<Outcome, Failure> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        match self.fault {
            Fault::Busy(calls) if call < calls => {
                (self.say)(format!("{}: the billing system is busy", usage.key()));
                return Err("the billing system answers 503".into());
            }
            // Only the first comes through; the others are claimed, and not sent.
            Fault::Death if call > 0 => return std::future::pending().await,
            _ => {}
        }
        let receipt = if self.chat.book(&usage).await? {
            format!("billed {} tokens", usage.tokens())
        } else {
            "already billed".to_owned()
        };
        (self.say)(format!("{}: {receipt}", usage.key()));
        if self.fault == Fault::Death {
            die().await;
        }
        Ok(Outcome::receipt(receipt))
    }
}

/// A replica of the dispatcher. Any number may run; each stops when its token is cancelled.
pub fn replica<C: Chat>(store: Arc<dyn Store>, name: &str, plugin: QuotaPolicy<C>) -> Relay {
    let retry = plugin.retry.clone();
    let plugin = Arc::new(plugin);
    let publish_usage = move |usage: UsageSnapshot| {
        let plugin = plugin.clone();
        async move { plugin.publish_usage(usage).await }
    };
    // A short lease, so that nobody waits long for what a dead replica had.
    Relay::builder(store)
        .name(name)
        .namespace(NAMESPACE)
        .lease(Duration::from_secs(5))
        .route(
            TOPIC,
            Destination::new("quota-policy", local(publish_usage))
                .timeout(Duration::from_secs(4))
                .retry(retry),
        )
}

/// As if somebody had typed it: nothing is cleaned up, nothing is given back.
async fn die() {
    let kill = format!("kill -9 {}", std::process::id());
    let _ = std::process::Command::new("sh").args(["-c", &kill]).status();
    std::future::pending().await
}
