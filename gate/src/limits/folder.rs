//! Finds the files of limits.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::file::{File, Mistake};
use super::yaml::MAX_BYTES;

/// The deepest nesting of folders; a loop of symbolic links ends earlier.
const MAX_DEPTH: usize = 32;

/// Reads every file of a folder and the folders in it, as envoyproxy/ratelimit does; follows links. Sorted by name, with
/// names that begin with a dot last. Ignores dangling links and pipes.
///
/// Reads a file with several paths once: a config map of Kubernetes has each as a link and in a hidden folder.
///
/// # Errors
///
/// `NotFound` without such a folder, else the first file or folder that cannot be read; a [`Mistake`] inside of `InvalidData` if
/// it is no text.
pub fn read_folder(path: &Path, ignore_dot_files: bool) -> io::Result<Vec<File>> {
    let mut walk = Walk { ignore_dot_files, files: Vec::new(), seen: HashSet::new() };
    walk.folder(path, MAX_DEPTH)?;
    let files = walk.files.iter().map(|path| read_file(path));
    files.filter(|file| !is_gone(file)).collect()
}

/// Reads one file of limits.
///
/// # Errors
///
/// The file cannot be read; a [`Mistake`] inside of `InvalidData` if it is no text.
pub fn read_file(path: &Path) -> io::Result<File> {
    let name = path.display().to_string();
    let bytes = bytes_of(path).map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok(File { name, text }),
        Err(error) => {
            let valid = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
            let line = valid.iter().filter(|byte| **byte == b'\n').count().saturating_add(1);
            let mistake =
                Mistake { file: name, line, problem: "error loading config file: not UTF-8".to_owned() };
            Err(io::Error::new(io::ErrorKind::InvalidData, mistake))
        }
    }
}

/// One byte more than is accepted, at most.
fn bytes_of(path: &Path) -> io::Result<Vec<u8>> {
    // A pipe would keep the reader waiting.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

struct Walk {
    ignore_dot_files: bool,
    files: Vec<PathBuf>,
    /// Files and folders without links.
    seen: HashSet<PathBuf>,
}

impl Walk {
    fn folder(&mut self, folder: &Path, depth: usize) -> io::Result<()> {
        let at = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", folder.display()));
        let depth =
            depth.checked_sub(1).ok_or_else(|| at(io::Error::other("too many folders in folders")))?;
        let mut names = Vec::new();
        for entry in fs::read_dir(folder).map_err(at)? {
            let name = entry.map_err(at)?.file_name();
            let is_hidden = name.as_encoded_bytes().starts_with(b".");
            // Kubernetes keeps the files of a config map there; those that are meant to be read are links to them.
            let is_behind_links = name.as_encoded_bytes().starts_with(b"..");
            let is_ignored = is_behind_links || (is_hidden && self.ignore_dot_files);
            if !is_ignored {
                names.push((is_hidden, name));
            }
        }
        names.sort_unstable();
        for (_, name) in names {
            self.entry(&folder.join(name), depth)?;
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, depth: usize) -> io::Result<()> {
        let at = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let real = fs::canonicalize(path);
        if is_gone(&real) {
            return Ok(());
        }
        let real = real.map_err(at)?;
        let kind = fs::metadata(&real).map_err(at)?;
        if !self.seen.insert(real) {
            return Ok(());
        }
        if kind.is_dir() {
            return self.folder(path, depth);
        }
        if kind.is_file() {
            self.files.push(path.to_owned());
        }
        Ok(())
    }
}

/// Removed since its name was read, or a link to nothing, as editors leave them.
fn is_gone<T>(read: &io::Result<T>) -> bool {
    matches!(read, Err(error) if error.kind() == io::ErrorKind::NotFound)
}
