//! Files that change.
