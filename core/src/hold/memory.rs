//! The memory of lists that hold one entry in place: most buckets have one hold at a time.

use smallvec::{Array, SmallVec};

/// How many entries fit into a list on the heap.
pub(super) fn heap_capacity<A: Array>(list: &SmallVec<A>) -> usize {
    if list.spilled() {
        return list.capacity();
    }
    0
}

/// Shrinks a list that is less than a quarter full. A list that held a few keeps capacity for a few.
pub(super) fn shrink<A: Array>(list: &mut SmallVec<A>) {
    if list.spilled() && list.len() < list.capacity() / 4 {
        list.shrink_to_fit();
    }
}
