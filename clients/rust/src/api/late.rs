//! What waits to end a hold.

use tokio::sync::watch;

use crate::values::Request;

/// A settlement that is sent later, unless a call that makes the hold again calls it off.
pub(super) struct Late {
    pub(super) settle: Request,
    pub(super) step: watch::Sender<Step>,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Step {
    Pauses,
    /// It may reach the server at any moment.
    IsSent,
    IsCalledOff,
}

impl Late {
    pub(super) fn is_at(&self, step: Step) -> bool {
        *self.step.borrow() == step
    }

    pub(super) async fn called_off(&self) {
        let _ = self.step.subscribe().wait_for(|step| *step == Step::IsCalledOff).await;
    }
}
