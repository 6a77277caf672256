//! `TB.RESTORE key effect [key effect …]`: replaces the calls in replication and append-only files.
//!
//! Not for applications: an effect overwrites the bucket. It may come from a file that was tampered with, so all fields
//! are checked before the first key is touched.

use crate::redis::spec::{ArgumentSpec, Audience, Command, FromMaster, Keys, Kind, Spec, KEY};
use crate::redis::{replicate_verbatim, waiting, Access, Argument, BucketKey, Call};
use tokenbucket_core::effect::{self, Effect};
use tokenbucket_core::error::{Error, Refusal};

pub(crate) struct Restore;

impl Command for Restore {
    const SPEC: Spec = Spec {
        name: effect::COMMAND,
        summary: c"Internal: overwrites buckets with replicated states",
        complexity: c"O(N) where N is the number of keys",
        since: c"0.1.0",
        audience: Audience::Servers,
        from_master: FromMaster::Executed,
        keys: Keys::EverySecond,
        arguments: &[ArgumentSpec::required(
            c"bucket",
            Kind::Groups(&[KEY, ArgumentSpec::required(c"effect", Kind::Text)]),
        )],
    };

    fn run(call: Call) -> Result<(), Refusal> {
        let effects = effect::read_all(call.arguments())?;
        let opened = effects.iter().enumerate();
        let opened = opened.map(|(place, (name, _))| open(call, **name).map_err(|error| error.at(place)));
        let keys = opened.collect::<Result<Vec<_>, _>>()?;
        for (key, (_, effect)) in keys.into_iter().zip(effects) {
            overwrite(key, effect);
        }
        // While an append-only file is read, its commands must not be appended again. From a master they must reach our own
        // file; the server passes them on to our replicas.
        if !call.is_loading() {
            replicate_verbatim(&call);
        }
        call.reply_ok();
        Ok(())
    }
}

/// Opens a key. From a master or a file an effect replaces any type, as the master's bucket replaced a string of
/// redis-cell's.
fn open<'call>(call: Call<'call>, name: Argument<'call>) -> Result<BucketKey<'call>, Error> {
    if call.is_replicated() {
        return Ok(BucketKey::claim(call, name));
    }
    let key = BucketKey::open(call, name, Access::Write)?;
    if key.bucket().is_none() && key.is_out_of_memory() {
        return Err(Error::OutOfMemory);
    }
    Ok(key)
}

fn overwrite(mut key: BucketKey, effect: Effect) {
    if waiting::is_any() {
        waiting::mark_replaced(&key);
    }
    let expire_at_ms = match effect {
        Effect::Stored { bucket, expire_at_ms, extension: None } => {
            key.store_alone(bucket);
            expire_at_ms
        }
        Effect::Stored { bucket, expire_at_ms, extension: Some(changes) } => {
            let existed = !key.is_empty();
            let (_, is_complete) = key.update_extension(changes.dropped as usize, |extension| {
                let is_complete = changes.apply(extension);
                (is_complete.then_some(bucket), is_complete)
            });
            if !is_complete {
                // An eviction lost some here: the bucket is deleted too.
                if existed {
                    announce_deleted(&key);
                }
                return;
            }
            expire_at_ms
        }
        Effect::Cleared if key.is_empty() => return,
        Effect::Cleared => {
            key.delete();
            return announce_deleted(&key);
        }
    };
    if key.expire_at_ms() != expire_at_ms {
        key.expire_at(expire_at_ms);
    }
    key.signal_modified();
}

fn announce_deleted(key: &BucketKey) {
    key.call().notify_deleted(key.name());
    key.signal_modified();
}
