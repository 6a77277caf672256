//! Finds the files of limits.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use walkdir::{DirEntry, WalkDir};

use super::file::{File, Mistake};
use super::yaml::MAX_BYTES;

/// Reads every file of a folder and the folders in it, as envoyproxy/ratelimit does; follows links. Sorted by name, with
/// names that begin with a dot last. Ignores pipes, and links to nothing whose names begin with a dot, as editors leave them.
///
/// Reads a file with several paths once: a config map of Kubernetes has each as a link and in a hidden folder.
///
/// # Errors
///
/// `NotFound` without such a folder, else the first file or folder that cannot be read, or link to nothing; a [`Mistake`] inside of `InvalidData` if
/// it is no text.
pub fn read_folder(path: &Path, ignore_dot_files: bool) -> io::Result<Vec<File>> {
    let begins = |entry: &DirEntry, with: &[u8]| entry.file_name().as_encoded_bytes().starts_with(with);
    let mut seen = HashSet::new();
    let is_wanted = |entry: &DirEntry| {
        // Kubernetes keeps the files of a config map behind two dots; those that are meant to be read are links to them.
        let is_ignored = begins(entry, b"..") || ignore_dot_files && begins(entry, b".");
        entry.depth() == 0
            || !is_ignored && fs::canonicalize(entry.path()).is_ok_and(|real| seen.insert(real))
    };
    let walk = WalkDir::new(path)
        .follow_links(true)
        .sort_by_key(move |entry| (begins(entry, b"."), entry.file_name().to_owned()));
    let mut files = Vec::new();
    for entry in walk.into_iter().filter_entry(is_wanted) {
        let is_circle = |error: &walkdir::Error| error.loop_ancestor().is_some();
        match entry {
            Ok(entry) if entry.file_type().is_file() => files.push(read_file(entry.path())),
            Ok(_) => {}
            Err(error) if is_circle(&error) => {}
            Err(error) if error.depth() == 0 => return Err(error.into()),
            Err(error) => files.push(Err(link_to_nothing(&error).unwrap_or_else(|| error.into()))),
        }
    }
    files.into_iter().filter(|file| !is_gone(file)).collect()
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

/// The limits behind it may be meant to stay, and nobody asked for none.
fn link_to_nothing(error: &walkdir::Error) -> Option<io::Error> {
    let is_gone = error.io_error().is_some_and(|why| why.kind() == io::ErrorKind::NotFound);
    let path = error.path().filter(|_| is_gone)?;
    let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    let is_link = !is_hidden && fs::symlink_metadata(path).is_ok_and(|of| of.is_symlink());
    let problem = || format!("{}: a link to nothing", path.display());
    is_link.then(|| io::Error::new(io::ErrorKind::InvalidInput, problem()))
}

/// Removed since its name was read, or a hidden link to nothing.
fn is_gone<T>(read: &io::Result<T>) -> bool {
    matches!(read, Err(error) if error.kind() == io::ErrorKind::NotFound)
}
