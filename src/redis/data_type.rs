//! The type of a bucket's value, `tb-bucket`, and what the server asks of it.
//!
//! A value is a [`Bucket`], 16 bytes on the server's heap, which is the smallest allocation that holds it. A bucket with
//! holds has a larger block, with the bucket in front: a bit of its time that no time reaches distinguishes the two, so
//! that most buckets pay for holds with no more than a look at what is read anyway. The callbacks below are called by
//! the server with values that [`allocate`] or [`allocate_with_holds`] made, and with nothing else.
//!
//! # Outside the main thread
//!
//! Servers call most of the module in their main thread alone. These are the exceptions:
//!
//! - [`free`]: in a background thread (`UNLINK`, `FLUSHALL ASYNC`, lazy freeing), and from Redis 8.2 on in an IO thread, which
//!   frees what a client overwrites. It has the value for itself, and touches counters that are changed by
//!   read-modify-write, the system's clock and the allocator, nothing else.
//! - [`rdb_save`] and [`aof_rewrite`]: in a child process, where other threads' locks may be held for ever. They take no lock
//!   of ours.
//! - `INFO tokenbucket` in a crash report: in whichever thread crashed. It only loads atomic counters.
//!
//! Commands and what registers them are no exception: see `Range` in `register.rs` for how it was avoided.

use super::api::{context_flags, server};
use super::clock::system_now_us;
use super::{allocator, info};
use redis_module::raw;
use std::ffi::{c_int, c_void};
use std::mem::{size_of, zeroed};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicPtr, Ordering};
use tokenbucket_core::bucket::{Bucket, MAX_TIME_US};
use tokenbucket_core::effect::{self, Effect, HoldChanges};
use tokenbucket_core::hold::Holds;

/// As `TYPE key` shows it. The server stores it in 9 characters, exactly.
const NAME: &std::ffi::CStr = c"tb-bucket";

/// The layout that [`rdb_save`] writes. A new one needs a new number, and [`rdb_load`] goes on reading the old.
const ENCODING_VERSION: c_int = 1;

/// The type as the server knows it; null until it is registered.
static TYPE: AtomicPtr<raw::RedisModuleType> = AtomicPtr::new(ptr::null_mut());

#[inline]
pub(super) fn registered() -> *mut raw::RedisModuleType {
    TYPE.load(Ordering::Relaxed)
}

/// What is called when a key goes, or gets another value: on 6.2, and on 7.0 and later. Older servers do not call.
pub(super) type Unlink = (
    unsafe extern "C" fn(*mut raw::RedisModuleString, *const c_void),
    unsafe extern "C" fn(*mut raw::RedisModuleKeyOptCtx, *const c_void),
);

/// Registers the type. False if the server refuses.
pub(super) fn register(context: *mut raw::RedisModuleCtx, unlink: Unlink) -> bool {
    // SAFETY: all fields are integers or optional functions, for which zero is a value: 0 and none.
    let mut methods: raw::RedisModuleTypeMethods = unsafe { zeroed() };
    methods.version = u64::from(raw::REDISMODULE_TYPE_METHOD_VERSION);
    methods.rdb_load = Some(rdb_load);
    methods.rdb_save = Some(rdb_save);
    methods.aof_rewrite = Some(aof_rewrite);
    methods.mem_usage = Some(mem_usage);
    methods.digest = Some(digest);
    methods.free = Some(free);
    methods.free_effort = Some(free_effort);
    methods.unlink = Some(unlink.0);
    methods.unlink2 = Some(unlink.1);
    methods.copy = Some(copy);
    methods.defrag = Some(defrag);
    // SAFETY: the context is valid while the module is being loaded, and the server copies name and methods.
    let registered = unsafe {
        server!(RedisModule_CreateDataType)(context, NAME.as_ptr(), ENCODING_VERSION, &raw mut methods)
    };
    TYPE.store(registered, Ordering::Relaxed);
    !registered.is_null()
}

/// Puts a bucket without holds on the server's heap.
pub(super) fn allocate(bucket: Bucket) -> NonNull<Bucket> {
    let value = allocator::block_of(bucket);
    info::counters().bucket_allocated(|| value_bytes(value.as_ptr().cast()));
    value
}

/// The bit in the time of the refill that says that holds follow, in memory and in files.
const WITH_HOLDS: i64 = 1 << 61;

/// A value with holds. There is at least one, except while a call changes them.
#[repr(C)]
pub(super) struct WithHolds {
    /// With the bit in its time.
    bucket: Bucket,
    /// Once they have changed, [`store`](Self::store) must follow.
    pub(super) holds: Holds,
    /// How many of them, and how many bytes, the counters know of.
    counted: (usize, usize),
}

impl WithHolds {
    /// Stores a bucket, and counts what became of the holds.
    pub(super) fn store(&mut self, bucket: Bucket) {
        self.bucket = Bucket { refilled_at_us: bucket.refilled_at_us | WITH_HOLDS, ..bucket };
        let now = (self.holds.len(), size_of::<Self>().saturating_add(self.holds.bytes()));
        info::counters().holds_changed(self.counted, now);
        self.counted = now;
    }
}

/// Puts a bucket and its holds on the server's heap.
pub(super) fn allocate_with_holds(bucket: Bucket, holds: Holds) -> NonNull<Bucket> {
    let mut value = WithHolds { bucket, holds, counted: (0, 0) };
    value.store(bucket);
    info::counters().bucket_with_holds_allocated();
    allocator::block_of(value).cast()
}

/// Reads the bucket, with or without holds.
///
/// # Safety
/// `value` must be one that was made here, and not have been freed.
#[inline(always)]
pub(super) unsafe fn bucket(value: NonNull<Bucket>) -> Bucket {
    // SAFETY: by the contract of this function.
    let bucket = unsafe { value.read() };
    Bucket { refilled_at_us: bucket.refilled_at_us & !WITH_HOLDS, ..bucket }
}

/// Returns the value with its holds, if it has any.
///
/// # Safety
/// As of [`bucket`].
#[inline(always)]
pub(super) unsafe fn with_holds(value: NonNull<Bucket>) -> Option<NonNull<WithHolds>> {
    // SAFETY: by the contract of this function. What has the bit was made by `allocate_with_holds`.
    (unsafe { value.read() }.refilled_at_us & WITH_HOLDS != 0).then(|| value.cast())
}

/// Frees a value, possibly on a background thread of the server.
///
/// # Safety
/// As of [`bucket`]; it must not be used any more.
pub(super) unsafe fn dispose(value: NonNull<Bucket>) {
    // SAFETY: by the contract of this function.
    unsafe {
        let with_holds = with_holds(value);
        info::counters().bucket_freed(with_holds.is_some());
        if let Some(with_holds) = with_holds {
            let WithHolds { holds, counted, .. } = with_holds.read();
            info::counters().holds_changed(counted, (0, 0));
            info::counters().holds_expired(holds.ended(system_now_us()));
        }
        server!(RedisModule_Free)(value.as_ptr().cast());
    }
}

/// Returns bytes that one block takes from the allocator.
fn value_bytes(value: *mut c_void) -> usize {
    // SAFETY: `value` was made by `allocate` or `allocate_with_holds`.
    unsafe { server!(RedisModule_MallocSize)(value) }
}

/// Reads a value as a callback gets it: a bucket, and its holds if it has any.
///
/// # Safety
/// It must have been made here, and not have been freed while what is returned is used.
unsafe fn read<'value>(value: *const c_void) -> (Bucket, Option<&'value Holds>) {
    // SAFETY: by the contract of this function. A value is never null.
    unsafe {
        let value = NonNull::new_unchecked(value.cast_mut().cast());
        (bucket(value), with_holds(value).map(|with_holds| &with_holds.as_ref().holds))
    }
}

unsafe extern "C" fn rdb_save(io: *mut raw::RedisModuleIO, value: *mut c_void) {
    // SAFETY: the server passes a live value of our type, and an io that is valid for this call, and writes as many
    // bytes as the length says.
    unsafe {
        let (bucket, holds) = read(value);
        server!(RedisModule_SaveSigned)(io, bucket.level_micro);
        let Some(holds) = holds else {
            server!(RedisModule_SaveSigned)(io, bucket.refilled_at_us);
            return;
        };
        let holds = holds.encode();
        server!(RedisModule_SaveSigned)(io, bucket.refilled_at_us | WITH_HOLDS);
        server!(RedisModule_SaveStringBuffer)(io, holds.as_ptr().cast(), holds.len());
    }
}

/// Reads a value from a file, a master or a `RESTORE`; null refuses it.
unsafe extern "C" fn rdb_load(io: *mut raw::RedisModuleIO, encoding_version: c_int) -> *mut c_void {
    if encoding_version != ENCODING_VERSION {
        log(io, c"tokenbucket: this bucket was written by a newer version of the module");
        return ptr::null_mut();
    }
    // SAFETY: the io is valid for this call. A read that fails gives 0 and sets the error that is asked for next.
    let (level_micro, refilled_at_us) =
        unsafe { (server!(RedisModule_LoadSigned)(io), server!(RedisModule_LoadSigned)(io)) };
    let with_holds = (WITH_HOLDS..=WITH_HOLDS | MAX_TIME_US).contains(&refilled_at_us);
    let read = if with_holds { load_holds(io) } else { Some((Holds::default(), true)) };
    // SAFETY: as above.
    let failed = unsafe { server!(RedisModule_IsIOError)(io) != 0 };
    let (Some((holds, is_whole)), false) = (read, failed) else {
        return ptr::null_mut();
    };
    let refilled_at_us = if with_holds { refilled_at_us & !WITH_HOLDS } else { refilled_at_us };
    let bucket = match Bucket::checked(level_micro, refilled_at_us) {
        Some(bucket) if is_whole => bucket,
        Some(bucket) if is_loading(io) => {
            log(io, c"tokenbucket: dropped invalid holds");
            bucket
        }
        Some(_) => {
            log(io, c"tokenbucket: refused a bucket with invalid holds");
            return ptr::null_mut();
        }
        // A server that reads its data file ends if a value is refused: one bad bucket is no reason for that.
        None if is_loading(io) => {
            log(io, c"tokenbucket: corrected a bucket whose level or time is out of bounds");
            Bucket::nearest(level_micro, refilled_at_us)
        }
        None => {
            log(io, c"tokenbucket: refused a bucket whose level or time is out of bounds");
            return ptr::null_mut();
        }
    };
    let value = if holds.is_empty() { allocate(bucket) } else { allocate_with_holds(bucket, holds) };
    value.as_ptr().cast()
}

/// Reads holds, and whether they are all that was written; `None` if there is nothing to read.
fn load_holds(io: *mut raw::RedisModuleIO) -> Option<(Holds, bool)> {
    let mut len = 0;
    // SAFETY: the io is valid for this call. What is returned is null, or ours and of as many readable bytes as it says.
    unsafe {
        let bytes = server!(RedisModule_LoadStringBuffer)(io, &raw mut len);
        if bytes.is_null() {
            return None;
        }
        let read = Holds::decode(slice::from_raw_parts(bytes.cast(), len));
        server!(RedisModule_Free)(bytes.cast());
        Some(read)
    }
}

/// Returns whether the value comes from the server's own data file or its master, not from a client's `RESTORE`.
fn is_loading(io: *mut raw::RedisModuleIO) -> bool {
    let loading = raw::REDISMODULE_CTX_FLAGS_LOADING | raw::REDISMODULE_CTX_FLAGS_ASYNC_LOADING;
    // SAFETY: the io is valid for this call, and so is the context that belongs to it.
    let context = unsafe { server!(RedisModule_GetContextFromIO)(io) };
    context_flags(context) & loading != 0
}

fn log(io: *mut raw::RedisModuleIO, message: &std::ffi::CStr) {
    // SAFETY: the io is valid, the strings are constants without a format specifier but the one given.
    unsafe { server!(RedisModule_LogIOError)(io, c"warning".as_ptr(), c"%s".as_ptr(), message.as_ptr()) };
}

/// Writes the bucket as the command that recreates it. Its expiry is written by the server.
unsafe extern "C" fn aof_rewrite(
    io: *mut raw::RedisModuleIO,
    key: *mut raw::RedisModuleString,
    value: *mut c_void,
) {
    // SAFETY: the server passes a live value of our type, and io and key that are valid for this call; the
    // format says one string and one buffer with its length, which is what follows.
    unsafe {
        let (bucket, holds) = read(value);
        let holds = holds.map(HoldChanges::all);
        let effect = Effect::Stored { bucket, expire_at_ms: None, holds }.encode();
        let bytes = effect.as_ref();
        let command = effect::COMMAND;
        server!(RedisModule_EmitAOF)(io, command.as_ptr(), c"sb".as_ptr(), key, bytes.as_ptr(), bytes.len());
    }
}

unsafe extern "C" fn mem_usage(value: *const c_void) -> usize {
    // SAFETY: the server passes a live value of our type.
    let (_, holds) = unsafe { read(value) };
    value_bytes(value.cast_mut()).saturating_add(holds.map_or(0, Holds::bytes))
}

unsafe extern "C" fn digest(digest: *mut raw::RedisModuleDigest, value: *mut c_void) {
    // SAFETY: the server passes a live value of our type, and a digest that is valid for this call.
    unsafe {
        let (bucket, holds) = read(value);
        server!(RedisModule_DigestAddLongLong)(digest, bucket.level_micro);
        server!(RedisModule_DigestAddLongLong)(digest, bucket.refilled_at_us);
        for hold in holds.into_iter().flat_map(Holds::iter) {
            server!(RedisModule_DigestAddLongLong)(digest, hold.amount_micro);
            server!(RedisModule_DigestAddLongLong)(digest, hold.ends_at_us);
            server!(RedisModule_DigestAddStringBuffer)(digest, hold.id.as_ptr().cast(), hold.id.len());
        }
        server!(RedisModule_DigestEndSequence)(digest);
    }
}

/// Frees a value, once. Redis 6.0 also calls it with null, for a value that could not be read.
unsafe extern "C" fn free(value: *mut c_void) {
    if let Some(value) = NonNull::new(value.cast()) {
        // SAFETY: the server passes a value that was made here, and has forgotten it.
        unsafe { dispose(value) };
    }
}

/// Counts the allocations to free: that of a bucket alone is never worth a background thread. Servers read 0 as too many
/// to count, so a bucket that goes with its last hold counts as one.
unsafe extern "C" fn free_effort(_key: *mut raw::RedisModuleString, value: *const c_void) -> usize {
    // SAFETY: the server passes a live value of our type.
    let (_, holds) = unsafe { read(value) };
    holds.map_or(1, |holds| holds.len().max(1))
}

unsafe extern "C" fn copy(
    _from: *mut raw::RedisModuleString,
    _to: *mut raw::RedisModuleString,
    value: *const c_void,
) -> *mut c_void {
    // SAFETY: the server passes a live value of our type.
    let (bucket, holds) = unsafe { read(value) };
    let value = match holds {
        None => allocate(bucket),
        Some(holds) => allocate_with_holds(bucket, holds.clone()),
    };
    value.as_ptr().cast()
}

/// Moves the value to where the allocator wants it, and leaves what the holds themselves take. Returns 0: done in one go.
unsafe extern "C" fn defrag(
    context: *mut raw::RedisModuleDefragCtx,
    _key: *mut raw::RedisModuleString,
    value: *mut *mut c_void,
) -> c_int {
    // SAFETY: the server passes the place that holds a live value of our type. If the allocator moves it, the
    // content is copied and the old block freed, so only the pointer has to follow.
    unsafe {
        if let Some(move_block) = raw::RedisModule_DefragAlloc {
            let moved = move_block(context, *value);
            if !moved.is_null() {
                *value = moved;
            }
        }
    }
    0
}
