//! One call of a command: its arguments, and its reply.

use super::api::{context_flags, server};
use super::clock::now_us;
use redis_module::raw;
use std::borrow::Borrow;
use std::ffi::{c_int, c_long, CStr, CString};
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::{ptr, slice};
use tokenbucket_core::bucket::Decision;

/// An argument, in the server's memory.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Argument<'call> {
    pub(super) string: *mut raw::RedisModuleString,
    call: PhantomData<&'call raw::RedisModuleString>,
}

impl<'call> Argument<'call> {
    /// Returns the bytes of the string.
    #[inline]
    fn bytes(self) -> &'call [u8] {
        let mut len = 0;
        // SAFETY: during `'call` the string is alive and nothing changes its bytes. The server reports the number of bytes
        // that are readable at the pointer it returns.
        unsafe {
            let bytes = server!(RedisModule_StringPtrLen)(self.string, &raw mut len);
            slice::from_raw_parts(bytes.cast(), len)
        }
    }

    /// Wraps a string of the server that is not an argument; `None` if it is null.
    ///
    /// # Safety
    /// It must be null, or alive while what is returned is used.
    pub(super) unsafe fn of(string: &*mut raw::RedisModuleString) -> Option<&Self> {
        // SAFETY: by the contract of this function, and `Argument` is a transparent wrapper of a pointer.
        (!string.is_null()).then(|| unsafe { &*ptr::from_ref(string).cast() })
    }

    /// Keeps the string beyond the call, without copying it.
    pub(crate) fn retain(&self) -> OwnedString {
        // SAFETY: the string is alive; without a context only its count of references grows.
        unsafe { server!(RedisModule_RetainString)(ptr::null_mut(), self.string) };
        OwnedString(self.string)
    }
}

impl AsRef<[u8]> for Argument<'_> {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

/// Returns the strings that the server passes to a function of the module.
///
/// # Safety
/// `argv` must point to `argc` strings (or may be null if there are none), which outlive `'call`.
#[inline]
pub(super) unsafe fn arguments<'call>(
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> &'call [Argument<'call>] {
    match usize::try_from(argc) {
        // SAFETY: by the contract of this function, and `Argument` is a transparent wrapper of a pointer.
        Ok(len @ 1..) => unsafe { slice::from_raw_parts(argv.cast(), len) },
        _ => &[],
    }
}

/// The decisions on a call of several buckets.
pub(crate) struct Decisions {
    /// The decision that binds the call.
    pub(crate) binding: Decision,
    /// The decision of each bucket.
    pub(crate) each: Vec<Decision>,
}

/// A command being executed on behalf of a client.
#[derive(Clone, Copy)]
pub(crate) struct Call<'call> {
    pub(super) context: *mut raw::RedisModuleCtx,
    arguments: &'call [Argument<'call>],
    now_us: i64,
    is_its_turn: bool,
}

impl<'call> Call<'call> {
    /// Wraps what the server hands to a command.
    ///
    /// # Safety
    /// The three must come from one invocation of a command, whose name is the first string, and `'call` must not
    /// outlive it.
    #[inline]
    pub(super) unsafe fn new(
        context: *mut raw::RedisModuleCtx,
        argv: *mut *mut raw::RedisModuleString,
        argc: c_int,
    ) -> Self {
        // SAFETY: by the contract of this function: the others follow the name.
        let arguments = unsafe { arguments(argv.add(1), argc.wrapping_sub(1)) };
        Self { context, arguments, now_us: now_us(), is_its_turn: false }
    }

    /// Returns a call that is decided now for a client that has waited, without its arguments.
    pub(super) fn resumed(context: *mut raw::RedisModuleCtx, now_us: i64) -> Self {
        Self { context, arguments: &[], now_us, is_its_turn: false }
    }

    /// Marks a call whose turn has come after a wait: no other call precedes it.
    pub(super) fn in_turn(self) -> Self {
        Self { is_its_turn: true, ..self }
    }

    /// Returns whether its turn has come after a wait.
    #[inline]
    pub(crate) fn is_its_turn(&self) -> bool {
        self.is_its_turn
    }

    /// Returns the arguments behind the command's name.
    #[inline]
    pub(crate) fn arguments(&self) -> &'call [Argument<'call>] {
        self.arguments
    }

    /// Returns when the call is decided, in Unix microseconds: one moment for all of its buckets.
    #[inline]
    pub(crate) fn now_us(&self) -> i64 {
        self.now_us
    }

    /// Returns the flags of the context.
    #[inline]
    pub(super) fn flags(&self) -> u32 {
        context_flags(self.context)
    }

    /// Returns whether the call comes from a master or a file, not from a client: it has been decided already.
    pub(crate) fn is_replicated(&self) -> bool {
        self.flags() & (raw::REDISMODULE_CTX_FLAGS_REPLICATED | raw::REDISMODULE_CTX_FLAGS_LOADING) != 0
    }

    /// Returns whether an append-only file is being read.
    pub(crate) fn is_loading(&self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_LOADING != 0
    }

    /// Sends a keyspace event. Costs a comparison without subscribers.
    #[inline]
    pub(crate) fn notify(&self, event: &CStr, key: &Argument) {
        self.notify_as(raw::REDISMODULE_NOTIFY_MODULE, event, key);
    }

    /// Sends the event of a deleted key, as the server does for its own keys.
    pub(crate) fn notify_deleted(&self, key: &Argument) {
        self.notify_as(raw::REDISMODULE_NOTIFY_GENERIC, c"del", key);
    }

    #[inline]
    fn notify_as(&self, class: c_int, event: &CStr, key: &Argument) {
        // SAFETY: context and key are valid for the call, the event is a C string that the server copies.
        unsafe { server!(RedisModule_NotifyKeyspaceEvent)(self.context, class, event.as_ptr(), key.string) };
    }

    /// Begins an array of `len` elements, which the next replies fill.
    #[inline]
    pub(crate) fn reply_array(&self, len: usize) {
        let len = c_long::try_from(len).unwrap_or(c_long::MAX);
        // SAFETY: the context is valid for the call.
        unsafe { server!(RedisModule_ReplyWithArray)(self.context, len) };
    }

    /// Replies an integer.
    #[inline]
    pub(crate) fn reply_integer(&self, integer: i64) {
        // SAFETY: the context is valid for the call.
        unsafe { server!(RedisModule_ReplyWithLongLong)(self.context, integer) };
    }

    /// Replies how many milliseconds are left until a Unix microsecond, rounded up.
    pub(crate) fn reply_time_until(&self, at_us: i64) {
        self.reply_integer(at_us.saturating_sub(self.now_us).max(0).saturating_add(999) / 1000);
    }

    /// Replies a decision: an array of four integers.
    #[inline]
    pub(crate) fn reply_decision(&self, decision: &Decision) {
        self.reply_array(4);
        self.reply_decision_fields(decision);
    }

    /// Replies the binding decision, and that of each bucket.
    pub(crate) fn reply_decisions(&self, decisions: &Decisions) {
        self.reply_array(5);
        self.reply_decision_fields(&decisions.binding);
        self.reply_array(decisions.each.len());
        decisions.each.iter().for_each(|decision| self.reply_decision(decision));
    }

    /// Replies the four integers of a decision, without an array around them.
    #[inline]
    pub(crate) fn reply_decision_fields(&self, decision: &Decision) {
        self.reply_integer(decision.allowed);
        self.reply_integer(decision.remaining);
        self.reply_integer(decision.retry_after_ms);
        self.reply_integer(decision.reset_after_ms);
    }

    /// Replies a string of any bytes.
    pub(crate) fn reply_bytes(&self, bytes: &[u8]) {
        // SAFETY: the context is valid for the call, and the server copies `len` bytes from the pointer.
        unsafe {
            server!(RedisModule_ReplyWithStringBuffer)(self.context, bytes.as_ptr().cast(), bytes.len());
        }
    }

    /// Replies nil.
    pub(crate) fn reply_nil(&self) {
        // SAFETY: the context is valid for the call.
        unsafe { server!(RedisModule_ReplyWithNull)(self.context) };
    }

    /// Replies `+OK`.
    pub(crate) fn reply_ok(&self) {
        // SAFETY: the context is valid for the call, the string is a constant.
        unsafe { server!(RedisModule_ReplyWithSimpleString)(self.context, c"OK".as_ptr()) };
    }

    /// Replies an error line.
    pub(super) fn reply_error(&self, line: &str) {
        let line = CString::new(line).unwrap_or_default();
        // SAFETY: the context is valid for the call, and the server copies the C string.
        unsafe { server!(RedisModule_ReplyWithError)(self.context, line.as_ptr()) };
    }
}

/// A reference to a string, never null, released on drop. Compared and hashed by its bytes.
pub(crate) struct OwnedString(pub(super) *mut raw::RedisModuleString);

impl OwnedString {
    pub(super) fn new(bytes: &[u8]) -> Self {
        // SAFETY: without a context the string is ours alone; the server copies `len` bytes from the pointer.
        let string =
            unsafe { server!(RedisModule_CreateString)(ptr::null_mut(), bytes.as_ptr().cast(), bytes.len()) };
        Self(string)
    }

    pub(super) fn argument(&self) -> Argument<'_> {
        Argument { string: self.0, call: PhantomData }
    }
}

impl Clone for OwnedString {
    /// Shares the bytes.
    fn clone(&self) -> Self {
        self.argument().retain()
    }
}

impl Borrow<[u8]> for OwnedString {
    fn borrow(&self) -> &[u8] {
        self.argument().bytes()
    }
}

impl AsRef<[u8]> for OwnedString {
    fn as_ref(&self) -> &[u8] {
        self.borrow()
    }
}

impl PartialEq for OwnedString {
    fn eq(&self, other: &Self) -> bool {
        self.as_ref() == other.as_ref()
    }
}

impl Eq for OwnedString {}

impl Hash for OwnedString {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_ref().hash(state);
    }
}

impl Drop for OwnedString {
    fn drop(&mut self) {
        // SAFETY: our reference, released only here.
        unsafe { server!(RedisModule_FreeString)(ptr::null_mut(), self.0) };
    }
}
