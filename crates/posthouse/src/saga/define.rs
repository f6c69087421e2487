//! A saga put together in Rust: its steps are functions, and what one answers is what others take.

use posthouse_core::{
    Invalid,
    saga::{Declared, DeclaredStep, Definition, Retry, Start, definition::INPUT},
};
use serde::{Serialize, de::DeserializeOwned};
use std::{future::Future, marker::PhantomData, time::Duration};

use super::{
    Do, Failure, Handle, Inputs, Undo,
    function::{action, compensation, verification},
};
use crate::relay::Destination;

/// A saga, with the functions that do its steps.
pub struct Saga<T> {
    definition: Definition,
    functions: Vec<(String, Destination)>,
    of: PhantomData<fn(T)>,
}

/// A saga that is being put together. What is wrong with it is said by [`build`](Define::build).
pub struct Define<T> {
    declared: Declared,
    functions: Vec<(String, Destination)>,
    of: PhantomData<fn(T)>,
}

/// It is not said yet what a step takes: the input of the saga, then.
pub struct Unwired;
/// It is said what a step takes.
pub struct Wired;

/// A step that is being put together; [`add`](Step::add) ends it.
#[must_use = "call add(), or the saga does not have this step"]
pub struct Step<'a, T, I, O, W> {
    saga: &'a mut Define<T>,
    step: DeclaredStep,
    functions: Vec<(String, Destination)>,
    of: PhantomData<fn(I, W) -> O>,
}

impl<T> Saga<T> {
    /// Begins to put one together. Raise the version whenever anything in it changes: sagas that are under way go on as they began.
    pub fn define(name: &str, version: u32) -> Define<T> {
        Define {
            declared: Declared {
                name: name.to_owned(),
                version,
                deadline_ms: None,
                steps: Vec::new(),
            },
            functions: Vec::new(),
            of: PhantomData,
        }
    }

    /// What it does.
    pub fn definition(&self) -> &Definition {
        &self.definition
    }

    /// One to start, under the key that the business knows it by.
    pub fn start(&self, key: impl Into<String>, input: &T) -> Result<Start, Invalid>
    where
        T: Serialize,
    {
        super::start(&self.definition, key, input)
    }

    /// The topics of its functions, and where they go.
    pub(crate) fn functions(&self) -> impl Iterator<Item = (String, Destination)> + '_ {
        self.functions.iter().cloned()
    }
}

impl<T> Define<T> {
    /// How long it may take before it is undone.
    pub fn deadline(&mut self, deadline: Duration) -> &mut Self {
        self.declared.deadline_ms = Some(millis(deadline));
        self
    }

    /// What the saga is given, for steps that take it together with something else.
    pub fn input(&self) -> Handle<T> {
        Handle::new(INPUT)
    }

    /// A step that is a function.
    pub fn step<I, O, F, A>(&mut self, name: &str, function: F) -> Step<'_, T, I, O, Unwired>
    where
        I: DeserializeOwned + Send + Sync + 'static,
        O: Serialize + Send + 'static,
        F: Fn(Do<I>) -> A + Send + Sync + 'static,
        A: Future<Output = Result<O, Failure>> + Send + 'static,
    {
        let topic = self.topic(name, "");
        let mut step = self.step_at(name, &topic);
        step.functions
            .push((topic.clone(), Destination::new(topic, action(function))));
        step
    }

    /// A step that is done elsewhere: `https://...`, `http://...`, or `fn:` and the name of a route.
    pub fn step_at<I, O>(&mut self, name: &str, uri: &str) -> Step<'_, T, I, O, Unwired> {
        Step {
            step: DeclaredStep {
                name: name.to_owned(),
                action_uri: uri.to_owned(),
                compensate_uri: None,
                verify_uri: None,
                idempotent: false,
                timeout_ms: None,
                verify_after_ms: None,
                delay_ms: None,
                retry: Retry::default(),
                compensate_retry: Retry::default(),
                concurrency_tag: None,
                after: None,
                input: None,
                pivot: false,
                approval: false,
            },
            functions: Vec::new(),
            saga: self,
            of: PhantomData,
        }
    }

    /// By name and version, so that each version goes on with its own functions.
    fn topic(&self, step: &str, role: &str) -> String {
        format!("fn:{}@{}/{step}{role}", self.declared.name, self.declared.version)
    }

    /// Checks all of it.
    pub fn build(self) -> Result<Saga<T>, Invalid> {
        Ok(Saga {
            definition: self.declared.compile()?,
            functions: self.functions,
            of: PhantomData,
        })
    }
}

impl<'a, T, I, O, W> Step<'a, T, I, O, W> {
    /// What undoes it. It must be able to be called again, and also if the step was never done: see [`Undo::output`].
    pub fn compensate<F, A>(mut self, function: F) -> Self
    where
        I: DeserializeOwned + Send + Sync + 'static,
        O: DeserializeOwned + Send + Sync + 'static,
        F: Fn(Undo<I, O>) -> A + Send + Sync + 'static,
        A: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let topic = self.saga.topic(&self.step.name, "/undo");
        let to = Destination::new(topic.as_str(), compensation(function));
        self.functions.push((topic.clone(), to));
        self.compensate_at(&topic)
    }

    /// Where it is undone.
    pub fn compensate_at(mut self, uri: &str) -> Self {
        self.step.compensate_uri = Some(uri.to_owned());
        self
    }

    /// What tells whether it was done, and what it answered.
    pub fn verify<F, A>(mut self, function: F) -> Self
    where
        I: DeserializeOwned + Send + Sync + 'static,
        O: Serialize + Send + 'static,
        F: Fn(Do<I>) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Option<O>, Failure>> + Send + 'static,
    {
        let topic = self.saga.topic(&self.step.name, "/verify");
        let to = Destination::new(topic.as_str(), verification(function));
        self.functions.push((topic.clone(), to));
        self.verify_at(&topic)
    }

    /// Where to ask whether it was done.
    pub fn verify_at(mut self, uri: &str) -> Self {
        self.step.verify_uri = Some(uri.to_owned());
        self
    }

    /// It comes after this step, and after others that are named so. Without this and `input`: after the one that was added before it.
    pub fn after<B>(mut self, before: &Handle<B>) -> Self {
        self.step.after.get_or_insert_default().push(before.name.clone());
        self
    }

    /// It may be sent again under the same key when nobody knows whether it was done.
    pub fn idempotent(mut self) -> Self {
        self.step.idempotent = true;
        self
    }

    /// Once it is done, or may be, the saga only goes forward.
    pub fn pivot(mut self) -> Self {
        self.step.pivot = true;
        self
    }

    /// How long one attempt may take.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.step.timeout_ms = Some(millis(timeout));
        self
    }

    /// How long after an attempt without an answer the participant is asked ([`verify`](Self::verify)) whether the step was done. Without this: the
    /// [`timeout`](Self::timeout), or 12 s. Choose what the participant needs for its slowest answer.
    pub fn verify_after(mut self, time: Duration) -> Self {
        self.step.verify_after_ms = Some(millis(time));
        self
    }

    /// How long after the steps before it does it begin.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.step.delay_ms = Some(millis(delay));
        self
    }

    /// How often and how soon it is tried again.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.step.retry = retry;
        self
    }

    /// The same for undoing it.
    pub fn compensate_retry(mut self, retry: Retry) -> Self {
        self.step.compensate_retry = retry;
        self
    }

    /// Runs beside its neighbours of the same tag.
    pub fn concurrency_tag(mut self, tag: impl Into<String>) -> Self {
        self.step.concurrency_tag = Some(tag.into());
        self
    }

    fn finish(self) -> Handle<O> {
        let handle = Handle::new(&self.step.name);
        // A relay whose leases are too short for it says so when it begins.
        let timeout = self.step.timeout_ms.map(Duration::from_millis);
        let functions = self.functions.into_iter().map(|(topic, to)| match timeout {
            Some(timeout) => (topic, to.timeout(timeout)),
            None => (topic, to),
        });
        self.saga.functions.extend(functions);
        self.saga.declared.steps.push(self.step);
        handle
    }
}

impl<'a, T, I, O> Step<'a, T, I, O, Unwired> {
    /// What it takes: what other steps answered, which come before it then.
    pub fn input<H: Inputs<Value = I>>(mut self, handles: H) -> Step<'a, T, I, O, Wired> {
        self.step.input = Some(handles.names());
        Step {
            saga: self.saga,
            step: self.step,
            functions: self.functions,
            of: PhantomData,
        }
    }
}

impl<T, O> Step<'_, T, T, O, Unwired> {
    /// Adds it to the saga, whose input it takes.
    pub fn add(self) -> Handle<O> {
        self.finish()
    }
}

impl<T, I, O> Step<'_, T, I, O, Wired> {
    /// Adds it to the saga.
    pub fn add(self) -> Handle<O> {
        self.finish()
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
