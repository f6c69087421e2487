//! Functions of this program as destinations.

use async_trait::async_trait;
use posthouse_core::{Delivery, Outcome, Transport};
use serde::de::DeserializeOwned;
use std::{fmt::Display, future::Future, marker::PhantomData};

/// A function that takes the payload, read from JSON. A payload that cannot be read as `T` is rejected, unsent.
///
/// ```
/// # use posthouse::relay::local;
/// #[derive(serde::Deserialize)]
/// struct Usage { tokens: u64 }
///
/// async fn bill(usage: Usage) -> Result<(), std::io::Error> {
///     println!("{} tokens", usage.tokens);
///     Ok(())
/// }
/// let transport = local(bill);
/// ```
pub fn local<T, F, A>(function: F) -> impl Transport
where
    T: DeserializeOwned + Send + Sync + 'static,
    F: Fn(T) -> A + Send + Sync + 'static,
    A: Future<Output: IntoOutcome> + Send,
{
    Typed(function, PhantomData)
}

/// A function that takes the delivery and its payload, read from JSON: for one that needs the id as well, to recognise what it has seen.
/// A payload that cannot be read as `T` is rejected, unsent.
///
/// ```
/// # use posthouse::{Delivery, Outcome, relay::local_with};
/// # #[derive(serde::Deserialize)] struct Usage { tokens: u64 }
/// # async fn bill(id: &str, tokens: u64) -> Result<bool, std::io::Error> { Ok(true) }
/// let transport = local_with(|delivery: Delivery, usage: Usage| async move {
///     let new = bill(&delivery.id.to_string(), usage.tokens).await?;
///     Ok::<_, std::io::Error>(if new { Outcome::delivered() } else { Outcome::Duplicate { receipt: None } })
/// });
/// ```
pub fn local_with<T, F, A>(function: F) -> impl Transport
where
    T: DeserializeOwned + Send + Sync + 'static,
    F: Fn(Delivery, T) -> A + Send + Sync + 'static,
    A: Future<Output: IntoOutcome> + Send,
{
    Both(function, PhantomData)
}

/// A function that takes the whole delivery: the id, the epoch, the headers, the bytes.
pub fn local_delivery<F, A>(function: F) -> impl Transport
where
    F: Fn(Delivery) -> A + Send + Sync + 'static,
    A: Future<Output: IntoOutcome> + Send,
{
    Whole(function)
}

/// What a function may answer: nothing, an [`Outcome`], or a result of these. An error means that it did not happen and may be
/// tried again; to say more, answer an [`Outcome`].
pub trait IntoOutcome {
    /// What that means.
    fn into_outcome(self) -> Outcome;
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Outcome {
        Outcome::delivered()
    }
}

impl<T: IntoOutcome, E: Display> IntoOutcome for Result<T, E> {
    fn into_outcome(self) -> Outcome {
        match self {
            Ok(answer) => answer.into_outcome(),
            Err(error) => Outcome::Retry {
                after: None,
                code: "handler_failed".into(),
                error: error.to_string(),
            },
        }
    }
}

struct Typed<T, F>(F, PhantomData<T>);

#[async_trait]
impl<T, F, A> Transport for Typed<T, F>
where
    T: DeserializeOwned + Send + Sync + 'static,
    F: Fn(T) -> A + Send + Sync + 'static,
    A: Future<Output: IntoOutcome> + Send,
{
    async fn send(&self, delivery: &Delivery) -> Outcome {
        match read_json(delivery) {
            Ok(payload) => self.0(payload).await.into_outcome(),
            Err(rejected) => rejected,
        }
    }
}

struct Both<T, F>(F, PhantomData<T>);

#[async_trait]
impl<T, F, A> Transport for Both<T, F>
where
    T: DeserializeOwned + Send + Sync + 'static,
    F: Fn(Delivery, T) -> A + Send + Sync + 'static,
    A: Future<Output: IntoOutcome> + Send,
{
    async fn send(&self, delivery: &Delivery) -> Outcome {
        match read_json(delivery) {
            Ok(payload) => self.0(delivery.clone(), payload).await.into_outcome(),
            Err(rejected) => rejected,
        }
    }
}

/// The payload, or what is to be answered if it is not what was expected.
pub(crate) fn read_json<T: DeserializeOwned>(delivery: &Delivery) -> Result<T, Outcome> {
    serde_json::from_slice(&delivery.payload)
        .map_err(|error| Outcome::reject("SCHEMA.VALIDATION_FAILED", without_content(&error.to_string())))
}

/// What was wrong, without what stood there: an error may be read by people who may not read payloads.
fn without_content(error: &str) -> String {
    let kinds = [
        "invalid type: ",
        "invalid value: ",
        "unknown variant ",
        "unknown field ",
    ];
    let Some(kind) = kinds.into_iter().find(|kind| error.starts_with(kind)) else {
        return error.to_owned();
    };
    let expected = error.rfind(", expected ").map_or("", |at| &error[at..]);
    format!("{}{expected}", kind.trim_end_matches([':', ' ']))
}

struct Whole<F>(F);

#[async_trait]
impl<F, A> Transport for Whole<F>
where
    F: Fn(Delivery) -> A + Send + Sync + 'static,
    A: Future<Output: IntoOutcome> + Send,
{
    async fn send(&self, delivery: &Delivery) -> Outcome {
        self.0(delivery.clone()).await.into_outcome()
    }
}
