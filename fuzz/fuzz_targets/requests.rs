//! Any bytes, cut at spaces, as the arguments of every command: read as the exact reader does, or refused for the first
//! argument that is wrong.
#![no_main]

#[path = "../../core/tests/model/mod.rs"]
mod model;

use model::operation::{assert_read_as_meant, COMMANDS};
use libfuzzer_sys::fuzz_target;
use tokenbucket_core::request;

fuzz_target!(|bytes: &[u8]| {
    let arguments: Vec<&[u8]> = bytes.split(|byte| *byte == b' ').collect();
    for command in COMMANDS {
        assert_read_as_meant(command, &arguments);
    }
    // These have no exact reader; they must not panic, whatever they are given.
    let _ = request::throttle(&arguments);
    let _ = request::hold(&arguments);
    let _ = request::settle(&arguments);
    let _ = request::multi_hold(&arguments);
    let _ = request::multi_settle(&arguments);
    let _ = request::blocking_take(&arguments);
    let _ = request::blocking_hold(&arguments);
    let _ = request::blocking_multi_take(&arguments);
    let _ = request::blocking_multi_hold(&arguments);
    let _ = request::top(&arguments);
    let _ = tokenbucket_core::effect::read_all(&arguments);
    let _ = request::key(&arguments);
});
