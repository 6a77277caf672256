//! Any bytes, cut at spaces, as the arguments of every command: read, or refused.
#![no_main]

#[path = "../../core/tests/model/mod.rs"]
mod model;

use model::operation::{parse, COMMANDS};
use libfuzzer_sys::fuzz_target;
use tokenbucket_core::request;

fuzz_target!(|bytes: &[u8]| {
    let arguments: Vec<&[u8]> = bytes.split(|byte| *byte == b' ').collect();
    for command in COMMANDS {
        let _ = parse(command, &arguments);
    }
    let _ = request::top(&arguments);
    let _ = tokenbucket_core::effect::read_all(&arguments);
    let _ = request::key(&arguments);
});
