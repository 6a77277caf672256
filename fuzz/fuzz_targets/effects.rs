//! Any bytes, as the effect that a primary sends: refused, or a state that a bucket can be in and that is sent on as the
//! same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokenbucket::bucket::{Bucket, MAX_TIME_US};
use tokenbucket::effect::{Effect, MAX_EXPIRE_AT_MS};
use tokenbucket::number::MAX_MICRO;

fuzz_target!(|bytes: &[u8]| {
    let Some(effect) = Effect::decode(bytes) else { return };
    assert_eq!(effect.encode().as_ref(), bytes);
    let Effect::Stored { bucket: Bucket { level_micro, refilled_at_us }, expire_at_ms } = effect else { return };
    assert!((-MAX_MICRO..=MAX_MICRO).contains(&level_micro));
    assert!((0..=MAX_TIME_US).contains(&refilled_at_us));
    assert!(expire_at_ms.is_none_or(|at_ms| (0..=MAX_EXPIRE_AT_MS).contains(&at_ms)));
});
