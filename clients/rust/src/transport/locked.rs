//! Locking.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks it, also after a panic of another holder.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
