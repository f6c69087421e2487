//! The outbox, the service, and workers between them.

use posthouse::{
    Admin, AnyStore, Attempt, Backoff, Delivery, Error, Message, MessageId, MessageView, Relay, RetryPolicy, State,
    Store,
    relay::{Destination, local_delivery},
};
use std::{
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};
use tokio::{sync::oneshot, task::JoinHandle, time::sleep};
use tokio_util::sync::CancellationToken;

use super::{Failure, target::OpenMemory};

/// How long a lease holds here. The protocol says a minute.
pub const LEASE: Duration = Duration::from_secs(3);
/// What a wait of the protocol is divided by here: a second of it is a millisecond.
pub const HASTE: u32 = 1000;
/// The most leases of a message.
pub const MOST: u32 = 7;

/// The backoff of the protocol: 120 s, 240 s, ... up to an hour, each 30 % more or less.
pub fn backoff(haste: u32) -> RetryPolicy {
    let scaled = |seconds| Duration::from_secs(seconds) / haste;
    RetryPolicy {
        max_attempts: Some(MOST),
        backoff: Backoff::Exponential {
            base: scaled(120),
            factor: 2.0,
            cap: scaled(3600),
            jitter: 0.3,
            floor: scaled(1),
        },
        ..RetryPolicy::default()
    }
}

/// A worker that runs until it is stopped.
pub struct Worker {
    cancel: CancellationToken,
    task: JoinHandle<Result<(), Error>>,
}

impl Worker {
    pub async fn stop(self) -> Result<(), Failure> {
        self.cancel.cancel();
        Ok(self.task.await??)
    }
}

/// Everything that there is to look at.
pub struct Place {
    pub any: AnyStore,
    pub admin: Arc<dyn Admin>,
    /// Of this run alone, so that it can be told again in the same database.
    pub namespace: String,
    pub memory: OpenMemory,
}

impl Place {
    pub async fn open(url: &str) -> Result<Self, Failure> {
        AnyStore::migrate(url).await?;
        let any = AnyStore::open(url).await?;
        Ok(Self {
            admin: any.admin(),
            any,
            namespace: format!("memory_writeback.{}", uuid::Uuid::new_v4().simple()),
            memory: OpenMemory::default(),
        })
    }

    /// An application would do this in the transaction of its own change.
    pub async fn remember(&self, memories: impl IntoIterator<Item = Message>) -> Result<Vec<MessageId>, Failure> {
        let own = |memory: Message| memory.namespace(&self.namespace);
        let enqueued = self.any.enqueue(memories.into_iter().map(own).collect()).await?;
        Ok(enqueued.into_iter().map(posthouse::Enqueued::id).collect())
    }

    fn destination(&self) -> Destination {
        let memory = self.memory.clone();
        local_destination(move |delivery| {
            let memory = memory.clone();
            async move { memory.store(delivery).await }
        })
    }

    pub fn work(&self, name: &str, store: Arc<dyn Store>) -> Worker {
        let cancel = CancellationToken::new();
        let relay = relay(store, name, &self.namespace, self.destination());
        Worker {
            task: tokio::spawn(relay.run(cancel.clone())),
            cancel,
        }
    }

    pub async fn find(&self, id: MessageId) -> Result<MessageView, Failure> {
        Ok(self.admin.find(id).await?.ok_or("the message is gone")?)
    }

    pub async fn attempts(&self, id: MessageId) -> Result<Vec<Attempt>, Failure> {
        Ok(self.admin.attempts(id).await?)
    }

    /// Waits until these are all so.
    pub async fn until(&self, ids: &[MessageId], state: State) -> Result<(), Failure> {
        for id in ids {
            // Far longer than anything here takes.
            for _ in 0..6000 {
                if self.find(*id).await?.state == state {
                    break;
                }
                sleep(Duration::from_millis(10)).await;
            }
            must("the state", self.find(*id).await?.state, state)?;
        }
        Ok(())
    }

    /// What became of the attempts of a message, in order.
    pub async fn classes(&self, id: MessageId) -> Result<Vec<&'static str>, Failure> {
        let (view, attempts) = (self.find(id).await?, self.attempts(id).await?);
        let last = attempts.len();
        let class =
            |(at, attempt): (usize, &Attempt)| attempt.outcome.class(at + 1 == last && view.state == State::Dead);
        Ok(attempts.iter().enumerate().map(class).collect())
    }
}

fn local_destination<F, A>(store: F) -> Destination
where
    F: Fn(Delivery) -> A + Send + Sync + 'static,
    A: Future<Output = posthouse::Outcome> + Send + 'static,
{
    Destination::new("openmemory", local_delivery(store))
        .timeout(LEASE * 8 / 10)
        .concurrency(2)
        .retry(backoff(HASTE))
        .without_breaker()
        .reuse_receipts()
}

fn relay(store: Arc<dyn Store>, name: &str, namespace: &str, to: Destination) -> Relay {
    Relay::builder(store)
        .name(name)
        .namespace(namespace)
        .lease(LEASE)
        // A whole run, and no more than its share.
        .batch(3)
        .poll(Duration::from_millis(20))
        .route("memory.*", to)
}

pub fn memory(space: &str, text: &str) -> Message {
    Message::bytes(format!("memory.{space}"), "text/markdown", text)
}

/// The second is what the first must be.
pub fn must<T: PartialEq + std::fmt::Debug>(what: &str, found: T, told: T) -> Result<(), Failure> {
    if found == told {
        return Ok(());
    }
    Err(format!("the story is wrong: {what} is {found:?} where it tells {told:?}").into())
}

/// A worker whose thread stops when the service has answered, as in a long pause of its machine: it renews nothing, and does not know.
pub struct Frozen {
    thread: std::thread::JoinHandle<Result<(), Failure>>,
    cancel: CancellationToken,
    pub thaw: mpsc::Sender<()>,
}

impl Frozen {
    /// Answers when it is frozen.
    pub async fn start(place: &Place, url: &str) -> Result<Self, Failure> {
        let (thaw, thawed) = mpsc::channel();
        let (freezes, frozen) = oneshot::channel();
        let (cancel, url, namespace, memory) = (
            CancellationToken::new(),
            url.to_owned(),
            place.namespace.clone(),
            place.memory.clone(),
        );
        let until = cancel.clone();
        let thread = std::thread::spawn(move || {
            let pause = Arc::new(Mutex::new(Some((freezes, thawed))));
            let to = local_destination(move |delivery| {
                let (memory, pause) = (memory.clone(), pause.clone());
                async move {
                    let answer = memory.store(delivery).await;
                    let once = pause.lock().ok().and_then(|mut pause| pause.take());
                    if let Some((freezes, thawed)) = once {
                        freezes.send(()).ok();
                        thawed.recv().ok();
                    }
                    answer
                }
            });
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let any = AnyStore::open(&url).await?;
                Ok(relay(any.store(), "worker-a", &namespace, to).run(until).await?)
            })
        });
        frozen.await?;
        Ok(Self { thread, cancel, thaw })
    }

    pub async fn stop(self) -> Result<(), Failure> {
        self.cancel.cancel();
        let joined = tokio::task::spawn_blocking(move || self.thread.join()).await?;
        joined.map_err(|_| "worker-a panicked")?
    }
}
