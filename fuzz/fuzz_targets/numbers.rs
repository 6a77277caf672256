//! Any bytes, as an amount, a whole number and a rate: read as the exact reader of numbers does.
#![no_main]

#[path = "../../core/tests/model/mod.rs"]
mod model;

use model::number::{assert_amount_read_as_meant, assert_rate_read_as_meant};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    assert_amount_read_as_meant(bytes);
    assert_rate_read_as_meant(bytes);
});
