//! A connection that waits for its replies.

use crate::resp::{Batch, Reply};
use anyhow::{bail, Context, Result};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// How long a healthy server may take for anything asked here.
const PATIENCE: Duration = Duration::from_secs(120);

/// One client of a server.
pub struct Connection {
    stream: TcpStream,
    unread: Vec<u8>,
    read_to: usize,
}

impl Connection {
    pub fn open(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream, unread: Vec::new(), read_to: 0 })
    }

    /// Sends one command, given as words; an error reply is an error.
    pub fn say(&mut self, words: &str) -> Result<Reply> {
        self.ask(&words.split_whitespace().collect::<Vec<_>>()).with_context(|| format!("'{words}' failed"))
    }

    /// Sends one command; an error reply is an error.
    pub fn ask<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> Result<Reply> {
        let mut batch = Batch::new();
        batch.push(arguments);
        self.send(&batch)?;
        self.receive()?.checked()
    }

    /// Sends a batch and hands each reply to `check`.
    pub fn exchange(&mut self, batch: &Batch, mut check: impl FnMut(&Reply) -> Result<()>) -> Result<()> {
        self.send(batch)?;
        for _ in 0..batch.commands() {
            check(&self.receive()?)?;
        }
        Ok(())
    }

    pub fn send(&mut self, batch: &Batch) -> Result<()> {
        Ok(self.stream.write_all(batch.bytes())?)
    }

    /// The next reply, which may be an error of the server.
    pub fn receive(&mut self) -> Result<Reply> {
        loop {
            if let Some((reply, used)) = Reply::parse(&self.unread[self.read_to..])? {
                self.read_to += used;
                return Ok(reply);
            }
            self.read_more()?;
        }
    }

    fn read_more(&mut self) -> Result<()> {
        const CHUNK: usize = 64 * 1024;
        self.unread.drain(..self.read_to);
        self.read_to = 0;
        let held = self.unread.len();
        self.unread.resize(held + CHUNK, 0);
        let read = self.stream.read(&mut self.unread[held..]).context("waiting for the server")?;
        self.unread.truncate(held + read);
        if read == 0 {
            bail!("the server closed the connection");
        }
        Ok(())
    }

    /// The fields of a section of `INFO`.
    pub fn info(&mut self, section: &str) -> Result<Info> {
        let report = self.ask(&["INFO", section])?.text()?;
        let fields = report.lines().filter_map(|line| line.split_once(':'));
        Ok(Info(fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()))
    }
}

/// A section of `INFO`.
pub struct Info(HashMap<String, String>);

impl Info {
    pub fn text(&self, field: &str) -> Result<&str> {
        self.get(field).with_context(|| format!("INFO has no field {field}"))
    }

    pub fn get(&self, field: &str) -> Option<&str> {
        self.0.get(field).map(String::as_str)
    }

    pub fn number(&self, field: &str) -> Result<f64> {
        Ok(self.text(field)?.parse()?)
    }
}
