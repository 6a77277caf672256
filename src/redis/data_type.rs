//! The type of a bucket's value, `tb-bucket`, and the server's callbacks for it.
//!
//! A value is a [`Bucket`], 16 bytes on the server's heap, which is the smallest allocation that holds it. A bucket with
//! holds has a larger block, with the bucket in front: a high bit of its time distinguishes the two, so that most buckets
//! pay for holds with one test of a field that is read anyway. The server calls the callbacks below only with values that
//! [`allocate`] or [`allocate_extended`] made.
//!
//! # Outside the main thread
//!
//! Servers call most of the module only in their main thread. The exceptions are:
//!
//! - [`free`]: in a background thread (`UNLINK`, `FLUSHALL ASYNC`, lazy freeing), and from Redis 8.2 on in an IO thread, which
//!   frees overwritten values. It owns the value, and uses only counters with read-modify-write, the system's clock and the
//!   allocator.
//! - [`rdb_save`] and [`aof_rewrite`]: in a child process, where other threads' locks may be held for ever. They take no lock
//!   of ours.
//! - `INFO tokenbucket` in a crash report: in the thread that crashed. It only loads atomic counters.
//!
//! Commands and what registers them are no exception: see `Range` in `register.rs` for how it was avoided.

use super::api::{context_flags, server};
use super::clock::system_now_us;
use super::{allocator, COUNTERS};
use redis_module::raw;
use std::ffi::{c_int, c_void};
use std::mem::{size_of, zeroed};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicPtr, Ordering};
use tokenbucket_core::bucket::{Bucket, MAX_TIME_US};
use tokenbucket_core::effect::{self, Effect};
use tokenbucket_core::hold::{Extension, ExtensionChanges};

/// `TYPE key` shows it. The server stores exactly 9 characters.
const NAME: &std::ffi::CStr = c"tb-bucket";

/// The layout that [`rdb_save`] writes. A new one needs a new number, and [`rdb_load`] keeps reading the old.
const ENCODING_VERSION: c_int = 1;

/// The registered type; null before.
static TYPE: AtomicPtr<raw::RedisModuleType> = AtomicPtr::new(ptr::null_mut());

#[inline]
pub(super) fn registered() -> *mut raw::RedisModuleType {
    TYPE.load(Ordering::Relaxed)
}

/// Registers the type, and what hears of removed keys. False if the server refuses.
pub(super) fn register(
    context: *mut raw::RedisModuleCtx,
    unlink: raw::RedisModuleTypeUnlinkFunc,
    unlink_in_db: raw::RedisModuleTypeUnlinkFunc2,
) -> bool {
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
    methods.unlink = unlink;
    methods.unlink2 = unlink_in_db;
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
    COUNTERS.bucket_allocated(|| value_bytes(value.as_ptr().cast()));
    value
}

/// The bit in the time of the refill that means that holds or an override follow, in memory and in files.
const EXTENDED: i64 = 1 << 61;

/// The bit that means, in memory, that an override has been counted.
const WITH_OVERRIDE: i64 = 1 << 62;

/// A value with holds or an override. There is at least one, except while a call changes them.
#[repr(C)]
pub(super) struct Extended {
    /// Its time has the bit.
    bucket: Bucket,
    /// After each change, [`store`](Self::store) must follow.
    pub(super) extension: Extension,
    /// The number of holds and bytes that are in the counters.
    counted: (u32, u32),
}

impl Extended {
    /// Stores a bucket, and counts the changed holds.
    pub(super) fn store(&mut self, bucket: Bucket) {
        let of_override = if self.extension.is_overridden() { WITH_OVERRIDE } else { 0 };
        COUNTERS.overrides_changed(self.bucket.refilled_at_us & WITH_OVERRIDE != 0, of_override != 0);
        let refilled_at_us = bucket.refilled_at_us | EXTENDED | of_override;
        self.bucket = Bucket { refilled_at_us, ..bucket };
        let bytes = size_of::<Self>().saturating_add(self.extension.bytes());
        let now =
            [self.extension.holds.len(), bytes].map(|count| u32::try_from(count).unwrap_or(u32::MAX)).into();
        COUNTERS.holds_changed(self.counted, now);
        self.counted = now;
    }
}

/// Puts a bucket and its holds on the server's heap.
pub(super) fn allocate_extended(bucket: Bucket, extension: Extension) -> NonNull<Bucket> {
    let mut value = Extended { bucket, extension, counted: (0, 0) };
    value.store(bucket);
    COUNTERS.bucket_with_holds_allocated();
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
    Bucket { refilled_at_us: bucket.refilled_at_us & !(EXTENDED | WITH_OVERRIDE), ..bucket }
}

/// Returns the value with its holds, if it has any.
///
/// # Safety
/// As of [`bucket`].
#[inline(always)]
pub(super) unsafe fn extended(value: NonNull<Bucket>) -> Option<NonNull<Extended>> {
    // SAFETY: by the contract of this function. What has the bit was made by `allocate_extended`.
    (unsafe { value.read() }.refilled_at_us & EXTENDED != 0).then(|| value.cast())
}

/// Frees a value, possibly on a background thread of the server.
///
/// # Safety
/// As of [`bucket`]; it must not be used any more.
pub(super) unsafe fn dispose(value: NonNull<Bucket>) {
    // SAFETY: by the contract of this function.
    unsafe {
        let extended = extended(value);
        COUNTERS.bucket_freed(extended.is_some());
        if let Some(extended) = extended {
            let Extended { bucket, extension, counted } = extended.read();
            COUNTERS.holds_changed(counted, (0, 0));
            COUNTERS.overrides_changed(bucket.refilled_at_us & WITH_OVERRIDE != 0, false);
            COUNTERS.holds_expired(extension.holds.ended(system_now_us()));
        }
        server!(RedisModule_Free)(value.as_ptr().cast());
    }
}

/// Returns the size of a block in the allocator, in bytes.
fn value_bytes(value: *mut c_void) -> usize {
    // SAFETY: `value` was made by `allocate` or `allocate_extended`.
    unsafe { server!(RedisModule_MallocSize)(value) }
}

/// Reads the value of a callback: a bucket, and its holds if it has any.
///
/// # Safety
/// It must have been made here, and not have been freed while what is returned is used.
unsafe fn read<'value>(value: *const c_void) -> (Bucket, Option<&'value Extension>) {
    // SAFETY: by the contract of this function. A value is never null.
    unsafe {
        let value = NonNull::new_unchecked(value.cast_mut().cast());
        (bucket(value), extended(value).map(|extended| &extended.as_ref().extension))
    }
}

unsafe extern "C" fn rdb_save(io: *mut raw::RedisModuleIO, value: *mut c_void) {
    // SAFETY: the server passes a live value of our type, and an io that is valid for this call, and writes as many
    // bytes as the length says.
    unsafe {
        let (bucket, extension) = read(value);
        server!(RedisModule_SaveSigned)(io, bucket.level_micro);
        let Some(extension) = extension else {
            server!(RedisModule_SaveSigned)(io, bucket.refilled_at_us);
            return;
        };
        let bytes = extension.encode();
        server!(RedisModule_SaveSigned)(io, bucket.refilled_at_us | EXTENDED);
        server!(RedisModule_SaveStringBuffer)(io, bytes.as_ptr().cast(), bytes.len());
    }
}

/// Reads a value from a file, a master or a `RESTORE`; null refuses it.
unsafe extern "C" fn rdb_load(io: *mut raw::RedisModuleIO, encoding_version: c_int) -> *mut c_void {
    if encoding_version != ENCODING_VERSION {
        log(io, c"tokenbucket: this bucket was written by a newer version of the module");
        return ptr::null_mut();
    }
    // SAFETY: the io is valid for this call. A failing read returns 0 and sets the error that is checked next.
    let (level_micro, refilled_at_us) =
        unsafe { (server!(RedisModule_LoadSigned)(io), server!(RedisModule_LoadSigned)(io)) };
    let extended = (EXTENDED..=EXTENDED | MAX_TIME_US).contains(&refilled_at_us);
    let read = if extended { load_extension(io) } else { Some((Extension::default(), true)) };
    // SAFETY: as above.
    let failed = unsafe { server!(RedisModule_IsIOError)(io) != 0 };
    let (Some((extension, is_whole)), false) = (read, failed) else {
        return ptr::null_mut();
    };
    let refilled_at_us = if extended { refilled_at_us & !EXTENDED } else { refilled_at_us };
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
        // A server that reads its data file exits if a value is refused, which one bad bucket must not cause.
        None if is_loading(io) => {
            log(io, c"tokenbucket: corrected a bucket whose level or time is out of bounds");
            Bucket::nearest(level_micro, refilled_at_us)
        }
        None => {
            log(io, c"tokenbucket: refused a bucket whose level or time is out of bounds");
            return ptr::null_mut();
        }
    };
    let value = if extension.is_empty() { allocate(bucket) } else { allocate_extended(bucket, extension) };
    value.as_ptr().cast()
}

/// Reads holds, and whether they are complete; `None` if there is nothing to read.
fn load_extension(io: *mut raw::RedisModuleIO) -> Option<(Extension, bool)> {
    let mut len = 0;
    // SAFETY: the io is valid for this call. The buffer is null, or ours and has `len` readable bytes.
    unsafe {
        let bytes = server!(RedisModule_LoadStringBuffer)(io, &raw mut len);
        if bytes.is_null() {
            return None;
        }
        let read = Extension::decode(slice::from_raw_parts(bytes.cast(), len));
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

/// Writes the bucket as the command that recreates it. The server writes its expiry.
unsafe extern "C" fn aof_rewrite(
    io: *mut raw::RedisModuleIO,
    key: *mut raw::RedisModuleString,
    value: *mut c_void,
) {
    // SAFETY: the server passes a live value of our type, and io and key that are valid for this call; the
    // format says one string and one buffer with its length, which is what follows.
    unsafe {
        let (bucket, extension) = read(value);
        let extension = extension.map(ExtensionChanges::all);
        let effect = Effect::Stored { bucket, expire_at_ms: None, extension }.encode();
        let bytes = effect.as_ref();
        let command = effect::COMMAND;
        server!(RedisModule_EmitAOF)(io, command.as_ptr(), c"sb".as_ptr(), key, bytes.as_ptr(), bytes.len());
    }
}

unsafe extern "C" fn mem_usage(value: *const c_void) -> usize {
    // SAFETY: the server passes a live value of our type.
    let (_, extension) = unsafe { read(value) };
    value_bytes(value.cast_mut()).saturating_add(extension.map_or(0, Extension::bytes))
}

unsafe extern "C" fn digest(digest: *mut raw::RedisModuleDigest, value: *mut c_void) {
    // SAFETY: the server passes a live value of our type, and a digest that is valid for this call.
    unsafe {
        let (bucket, extension) = read(value);
        server!(RedisModule_DigestAddLongLong)(digest, bucket.level_micro);
        server!(RedisModule_DigestAddLongLong)(digest, bucket.refilled_at_us);
        if let Some(limit_override) = extension.and_then(|of| of.limit_override.as_deref()) {
            let mut bytes = Vec::new();
            limit_override.encode(&mut bytes);
            server!(RedisModule_DigestAddStringBuffer)(digest, bytes.as_ptr().cast(), bytes.len());
        }
        for hold in extension.into_iter().flat_map(|of| of.holds.iter()) {
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

/// Counts the allocations to free: a bucket without holds is never worth a background thread. To servers, 0 means too many
/// to count, so a bucket that is removed with its last hold counts as one.
unsafe extern "C" fn free_effort(_key: *mut raw::RedisModuleString, value: *const c_void) -> usize {
    // SAFETY: the server passes a live value of our type.
    let (_, extension) = unsafe { read(value) };
    extension.map_or(1, |of| of.holds.len().max(1))
}

unsafe extern "C" fn copy(
    _from: *mut raw::RedisModuleString,
    _to: *mut raw::RedisModuleString,
    value: *const c_void,
) -> *mut c_void {
    // SAFETY: the server passes a live value of our type.
    let (bucket, extension) = unsafe { read(value) };
    let value = match extension {
        None => allocate(bucket),
        Some(extension) => allocate_extended(bucket, extension.clone()),
    };
    value.as_ptr().cast()
}

/// Moves the value to where the allocator wants it, but not the memory of its holds. Returns 0: done in one go.
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
