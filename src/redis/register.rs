//! Registers the commands, and handles their calls.

use super::api::server;
use super::call::Call;
use super::spec::{ArgumentSpec, Audience, Command, FromMaster, Keys, Kind, Spec};
use super::{listeners, log, waiting, COUNTERS};
use redis_module::commands::{get_redis_key_spec, BeginSearch, FindKeys, KeySpec, KeySpecFlags};
use redis_module::raw;
use std::ffi::{c_char, c_int, CStr, CString};
use std::mem::{size_of, zeroed};
use std::ptr;
use std::sync::atomic::AtomicBool;
use tokenbucket_core::cast::signed_32;
use tokenbucket_core::error::Refusal;

/// A callback for a command.
type Handler =
    unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut *mut raw::RedisModuleString, c_int) -> c_int;

/// A command to register: its description, and its callback.
pub(crate) type Entry = (Spec, Handler);

/// The commands of a module.
pub(crate) struct Commands {
    /// Commands with names of its own. The module is not loaded if one is refused.
    pub(crate) own: &'static [Entry],
    /// Commands that another module may have, registered if they are wanted and free.
    pub(crate) drop_ins: &'static [Entry],
}

/// Returns the entry of a command.
pub(crate) const fn entry<C: Command>() -> Entry {
    (C::SPEC, handler::<C>)
}

/// Executes one call of `C`.
///
/// # Safety
/// To be called by the server alone, with what belongs to one invocation of the command.
unsafe extern "C" fn handler<C: Command>(
    context: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: by the contract of this function; `call` ends with it.
    let call = unsafe { Call::new(context, argv, argc) };
    if C::SPEC.from_master == FromMaster::Ignored && listeners::is_replicated(&call) {
        ignore(&call);
        return 0;
    }
    if waiting::is_any() {
        waiting::before_command(call);
    }
    if let Err(refusal) = C::run(call) {
        refuse(&C::SPEC, &call, refusal);
    }
    if C::SPEC.audience.writes() && waiting::is_any() {
        waiting::after_command();
    }
    0
}

/// Replies the error of a call, which names the argument.
#[cold]
#[inline(never)] // Off the path of calls without an error.
fn refuse(spec: &Spec, call: &Call, refusal: Refusal) {
    COUNTERS.error();
    call.reply_error(&refusal.line(&spec.syntax(), call.arguments()));
}

/// Ignores a call that was decided elsewhere. An error would count as a failure of the replica.
#[cold]
fn ignore(call: &Call) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    log::warn_once(
        &WARNED,
        call.context,
        "ignored a TB.* call from a master or a file: only TB.RESTORE carries decisions",
    );
    call.reply_nil();
}

/// The module's own ACL category, on servers that support one (from 7.4 on).
const CATEGORY: &CStr = c"tokenbucket";

/// Registers every command, and those of `drop_ins` whose names are free; returns the other names.
///
/// # Errors
/// A line that names the command which the server refused.
pub(super) fn register(
    context: *mut raw::RedisModuleCtx,
    commands: &[Entry],
    drop_ins: &[Entry],
) -> Result<Vec<&'static CStr>, String> {
    let has_category = add_category(context);
    let mut taken = Vec::new();
    for (place, (spec, handler)) in commands.iter().chain(drop_ins).enumerate() {
        let created = create(context, spec, *handler);
        // A drop-in is refused only if there is a command of that name.
        if place >= commands.len() && created.is_err() {
            taken.push(spec.name);
            continue;
        }
        created?;
        describe(context, spec)?;
        categorise(context, spec, has_category)?;
    }
    Ok(taken)
}

fn create(context: *mut raw::RedisModuleCtx, spec: &Spec, handler: Handler) -> Result<(), String> {
    let Range { first, last, step } = Range::of(spec.keys);
    let flags: &[&CStr] = match spec.audience {
        Audience::Readers => &[c"readonly fast"],
        Audience::Operators => &[c"readonly admin allow-stale"],
        Audience::Servers => &[c"write admin"],
        // Before 7.0 a command cannot declare that it blocks.
        Audience::WaitingWriters => &[c"write blocking", c"write"],
        Audience::Writers => &[c"write fast"],
    };
    let mut statuses = flags.iter().map(|flags| {
        let (name, flags) = (spec.name.as_ptr(), flags.as_ptr());
        // SAFETY: the context is valid while the module is being loaded; the server copies the strings.
        unsafe { server!(RedisModule_CreateCommand)(context, name, Some(handler), flags, first, last, step) }
    });
    accepted(statuses.any(|status| status == 0), spec, "command")
}

fn accepted(is_accepted: bool, spec: &Spec, what: &str) -> Result<(), String> {
    if is_accepted {
        return Ok(());
    }
    Err(format!("the server refused the {what} of {}", spec.name.to_string_lossy()))
}

/// The module counts arguments itself: its error shows the syntax, the server's does not.
const ANY_NUMBER: c_int = -1;

/// Registers the description of a command, for `COMMAND DOCS` and to find its keys.
fn describe(context: *mut raw::RedisModuleCtx, spec: &Spec) -> Result<(), String> {
    // SAFETY: the table of functions was filled before.
    let functions = unsafe { (raw::RedisModule_SetCommandInfo, raw::RedisModule_GetCommand) };
    let (Some(set_info), Some(get_command)) = functions else {
        return Ok(());
    };
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    let mut key_specs = get_redis_key_spec(key_spec(spec).into_iter().collect());
    let mut arguments = CArguments::new(spec.arguments);
    let info = raw::RedisModuleCommandInfo {
        version: &raw const version,
        summary: spec.summary.as_ptr(),
        complexity: spec.complexity.as_ptr(),
        since: spec.since.as_ptr(),
        history: ptr::null_mut(),
        tips: ptr::null(),
        arity: ANY_NUMBER,
        key_specs: key_specs.as_mut_ptr(),
        args: arguments.as_mut_ptr(),
    };
    // SAFETY: the context is valid while the module is being loaded; the server copies all that `info` points
    // to, whose arrays end in an element of zeroes.
    let status = unsafe { set_info(get_command(context, spec.name.as_ptr()), &raw const info) };
    accepted(status == 0, spec, "description")
}

/// The positions of the keys in a call, as all servers describe them: from the first to the last, in steps. A negative last
/// position counts from the end.
///
/// A count in `numkeys` would be the obvious description. But Redis up to 8.2, Redict and Valkey 8 misread it if there is a
/// step: three quarters of the keys would bypass ACLs and cluster routing. With the flag `getkeys-api` the server calls the
/// module instead, which crashes Redis 8.6 and 8.10 with IO threads: they call from such a thread. A range to the end of
/// the call is equivalent, because a call with any other number of arguments is refused.
struct Range {
    first: c_int,
    last: c_int,
    step: c_int,
}

impl Range {
    /// Returns the range of `keys`; all zero if there are none.
    fn of(keys: Keys) -> Self {
        let (first, last, step) = match keys {
            Keys::None => (0, 0, 0),
            Keys::First => (1, 1, 1),
            Keys::EverySecond => (1, -1, 2),
            Keys::Groups { first, len } => (first, -1, len),
        };
        Self { first, last, step }
    }
}

/// Describes the keys, and how the command accesses them.
fn key_spec(spec: &Spec) -> Option<KeySpec> {
    let flags = match spec.audience {
        Audience::Readers | Audience::Operators => KeySpecFlags::READ_ONLY | KeySpecFlags::ACCESS,
        Audience::Writers | Audience::WaitingWriters | Audience::Servers => {
            KeySpecFlags::READ_WRITE | KeySpecFlags::ACCESS | KeySpecFlags::UPDATE
        }
    };
    let range = Range::of(spec.keys);
    // Specifications count the last position from the first, unless it counts from the end.
    let find = FindKeys::new_range(range.last.min(0), range.step, 0);
    (spec.keys != Keys::None).then(|| KeySpec::new(None, flags, BeginSearch::new_index(range.first), find))
}

/// The arguments in the server's format, ended by an element of zeroes, with the groups that they point to.
struct CArguments {
    list: Vec<raw::RedisModuleCommandArg>,
    _groups: Vec<CArguments>,
}

impl CArguments {
    fn new(specs: &[ArgumentSpec]) -> Self {
        let mut groups: Vec<Self> = Vec::new();
        let mut list: Vec<_> = specs.iter().map(|spec| argument(spec, &mut groups)).collect();
        // SAFETY: all fields are integers and pointers, for which zero is a value.
        list.push(unsafe { zeroed() });
        Self { list, _groups: groups }
    }

    fn as_mut_ptr(&mut self) -> *mut raw::RedisModuleCommandArg {
        self.list.as_mut_ptr()
    }
}

fn argument(spec: &ArgumentSpec, groups: &mut Vec<CArguments>) -> raw::RedisModuleCommandArg {
    // SAFETY: all fields are integers and pointers, for which zero is a value.
    let mut argument: raw::RedisModuleCommandArg = unsafe { zeroed() };
    argument.name = spec.name.as_ptr();
    argument.key_spec_index = -1;
    argument.token = spec.word.map_or(ptr::null(), CStr::as_ptr);
    let mut flags = if spec.optional { raw::REDISMODULE_CMD_ARG_OPTIONAL } else { 0 };
    argument.type_ = match spec.kind {
        Kind::Key => {
            argument.key_spec_index = 0;
            raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY
        }
        Kind::Decimal => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_DOUBLE,
        Kind::Whole => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
        Kind::Text => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
        Kind::Word(word) => {
            argument.token = word.as_ptr();
            raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN
        }
        Kind::Together(members) | Kind::Groups(members) => {
            let mut group = CArguments::new(members);
            // The list's own buffer stays where it is when the struct around it moves.
            argument.subargs = group.as_mut_ptr();
            groups.push(group);
            if matches!(spec.kind, Kind::Groups(_)) {
                flags |= raw::REDISMODULE_CMD_ARG_MULTIPLE;
            }
            raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK
        }
    };
    argument.flags = signed_32(flags);
    argument
}

/// Adds the module's own ACL category. False if the server does not support one.
fn add_category(context: *mut raw::RedisModuleCtx) -> bool {
    // SAFETY: the table of functions was filled before; the context is valid while the module is being loaded,
    // and the server copies the name.
    unsafe { raw::RedisModule_AddACLCategory.is_some_and(|add| add(context, CATEGORY.as_ptr()) == 0) }
}

/// Adds a command to its ACL categories, on servers that support them for modules (from 7.2 on).
fn categorise(context: *mut raw::RedisModuleCtx, spec: &Spec, has_category: bool) -> Result<(), String> {
    // SAFETY: the table of functions was filled before.
    let functions = unsafe { (raw::RedisModule_SetCommandACLCategories, raw::RedisModule_GetCommand) };
    let (Some(set_categories), Some(get_command)) = functions else {
        return Ok(());
    };
    let own = if has_category { " tokenbucket" } else { "" };
    let categories = match spec.audience {
        Audience::Readers => format!("read fast{own}"),
        Audience::Writers => format!("write fast{own}"),
        Audience::WaitingWriters => format!("write blocking{own}"),
        Audience::Operators => "admin dangerous".to_owned(),
        Audience::Servers => "write admin dangerous".to_owned(),
    };
    let categories = CString::new(categories).unwrap_or_default();
    let categories: *const c_char = categories.as_ptr();
    // SAFETY: the context is valid while the module is being loaded; the server reads the string in the call.
    let status = unsafe { set_categories(get_command(context, spec.name.as_ptr()), categories) };
    accepted(status == 0, spec, "ACL categories")
}
