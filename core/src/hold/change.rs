//! The changes of an extension by a write, which replicas and files receive.

use super::extension::Extension;
use super::item::Hold;
use super::limit_override::Override;
use std::sync::Arc;

/// The changes of an extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtensionChanges {
    /// The number of holds dropped because they had ended: the first in order.
    pub dropped: u32,
    /// The changes after that, in order.
    pub changes: Vec<ExtensionChange>,
    /// The number of holds after the changes.
    pub len: u32,
}

/// The change of one hold, or of the override.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExtensionChange {
    /// A hold was set.
    Set(Hold),
    /// The hold with this id was removed.
    Removed(Arc<[u8]>),
    /// The limit was overridden, or its override ended.
    Override(Option<Box<Override>>),
}

impl ExtensionChanges {
    /// Returns the changes that make an extension out of none.
    #[must_use]
    pub fn all(extension: &Extension) -> Self {
        let Extension { holds, limit_override } = extension;
        let begun = limit_override.clone().map(|begun| ExtensionChange::Override(Some(begun)));
        let changes = begun.into_iter().chain(holds.iter().cloned().map(ExtensionChange::Set)).collect();
        Self { dropped: 0, len: u32::try_from(holds.len()).unwrap_or(u32::MAX), changes }
    }

    /// Applies the changes to an extension, whose first holds were dropped before. Returns false if holds are missing.
    pub fn apply(self, extension: &mut Extension) -> bool {
        let len = extension.holds.len();
        if self.are_complete() && self.named_in(extension) < len {
            extension.holds.drop_first(len);
        }
        self.changes.into_iter().for_each(|change| change.apply(extension));
        extension.holds.len() == self.len as usize
    }

    /// Returns whether the changes set every hold that there is after them.
    fn are_complete(&self) -> bool {
        let is_set = |change: &&ExtensionChange| matches!(change, ExtensionChange::Set(_));
        self.changes.iter().filter(is_set).count() == self.len as usize
    }

    /// Counts the holds that the changes name.
    fn named_in(&self, extension: &Extension) -> usize {
        let ids = self.changes.iter().filter_map(|change| match change {
            ExtensionChange::Set(Hold { id, .. }) | ExtensionChange::Removed(id) => Some(id),
            ExtensionChange::Override(_) => None,
        });
        ids.filter(|id| extension.holds.get(id).is_some()).count()
    }
}

impl ExtensionChange {
    /// Applies the change.
    pub fn apply(self, extension: &mut Extension) {
        match self {
            Self::Set(hold) => extension.holds.set(hold),
            Self::Removed(id) => drop(extension.holds.remove(&id)),
            Self::Override(limit_override) => extension.limit_override = limit_override,
        }
    }
}
