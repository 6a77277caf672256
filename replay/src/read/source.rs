//! Logs as lines, decompressed.

use std::fs::{metadata, File};
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use indicatif::{ProgressBar, ProgressStyle};

/// The longest line that is read, in bytes.
pub const MAX_LINE: usize = 1 << 20;

/// The lines of a source.
pub struct Lines<R> {
    source: BufReader<R>,
    line: Vec<u8>,
}

impl<R: Read> Lines<R> {
    /// Reads the lines of `source`.
    pub fn new(source: R) -> Self {
        Self { source: BufReader::with_capacity(1 << 16, source), line: Vec::new() }
    }

    /// Returns the next line without its end, or `None` after the last. One that is longer than [`MAX_LINE`] is cut one byte
    /// behind it.
    pub fn next(&mut self) -> io::Result<Option<&[u8]>> {
        self.line.clear();
        let read = self.source.by_ref().take(MAX_LINE as u64 + 1).read_until(b'\n', &mut self.line)?;
        let line = match self.line.strip_suffix(b"\n") {
            Some(line) => line.strip_suffix(b"\r").unwrap_or(line),
            None => {
                if read > MAX_LINE {
                    self.source.skip_until(b'\n')?;
                }
                &self.line
            }
        };
        Ok((read > 0).then_some(line))
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
