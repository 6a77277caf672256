//! Metrics, by the names of envoyproxy/ratelimit.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};
use std::time::Instant;

use regex::{Captures, Regex};

use crate::limits::Limits;

/// The most names that requests make; all others share one.
const MOST_NAMES: usize = 10_000;
/// The most domains that no file has, of which callers make up any number.
const MOST_UNKNOWN: usize = 100;
/// The longest name as the page shows it; longer ones share one too.
const MOST_NAME_BYTES: usize = 1024;
const OTHERS: &str = "other.other";
/// The longest page. The limits of the rest are left out.
const MOST_PAGE_BYTES: usize = 16 << 20;
/// Upper bounds of the histogram of times, in microseconds.
const TIMES_US: [u64; 12] =
    [100, 250, 500, 1000, 2500, 5000, 10_000, 20_000, 50_000, 100_000, 500_000, 1_000_000];

#[derive(Debug, Default)]
pub struct Counters {
    /// Calls that Redis did not answer.
    pub redis_errors: AtomicU64,
    /// Malformed calls.
    pub service_errors: AtomicU64,
    /// Requests that passed only because of `SHADOW_MODE`.
    pub global_shadow_mode: AtomicU64,
    pub config_load_success: AtomicU64,
    pub config_load_error: AtomicU64,
    limits: Named<OfLimit, MOST_NAMES>,
    reservations: Named<OfReservations, MOST_NAMES>,
    unknown_domains: Named<AtomicU64, MOST_UNKNOWN>,
    unknown_descriptors: Named<AtomicU64, MOST_NAMES>,
    times: Times,
}

/// Counters by a name, of which requests make a bounded number.
#[derive(Debug, Default)]
struct Named<T, const MOST: usize>(RwLock<Names<T>>);

type ByName<T> = HashMap<Arc<str>, Arc<T>>;

#[derive(Debug, Default)]
struct Names<T> {
    /// Names in files, which the bound does not concern.
    of_files: ByName<T>,
    others: ByName<T>,
}

/// Makes a struct of counters, with their names.
macro_rules! counters {
    ($(#[$about:meta])* $of:ident: $count:literal { $($(#[$doc:meta])* $name:ident = $metric:literal,)* }) => {
        $(#[$about])*
        #[derive(Debug, Default)]
        pub struct $of { $($(#[$doc])* pub $name: AtomicU64,)* }

        impl $of {
            const NAMES: [&'static str; $count] = [$($metric,)*];

            fn values(&self) -> [u64; $count] {
                [$(value(&self.$name),)*]
            }
        }
    };
}

counters! {
    /// The counters of one limit, in hits.
    OfLimit: 6 {
        total_hits = "total_hits",
        over_limit = "over_limit",
        near_limit = "near_limit",
        /// Hits that were denied without calling Redis.
        over_limit_with_local_cache = "over_limit_with_local_cache",
        within_limit = "within_limit",
        /// Hits that passed only because of `shadow_mode`.
        shadow_mode = "shadow_mode",
    }
}

counters! {
    /// The counters of the reservations of one domain, in tokens unless said otherwise.
    OfReservations: 7 {
        reserved = "reserved_tokens",
        /// Tokens used of reservations that ended in time.
        committed = "committed_tokens",
        /// Reserved tokens of reservations that had expired before their commit.
        expired = "expired_tokens",
        underestimated = "underestimated_tokens",
        /// Reserved tokens that were not used.
        overestimated = "overestimated_tokens",
        /// Commits that reached Redis after an outage.
        commits_sent_again = "commits_sent_again",
        /// Commits that did not reach Redis before their reservations expired.
        commits_lost = "commits_lost",
    }
}

#[derive(Debug, Default)]
struct Times {
    /// Requests in each bucket of [`TIMES_US`], and slower ones.
    counts: [AtomicU64; TIMES_US.len() + 1],
    sum_us: AtomicU64,
}

/// Measures one request until it is dropped.
pub(crate) struct Timing<'a> {
    times: &'a Times,
    began: Instant,
}

impl Drop for Timing<'_> {
    fn drop(&mut self) {
        let took_us = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        let place = TIMES_US.iter().position(|most| took_us <= *most).unwrap_or(TIMES_US.len());
        if let Some(count) = self.times.counts.get(place) {
            add(count, 1);
        }
        add(&self.times.sum_us, took_us);
    }
}

pub(crate) fn add(counter: &AtomicU64, count: u64) {
    if count > 0 {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

fn value(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Counters {
    /// Returns the counters of a limit by its name, a [`Matched::metric`](crate::limits::Matched). Beyond 10,000 names that
    /// are not in files, all share one.
    pub fn of_limit(&self, metric: &str) -> Arc<OfLimit> {
        self.limits.get(metric)
    }

    /// Returns the counters of a domain's reservations, with the same bound.
    pub fn of_reservations(&self, domain: &str) -> Arc<OfReservations> {
        self.reservations.get(domain)
    }

    /// Adds counters for the limits of files, which do not count towards the bound. Drops those that are in no file any more.
    pub fn reserve(&self, limits: &Limits) {
        let mut names = self.limits.0.write().unwrap_or_else(PoisonError::into_inner);
        let Names { of_files, others } = &mut *names;
        let mut now = HashMap::new();
        limits.each_rule(&mut |path, _| {
            let known = of_files.remove_entry(path).or_else(|| others.remove_entry(path));
            let (name, counters) = known.unwrap_or_else(|| (path.into(), Arc::default()));
            now.insert(name, counters);
        });
        *of_files = now;
    }

    /// Counts a request of an unknown domain.
    pub fn domain_not_found(&self, domain: &str) {
        add(&self.unknown_domains.get(domain), 1);
    }

    /// Counts a descriptor without a limit, of a domain that a file has.
    pub fn descriptor_not_found(&self, domain: &str) {
        add(&self.unknown_descriptors.get(domain), 1);
    }

    /// Times a request until the result is dropped.
    pub(crate) fn time_request(&self) -> Timing<'_> {
        Timing { times: &self.times, began: Instant::now() }
    }

    /// Returns the text that Prometheus reads.
    pub fn render(&self) -> String {
        let mut text = String::new();
        let _ = self
            .write_others(&mut text)
            .and_then(|()| self.write_reservations(&mut text))
            .and_then(|()| self.write_limits(&mut text));
        text
    }

    fn write_limits(&self, text: &mut String) -> fmt::Result {
        // Levels from the third on are left out; what they count is added up.
        let mut by_labels: BTreeMap<String, [u64; OfLimit::NAMES.len()]> = BTreeMap::new();
        for (metric, limit) in self.limits.all() {
            let sum = by_labels.entry(labels(&["domain", "key1", "key2"], &sanitized(&metric))).or_default();
            for (sum, count) in sum.iter_mut().zip(limit.values()) {
                *sum = sum.saturating_add(count);
            }
        }
        for (place, stat) in OfLimit::NAMES.iter().enumerate() {
            let name = format!("ratelimit_service_rate_limit_{stat}");
            writeln!(text, "# TYPE {name} counter")?;
            for (labels, counts) in &by_labels {
                // As in envoyproxy/ratelimit, a counter appears with its first count: scripts look only for its name.
                let Some(count) = counts.get(place).filter(|count| **count > 0) else { continue };
                writeln!(text, "{name}{{{labels}}} {count}")?;
                if text.len() > MOST_PAGE_BYTES {
                    return writeln!(text, "# cut: more than {} MiB of names", MOST_PAGE_BYTES >> 20);
                }
            }
        }
        Ok(())
    }

    fn write_reservations(&self, text: &mut String) -> fmt::Result {
        let domains = self.reservations.all();
        for (place, stat) in OfReservations::NAMES.iter().enumerate() {
            let name = format!("ratelimit_service_{stat}");
            writeln!(text, "# TYPE {name} counter")?;
            for (domain, counters) in &domains {
                let count = counters.values().get(place).copied().unwrap_or_default();
                writeln!(text, "{name}{{domain=\"{}\"}} {count}", escaped(domain))?;
            }
        }
        Ok(())
    }

    fn write_others(&self, text: &mut String) -> fmt::Result {
        let (domains, descriptors) = (self.unknown_domains.all(), self.unknown_descriptors.all());
        for (what, counters) in [("domain", domains), ("descriptor", descriptors)] {
            let name = format!("ratelimit_service_rate_limit_{what}_not_found");
            writeln!(text, "# TYPE {name} counter")?;
            for (domain, counter) in counters {
                writeln!(text, "{name}{{domain=\"{}\"}} {}", escaped(&domain), value(&counter))?;
            }
        }
        let name = "ratelimit_service_should_rate_limit_error";
        writeln!(text, "# TYPE {name} counter")?;
        writeln!(text, "{name}{{err_type=\"redis_error\"}} {}", value(&self.redis_errors))?;
        writeln!(text, "{name}{{err_type=\"service_error\"}} {}", value(&self.service_errors))?;
        for (stat, counter) in [
            ("global_shadow_mode", &self.global_shadow_mode),
            ("config_load_success", &self.config_load_success),
            ("config_load_error", &self.config_load_error),
        ] {
            let name = format!("ratelimit_service_{stat}");
            writeln!(text, "# TYPE {name} counter\n{name} {}", value(counter))?;
        }
        self.write_times(text)
    }

    fn write_times(&self, text: &mut String) -> fmt::Result {
        const NAME: &str = "ratelimit_service_response_time_seconds";
        const TOTAL: &str = "ratelimit_service_total_requests";
        const METHOD: &str = "grpc_method=\"ShouldRateLimit\"";
        writeln!(text, "# TYPE {NAME} histogram")?;
        let mut requests = 0;
        let bounds = TIMES_US.iter().map(|us| (*us as f64 / 1e6).to_string()).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(&self.times.counts) {
            requests += value(count);
            writeln!(text, "{NAME}_bucket{{{METHOD},le=\"{bound}\"}} {requests}")?;
        }
        let sum_s = value(&self.times.sum_us) as f64 / 1e6;
        writeln!(text, "{NAME}_sum{{{METHOD}}} {sum_s}\n{NAME}_count{{{METHOD}}} {requests}")?;
        writeln!(text, "# TYPE {TOTAL} counter\n{TOTAL}{{{METHOD}}} {requests}")
    }
}

impl<T: Default, const MOST: usize> Named<T, MOST> {
    fn get(&self, name: &str) -> Arc<T> {
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(one) = names.of_files.get(name).or_else(|| names.others.get(name)) {
            return one.clone();
        }
        drop(names);
        let mut names = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let has_room = names.others.len() < MOST && escaped(name).len() <= MOST_NAME_BYTES;
        names.others.entry(if has_room { name } else { OTHERS }.into()).or_default().clone()
    }

    /// Returns a copy, so that writing the page blocks no call.
    fn all(&self) -> Vec<(Arc<str>, Arc<T>)> {
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
        names.of_files.iter().chain(&names.others).map(|(name, one)| (name.clone(), one.clone())).collect()
    }
}

/// Returns the first levels of a name, as labels.
fn labels(names: &[&str], metric: &str) -> String {
    let mut labels = String::new();
    for (name, level) in names.iter().zip(metric.split('.')) {
        let comma = if labels.is_empty() { "" } else { "," };
        let _ = write!(labels, "{comma}{name}=\"{}\"", escaped(level));
    }
    labels
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Returns a name for statsd: without `:` and `|`, and without the dots of IPv4 addresses, which would separate levels.
fn sanitized(name: &str) -> String {
    static IPV4: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"(?:[0-9]{1,3}\.){3}[0-9]{1,3}").unwrap_or_else(|_| unreachable!("a valid expression"))
    });
    IPV4.replace_all(name, |address: &Captures<'_>| address[0].replace('.', "_")).replace([':', '|'], "_")
}
