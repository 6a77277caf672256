//! What a `rate_limit` is as a bucket, and what replies say about it.

use crate::limit;

#[test]
fn units_are_buckets() {
    for (unit, rate, calendar, unit_ms) in [
        ("second", "3/s", "3@s", 1000),
        ("Minute", "3/m", "3@m", 60_000),
        ("HOUR", "3/h", "3@h", 3_600_000),
        ("day", "3/d", "3@d", 86_400_000),
        ("week", "3/7d", "3@w", 604_800_000),
        ("month", "3/30d", "3@mo", 2_592_000_000),
        ("year", "3/365d", "3@y", 31_536_000_000),
    ] {
        let lines = format!("unit: {unit}\nrequests_per_unit: 3");
        let found = limit(&lines).rule;
        assert_eq!((found.limit.to_string(), found.unit_ms), (format!("3 {rate}"), unit_ms));
        assert_eq!(found.current.unit().as_str_name(), unit.to_uppercase());
        let found = limit(&format!("{lines}\nwindow: calendar")).rule;
        assert_eq!(found.limit.to_string(), format!("3 {calendar}"));
    }
    assert_eq!(limit("unit: year\nrequests_per_unit: 4294967295").rule.limit.capacity(), "4294967295");
    let nothing = limit("unit: day\nrequests_per_unit: 0").rule;
    assert_eq!((nothing.limit.to_string(), nothing.current.requests_per_unit), ("0 1/m".to_owned(), 0));
}

#[test]
fn rates_are_buckets_and_shown_in_units_that_they_divide() {
    for (lines, bucket, current, unit_ms) in [
        ("rate: 100/m", "100 100/m", "100 MINUTE", 60_000),
        ("rate: 100/m\ncapacity: 200", "200 100/m", "100 MINUTE", 60_000),
        ("rate: 5", "5 5", "5 SECOND", 1000),
        ("rate: 0.5\ncapacity: 10", "10 0.5", "30 MINUTE", 2000),
        ("rate: 0.333333333333\ncapacity: 10", "10 0.333333333333", "20 MINUTE", 3001),
        ("rate: 100/40000d\ncapacity: 50", "50 100/40000d", "100 UNKNOWN", 3_456_000_000_000),
        ("rate: 10/15s", "10 10/15s", "40 MINUTE", 15_000),
        ("rate: 1/250ms", "1 1/250ms", "4 SECOND", 250),
        ("rate: 5/2h", "5 5/2h", "60 DAY", 7_200_000),
        ("rate: 1e3/m", "1e3 1e3/m", "1000 MINUTE", 60_000),
        ("rate: 9/7d", "9 9/7d", "9 WEEK", 604_800_000),
        ("rate: 9/14d", "9 9/14d", "9 UNKNOWN", 1_209_600_000),
        ("rate: 1000@d+09:00", "1000 1000@d+09:00", "1000 DAY", 86_400_000),
        ("rate: 10@15m", "10 10@15m", "40 HOUR", 900_000),
        ("rate: 7@mo\ncapacity: 14", "14 7@mo", "7 MONTH", 31 * 86_400_000),
        ("rate: 7@mo+14d+09:00", "7 7@mo+14d+09:00", "7 MONTH", 31 * 86_400_000),
        ("rate: 7@w+6d", "7 7@w+6d", "7 WEEK", 604_800_000),
        ("rate: 7@3mo", "7 7@3mo", "28 YEAR", 92 * 86_400_000),
        ("rate: 7@3mo+14d-05:00", "7 7@3mo+14d-05:00", "28 YEAR", 92 * 86_400_000),
        ("unit: minute\nrequests_per_unit: 3\ncapacity: 30", "30 3/m", "3 MINUTE", 60_000),
    ] {
        let rule = limit(lines).rule;
        let shown = format!("{} {}", rule.current.requests_per_unit, rule.current.unit().as_str_name());
        assert_eq!((&*rule.limit.to_string(), &*shown, rule.unit_ms), (bucket, current, unit_ms), "{lines}");
    }
}
