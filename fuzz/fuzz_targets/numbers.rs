//! Any bytes, as an amount, a whole number and a rate: read as the exact reader of numbers does.
#![no_main]

#[path = "../../tests/exact/mod.rs"]
mod exact;

use exact::calendar::assert_calendar_read_as_meant;
use exact::number::{assert_amount_read_as_meant, assert_rate_read_as_meant};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    assert_amount_read_as_meant(bytes);
    match bytes.iter().find(|byte| matches!(byte, b'/' | b'@')) {
        Some(b'@') => assert_calendar_read_as_meant(bytes, 1_767_225_600_000_000, 86_400_000_000, 1_000_000_000),
        _ => assert_rate_read_as_meant(bytes),
    }
});
