//! Judges files without starting.

use std::path::PathBuf;

use super::file;
use super::folder::{read_file, read_folder};
use super::Options;

/// Reads files, and all files of folders. Returns the text to print: the number of limits, or all mistakes, a line each.
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
            "ok: {}, {}\n",
            counted(limits.count(), "limit"),
            counted(limits.domains.len().saturating_add(limits.namespaces.len()), "domain")
        )),
        read => {
            let mistakes = read.err().into_iter().flatten().map(|mistake| format!("{mistake}\n"));
            problems.extend(mistakes);
            Err(problems)
        }
    }
}

/// `1 limit`, `2 limits`.
fn counted(count: usize, noun: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{ending}")
}
