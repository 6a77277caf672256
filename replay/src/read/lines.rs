//! Lines of a source, decompressed.

use std::io::{self, BufRead, BufReader, Cursor, Read};

use flate2::read::MultiGzDecoder;

/// The longest line that is read, in bytes.
const MAX_LINE: u64 = 1 << 20;

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

    /// Returns the next line without its end, or `None` after the last; in it, `None` for one of more than 1 MiB.
    ///
    /// # Errors
    /// Those of the source.
    pub fn next(&mut self) -> io::Result<Option<Option<&[u8]>>> {
        self.line.clear();
        let read = self.source.by_ref().take(MAX_LINE).read_until(b'\n', &mut self.line)?;
        let line = match self.line.strip_suffix(b"\n") {
            None if read as u64 == MAX_LINE => {
                self.source.skip_until(b'\n')?;
                return Ok(Some(None));
            }
            None => self.line.as_slice(),
            Some(line) => line,
        };
        Ok((read > 0).then(|| Some(line.strip_suffix(b"\r").unwrap_or(line))))
    }
}

/// Decompresses gzip and zstd, which the first bytes tell; anything else stays as it is.
///
/// # Errors
/// Those of the source.
pub fn decompressed<'a>(source: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let (magic, source) = begin(source, 4)?;
    Ok(match magic.as_slice() {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(source)),
        [0x28, 0xb5, 0x2f, 0xfd] => Box::new(zstd::Decoder::new(source)?),
        _ => Box::new(source),
    })
}

/// Returns the first bytes of a source, and all of it.
///
/// # Errors
/// Those of the source.
pub fn begin(mut source: impl Read, count: u64) -> io::Result<(Vec<u8>, impl Read)> {
    let mut first = Vec::new();
    source.by_ref().take(count).read_to_end(&mut first)?;
    Ok((first.clone(), Cursor::new(first).chain(source)))
}
