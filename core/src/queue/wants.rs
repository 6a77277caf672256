//! What the calls that wait for one bucket want of it, in order of arrival: a tree of maxima and sums.

use super::Arrival;

/// What some calls want of a bucket, in micro-tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The largest amount that one of them wants; negative if none of them wants anything.
    pub(super) most_micro: i64,
    /// What all of them want together; saturates.
    pub(super) sum_micro: i64,
}

impl Wanted {
    /// Of a place without a call.
    const ABSENT: Self = Self { most_micro: i64::MIN, sum_micro: 0 };
    /// Of a call that wants nothing at present.
    const NOTHING: Self = Self { most_micro: -1, sum_micro: 0 };

    fn and(self, other: Self) -> Self {
        Self {
            most_micro: self.most_micro.max(other.most_micro),
            sum_micro: self.sum_micro.saturating_add(other.sum_micro),
        }
    }
}

/// Calls in order of arrival, with what each wants. Everything is O(log n), adding one on average.
///
/// The leaves of a binary tree, which is stored as an array with the root at 1. A call that has gone leaves its place
/// empty until the places are used up.
#[derive(Clone, Debug, Default)]
pub(super) struct Wants {
    arrivals: Vec<Arrival>,
    tree: Vec<Wanted>,
    present: usize,
}

impl Wants {
    pub(super) fn is_empty(&self) -> bool {
        self.present == 0
    }

    /// Whether a call is among them and wants something at present.
    pub(super) fn is_wanted_by(&self, arrival: Arrival) -> bool {
        self.leaf(arrival).is_some_and(|leaf| self.node(leaf).most_micro >= 0)
    }

    /// What all of them want.
    pub(super) fn all(&self) -> Wanted {
        self.node(1)
    }

    /// What those want that came until `arrival`.
    pub(super) fn until(&self, arrival: Arrival) -> Wanted {
        let places = self.arrivals.partition_point(|earlier| *earlier <= arrival);
        let Some(last) = places.checked_sub(1) else { return Wanted::ABSENT };
        let mut node = last.saturating_add(self.leaves());
        let mut wanted = self.node(node);
        while node > 1 {
            if node % 2 == 1 {
                wanted = wanted.and(self.node(node.wrapping_sub(1)));
            }
            node /= 2;
        }
        wanted
    }

    /// Adds a call that came later than all others.
    pub(super) fn add(&mut self, arrival: Arrival, micro: Option<i64>) {
        if self.arrivals.len() == self.leaves() {
            self.make_room();
        }
        self.arrivals.push(arrival);
        self.present = self.present.saturating_add(1);
        self.set(arrival, micro);
    }

    /// Sets what a call wants; `None` is nothing, which no bucket lacks.
    pub(super) fn set(&mut self, arrival: Arrival, micro: Option<i64>) {
        let wanted = micro.map_or(Wanted::NOTHING, |micro| Wanted { most_micro: micro, sum_micro: micro });
        self.put(arrival, wanted);
    }

    /// Removes a call that is among them.
    pub(super) fn remove(&mut self, arrival: Arrival) {
        self.present = self.present.saturating_sub(1);
        self.put(arrival, Wanted::ABSENT);
    }

    fn put(&mut self, arrival: Arrival, wanted: Wanted) {
        let Some(mut node) = self.leaf(arrival) else { return };
        self.write(node, wanted);
        while node > 1 {
            node /= 2;
            let left = node.saturating_mul(2);
            self.write(node, self.node(left).and(self.node(left.saturating_add(1))));
        }
    }

    /// Drops the empty places, and leaves as many free ones as there are calls.
    fn make_room(&mut self) {
        let present: Vec<(Arrival, Wanted)> = self.present().collect();
        let leaves = present.len().saturating_add(1).next_power_of_two().saturating_mul(2);
        self.arrivals = present.iter().map(|(arrival, _)| *arrival).collect();
        self.tree = vec![Wanted::ABSENT; leaves.saturating_mul(2)];
        for (arrival, wanted) in present {
            self.put(arrival, wanted);
        }
    }

    fn present(&self) -> impl Iterator<Item = (Arrival, Wanted)> + '_ {
        let places = self.arrivals.iter().zip(self.tree.iter().skip(self.leaves()));
        places.map(|(arrival, wanted)| (*arrival, *wanted)).filter(|(_, wanted)| *wanted != Wanted::ABSENT)
    }

    fn leaves(&self) -> usize {
        self.tree.len() / 2
    }

    fn leaf(&self, arrival: Arrival) -> Option<usize> {
        let place = self.arrivals.binary_search(&arrival).ok()?;
        Some(place.saturating_add(self.leaves()))
    }

    fn node(&self, node: usize) -> Wanted {
        self.tree.get(node).copied().unwrap_or(Wanted::ABSENT)
    }

    fn write(&mut self, node: usize, wanted: Wanted) {
        if let Some(place) = self.tree.get_mut(node) {
            *place = wanted;
        }
    }
}
