//! The memory of lists that hold one entry in place: most buckets have one hold at a time.

use smallvec::{Array, SmallVec};

/// How many a list has room for on the heap.
pub(super) fn heap_capacity<A: Array>(list: &SmallVec<A>) -> usize {
    if list.spilled() {
        return list.capacity();
    }
    0
}

/// Gives the memory back of a list that is less than a quarter full. One that held a few keeps room for a few.
pub(super) fn shrink<A: Array>(list: &mut SmallVec<A>) {
    if list.spilled() && list.len() < list.capacity() / 4 {
        list.shrink_to_fit();
    }
}
