//! A client that decides, over a connection of its own.
//!
//! The parser of the `redis` crate takes 490 ns for a decision, an eighth of what a server takes to make it, and the one
//! used here 150. With that one, pipelined calls would measure the client.

use crate::template::{add, Limit};
use redis::{FromRedisValue, Pipeline, RedisResult, Value};
use redis_protocol::resp2::decode::decode;
use redis_protocol::resp2::types::OwnedFrame;
use std::future::Future;
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Lets clients run, on this thread alone.
pub fn block_on<T>(clients: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // Who is ready goes on, however many were ready before.
    runtime.block_on(tokio::task::unconstrained(clients))
}

/// What a client knows of a bucket.
#[derive(Default)]
pub struct Memory {
    /// Tokens that it was granted and has not spent.
    pub unspent: i64,
    /// Before that, a take is denied.
    pub denied_until: Option<Instant>,
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

    /// Sends one command, and reads its reply.
    pub async fn ask_for<T: FromRedisValue>(&mut self, text: &str, key: &str) -> RedisResult<T> {
        let reply = self.ask(&[text], key).await?.remove(0);
        Ok(redis::from_redis_value(reply)?)
    }

    /// Sends a command with places left open, whose reply nobody waits for.
    pub async fn send(&mut self, text: &str, key: &str) {
        let mut batch = Pipeline::new();
        add(&mut batch, text, self.limit, "", || key.to_owned());
        self.stream.write_all(&batch.get_packed_pipeline()).await.expect("the server reads");
    }

    /// Sends commands as they are, and waits for the replies.
    pub async fn exchange(&mut self, packed: &[u8], commands: usize) -> Vec<Value> {
        self.sent += commands as u64;
        self.stream.write_all(packed).await.expect("the server reads");
        let (mut replies, mut used) = (Vec::with_capacity(commands), 0);
        while replies.len() < commands {
            if let Some((reply, len)) = decode(&self.unread[used..]).expect("the server sends replies") {
                replies.push(value(reply));
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

fn value(reply: OwnedFrame) -> Value {
    match reply {
        OwnedFrame::SimpleString(text) => Value::SimpleString(String::from_utf8(text).unwrap()),
        OwnedFrame::Error(line) => redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap(),
        OwnedFrame::Integer(integer) => Value::Int(integer),
        OwnedFrame::BulkString(bytes) => Value::BulkString(bytes),
        OwnedFrame::Array(elements) => Value::Array(elements.into_iter().map(value).collect()),
        OwnedFrame::Null => Value::Nil,
    }
}
