//! How often a property is tried, and where what once broke it is kept.

use proptest::test_runner::{Config, FileFailurePersistence};

/// `times` the usual number of cases, which `PROPTEST_CASES` changes (256 unless told).
pub fn cases(regressions: &'static str, times: u32) -> Config {
    let usual = Config::default();
    let cases = usual.cases.saturating_mul(times);
    Config {
        cases,
        // A property of denials has to find some first.
        max_global_rejects: cases.saturating_mul(100),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(regressions))),
        ..usual
    }
}
