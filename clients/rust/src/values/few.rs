//! One of a thing, without an allocation, or several.

use std::ops::{Deref, DerefMut};

#[derive(Clone, Debug)]
pub(crate) enum Few<T> {
    One([T; 1]),
    Several(Vec<T>),
}

impl<T> Few<T> {
    pub(crate) fn one(it: T) -> Self {
        Self::One([it])
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::One(it) => it,
            Self::Several(all) => all,
        }
    }
}

impl<T> DerefMut for Few<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::One(it) => it,
            Self::Several(all) => all,
        }
    }
}
