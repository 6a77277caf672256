//! An open key of a bucket.

use super::api::server;
use super::call::{Argument, Call};
use super::clock::now_us;
use super::data_type::{self, Extended};
use super::{maxmemory, COUNTERS};
use redis_module::raw;
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::slice;
use tokenbucket_core::bucket::Bucket;
use tokenbucket_core::cast::signed_32;
use tokenbucket_core::error::Error;
use tokenbucket_core::expiry::{ExpiryWindow, MAX_EXPIRE_AT_MS};
use tokenbucket_core::hold::{Extension, NO_EXTENSION};

/// The access of a command to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Read it. Works on read-only replicas.
    Read,
    /// Change it.
    Write,
}

/// The type of a key that does not exist.
const EMPTY: c_int = 0;

/// An open key that holds a bucket, or nothing yet. Closed on drop.
pub(crate) struct BucketKey<'call> {
    call: Call<'call>,
    name: Argument<'call>,
    /// Null for a key that does not exist and was opened for reading.
    key: *mut raw::RedisModuleKey,
    value: Option<NonNull<Bucket>>,
}

impl<'call> BucketKey<'call> {
    /// Opens the key.
    ///
    /// # Errors
    /// [`Error::WrongType`] if it holds anything but a bucket.
    #[inline]
    pub(crate) fn open(call: Call<'call>, name: Argument<'call>, access: Access) -> Result<Self, Error> {
        let mut opened = Self::open_any(call, name, access);
        opened.value = opened.find_value()?;
        Ok(opened)
    }

    /// Opens the key to overwrite a value of any type.
    pub(crate) fn claim(call: Call<'call>, name: Argument<'call>) -> Self {
        let mut opened = Self::open_any(call, name, Access::Write);
        opened.value = opened.find_value().unwrap_or(None);
        opened
    }

    /// Opens a key that holds a string, and reads it. Storing a bucket replaces the string.
    ///
    /// # Errors
    /// [`Error::WrongType`] if it holds anything but a string that `read` accepts.
    #[cold]
    pub(crate) fn open_string<T>(
        call: Call<'call>,
        name: Argument<'call>,
        access: Access,
        read: fn(&[u8]) -> Option<T>,
    ) -> Result<(Self, T), Error> {
        let opened = Self::open_any(call, name, access);
        let content = opened.string().and_then(read).ok_or(Error::WrongType)?;
        Ok((opened, content))
    }

    #[inline]
    fn open_any(call: Call<'call>, name: Argument<'call>, access: Access) -> Self {
        let mode = match access {
            Access::Read => raw::REDISMODULE_READ,
            Access::Write => raw::REDISMODULE_READ | raw::REDISMODULE_WRITE,
        };
        // SAFETY: context and name are valid for the call.
        let key = unsafe { server!(RedisModule_OpenKey)(call.context, name.string, signed_32(mode)).cast() };
        Self { call, name, key, value: None }
    }

    /// Returns whether the bucket has holds, or an override.
    #[inline(always)]
    pub(crate) fn is_extended(&self) -> bool {
        self.extended().is_some()
    }

    /// Moves the fields into a cold call, so that the hot path keeps its own in registers.
    #[inline(always)]
    pub(crate) fn into_cold(self) -> Self {
        let key = ManuallyDrop::new(self);
        Self { call: key.call, name: key.name, key: key.key, value: key.value }
    }

    /// Returns whether the key does not exist.
    pub(crate) fn is_empty(&self) -> bool {
        // SAFETY: the key is open, or null, which the server knows to be empty.
        unsafe { server!(RedisModule_KeyType)(self.key) == EMPTY }
    }

    /// Returns the bytes of a key that holds a string.
    fn string(&self) -> Option<&[u8]> {
        const STRING: c_int = 1;
        if self.key.is_null() {
            return None;
        }
        let mut len = 0;
        // SAFETY: the key is open. The server returns `len` readable bytes, or null, which stay in place until the key is
        // written or closed; the borrow of `self` rules that out.
        unsafe {
            if server!(RedisModule_KeyType)(self.key) != STRING {
                return None;
            }
            let read = signed_32(raw::REDISMODULE_READ);
            let bytes = server!(RedisModule_StringDMA)(self.key, &raw mut len, read);
            (!bytes.is_null()).then(|| slice::from_raw_parts(bytes.cast::<u8>(), len))
        }
    }

    #[inline]
    fn find_value(&self) -> Result<Option<NonNull<Bucket>>, Error> {
        if self.key.is_null() {
            return Ok(None);
        }
        // SAFETY: the key is open; anything but a module's value has the type null. The value is read only if the
        // type is ours, so `allocate` made it.
        unsafe {
            if server!(RedisModule_ModuleTypeGetType)(self.key) == data_type::registered() {
                return Ok(NonNull::new(server!(RedisModule_ModuleTypeGetValue)(self.key).cast()));
            }
            if server!(RedisModule_KeyType)(self.key) == EMPTY {
                return Ok(None);
            }
            Err(Error::WrongType)
        }
    }

    /// Returns the stored bucket; `None` is a full one.
    #[inline]
    pub(crate) fn bucket(&self) -> Option<Bucket> {
        // SAFETY: the value belongs to the open key, and nothing frees it while the key is open.
        self.value.map(|value| unsafe { data_type::bucket(value) })
    }

    /// Returns the holds and the override.
    #[inline(always)]
    pub(crate) fn extension(&self) -> &Extension {
        // SAFETY: as above; changing the holds borrows the key.
        self.extended().map_or(&NO_EXTENSION, |value| unsafe { &value.as_ref().extension })
    }

    /// Returns the holds and the override, for decisions that change them temporarily.
    pub(crate) fn extension_mut(&mut self) -> Option<&mut Extension> {
        // SAFETY: as above; nothing else refers to the value during the call.
        self.extended().map(|mut value| unsafe { &mut value.as_mut().extension })
    }

    #[inline(always)]
    fn extended(&self) -> Option<NonNull<Extended>> {
        // SAFETY: as above.
        self.value.and_then(|value| unsafe { data_type::extended(value) })
    }

    /// Returns the name of the key.
    #[inline]
    pub(crate) fn name(&self) -> &Argument<'call> {
        &self.name
    }

    /// Returns the call that opened the key.
    #[inline]
    pub(crate) fn call(&self) -> &Call<'call> {
        &self.call
    }

    /// Returns whether there is no memory for a bucket that would have to be created.
    #[inline]
    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.call.flags() & raw::REDISMODULE_CTX_FLAGS_OOM != 0
            && maxmemory::is_refused(&self.call, &self.name)
    }

    /// Stores a bucket in place of one without holds, or of none.
    #[inline]
    pub(crate) fn store(&mut self, bucket: Bucket) {
        match self.value {
            // SAFETY: the value belongs to the open key, and nothing else refers to it during the call. It is a bucket
            // whether or not holds follow.
            Some(value) => unsafe { value.write(bucket) },
            None => self.set(data_type::allocate(bucket)),
        }
    }

    /// Stores a bucket without holds in place of any bucket, or of none.
    pub(crate) fn store_alone(&mut self, bucket: Bucket) {
        match self.extended() {
            Some(_) => self.put(data_type::allocate(bucket)),
            None => self.store(bucket),
        }
    }

    /// Drops the first `dropped` holds, changes the others by `change`, then stores the bucket that it returns, or removes the
    /// key if it returns none. Returns the number of holds, and the second result of `change`.
    #[cold]
    pub(crate) fn update_extension<T>(
        &mut self,
        dropped: usize,
        change: impl FnOnce(&mut Extension) -> (Option<Bucket>, T),
    ) -> (usize, T) {
        let mut new = Extension::default();
        let extension = self.extension_mut().unwrap_or(&mut new);
        COUNTERS.holds_expired(dropped.min(extension.holds.len()));
        extension.holds.drop_first(dropped);
        let (bucket, result) = change(extension);
        let (len, is_empty) = (extension.holds.len(), extension.is_empty());
        match (bucket, self.extended()) {
            (None, _) => self.delete(),
            // SAFETY: the value belongs to the open key, and nothing else refers to it during the call.
            (Some(bucket), Some(mut value)) if !is_empty => unsafe { value.as_mut() }.store(bucket),
            (Some(bucket), None) if !is_empty => self.put(data_type::allocate_extended(bucket, new)),
            (Some(bucket), _) => self.store_alone(bucket),
        }
        (len, result)
    }

    #[inline] // So that the key stays in registers.
    fn set(&mut self, value: NonNull<Bucket>) {
        // SAFETY: the key is open for writing and takes the value over, which is of that type.
        unsafe {
            let bucket_type = data_type::registered();
            server!(RedisModule_ModuleTypeSetValue)(self.key, bucket_type, value.as_ptr().cast());
        }
        self.value = Some(value);
    }

    /// Stores a new value. The key keeps its expiry.
    #[cold]
    fn put(&mut self, value: NonNull<Bucket>) {
        if self.value.is_none() {
            return self.set(value);
        }
        let mut old = ptr::null_mut();
        // SAFETY: the key is open for writing, holds a value of our type, and takes over the new one. The old one has no
        // owner afterwards.
        unsafe {
            let bucket_type = data_type::registered();
            let new = value.as_ptr().cast();
            server!(RedisModule_ModuleTypeReplaceValue)(self.key, bucket_type, new, &raw mut old);
            NonNull::new(old.cast()).into_iter().for_each(|old| data_type::dispose(old));
        }
        self.value = Some(value);
    }

    /// Sets the expiry of the key within `window`, and returns it, in Unix milliseconds.
    ///
    /// Keeps a right expiry: writing one costs the server as much as the rest of the store.
    #[inline]
    pub(crate) fn expire_within(&mut self, window: ExpiryWindow) -> i64 {
        match self.expire_at_ms() {
            Some(at_ms) if window.accepts(at_ms) => at_ms,
            _ => {
                self.expire_at(Some(window.latest_ms));
                window.latest_ms
            }
        }
    }

    /// Returns when the key expires, in Unix milliseconds, if it does.
    #[inline]
    pub(crate) fn expire_at_ms(&self) -> Option<i64> {
        // SAFETY: the table of functions was filled when the module was loaded; the key is open.
        let at_ms = unsafe {
            match raw::RedisModule_GetAbsExpire {
                Some(get) => get(self.key),
                None => {
                    // Before 6.2.2 the time left counts from the server's present millisecond, which is this or later.
                    let now_ms = now_us() / 1000;
                    match server!(RedisModule_GetExpire)(self.key) {
                        never @ ..0 => never,
                        left_ms => left_ms.saturating_add(now_ms),
                    }
                }
            }
        };
        (at_ms >= 0).then_some(at_ms)
    }

    /// Sets the expiry of the key to a Unix millisecond, or to never.
    #[inline]
    pub(crate) fn expire_at(&mut self, at_ms: Option<i64>) {
        let never = i64::from(raw::REDISMODULE_NO_EXPIRE);
        let at_ms = at_ms.map(|at_ms| at_ms.min(MAX_EXPIRE_AT_MS));
        // SAFETY: the table of functions was filled when the module was loaded; the key is open for writing.
        unsafe {
            match raw::RedisModule_SetAbsExpire {
                Some(set) => set(self.key, at_ms.unwrap_or(never)),
                // Before 6.2.2 an expiry counts from the server's present millisecond, which is ours or later:
                // the key may stay a moment longer, and never expires early.
                None => {
                    let after_ms = at_ms.map(|at_ms| match at_ms.saturating_sub(now_us() / 1000) {
                        // In files and streams it may be in the past: a millisecond ago would mean never.
                        over_ms if over_ms == never => never.saturating_sub(1),
                        after_ms => after_ms,
                    });
                    server!(RedisModule_SetExpire)(self.key, after_ms.unwrap_or(never))
                }
            }
        };
    }

    /// Removes the key.
    #[inline]
    pub(crate) fn delete(&mut self) {
        if self.is_extended() {
            return self.unlink();
        }
        self.value = None;
        // SAFETY: the key is open for writing; the server frees the value.
        unsafe { server!(RedisModule_DeleteKey)(self.key) };
    }

    /// Removes the key. The server may free the holds in a background thread.
    #[cold]
    fn unlink(&mut self) {
        self.value = None;
        // SAFETY: as in `delete`.
        unsafe { server!(RedisModule_UnlinkKey)(self.key) };
    }

    /// Notifies transactions and client-side caches that the bucket has changed.
    #[inline]
    pub(crate) fn signal_modified(&self) {
        // SAFETY: context and name are valid for the call.
        unsafe { server!(RedisModule_SignalModifiedKey)(self.call.context, self.name.string) };
    }
}

impl Drop for BucketKey<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.key.is_null() {
            return;
        }
        // SAFETY: opened in `open_any`, closed only here.
        unsafe { server!(RedisModule_CloseKey)(self.key) };
    }
}
