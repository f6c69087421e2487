//! Functions of this program as steps of sagas.

use async_trait::async_trait;
use posthouse_core::{Delivery, Outcome, SagaId, Transport, lease::saga_of, ledger::Answer};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{future::Future, marker::PhantomData, ops::Deref, time::Duration};
use uuid::Uuid;

use crate::relay::read_json;

/// What a step is given: its input, and what it is known by. It is the input (`trip.city`).
#[derive(Clone, Debug)]
pub struct Do<I> {
    /// The input.
    pub input: I,
    /// What to know it by: the same over attempts, relays and crashes. Whoever has done something under this key does it no second time.
    pub key: String,
    /// The saga.
    pub saga: SagaId,
    /// Which attempt it is, from 1.
    pub attempt: u32,
}

impl<I> Deref for Do<I> {
    type Target = I;

    fn deref(&self) -> &I {
        &self.input
    }
}

/// What a compensation is given.
#[derive(Clone, Debug)]
pub struct Undo<I, O> {
    /// What the step was given.
    pub input: Option<I>,
    /// What it answered, if that is known: it may have been done without anybody having heard of it, or not at all.
    pub output: Option<O>,
    /// What the step was known by.
    pub forward_key: String,
    /// What undoing it is known by.
    pub key: String,
    /// Why the saga goes back.
    pub reason: String,
    /// The saga.
    pub saga: SagaId,
    /// Which attempt it is, from 1.
    pub attempt: u32,
}

/// Why a step was not done. Any error becomes one with `?`, and means that nobody knows: it may have been done. Say more where you know more.
#[derive(Debug)]
pub struct Failure(Outcome);

impl Failure {
    /// Nothing happened, and it may be tried again.
    pub fn retry(code: impl Into<String>, error: impl Into<String>) -> Self {
        Self(Outcome::retry(code, error))
    }

    /// Nothing happened, and it may be tried again, but not before this.
    pub fn retry_after(after: Duration, code: impl Into<String>, error: impl Into<String>) -> Self {
        Self(Outcome::Retry {
            after: Some(after),
            code: code.into(),
            error: error.into(),
        })
    }

    /// Nothing happened, and nothing will: the saga goes back.
    pub fn reject(code: impl Into<String>, error: impl Into<String>) -> Self {
        // By this code relays say that nobody may do it, and then it is held.
        let code = Some(code.into()).filter(|code| code != Outcome::NOT_ALLOWED);
        Self(Outcome::reject(code.unwrap_or_else(|| "rejected".to_owned()), error))
    }

    /// It may have happened.
    pub fn unknown(code: impl Into<String>, error: impl Into<String>) -> Self {
        Self(Outcome::unknown(code, error))
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::unknown("failed", error.to_string())
    }
}

/// A function that does a step, for a definition that names it (`fn:...`) by a route of the relay.
pub fn action<I, O, F, A>(function: F) -> impl Transport + 'static
where
    I: DeserializeOwned + Send + Sync + 'static,
    O: Serialize + Send + 'static,
    F: Fn(Do<I>) -> A + Send + Sync + 'static,
    A: Future<Output = Result<O, Failure>> + Send + 'static,
{
    Action(function, PhantomData)
}

/// A function that undoes a step.
pub fn compensation<I, O, F, A>(function: F) -> impl Transport + 'static
where
    I: DeserializeOwned + Send + Sync + 'static,
    O: DeserializeOwned + Send + Sync + 'static,
    F: Fn(Undo<I, O>) -> A + Send + Sync + 'static,
    A: Future<Output = Result<(), Failure>> + Send + 'static,
{
    Compensation(function, PhantomData)
}

/// A function that tells whether a step was done, and what it answered. Its [`Do::key`] is the one that the step is known by.
pub fn verification<I, O, F, A>(function: F) -> impl Transport + 'static
where
    I: DeserializeOwned + Send + Sync + 'static,
    O: Serialize + Send + 'static,
    F: Fn(Do<I>) -> A + Send + Sync + 'static,
    A: Future<Output = Result<Option<O>, Failure>> + Send + 'static,
{
    Verification(function, PhantomData)
}

fn saga(delivery: &Delivery) -> SagaId {
    saga_of(delivery.kind, delivery.parent).unwrap_or(SagaId(Uuid::nil()))
}

fn key(delivery: &Delivery) -> String {
    let ticket = delivery.ticket.as_ref();
    ticket.map_or_else(|| delivery.id.to_string(), |ticket| ticket.key.clone())
}

fn answered<O: Serialize>(answer: Result<O, Failure>) -> Outcome {
    match answer.map(|output| Answer::json(&output)) {
        Ok(Ok(answer)) => Outcome::answered(answer),
        // It was done; what cannot be written is not kept.
        Ok(Err(invalid)) => Outcome::Delivered {
            receipt: Some(invalid.to_string()),
            answer: Some(Box::new(Answer {
                cut: true,
                ..Answer::default()
            })),
        },
        Err(Failure(outcome)) => outcome,
    }
}

struct Action<I, F>(F, PhantomData<fn() -> I>);

#[async_trait]
impl<I, O, F, A> Transport for Action<I, F>
where
    I: DeserializeOwned + Send + Sync + 'static,
    O: Serialize + Send + 'static,
    F: Fn(Do<I>) -> A + Send + Sync + 'static,
    A: Future<Output = Result<O, Failure>> + Send + 'static,
{
    async fn send(&self, delivery: &Delivery) -> Outcome {
        let input = match read_json(delivery) {
            Ok(input) => input,
            Err(rejected) => return rejected,
        };
        let given = Do {
            input,
            key: key(delivery),
            saga: saga(delivery),
            attempt: delivery.attempt,
        };
        answered(self.0(given).await)
    }
}

/// What the body of a compensation, or of a question, holds.
#[derive(Deserialize)]
#[serde(bound = "I: DeserializeOwned, O: DeserializeOwned")]
struct Told<I, O> {
    #[serde(default, deserialize_with = "present")]
    input: Option<I>,
    #[serde(default, deserialize_with = "known")]
    output: Option<O>,
    forward_key: String,
    reason: Option<String>,
}

/// What is there is there, also if it is null.
fn present<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// What is there is there; but a null that is no such output is what a person said who did not know it.
fn known<'de, T: DeserializeOwned, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    let is_null = value.is_null();
    match serde_json::from_value(value) {
        Err(_) if is_null => Ok(None),
        read => read.map(Some).map_err(serde::de::Error::custom),
    }
}

struct Compensation<I, O, F>(F, PhantomData<fn() -> (I, O)>);

#[async_trait]
impl<I, O, F, A> Transport for Compensation<I, O, F>
where
    I: DeserializeOwned + Send + Sync + 'static,
    O: DeserializeOwned + Send + Sync + 'static,
    F: Fn(Undo<I, O>) -> A + Send + Sync + 'static,
    A: Future<Output = Result<(), Failure>> + Send + 'static,
{
    async fn send(&self, delivery: &Delivery) -> Outcome {
        let told: Told<I, O> = match read_json(delivery) {
            Ok(told) => told,
            Err(rejected) => return rejected,
        };
        let given = Undo {
            input: told.input,
            output: told.output,
            forward_key: told.forward_key,
            key: key(delivery),
            reason: told.reason.unwrap_or_default(),
            saga: saga(delivery),
            attempt: delivery.attempt,
        };
        answered(self.0(given).await)
    }
}

struct Verification<I, F>(F, PhantomData<fn() -> I>);

#[async_trait]
impl<I, O, F, A> Transport for Verification<I, F>
where
    I: DeserializeOwned + Send + Sync + 'static,
    O: Serialize + Send + 'static,
    F: Fn(Do<I>) -> A + Send + Sync + 'static,
    A: Future<Output = Result<Option<O>, Failure>> + Send + 'static,
{
    async fn send(&self, delivery: &Delivery) -> Outcome {
        let told: Told<I, serde_json::Value> = match read_json(delivery) {
            Ok(told) => told,
            Err(rejected) => return rejected,
        };
        let Some(input) = told.input else {
            return Outcome::reject("SCHEMA.VALIDATION_FAILED", "the input of the step is not there");
        };
        let given = Do {
            input,
            key: told.forward_key,
            saga: saga(delivery),
            attempt: delivery.attempt,
        };
        match self.0(given).await {
            Ok(None) => Outcome::answered(Answer::bytes("").status(204)),
            Ok(Some(output)) => answered(Ok(output)),
            Err(Failure(outcome)) => outcome,
        }
    }
}
