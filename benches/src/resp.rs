//! The servers' protocol: commands to bytes, bytes to replies.

use anyhow::{bail, Context, Result};

/// Commands that are sent together.
#[derive(Default)]
pub struct Batch {
    bytes: Vec<u8>,
    commands: usize,
}

impl Batch {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a command.
    pub fn push<A: AsRef<[u8]>>(
        &mut self,
        arguments: impl IntoIterator<Item = A, IntoIter: ExactSizeIterator>,
    ) {
        let arguments = arguments.into_iter();
        self.header(b'*', arguments.len());
        for argument in arguments {
            self.argument(argument.as_ref());
        }
        self.commands += 1;
    }

    fn argument(&mut self, argument: &[u8]) {
        self.header(b'$', argument.len());
        self.bytes.extend_from_slice(argument);
        self.bytes.extend_from_slice(b"\r\n");
    }

    fn header(&mut self, kind: u8, len: usize) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(len.to_string().as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many replies it asks for.
    pub fn commands(&self) -> usize {
        self.commands
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.commands = 0;
    }
}

/// What a server answers, in RESP2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Status(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Array(Vec<Reply>),
    Nil,
}

impl Reply {
    /// The reply at the start of `bytes` and its length, or `None` if it has not arrived whole.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>> {
        let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") else { return Ok(None) };
        let line = std::str::from_utf8(&bytes[1..end])?;
        let after = end + 2;
        Ok(match bytes[0] {
            b'+' => Some((Self::Status(line.to_owned()), after)),
            b'-' => Some((Self::Error(line.to_owned()), after)),
            b':' => Some((Self::Integer(line.parse()?), after)),
            b'$' | b'*' if line == "-1" => Some((Self::Nil, after)),
            b'$' => parse_bulk(bytes, after, line.parse()?),
            b'*' => parse_array(bytes, after, line.parse()?)?,
            kind => bail!("the server sent '{}', which starts no reply", kind.escape_ascii()),
        })
    }

    /// The integer that it is, or reads as.
    pub fn integer(&self) -> Result<i64> {
        match self {
            Self::Integer(value) => Ok(*value),
            Self::Bulk(digits) => {
                std::str::from_utf8(digits)?.parse().with_context(|| format!("{self:?} is no integer"))
            }
            other => bail!("{other:?} is no integer"),
        }
    }

    /// The text that it is.
    pub fn text(&self) -> Result<String> {
        match self {
            Self::Status(text) => Ok(text.clone()),
            Self::Bulk(bytes) => Ok(String::from_utf8_lossy(bytes).into_owned()),
            other => bail!("{other:?} is no text"),
        }
    }

    /// The elements of an array.
    pub fn elements(&self) -> Result<&[Reply]> {
        match self {
            Self::Array(elements) => Ok(elements),
            other => bail!("{other:?} is no array"),
        }
    }

    /// Itself, unless it is an error.
    pub fn checked(self) -> Result<Self> {
        match self {
            Self::Error(text) => bail!("the server replied '{text}'"),
            other => Ok(other),
        }
    }
}

fn parse_bulk(bytes: &[u8], start: usize, len: usize) -> Option<(Reply, usize)> {
    let content = bytes.get(start..start + len + 2)?;
    Some((Reply::Bulk(content[..len].to_vec()), start + len + 2))
}

fn parse_array(bytes: &[u8], start: usize, len: usize) -> Result<Option<(Reply, usize)>> {
    let mut elements = Vec::with_capacity(len.min(64));
    let mut at = start;
    for _ in 0..len {
        let Some((element, used)) = Reply::parse(&bytes[at..])? else { return Ok(None) };
        elements.push(element);
        at += used;
    }
    Ok(Some((Reply::Array(elements), at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_an_array_of_bulk_strings() {
        let mut batch = Batch::new();
        batch.push(["GET", "user:1"]);
        assert_eq!(batch.bytes(), b"*2\r\n$3\r\nGET\r\n$6\r\nuser:1\r\n");
        assert_eq!(batch.commands(), 1);
    }

    #[test]
    fn a_reply_is_read_once_it_is_whole() {
        let bytes = b"*4\r\n:-1\r\n$2\r\nab\r\n$-1\r\n*1\r\n+OK\r\nrest";
        let whole = bytes.len() - "rest".len();
        for cut in 0..whole {
            assert_eq!(Reply::parse(&bytes[..cut]).unwrap(), None, "{cut}");
        }
        let expected = Reply::Array(vec![
            Reply::Integer(-1),
            Reply::Bulk(b"ab".to_vec()),
            Reply::Nil,
            Reply::Array(vec![Reply::Status("OK".to_owned())]),
        ]);
        assert_eq!(Reply::parse(bytes).unwrap(), Some((expected, whole)));
    }
}
