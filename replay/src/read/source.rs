//! Logs as lines, decompressed.

use std::fs::{metadata, File};
use std::io::{self, BufRead, BufReader, Cursor, ErrorKind, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use indicatif::{ProgressBar, ProgressStyle};
use memchr::memchr;
use regex::bytes::Regex;

/// The longest line that is read, in bytes.
pub const MAX_LINE: usize = 1 << 20;

/// The lines of a source, or its objects of JSON, which may take several lines.
pub struct Lines<R> {
    source: BufReader<R>,
    line: Vec<u8>,
    are_objects: bool,
    /// The number of the line that was read, or in which the object ends.
    number: u64,
}

impl<R: Read> Lines<R> {
    /// Reads the lines of `source`, or the objects of JSON if `first`, its first bytes, begin an array or a longer object.
    pub fn new(first: &[u8], source: R) -> Self {
        let begins = Regex::new(r"^\s*(?:\[\s*\{|\{\s*\n)");
        let are_objects = begins.is_ok_and(|begins| begins.is_match(first));
        Self { source: BufReader::with_capacity(1 << 16, source), line: Vec::new(), are_objects, number: 0 }
    }

    /// Returns the number of the next line, and the line without its end, or `None` after the last. One that is longer than
    /// [`MAX_LINE`] is cut one byte behind it.
    pub fn next(&mut self) -> io::Result<Option<(u64, &[u8])>> {
        self.line.clear();
        if self.are_objects {
            return self.next_object();
        }
        self.number += 1;
        let buffered = self.source.buffer();
        let read = if let Some(line) = memchr(b'\n', buffered).and_then(|end| buffered.get(..=end)) {
            // A third of the time that the standard library needs.
            self.line.extend_from_slice(line);
            self.source.consume(self.line.len());
            self.line.len()
        } else {
            self.source.by_ref().take(MAX_LINE as u64 + 1).read_until(b'\n', &mut self.line)?
        };
        let line = match self.line.strip_suffix(b"\n") {
            Some(line) => line.strip_suffix(b"\r").unwrap_or(line),
            None => {
                if read > MAX_LINE {
                    self.source.skip_until(b'\n')?;
                }
                &self.line
            }
        };
        Ok((read > 0).then_some((self.number, line)))
    }

    /// Returns the next object, and skips what is between objects.
    fn next_object(&mut self) -> io::Result<Option<(u64, &[u8])>> {
        let (mut depth, mut in_string, mut is_escaped) = (0u64, false, false);
        self.number = self.number.max(1);
        for byte in self.source.by_ref().bytes() {
            let byte = byte?;
            self.number += u64::from(byte == b'\n');
            match byte {
                _ if is_escaped => is_escaped = false,
                _ if depth == 0 && byte != b'{' => continue,
                b'\\' => is_escaped = in_string,
                b'"' => in_string = !in_string,
                b'{' if !in_string => depth += 1,
                b'}' if !in_string => depth -= 1,
                _ => {}
            }
            if self.line.len() <= MAX_LINE {
                self.line.push(byte);
            }
            if depth == 0 && byte == b'}' {
                return Ok(Some((self.number, &self.line)));
            }
        }
        if depth == 0 {
            return Ok(None);
        }
        // What follows an object without an end would be lost in it.
        Err(io::Error::new(ErrorKind::UnexpectedEof, "the last object of JSON has no end"))
    }
}

/// Opens a log, and decompresses gzip and zstd, which the first bytes tell.
pub fn open(path: &Path, bar: &ProgressBar) -> io::Result<Box<dyn Read>> {
    let source: Box<dyn Read> =
        if path.as_os_str() == "-" { Box::new(io::stdin()) } else { Box::new(File::open(path)?) };
    let (magic, source) = begin(bar.wrap_read(source), 4)?;
    Ok(match magic.as_slice() {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(source)),
        [0x28, 0xb5, 0x2f, 0xfd] => Box::new(zstd::Decoder::new(source)?),
        _ => Box::new(source),
    })
}

/// Returns the first bytes of a source, and all of it.
pub fn begin(mut source: impl Read, count: u64) -> io::Result<(Vec<u8>, impl Read)> {
    let mut first = Vec::new();
    source.by_ref().take(count).read_to_end(&mut first)?;
    Ok((first.clone(), Cursor::new(first).chain(source)))
}

/// Returns a bar over the bytes of all files, or a counter if their size is unknown. It hides itself off a terminal.
pub fn progress(files: &[PathBuf]) -> ProgressBar {
    let size = |path| metadata(path).ok().filter(std::fs::Metadata::is_file).map(|data| data.len());
    let total: Option<u64> = files.iter().map(size).sum();
    let template = match total {
        Some(_) => "{bar:40} {bytes} of {total_bytes}, {eta} left",
        None => "{spinner} {bytes} in {elapsed}",
    };
    let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    ProgressStyle::with_template(template).map(|style| bar.clone().with_style(style)).unwrap_or(bar)
}
