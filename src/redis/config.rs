//! Sets the settings: `loadmodule` arguments everywhere, `tokenbucket.*` in the server's configuration from 7.0 on.

use super::call::Argument;
use super::denials;
use super::settings::{Kind, Setting, SETTINGS};
use redis_module::raw;
use std::ffi::{c_char, c_int, c_longlong, c_uint, c_void, CStr};
use std::ptr;
use std::sync::atomic::Ordering;

/// Reads the arguments of `loadmodule`: pairs of a setting and its value, with or without the module's name in front, in
/// any case.
///
/// # Errors
/// A line that names the argument.
pub(super) fn read_arguments(arguments: &[Argument]) -> Result<(), String> {
    for pair in arguments.chunks(2) {
        if let [name, value @ ..] = pair {
            read_setting(name, value.first())?;
        }
    }
    Ok(())
}

fn read_setting(name: &Argument, value: Option<&Argument>) -> Result<(), String> {
    let setting = find(name.as_ref()).ok_or_else(|| {
        let known: Vec<_> = SETTINGS.iter().map(|setting| setting.name.to_string_lossy()).collect();
        format!("unknown argument '{}', use one of {}", printable(name), known.join(", "))
    })?;
    let value = value.ok_or_else(|| format!("argument '{}' needs a value", printable(name)))?;
    let number = setting.kind.read(value.as_ref()).ok_or_else(|| {
        let values = setting.kind.describe();
        format!("argument '{}' must be {values}, not '{}'", printable(name), printable(value))
    })?;
    setting.set(number);
    Ok(())
}

fn find(name: &[u8]) -> Option<&'static Setting> {
    const PREFIX: &[u8] = b"tokenbucket.";
    let name = name.to_ascii_lowercase();
    let name = name.strip_prefix(PREFIX).unwrap_or(&name);
    SETTINGS.into_iter().find(|setting| setting.name.to_bytes() == name)
}

impl Setting {
    fn of<'a>(setting: *mut c_void) -> &'a Self {
        // SAFETY: the server hands back the pointer that `register` gave it, to a static.
        unsafe { &*setting.cast::<Self>() }
    }

    fn set(&self, number: i64) {
        self.current.store(number, Ordering::Relaxed);
    }
}

/// Returns the start of an argument, escaped for a log line.
fn printable(argument: &Argument) -> String {
    const MOST: usize = 64;
    argument.as_ref().iter().take(MOST).flat_map(|byte| byte.escape_ascii()).map(char::from).collect()
}

/// Registers the settings with the server's `CONFIG` and reads its configuration file, which overrides the arguments.
/// Servers before 7.0 have arguments only.
///
/// # Errors
/// A line that names what the server refused.
pub(super) fn register(context: *mut raw::RedisModuleCtx) -> Result<(), String> {
    // SAFETY: the table of functions was filled before.
    let Some(load) = (unsafe { raw::RedisModule_LoadConfigs }) else {
        return Ok(());
    };
    for setting in SETTINGS {
        if register_one(context, setting) != Some(0) {
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

/// Registers a setting. Returns the server's status: 0 for success.
fn register_one(context: *mut raw::RedisModuleCtx, setting: &'static Setting) -> Option<c_int> {
    let name = setting.name.as_ptr();
    let current = setting.current();
    let flags = setting.flags as c_uint;
    let own = ptr::from_ref(setting).cast_mut().cast();
    // SAFETY: the context is valid while the module is being loaded, the server copies the names, both arrays have two
    // elements, and the setting is a static.
    unsafe {
        match setting.kind {
            Kind::Choice(words) => {
                let mut words: [*const c_char; 2] = words.map(CStr::as_ptr);
                let numbers: [c_int; 2] = [0, 1];
                let (words, numbers) = (words.as_mut_ptr(), numbers.as_ptr());
                let current = c_int::try_from(current).ok()?;
                let register = raw::RedisModule_RegisterEnumConfig?;
                let (get, set) = (Some(get_choice as _), Some(set_choice as _));
                Some(register(context, name, current, flags, words, numbers, 2, get, set, None, own))
            }
            Kind::Whole { min, max } => {
                let register = raw::RedisModule_RegisterNumericConfig?;
                let (get, set) = (Some(get_whole as _), Some(set_whole as _));
                Some(register(context, name, current, flags, min, max, get, set, Some(apply), own))
            }
        }
    }
}

unsafe extern "C" fn get_choice(_name: *const c_char, setting: *mut c_void) -> c_int {
    c_int::try_from(Setting::of(setting).current()).unwrap_or(0)
}

unsafe extern "C" fn set_choice(
    _name: *const c_char,
    value: c_int,
    setting: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    Setting::of(setting).set(value.into());
    0
}

unsafe extern "C" fn get_whole(_name: *const c_char, setting: *mut c_void) -> c_longlong {
    Setting::of(setting).current()
}

unsafe extern "C" fn set_whole(
    _name: *const c_char,
    value: c_longlong,
    setting: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    Setting::of(setting).set(value);
    0
}

/// Applies the settings of a `CONFIG SET` that has accepted all of them. One that fails sets the old values again.
unsafe extern "C" fn apply(
    _context: *mut raw::RedisModuleCtx,
    _setting: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    denials::follow_setting();
    0
}
