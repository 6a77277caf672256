//! A client that decides, over a connection of its own.
//!
//! It reads replies by itself: the parser of the `redis` crate takes 500 ns for a decision, a seventh of what a server
//! takes to make it, and this one 80. With that one, pipelined calls would measure the client.

use crate::approaches::Memory;
use crate::template::{add, Limit};
use redis::{FromRedisValue, Pipeline, RedisResult, Value};
use std::future::Future;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Lets clients run, on this thread alone.
pub fn block_on<T>(clients: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // Who is ready goes on, however many were ready before.
    runtime.block_on(tokio::task::unconstrained(clients))
}

pub struct Client {
    stream: TcpStream,
    unread: Vec<u8>,
    pub limit: Limit,
    number: usize,
    /// Decisions begun: with the number of the client, an id that no other decision has.
    pub decisions: u64,
    /// What it knows of its bucket, where it decides by itself: then it has one.
    pub memory: Memory,
    pub sent: u64,
    /// Decisions begun once more because another was faster.
    pub retries: u64,
}

impl Client {
    pub async fn open(port: u16, number: usize, limit: Limit) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("the server accepts");
        stream.set_nodelay(true).unwrap();
        let (unread, memory) = (Vec::with_capacity(16 * 1024), Memory::default());
        Self { stream, unread, limit, number, decisions: 0, memory, sent: 0, retries: 0 }
    }

    /// Sends commands with places left open, each text several of them, and waits for the replies.
    pub async fn ask(&mut self, texts: &[&str], key: &str) -> RedisResult<Vec<Value>> {
        let (mut batch, id) = (Pipeline::new(), format!("{}:{}", self.number, self.decisions));
        texts.iter().for_each(|text| add(&mut batch, text, self.limit, &id, || key.to_owned()));
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let replies = self.exchange(&batch.get_packed_pipeline(), batch.len()).await;
        replies.into_iter().map(Value::extract_error).collect()
    }

    /// The same of one command, whose reply is read.
    pub async fn ask_for<T: FromRedisValue>(&mut self, text: &str, key: &str) -> RedisResult<T> {
        let reply = self.ask(&[text], key).await?.remove(0);
        Ok(redis::from_redis_value(reply)?)
    }

    /// Sends commands as they are, and waits for the replies.
    pub async fn exchange(&mut self, packed: &[u8], commands: usize) -> Vec<Value> {
        self.sent += commands as u64;
        self.stream.write_all(packed).await.expect("the server reads");
        let (mut replies, mut used) = (Vec::with_capacity(commands), 0);
        while replies.len() < commands {
            if let Some((reply, len)) = parse(&self.unread[used..]) {
                replies.push(reply);
                used += len;
            } else {
                let read = self.stream.read_buf(&mut self.unread).await.expect("the server replies");
                assert!(read > 0, "the server closed the connection");
            }
        }
        self.unread.clear();
        replies
    }
}

/// The reply at the start of `bytes` and its length, or `None` if it has not arrived whole.
fn parse(bytes: &[u8]) -> Option<(Value, usize)> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")?;
    let (line, after) = (std::str::from_utf8(&bytes[1..end]).unwrap(), end + 2);
    Some(match bytes[0] {
        b'+' => (Value::SimpleString(line.to_owned()), after),
        b':' => (Value::Int(line.parse().unwrap()), after),
        b'-' => (redis::parse_redis_value(&bytes[..after]).unwrap(), after),
        b'$' | b'*' if line == "-1" => (Value::Nil, after),
        b'$' => {
            let end = after + line.parse::<usize>().unwrap();
            bytes.get(..end + 2)?;
            (Value::BulkString(bytes[after..end].to_vec()), end + 2)
        }
        b'*' => {
            let (mut elements, mut at) = (Vec::new(), after);
            for _ in 0..line.parse::<usize>().unwrap() {
                let (element, len) = parse(&bytes[at..])?;
                elements.push(element);
                at += len;
            }
            (Value::Array(elements), at)
        }
        kind => panic!("the server sent '{}', which starts no reply", kind.escape_ascii()),
    })
}

#[test]
fn a_reply_is_read_once_it_is_whole() {
    let bytes = b"*4\r\n:-1\r\n$2\r\nab\r\n$-1\r\n*1\r\n+OK\r\nrest";
    let whole = bytes.len() - "rest".len();
    for cut in 0..whole {
        assert_eq!(parse(&bytes[..cut]), None, "{cut}");
    }
    let status = Value::Array(vec![Value::SimpleString("OK".to_owned())]);
    let elements = vec![Value::Int(-1), Value::BulkString(b"ab".to_vec()), Value::Nil, status];
    assert_eq!(parse(bytes), Some((Value::Array(elements), whole)));
}
