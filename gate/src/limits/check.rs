//! Judges files without starting.

use std::path::PathBuf;

use super::file;
use super::folder::{read_file, read_folder};
use super::lookup::Place;
use super::yaml::shown;
use super::{Limits, Options};

/// Reads files, and all files of folders. Returns the text to print: the number of limits and notes, or all mistakes, a line each.
///
/// # Errors
///
/// The mistakes of all files, as `file:line: what is wrong`.
pub fn check_files(paths: &[PathBuf], options: &Options, ignore_dot_files: bool) -> Result<String, String> {
    let (mut files, mut problems) = (Vec::new(), String::new());
    for path in paths {
        let found = if path.is_dir() {
            read_folder(path, ignore_dot_files)
        } else {
            read_file(path).map(|file| vec![file])
        };
        match found {
            Ok(found) => files.extend(found),
            Err(error) => problems.push_str(&format!("{error}\n")),
        }
    }
    match file::read(&files, options) {
        Ok(limits) if problems.is_empty() => Ok(format!(
            "ok: {}, {}\n{}",
            counted(limits.count(), "limit"),
            counted(limits.domains.len().saturating_add(limits.namespaces.len()), "domain"),
            notes(&limits)
        )),
        read => {
            let mistakes = read.err().into_iter().flatten().map(|mistake| format!("{mistake}\n"));
            problems.extend(mistakes);
            Err(problems)
        }
    }
}

/// Returns a line for each key that looks like Envoy's name for the caller's address, and is not: no request may have it.
fn notes(limits: &Limits) -> String {
    let mut notes = Vec::new();
    let mut visit = |Place { composite, file, line, .. }: &Place| {
        let rest = composite.trim_start_matches("masked_").strip_prefix("remote_address_");
        // Else it is the value, or the key of another action of Envoy's.
        let is_no_address = |rest: &str| !rest.starts_with("match") && !rest.contains(['.', ':', '*']);
        if rest.is_some_and(is_no_address) || &**composite == "ip" || composite.starts_with("ip_") {
            notes.push(format!(
                "note: {file}:{line}: Envoy sends '{}' only if an action names it; the address of a caller is 'remote_address'\n",
                shown(composite)
            ));
        }
    };
    limits.domains.values().for_each(|domain| domain.level.each_place(&mut visit));
    notes.sort_unstable();
    notes.concat()
}

/// `1 limit`, `2 limits`.
fn counted(count: usize, noun: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{ending}")
}
