//! Any bytes, as an amount, a whole number and a rate: read as the exact reader of numbers does.
#![no_main]

#[path = "../../tests/oracle/mod.rs"]
mod oracle;

use libfuzzer_sys::fuzz_target;
use oracle::numbers::{agrees_on_amounts, agrees_on_rates};

fuzz_target!(|bytes: &[u8]| {
    agrees_on_amounts(bytes);
    agrees_on_rates(bytes);
});
