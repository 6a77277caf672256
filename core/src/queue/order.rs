//! The order of the calls that wait at one key: by the shares of their tenants, and within a tenant by arrival.
//!
//! This is start-time fair queuing. Each tenant has a virtual time, which grows by the tokens granted to it, divided by the
//! weight of the call. Next is the tenant with the least; of equals, the one whose first call arrived first. A tenant that
//! begins to wait starts at the least virtual time of those that wait, so that it saves nothing up while it is idle; or at its
//! own, if that is larger, so that a tenant with one call at a time pays for what it was granted before.
//!
//! Calls without a share are one tenant of weight 1. While only they wait, the order is that of arrival.

use crate::number::MICRO_PER_TOKEN;
use crate::request::{Share, MAX_WAITERS};
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;

/// The number of a call that waits: a later call has a larger one.
pub type Arrival = u64;

/// The bytes of a key, of the id of a hold or of a tenant, in the memory of their owner, which clones share.
pub trait Name: Borrow<[u8]> + AsRef<[u8]> + Clone + Eq + Hash {}
impl<N: Borrow<[u8]> + AsRef<[u8]> + Clone + Eq + Hash> Name for N {}

/// Tokens divided by a weight, in millionths of a micro-token.
type VirtualTime = u128;

/// The place of a tenant, or of a call: the least is next.
type Place = (VirtualTime, Arrival);

/// The most tenants whose virtual times are kept: those that wait, and as many that do not.
#[allow(clippy::cast_possible_truncation)] // 20,000.
const MAX_TENANTS: usize = 2 * MAX_WAITERS.unsigned_abs() as usize;

#[derive(Clone, Debug, Default)]
struct Tenant {
    virtual_time: VirtualTime,
    parked: BTreeSet<Arrival>,
    /// The last call that waited. It stands for the tenant while none waits.
    last: Arrival,
}

impl Tenant {
    fn is_waiting(&self) -> bool {
        !self.parked.is_empty()
    }

    fn place(&self) -> Place {
        (self.virtual_time, self.parked.first().copied().unwrap_or(self.last))
    }
}

/// The calls that wait at a key. Small, because a call may name a thousand keys.
#[derive(Clone, Debug)]
pub(super) struct Order<N> {
    /// The calls without a share.
    unnamed: BTreeSet<Arrival>,
    /// How many calls without a share name the key and wait elsewhere: their tenant waits here too.
    aside: usize,
    shares: Option<Box<Shares<N>>>,
}

/// The calls with a share, and the tenants.
#[derive(Clone, Debug)]
struct Shares<N> {
    /// That of the calls without a share.
    unnamed_time: VirtualTime,
    calls: BTreeMap<Arrival, Share<N>>,
    /// Those that wait, and those whose virtual time is above the least of these.
    tenants: HashMap<N, Tenant>,
    places: BTreeMap<Place, N>,
    /// The places of the tenants that do not wait.
    idle: BTreeMap<Place, N>,
}

impl<N: Name> Order<N> {
    pub(super) fn new() -> Self {
        Self { unnamed: BTreeSet::new(), aside: 0, shares: None }
    }

    /// Notes the share of a call that will wait.
    pub(super) fn share(&mut self, arrival: Arrival, share: Share<N>) {
        self.shares.get_or_insert_default().calls.insert(arrival, share);
    }

    /// Forgets the share of a call that waits no longer.
    pub(super) fn forget(&mut self, arrival: Arrival) {
        if let Some(shares) = &mut self.shares {
            shares.calls.remove(&arrival);
            self.forget_idle();
        }
    }

    /// Lets a call wait.
    pub(super) fn park(&mut self, arrival: Arrival) {
        let begins_at = self.virtual_time(arrival);
        self.change(arrival, |virtual_time, parked, _| {
            *virtual_time = begins_at;
            parked.insert(arrival);
        });
    }

    /// Notes that a call which names the key waits elsewhere.
    pub(super) fn begin_aside(&mut self, arrival: Arrival) {
        if !self.is_named(arrival) {
            let begins_at = self.virtual_time(arrival);
            self.change(arrival, |virtual_time, _, _| *virtual_time = begins_at);
            self.aside = self.aside.saturating_add(1);
        }
    }

    /// Notes that a call no longer waits elsewhere.
    pub(super) fn end_aside(&mut self, arrival: Arrival) {
        if !self.is_named(arrival) {
            self.aside = self.aside.saturating_sub(1);
            self.forget_idle();
        }
    }

    /// Ends the wait of a call.
    pub(super) fn unpark(&mut self, arrival: Arrival) {
        self.change(arrival, |_, parked, _| {
            parked.remove(&arrival);
        });
    }

    /// Adds what a call was granted, in micro-tokens, to the virtual time of its tenant.
    pub(super) fn grant(&mut self, arrival: Arrival, micro: i64) {
        let granted = u128::from(micro.max(0).unsigned_abs()).saturating_mul(1_000_000_000_000);
        self.change(arrival, |virtual_time, _, weight_micro| {
            let by_weight = granted.checked_div(weight_micro.unsigned_abs().into()).unwrap_or(0);
            *virtual_time = virtual_time.saturating_add(by_weight);
        });
    }

    /// Returns the call that is next.
    pub(super) fn first(&self) -> Option<Arrival> {
        self.next().map(|(_, arrival)| arrival)
    }

    /// Returns whether a call waits.
    pub(super) fn contains(&self, arrival: Arrival) -> bool {
        let is_named = || self.tenant(arrival).is_some_and(|tenant| tenant.parked.contains(&arrival));
        self.unnamed.contains(&arrival) || is_named()
    }

    /// Returns whether shares count: a call with one waits, or its tenant has left and is ahead of all that wait.
    pub(super) fn has_shares(&self) -> bool {
        self.shares.is_some()
    }

    /// Returns whether a call is before another, if both lack the same.
    pub(super) fn precedes(&self, call: Arrival, other: Arrival) -> bool {
        let place = |call| (self.virtual_time(call), call);
        place(call) < place(other)
    }

    /// Returns the arrival before which calls without a share precede a call.
    pub(super) fn unnamed_before(&self, call: Arrival) -> Arrival {
        match self.unnamed_time().max(self.least().unwrap_or(0)).cmp(&self.virtual_time(call)) {
            Ordering::Less => Arrival::MAX,
            Ordering::Equal => call,
            Ordering::Greater => 0,
        }
    }

    /// Returns the tenants that wait, with their calls. Calls without a share are those of `None`.
    pub(super) fn tenants(&self) -> impl Iterator<Item = (Option<&N>, &BTreeSet<Arrival>)> + '_ {
        let named = self.shares.iter().flat_map(|shares| &shares.tenants);
        let named = named.map(|(name, tenant)| (Some(name), &tenant.parked));
        named.chain([(None, &self.unnamed)]).filter(|(_, parked)| !parked.is_empty())
    }

    fn next(&self) -> Option<Place> {
        let named = self.shares.as_ref().and_then(|shares| shares.places.first_key_value());
        self.unnamed_place().into_iter().chain(named.map(|(place, _)| *place)).min()
    }

    fn unnamed_place(&self) -> Option<Place> {
        self.unnamed.first().map(|first| (self.unnamed_time(), *first))
    }

    /// Returns the least virtual time of the tenants that wait for the key, here or elsewhere.
    fn least(&self) -> Option<VirtualTime> {
        let parked = self.next().map(|(least, _)| least);
        let aside = (self.aside > 0).then(|| self.unnamed_time());
        parked.into_iter().chain(aside).min()
    }

    fn unnamed_time(&self) -> VirtualTime {
        self.shares.as_ref().map_or(0, |shares| shares.unnamed_time)
    }

    /// Returns whether a call has a share.
    pub(super) fn is_named(&self, arrival: Arrival) -> bool {
        self.shares.as_ref().is_some_and(|shares| shares.calls.contains_key(&arrival))
    }

    /// Returns the tenant of a call with a share, once one of its calls has waited.
    fn tenant(&self, arrival: Arrival) -> Option<&Tenant> {
        let shares = self.shares.as_ref()?;
        shares.tenants.get(shares.calls.get(&arrival)?.tenant.borrow())
    }

    /// Returns the virtual time of a call's tenant. One that does not wait here begins at the least of those that do, or later.
    fn virtual_time(&self, arrival: Arrival) -> VirtualTime {
        let virtual_time = match self.tenant(arrival) {
            Some(tenant) => tenant.virtual_time,
            None if self.is_named(arrival) => 0,
            None => self.unnamed_time(),
        };
        virtual_time.max(self.least().unwrap_or(0))
    }

    /// Changes the virtual time and the calls of a call's tenant, given the call's weight in millionths.
    fn change(
        &mut self,
        arrival: Arrival,
        change: impl FnOnce(&mut VirtualTime, &mut BTreeSet<Arrival>, i64),
    ) {
        match &mut self.shares {
            Some(shares) if shares.calls.contains_key(&arrival) => shares.change(arrival, change),
            Some(shares) => change(&mut shares.unnamed_time, &mut self.unnamed, MICRO_PER_TOKEN),
            None => change(&mut 0, &mut self.unnamed, MICRO_PER_TOKEN),
        }
        self.forget_idle();
    }

    /// Forgets the tenants that do not wait and are not ahead of all that do: their virtual times do not matter any longer.
    fn forget_idle(&mut self) {
        let least = self.least();
        let Some(shares) = &mut self.shares else { return };
        let Shares { calls, tenants, idle, .. } = &mut **shares;
        while let Some(first) =
            idle.first_entry().filter(|first| least.is_none_or(|least| first.key().0 <= least))
        {
            tenants.remove(first.remove().borrow());
        }
        if tenants.len() > MAX_TENANTS {
            tenants.retain(|_, tenant| tenant.is_waiting());
            idle.clear();
        }
        if calls.is_empty() && tenants.is_empty() {
            self.shares = None;
        }
    }
}

impl<N> Default for Shares<N> {
    fn default() -> Self {
        let (calls, tenants) = (BTreeMap::new(), HashMap::new());
        Self { unnamed_time: 0, calls, tenants, places: BTreeMap::new(), idle: BTreeMap::new() }
    }
}

impl<N: Name> Shares<N> {
    fn change(
        &mut self,
        arrival: Arrival,
        change: impl FnOnce(&mut VirtualTime, &mut BTreeSet<Arrival>, i64),
    ) {
        let Some(share) = self.calls.get(&arrival) else { return };
        let tenant = self.tenants.entry(share.tenant.clone()).or_default();
        self.places.remove(&tenant.place());
        self.idle.remove(&tenant.place());
        change(&mut tenant.virtual_time, &mut tenant.parked, share.weight_micro);
        tenant.last = arrival;
        let places = if tenant.is_waiting() { &mut self.places } else { &mut self.idle };
        places.insert(tenant.place(), share.tenant.clone());
    }
}
