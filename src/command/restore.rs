//! `TB.RESTORE key effect [key effect …]`: what replicas and append-only files are sent instead of the calls.
//!
//! Not for applications: an effect overwrites the bucket, whatever is in it. It may come from a file that was
//! tampered with, so every field is checked, all of them before the first key is touched.

use crate::effect::{self, Effect};
use crate::error::Error;
use crate::redis::spec::{ArgumentSpec, Audience, Command, Keys, Kind, Spec, KEY};
use crate::redis::{now_us, replicate_verbatim, Access, Argument, BucketKey, Call};
use crate::request;

pub(crate) struct Restore;

impl Command for Restore {
    const SPEC: Spec = Spec {
        name: effect::COMMAND,
        summary: c"Internal: overwrites buckets with replicated states",
        complexity: c"O(N) where N is the number of keys",
        since: c"0.1.0",
        arity: -3,
        audience: Audience::Servers,
        keys: Keys::EverySecond,
        arguments: &[ArgumentSpec::required(
            c"bucket",
            Kind::Groups(&[KEY, ArgumentSpec::required(c"effect", Kind::Text)]),
        )],
    };

    fn run(call: Call) -> Result<(), Error> {
        let effects = request::restore(call.arguments())?;
        let keys = effects.iter().map(|(name, _)| open(call, **name)).collect::<Result<Vec<_>, _>>()?;
        for (mut key, (_, effect)) in keys.into_iter().zip(effects) {
            overwrite(&mut key, effect);
        }
        // While an append-only file is read, its commands must not be appended to it a second time. From a
        // master they still have to reach our own file; the server passes them on to our replicas.
        if !call.is_loading() {
            replicate_verbatim(&call);
        }
        call.reply_ok();
        Ok(())
    }
}

fn open<'call>(call: Call<'call>, name: Argument<'call>) -> Result<BucketKey<'call>, Error> {
    let key = BucketKey::open(call, name, Access::Write)?;
    if key.bucket().is_none() && !call.is_obeyed() && call.is_out_of_memory() {
        return Err(Error::OutOfMemory);
    }
    Ok(key)
}

fn overwrite(key: &mut BucketKey, effect: Effect) {
    key.store(effect.bucket);
    if key.expire_at_ms() != effect.expire_at_ms {
        key.expire_at(effect.expire_at_ms, now_us());
    }
    key.signal_modified();
}
