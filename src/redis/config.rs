//! Settings: as `loadmodule` arguments everywhere, as `tokenbucket.*` in the server's configuration from 7.0 on.
//!
//! A setting is a row in [`SETTINGS`]: its name, its values in the order of their numbers, the first of which is
//! the default, and whether it may change while the server runs.

use super::call::Argument;
use redis_module::raw;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::sync::atomic::{AtomicI32, Ordering};

/// What becomes of a bucket that would have to be created over `maxmemory`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnOom {
    /// An error.
    Deny,
    /// The decision of a full bucket, with nothing stored.
    Allow,
}

struct Setting {
    name: &'static CStr,
    values: [&'static CStr; 2],
    flags: u32,
    current: AtomicI32,
}

static SETTINGS: [Setting; 2] = [
    Setting {
        name: c"on-oom",
        values: [c"deny", c"allow"],
        flags: raw::REDISMODULE_CONFIG_DEFAULT,
        current: AtomicI32::new(0),
    },
    Setting {
        name: c"cl-throttle",
        values: [c"yes", c"no"],
        flags: raw::REDISMODULE_CONFIG_IMMUTABLE,
        current: AtomicI32::new(0),
    },
];

/// `tokenbucket.on-oom`.
pub(crate) fn on_oom() -> OnOom {
    let [on_oom, _] = &SETTINGS;
    match on_oom.current.load(Ordering::Relaxed) {
        0 => OnOom::Deny,
        _ => OnOom::Allow,
    }
}

/// `tokenbucket.cl-throttle`: whether `CL.THROTTLE` is offered. Asked once, when the module is loaded.
pub(super) fn cl_throttle() -> bool {
    let [_, cl_throttle] = &SETTINGS;
    cl_throttle.current.load(Ordering::Relaxed) == 0
}

/// Takes the arguments of `loadmodule`, in pairs of a setting and its value, with or without the module's name in
/// front, in any case.
///
/// # Errors
/// A line that names the argument.
pub(super) fn read_arguments(arguments: &[Argument]) -> Result<(), String> {
    for pair in arguments.chunks(2) {
        let [name, value] = pair else {
            let name = pair.first().map(printable).unwrap_or_default();
            return Err(format!("argument '{name}' needs a value"));
        };
        read_setting(name, value)?;
    }
    Ok(())
}

fn read_setting(name: &Argument, value: &Argument) -> Result<(), String> {
    let setting = find(name.as_ref()).ok_or_else(|| {
        let known: Vec<_> = SETTINGS.iter().map(|setting| setting.name.to_string_lossy()).collect();
        format!("unknown argument '{}': known are {}", printable(name), known.join(", "))
    })?;
    let number = setting.number_of(value.as_ref()).ok_or_else(|| {
        let values = setting.values.map(CStr::to_string_lossy).join(" or ");
        format!("argument '{}' must be {values}, not '{}'", printable(name), printable(value))
    })?;
    setting.current.store(number, Ordering::Relaxed);
    Ok(())
}

fn find(name: &[u8]) -> Option<&'static Setting> {
    const PREFIX: &[u8] = b"tokenbucket.";
    let name = name.to_ascii_lowercase();
    let name = name.strip_prefix(PREFIX).unwrap_or(&name);
    SETTINGS.iter().find(|setting| setting.name.to_bytes() == name)
}

impl Setting {
    fn number_of(&self, value: &[u8]) -> Option<c_int> {
        let position = self.values.iter().position(|known| known.to_bytes().eq_ignore_ascii_case(value))?;
        c_int::try_from(position).ok()
    }

    fn of<'a>(setting: *mut c_void) -> &'a Self {
        // SAFETY: the server hands back the pointer that `register` gave it, to an element of a static.
        unsafe { &*setting.cast::<Self>() }
    }
}

/// The start of an argument as it can stand in a log line.
fn printable(argument: &Argument) -> String {
    const MOST: usize = 64;
    argument.as_ref().iter().take(MOST).flat_map(|byte| byte.escape_ascii()).map(char::from).collect()
}

/// Registers the settings with the server's `CONFIG` and takes what its configuration file says of them, which
/// counts more than the arguments. Servers before 7.0 have arguments only.
///
/// # Errors
/// A line that says what the server refused.
pub(super) fn register(context: *mut raw::RedisModuleCtx) -> Result<(), String> {
    // SAFETY: the table of functions was filled before.
    let functions = unsafe { (raw::RedisModule_RegisterEnumConfig, raw::RedisModule_LoadConfigs) };
    let (Some(register_enum), Some(load)) = functions else {
        return Ok(());
    };
    for setting in &SETTINGS {
        let mut names: [*const c_char; 2] = setting.values.map(CStr::as_ptr);
        let numbers: [c_int; 2] = [0, 1];
        let context_data: *const Setting = setting;
        // SAFETY: the context is valid while the module is being loaded, the server copies the names, both
        // arrays have two elements, and the setting is a static.
        let status = unsafe {
            register_enum(
                context,
                setting.name.as_ptr(),
                setting.current.load(Ordering::Relaxed),
                setting.flags as c_uint,
                names.as_mut_ptr(),
                numbers.as_ptr(),
                2,
                Some(get),
                Some(set),
                None,
                context_data.cast_mut().cast(),
            )
        };
        if status != 0 {
            return Err(format!("the server refused the setting '{}'", setting.name.to_string_lossy()));
        }
    }
    // SAFETY: the context is valid while the module is being loaded.
    if unsafe { load(context) } == 0 {
        Ok(())
    } else {
        Err("the server refused the configuration of tokenbucket.*".to_owned())
    }
}

unsafe extern "C" fn get(_name: *const c_char, setting: *mut c_void) -> c_int {
    Setting::of(setting).current.load(Ordering::Relaxed)
}

unsafe extern "C" fn set(
    _name: *const c_char,
    value: c_int,
    setting: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    Setting::of(setting).current.store(value, Ordering::Relaxed);
    0
}
