//! The type of a bucket's value, `tb-bucket`, and what the server asks of it.
//!
//! A value is a [`Bucket`], 16 bytes on the server's heap, which is the smallest allocation that holds it. The
//! callbacks below are called by the server with values that [`allocate`] made, and with nothing else.

use super::api::server;
use super::info;
use crate::bucket::Bucket;
use crate::effect::{self, Effect};
use redis_module::raw;
use std::ffi::{c_int, c_void};
use std::mem::{size_of, zeroed};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

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

/// Registers the type. False if the server refuses.
pub(super) fn register(context: *mut raw::RedisModuleCtx) -> bool {
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
    methods.copy = Some(copy);
    methods.defrag = Some(defrag);
    // SAFETY: the context is valid while the module is being loaded, and the server copies name and methods.
    let registered = unsafe {
        server!(RedisModule_CreateDataType)(context, NAME.as_ptr(), ENCODING_VERSION, &raw mut methods)
    };
    TYPE.store(registered, Ordering::Relaxed);
    !registered.is_null()
}

/// Puts a bucket on the server's heap.
pub(super) fn allocate(bucket: Bucket) -> NonNull<Bucket> {
    // SAFETY: the allocator ends the server rather than return null (as for the server's own data), and its
    // blocks are aligned for any type.
    unsafe {
        let value = server!(RedisModule_Alloc)(size_of::<Bucket>()).cast::<Bucket>();
        value.write(bucket);
        info::count().bucket_allocated(|| value_bytes(value.cast()));
        NonNull::new_unchecked(value)
    }
}

/// Bytes that one bucket's value takes from the allocator.
fn value_bytes(value: *mut c_void) -> usize {
    // SAFETY: `value` was made by `allocate`.
    unsafe { server!(RedisModule_MallocSize)(value) }
}

/// Reads a value that [`allocate`] made.
///
/// # Safety
/// It must not have been freed.
unsafe fn read(value: *const c_void) -> Bucket {
    // SAFETY: by the contract of this function, and `allocate` has written a whole bucket.
    unsafe { value.cast::<Bucket>().read() }
}

unsafe extern "C" fn rdb_save(io: *mut raw::RedisModuleIO, value: *mut c_void) {
    // SAFETY: the server passes a live value of our type, and an io that is valid for this call.
    unsafe {
        let bucket = read(value);
        server!(RedisModule_SaveSigned)(io, bucket.level_micro);
        server!(RedisModule_SaveSigned)(io, bucket.refilled_at_us);
    }
}

/// Reads a value from a file, a master or a `RESTORE`; null refuses it.
unsafe extern "C" fn rdb_load(io: *mut raw::RedisModuleIO, encoding_version: c_int) -> *mut c_void {
    if encoding_version != ENCODING_VERSION {
        log(io, c"tokenbucket: this bucket was written by a newer version of the module");
        return ptr::null_mut();
    }
    // SAFETY: the io is valid for this call. A read that fails gives 0 and sets the error that is asked for next.
    let (level_micro, refilled_at_us, failed) = unsafe {
        let level_micro = server!(RedisModule_LoadSigned)(io);
        let refilled_at_us = server!(RedisModule_LoadSigned)(io);
        (level_micro, refilled_at_us, server!(RedisModule_IsIOError)(io) != 0)
    };
    if failed {
        return ptr::null_mut();
    }
    match Bucket::checked(level_micro, refilled_at_us) {
        Some(bucket) => allocate(bucket).as_ptr().cast(),
        None if is_loading(io) => allocate(corrected(io, level_micro, refilled_at_us)).as_ptr().cast(),
        None => {
            log(io, c"tokenbucket: refused a bucket whose level or time is out of bounds");
            ptr::null_mut()
        }
    }
}

/// The bucket closest to an impossible one. A server that reads its data file ends if a value is refused: one
/// bad bucket is no reason for that, and the nearest holds no more than it claimed.
fn corrected(io: *mut raw::RedisModuleIO, level_micro: i64, refilled_at_us: i64) -> Bucket {
    log(io, c"tokenbucket: corrected a bucket whose level or time is out of bounds");
    Bucket::nearest(level_micro, refilled_at_us)
}

/// Whether the value comes from the server's own data file or its master, not from a client's `RESTORE`.
fn is_loading(io: *mut raw::RedisModuleIO) -> bool {
    let loading = raw::REDISMODULE_CTX_FLAGS_LOADING | raw::REDISMODULE_CTX_FLAGS_ASYNC_LOADING;
    // SAFETY: the io is valid for this call, and so is the context that belongs to it.
    let flags = unsafe {
        let context = server!(RedisModule_GetContextFromIO)(io);
        server!(RedisModule_GetContextFlags)(context)
    };
    flags.cast_unsigned() & loading != 0
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
        let effect = Effect::Stored { bucket: read(value), expire_at_ms: None }.encode();
        let bytes = effect.as_ref();
        let command = effect::COMMAND;
        server!(RedisModule_EmitAOF)(io, command.as_ptr(), c"sb".as_ptr(), key, bytes.as_ptr(), bytes.len());
    }
}

unsafe extern "C" fn mem_usage(value: *const c_void) -> usize {
    value_bytes(value.cast_mut())
}

unsafe extern "C" fn digest(digest: *mut raw::RedisModuleDigest, value: *mut c_void) {
    // SAFETY: the server passes a live value of our type, and a digest that is valid for this call.
    unsafe {
        let bucket = read(value);
        server!(RedisModule_DigestAddLongLong)(digest, bucket.level_micro);
        server!(RedisModule_DigestAddLongLong)(digest, bucket.refilled_at_us);
        server!(RedisModule_DigestEndSequence)(digest);
    }
}

/// Called once per value, possibly on a background thread of the server. Redis 6.0 also calls it with null, for a
/// value that could not be read.
unsafe extern "C" fn free(value: *mut c_void) {
    if value.is_null() {
        return;
    }
    info::count().bucket_freed();
    // SAFETY: `value` was made by `allocate`, and the server has forgotten it.
    unsafe { server!(RedisModule_Free)(value) };
}

/// One allocation to free: never worth a background thread.
unsafe extern "C" fn free_effort(_key: *mut raw::RedisModuleString, _value: *const c_void) -> usize {
    1
}

unsafe extern "C" fn copy(
    _from: *mut raw::RedisModuleString,
    _to: *mut raw::RedisModuleString,
    value: *const c_void,
) -> *mut c_void {
    // SAFETY: the server passes a live value of our type.
    allocate(unsafe { read(value) }).as_ptr().cast()
}

/// Moves the value to where the allocator wants it. Returns 0: done in one go.
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
