//! What a step answers, for the steps that take it.

use posthouse_core::saga::InputNames;
use std::{fmt, marker::PhantomData};

/// What a step answers, or what the saga is given: later steps take it by this.
pub struct Handle<T> {
    pub(super) name: String,
    pub(super) of: PhantomData<fn() -> T>,
}

impl<T> Handle<T> {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            of: PhantomData,
        }
    }

    /// The name of the step.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        Self::new(&self.name)
    }
}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Handle").field(&self.name).finish()
    }
}

/// What a step may be given: a handle, or a tuple of up to six.
pub trait Inputs {
    /// What its function gets.
    type Value;

    /// Their names, as the definition has them.
    fn names(self) -> InputNames;
}

impl<T> Inputs for Handle<T> {
    type Value = T;

    fn names(self) -> InputNames {
        InputNames::One(self.name)
    }
}

impl<T> Inputs for &Handle<T> {
    type Value = T;

    fn names(self) -> InputNames {
        InputNames::One(self.name.clone())
    }
}

/// One of several: a handle, and nothing else, because a list of lists is no input.
pub trait Single {
    /// What its function gets of it.
    type Value;

    /// Its name.
    fn name(self) -> String;
}

impl<T> Single for Handle<T> {
    type Value = T;

    fn name(self) -> String {
        self.name
    }
}

impl<T> Single for &Handle<T> {
    type Value = T;

    fn name(self) -> String {
        self.name.clone()
    }
}

macro_rules! tuples {
    ($(($($letter:ident $at:tt),+);)*) => {$(
        impl<$($letter: Single),+> Inputs for ($($letter,)+) {
            type Value = ($($letter::Value,)+);

            fn names(self) -> InputNames {
                InputNames::Many(vec![$(self.$at.name()),+])
            }
        }
    )*};
}

tuples! {
    (A 0, B 1);
    (A 0, B 1, C 2);
    (A 0, B 1, C 2, D 3);
    (A 0, B 1, C 2, D 3, E 4);
    (A 0, B 1, C 2, D 3, E 4, F 5);
}
