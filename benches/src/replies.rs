//! Replies as they arrive, without waiting for them.
//!
//! The parser of the `redis` crate takes 500 ns for a decision, a seventh of what a server takes to make it, and this
//! one 80: with that one, pipelined calls would measure the client.

use anyhow::{bail, Context, Result};
use redis::Value;
use std::io::{ErrorKind, Read};

/// What has been read of a connection and not yet been understood.
#[derive(Default)]
pub struct Replies {
    unread: Vec<u8>,
    used: usize,
}

impl Replies {
    /// Reads once what has come; whether there may be more.
    pub fn receive(&mut self, stream: &mut impl Read) -> Result<bool> {
        const CHUNK: usize = 16 * 1024;
        self.unread.drain(..self.used);
        self.used = 0;
        let held = self.unread.len();
        self.unread.resize(held + CHUNK, 0);
        let read = stream.read(&mut self.unread[held..]);
        self.unread.truncate(held + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => bail!("the server closed the connection"),
            Ok(read) => Ok(read == CHUNK),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error).context("reading from the server"),
        }
    }

    /// The next reply, if it has come whole.
    pub fn next(&mut self) -> Result<Option<Value>> {
        let parsed = parse(&self.unread[self.used..])?;
        Ok(parsed.map(|(reply, len)| {
            self.used += len;
            reply
        }))
    }
}

/// The reply at the start of `bytes` and its length, or `None` if it has not arrived whole.
fn parse(bytes: &[u8]) -> Result<Option<(Value, usize)>> {
    let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") else { return Ok(None) };
    let (line, after) = (std::str::from_utf8(&bytes[1..end])?, end + 2);
    Ok(match bytes[0] {
        b'+' => Some((Value::SimpleString(line.to_owned()), after)),
        b':' => Some((Value::Int(line.parse()?), after)),
        b'-' => Some((redis::parse_redis_value(&bytes[..after])?, after)),
        b'$' | b'*' if line == "-1" => Some((Value::Nil, after)),
        b'$' => {
            let end = after + line.parse::<usize>()?;
            let content = bytes.get(..end + 2).map(|_| bytes[after..end].to_vec());
            content.map(|content| (Value::BulkString(content), end + 2))
        }
        b'*' => {
            let (mut elements, mut at) = (Vec::new(), after);
            for _ in 0..line.parse::<usize>()? {
                let Some((element, len)) = parse(&bytes[at..])? else { return Ok(None) };
                elements.push(element);
                at += len;
            }
            Some((Value::Array(elements), at))
        }
        kind => bail!("the server sent '{}', which starts no reply", kind.escape_ascii()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_read_once_it_is_whole() {
        let bytes = b"*4\r\n:-1\r\n$2\r\nab\r\n$-1\r\n*1\r\n+OK\r\nrest";
        let whole = bytes.len() - "rest".len();
        for cut in 0..whole {
            assert_eq!(parse(&bytes[..cut]).unwrap(), None, "{cut}");
        }
        let status = Value::Array(vec![Value::SimpleString("OK".to_owned())]);
        let elements = vec![Value::Int(-1), Value::BulkString(b"ab".to_vec()), Value::Nil, status];
        assert_eq!(parse(bytes).unwrap(), Some((Value::Array(elements), whole)));
    }
}
