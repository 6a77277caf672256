//! Work for the case that a caller leaves.

/// Runs its work when it is dropped, unless it was disarmed first.
pub(crate) struct IfDropped<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> IfDropped<F> {
    pub(crate) fn run(work: F) -> Self {
        Self(Some(work))
    }

    pub(crate) fn disarm(mut self) {
        self.0 = None;
    }
}

impl<F: FnOnce()> Drop for IfDropped<F> {
    fn drop(&mut self) {
        if let Some(work) = self.0.take() {
            work();
        }
    }
}
