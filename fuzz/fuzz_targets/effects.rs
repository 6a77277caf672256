//! Any bytes, as the effect that a master sends: refused, or a state that a bucket can be in and that is sent on as the
//! same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokenbucket_core::bucket::{Bucket, MAX_TIME_US};
use tokenbucket_core::effect::Effect;
use tokenbucket_core::expiry::MAX_EXPIRE_AT_MS;
use tokenbucket_core::hold::Extension;
use tokenbucket_core::number::MAX_MICRO;

fuzz_target!(|bytes: &[u8]| {
    // As the holds of a file: what is left out is not read again, and the rest is.
    let (extension, _) = Extension::decode(bytes);
    let saved = extension.encode();
    let (read, is_whole) = Extension::decode(&saved);
    assert!(is_whole && read.encode() == saved);
    let Some(effect) = Effect::decode(bytes) else { return };
    assert_eq!(effect.encode().as_ref(), bytes);
    let Effect::Stored { bucket: Bucket { level_micro, refilled_at_us }, expire_at_ms, .. } = effect else { return };
    assert!((-MAX_MICRO..=MAX_MICRO).contains(&level_micro));
    assert!((0..=MAX_TIME_US).contains(&refilled_at_us));
    assert!(expire_at_ms.is_none_or(|at_ms| (0..=MAX_EXPIRE_AT_MS).contains(&at_ms)));
});
