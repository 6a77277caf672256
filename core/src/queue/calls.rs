//! The calls that name one key, in order of arrival, and the largest claims among them.
//!
//! A call's *claim* is what it keeps later calls from while it waits at another key. To find a claim above a level, the largest
//! of each block of calls is compared first: to search 10,000 calls takes 157 comparisons.

use super::order::Arrival;
use crate::request::Request;

/// The number of calls whose largest claim is kept.
const BLOCK: usize = 64;

/// The claim of a call that keeps no other out.
const NO_CLAIM: i64 = i64::MIN;

#[derive(Clone, Debug)]
struct Slot<N> {
    arrival: Arrival,
    /// `None` once the call has left.
    request: Option<Request<N>>,
    claim_micro: i64,
}

/// Calls by arrival.
#[derive(Clone, Debug)]
pub(super) struct Calls<N> {
    slots: Vec<Slot<N>>,
    /// The largest claim of each block of slots; empty while there is one block.
    largest_micro: Vec<i64>,
    count: usize,
}

impl<N> Calls<N> {
    /// Returns an empty list. A call may name a thousand keys alone.
    pub(super) fn new() -> Self {
        Self { slots: Vec::with_capacity(1), largest_micro: Vec::new(), count: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Adds the latest call, without a claim.
    pub(super) fn add(&mut self, arrival: Arrival, request: Request<N>) {
        self.count = self.count.saturating_add(1);
        self.slots.push(Slot { arrival, request: Some(request), claim_micro: NO_CLAIM });
        if self.slots.len() > BLOCK && self.slots.len() % BLOCK == 1 {
            self.index();
        }
    }

    /// Removes a call.
    pub(super) fn remove(&mut self, arrival: Arrival) -> Option<Request<N>> {
        self.claim(arrival, None);
        let place = self.place(arrival)?;
        let request = self.slots.get_mut(place)?.request.take()?;
        self.count = self.count.saturating_sub(1);
        if self.slots.len() <= BLOCK {
            self.slots.remove(place);
        } else if self.count < self.slots.len() / 2 {
            self.slots.retain(|slot| slot.request.is_some());
            self.slots.shrink_to_fit();
            self.index();
        }
        Some(request)
    }

    pub(super) fn get(&self, arrival: Arrival) -> Option<&Request<N>> {
        self.slots.get(self.place(arrival)?)?.request.as_ref()
    }

    /// Returns the calls from `from` on.
    pub(super) fn from(&self, from: Arrival) -> impl Iterator<Item = (Arrival, &Request<N>)> {
        let first = self.slots.partition_point(|slot| slot.arrival < from);
        let slots = self.slots.get(first..).unwrap_or_default();
        slots.iter().filter_map(|slot| Some((slot.arrival, slot.request.as_ref()?)))
    }

    /// Sets what a call keeps later calls from; `None` for nothing. Returns whether that is new.
    pub(super) fn claim(&mut self, arrival: Arrival, micro: Option<i64>) -> bool {
        let place = self.place(arrival);
        let Some(slot) = place.and_then(|place| self.slots.get_mut(place)) else { return false };
        let claim_micro = micro.unwrap_or(NO_CLAIM);
        let before_micro = std::mem::replace(&mut slot.claim_micro, claim_micro);
        let block = place.unwrap_or(0) / BLOCK;
        let largest_micro = self.slots.chunks(BLOCK).nth(block).map(largest);
        if let (Some(stored), Some(largest_micro)) = (self.largest_micro.get_mut(block), largest_micro) {
            *stored = largest_micro;
        }
        before_micro != claim_micro
    }

    /// Returns the calls that came before `before` and claim more than `micro`, the earliest first.
    pub(super) fn claiming(
        &self,
        micro: i64,
        before: Arrival,
    ) -> impl Iterator<Item = (Arrival, &Request<N>)> {
        let blocks = self.slots.chunks(BLOCK).enumerate();
        let may_claim = move |block| self.largest_micro.get(block).is_none_or(|largest| *largest > micro);
        let slots = blocks.filter(move |(block, _)| may_claim(*block)).flat_map(|(_, slots)| slots);
        let earlier = slots.take_while(move |slot| slot.arrival < before);
        let claiming = earlier.filter(move |slot| slot.claim_micro > micro);
        claiming.filter_map(|slot| Some((slot.arrival, slot.request.as_ref()?)))
    }

    /// Returns the calls with a claim that came before `before`.
    pub(super) fn aside(&self, before: Arrival) -> impl Iterator<Item = (Arrival, &Request<N>)> {
        self.claiming(NO_CLAIM, before)
    }

    /// Returns whether a call has a claim.
    pub(super) fn is_aside(&self, arrival: Arrival) -> bool {
        let slot = self.place(arrival).and_then(|place| self.slots.get(place));
        slot.is_some_and(|slot| slot.claim_micro != NO_CLAIM)
    }

    fn place(&self, arrival: Arrival) -> Option<usize> {
        self.slots.binary_search_by_key(&arrival, |slot| slot.arrival).ok()
    }

    fn index(&mut self) {
        self.largest_micro = match self.slots.len() {
            ..=BLOCK => Vec::new(),
            _ => self.slots.chunks(BLOCK).map(largest).collect(),
        };
    }
}

fn largest<N>(slots: &[Slot<N>]) -> i64 {
    slots.iter().map(|slot| slot.claim_micro).max().unwrap_or(NO_CLAIM)
}
