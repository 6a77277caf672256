//! A client whose call waits: its requests, how they are decided, and whether its user may still call the command.

use super::super::api::{find, select_db, selected_db};
use super::super::call::{Argument, Call, Decisions, OwnedString};
use super::super::spec::Spec;
use super::super::COUNTERS;
use super::slots;
use redis_module::raw;
use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr::{self, NonNull};
use tokenbucket_core::error::Refusal;
use tokenbucket_core::queue::{Arrival, Db};
use tokenbucket_core::request::Request;

/// Decides on the requests of a call. Errors become its reply.
type Decide<T> = for<'call> fn(Call<'call>, &[Request<Argument<'call>>]) -> Result<T, Refusal>;

/// How calls that wait are decided.
#[derive(Clone, Copy)]
pub(crate) struct Resume {
    /// Grants a call whose turn it is, or denies it if no wait can help; `None` if it must wait longer. If it is not
    /// [its turn](Call::is_its_turn), only rebases its buckets after the clock stepped back.
    pub(crate) grant: Decide<Option<Decisions>>,
    /// Denies a call that timed out, and writes nothing.
    pub(crate) deny: Decide<Decisions>,
}

/// The reply that ends a wait: decisions, or the line of an error.
pub(super) type Answer = Result<Decisions, String>;

/// A client whose call waits.
pub(super) struct Client {
    db: Db,
    /// Its call; 0, which no call is, until it is in the queue.
    pub(super) arrival: Arrival,
    /// The server's handle; null until it is blocked.
    pub(super) handle: *mut raw::RedisModuleBlockedClient,
    arguments: Vec<OwnedString>,
    /// The requests, whose arguments it keeps.
    requests: Box<[Request<OwnedString>]>,
    pub(super) spec: &'static Spec,
    user: Option<OwnedString>,
    /// The client sent `ASKING`, because this node imports the slot.
    is_asking: bool,
    resume: Resume,
    pub(super) answer: Option<Answer>,
}

impl Client {
    /// Keeps the requests of a call. `ASKING` does not apply to `own_context`, the module's.
    pub(super) fn new(
        call: &Call,
        own_context: *mut raw::RedisModuleCtx,
        spec: &'static Spec,
        requests: Box<[Request<OwnedString>]>,
        resume: Resume,
    ) -> Self {
        let is_asked = |request: &Request<OwnedString>| slots::is_asked(own_context, &request.key);
        Self {
            db: selected_db(call.context),
            arrival: 0,
            handle: ptr::null_mut(),
            arguments: call.arguments().iter().map(Argument::retain).collect(),
            user: current_user(call.context),
            is_asking: requests.first().is_some_and(is_asked),
            requests,
            spec,
            resume,
            answer: None,
        }
    }

    /// Grants the call if its user may still call the command; `None` if it must wait longer.
    pub(super) fn grant(&self, context: *mut raw::RedisModuleCtx, now_us: i64) -> Option<Answer> {
        let refused = |user| refusal(user, self.db, self.spec, &self.arguments);
        if let Some(refusal) = self.user.as_ref().and_then(refused) {
            return Some(Err(refusal));
        }
        self.decide(context, now_us, |call, requests| (self.resume.grant)(call.in_turn(), requests))
    }

    /// Rebases the buckets of the call after the clock stepped back.
    pub(super) fn follow_clock(&self, context: *mut raw::RedisModuleCtx, now_us: i64) {
        self.decide(context, now_us, self.resume.grant);
    }

    /// Denies the call.
    pub(super) fn deny(&self, context: *mut raw::RedisModuleCtx, now_us: i64) -> Option<Answer> {
        self.decide(context, now_us, |call, requests| (self.resume.deny)(call, requests).map(Some))
    }

    /// Returns whether the call can be decided here: this node serves its slot, and no key has moved yet.
    pub(super) fn is_ours(&self, context: *mut raw::RedisModuleCtx) -> bool {
        select_db(context, self.db);
        slots::are_ours(context, self.keys(), self.is_asking)
    }

    /// Returns the keys of the call.
    pub(super) fn keys(&self) -> impl Iterator<Item = &OwnedString> + Clone {
        self.requests.iter().map(|request| &request.key)
    }

    fn decide(
        &self,
        context: *mut raw::RedisModuleCtx,
        now_us: i64,
        decide: impl for<'call> FnOnce(
            Call<'call>,
            &[Request<Argument<'call>>],
        ) -> Result<Option<Decisions>, Refusal>,
    ) -> Option<Answer> {
        select_db(context, self.db);
        let requests: Vec<_> =
            self.requests.iter().map(|request| request.map(OwnedString::argument)).collect();
        match decide(Call::resumed(context, now_us), &requests) {
            Ok(decisions) => decisions.map(Ok),
            Err(refusal) => {
                COUNTERS.error();
                Some(Err(refusal.line(&self.spec.syntax(), &self.arguments)))
            }
        }
    }
}

/// `ACLCheckPermissions` of a user, arguments, their number, a database, and where to store a reason. Valkey has it from 9.1
/// on, where rights can depend on the database.
type CheckInDb = unsafe extern "C" fn(*mut c_void, *mut c_void, c_int, Db, *mut c_void) -> c_int;

/// Returns the user of a client, on servers that report it to modules (from 7.0 on).
fn current_user(context: *mut raw::RedisModuleCtx) -> Option<OwnedString> {
    // SAFETY: the table of functions was filled before, and the context is valid for the call. The name is ours to free.
    unsafe {
        let name = raw::RedisModule_GetCurrentUserName?(context);
        (!name.is_null()).then_some(name).map(OwnedString)
    }
}

/// Returns the error of a call whose user lost the permission while it waited; `None` if the user may call it.
fn refusal(user: &OwnedString, db: Db, spec: &Spec, arguments: &[OwnedString]) -> Option<String> {
    let command = OwnedString::new(spec.name.to_bytes());
    let mut call: Vec<_> = std::iter::once(&command).chain(arguments).map(|argument| argument.0).collect();
    let count = i32::try_from(call.len()).unwrap_or(i32::MAX);
    // SAFETY: the table of functions was filled before, and the function found has this type; all strings live until the end
    // of this function. The server makes the user for us, and we free it once.
    let is_allowed = unsafe {
        let user_of = raw::RedisModule_GetModuleUserFromUserName?;
        let check = raw::RedisModule_ACLCheckCommandPermissions?;
        let free = raw::RedisModule_FreeModuleUser?;
        let found = NonNull::new(user_of(user.0));
        let is_allowed = |found: NonNull<raw::RedisModuleUser>| {
            let (found, call) = (found.as_ptr(), call.as_mut_ptr());
            let status = match find(c"RedisModule_ACLCheckPermissions") {
                Some(check) => {
                    let check = transmute::<NonNull<c_void>, CheckInDb>(check);
                    check(found.cast(), call.cast(), count, db, ptr::null_mut())
                }
                None => check(found, call, count),
            };
            free(found);
            status == 0
        };
        found.is_some_and(is_allowed)
    };
    let (user, command) =
        (String::from_utf8_lossy(user.as_ref()), spec.name.to_string_lossy().to_lowercase());
    (!is_allowed)
        .then(|| format!("NOPERM User {user} has no permissions to run the '{command}' command on its keys"))
}
