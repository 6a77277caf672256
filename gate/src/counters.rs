//! Metrics, by the names of envoyproxy/ratelimit.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

/// Beyond so many names, all others share one.
const MOST_NAMES: usize = 10_000;
const OTHERS: &str = "other.other";
/// Upper bounds of the histogram of times, in microseconds.
const TIMES_US: [u64; 12] =
    [100, 250, 500, 1000, 2500, 5000, 10_000, 20_000, 50_000, 100_000, 500_000, 1_000_000];

/// All metrics of the program.
#[derive(Debug, Default)]
pub struct Counters {
    /// Calls that Redis did not answer.
    pub redis_errors: AtomicU64,
    /// Calls that were wrong.
    pub service_errors: AtomicU64,
    /// Requests that only `SHADOW_MODE` let pass.
    pub global_shadow_mode: AtomicU64,
    /// Files that were read and are in use.
    pub config_load_success: AtomicU64,
    /// Files that were refused.
    pub config_load_error: AtomicU64,
    limits: RwLock<HashMap<String, Arc<OfLimit>>>,
    unknown_domains: RwLock<HashMap<String, Arc<AtomicU64>>>,
    times: Times,
}

/// The counters of one limit, in hits.
#[derive(Debug, Default)]
pub struct OfLimit {
    /// All that were asked for.
    pub total_hits: AtomicU64,
    /// Those that were denied.
    pub over_limit: AtomicU64,
    /// Those that came near the limit.
    pub near_limit: AtomicU64,
    /// Those that were denied without asking Redis.
    pub over_limit_with_local_cache: AtomicU64,
    /// Those that were allowed.
    pub within_limit: AtomicU64,
    /// Those that only `shadow_mode` let pass.
    pub shadow_mode: AtomicU64,
}

impl OfLimit {
    fn by_name(&self) -> [(&'static str, &AtomicU64); 6] {
        [
            ("total_hits", &self.total_hits),
            ("over_limit", &self.over_limit),
            ("near_limit", &self.near_limit),
            ("over_limit_with_local_cache", &self.over_limit_with_local_cache),
            ("within_limit", &self.within_limit),
            ("shadow_mode", &self.shadow_mode),
        ]
    }
}

/// How long requests took.
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
    /// The counters of a limit by its name, as [`Matched::metric`](crate::limits::Matched) has it. Bounded: beyond 10,000
    /// names all share one.
    pub fn of_limit(&self, metric: &str) -> Arc<OfLimit> {
        named(&self.limits, metric)
    }

    /// Counts a request of an unknown domain.
    pub fn domain_not_found(&self, domain: &str) {
        add(&named(&self.unknown_domains, domain), 1);
    }

    /// Times a request until the result is dropped.
    pub(crate) fn time_request(&self) -> Timing<'_> {
        Timing { times: &self.times, began: Instant::now() }
    }

    /// The text that Prometheus reads.
    pub fn render(&self) -> String {
        let mut page = Page::default();
        self.render_limits(&mut page);
        self.render_unknown_domains(&mut page);
        for (err_type, counter) in
            [("redis_error", &self.redis_errors), ("service_error", &self.service_errors)]
        {
            page.add("ratelimit_service_should_rate_limit_error", &[("err_type", err_type)], value(counter));
        }
        page.add("ratelimit_service_global_shadow_mode", &[], value(&self.global_shadow_mode));
        page.add("ratelimit_service_config_load_success", &[], value(&self.config_load_success));
        page.add("ratelimit_service_config_load_error", &[], value(&self.config_load_error));
        let mut text = page.to_string();
        self.render_times(&mut text);
        text
    }

    fn render_limits(&self, page: &mut Page) {
        let limits = self.limits.read().unwrap_or_else(PoisonError::into_inner);
        for (metric, limit) in limits.iter() {
            // Levels from the third on are left out; what they count is added up.
            let sane = sanitized(metric);
            let labels: Vec<_> = ["domain", "key1", "key2"].into_iter().zip(sane.split('.')).collect();
            for (stat, counter) in limit.by_name() {
                page.add(&format!("ratelimit_service_rate_limit_{stat}"), &labels, value(counter));
            }
        }
    }

    fn render_unknown_domains(&self, page: &mut Page) {
        let unknown = self.unknown_domains.read().unwrap_or_else(PoisonError::into_inner);
        for (domain, counter) in unknown.iter() {
            let labels = [("domain", &*sanitized(domain))];
            page.add("ratelimit_service_rate_limit_domain_not_found", &labels, value(counter));
        }
    }

    fn render_times(&self, text: &mut String) {
        const NAME: &str = "ratelimit_service_response_time_seconds";
        const METHOD: &str = "grpc_method=\"ShouldRateLimit\"";
        let _ = writeln!(text, "# TYPE {NAME} histogram");
        let mut requests = 0;
        let bounds = TIMES_US.iter().map(|us| (*us as f64 / 1e6).to_string()).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(&self.times.counts) {
            requests += value(count);
            let _ = writeln!(text, "{NAME}_bucket{{{METHOD},le=\"{bound}\"}} {requests}");
        }
        let sum_s = value(&self.times.sum_us) as f64 / 1e6;
        let _ = writeln!(text, "{NAME}_sum{{{METHOD}}} {sum_s}\n{NAME}_count{{{METHOD}}} {requests}");
        const TOTAL: &str = "ratelimit_service_total_requests";
        let _ = writeln!(text, "# TYPE {TOTAL} counter\n{TOTAL}{{{METHOD}}} {requests}");
    }
}

fn named<T: Default>(all: &RwLock<HashMap<String, Arc<T>>>, name: &str) -> Arc<T> {
    if let Some(one) = all.read().unwrap_or_else(PoisonError::into_inner).get(name) {
        return one.clone();
    }
    let mut all = all.write().unwrap_or_else(PoisonError::into_inner);
    let name = if all.len() < MOST_NAMES || all.contains_key(name) { name } else { OTHERS };
    all.entry(name.to_owned()).or_default().clone()
}

/// Samples by the name of the metric and their labels: each is written once, and all of a metric together.
#[derive(Default)]
struct Page(BTreeMap<String, BTreeMap<String, u64>>);

impl Page {
    fn add(&mut self, metric: &str, labels: &[(&str, &str)], count: u64) {
        let labels: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        *self.0.entry(metric.to_owned()).or_default().entry(labels).or_default() += count;
    }
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (metric, samples) in &self.0 {
            writeln!(f, "# TYPE {metric} counter")?;
            for (labels, count) in samples {
                writeln!(f, "{metric}{labels} {count}")?;
            }
        }
        Ok(())
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// A name as statsd takes it: without `:` and `|`, and without the dots of IPv4 addresses, which would separate levels.
fn sanitized(name: &str) -> String {
    let mut sane = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        let address = rest.get(..ipv4_len(rest)).unwrap_or_default();
        if address.is_empty() {
            sane.push(if matches!(first, ':' | '|') { '_' } else { first });
            rest = rest.get(first.len_utf8()..).unwrap_or_default();
        } else {
            sane.push_str(&address.replace('.', "_"));
            rest = rest.get(address.len()..).unwrap_or_default();
        }
    }
    sane
}

/// The length of the address that the text begins with; 0 if there is none.
fn ipv4_len(text: &str) -> usize {
    let mut len = 0;
    for place in 0..4 {
        let rest = text.get(len..).unwrap_or_default();
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let is_last = place == 3;
        if digits == 0 || (!is_last && (digits > 3 || rest.as_bytes().get(digits) != Some(&b'.'))) {
            return 0;
        }
        len += if is_last { digits.min(3) } else { digits + 1 };
    }
    len
}
