//! A connection that waits for its replies.

use crate::resp::{Batch, Reply};
use anyhow::{bail, Context, Result};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Range;
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

    /// Sends what `write` writes for each number, many in a batch, the next while the server works on the last; an
    /// error reply is an error.
    pub fn pipeline(
        &mut self,
        mut numbers: Range<u64>,
        mut write: impl FnMut(u64, &mut Batch) -> Result<()>,
    ) -> Result<()> {
        const AT_ONCE: usize = 64;
        let mut expected = 0;
        loop {
            let mut batch = Batch::new();
            numbers.by_ref().take(AT_ONCE).try_for_each(|number| write(number, &mut batch))?;
            self.send(&batch)?;
            for _ in 0..expected {
                self.receive()?.checked()?;
            }
            expected = batch.commands();
            if expected == 0 {
                return Ok(());
            }
        }
    }

    /// Microseconds that a call of a command has taken since `CONFIG RESETSTAT`, on average.
    pub fn usec_per_call(&mut self, command: &str) -> Result<f64> {
        // The server writes commands in small letters, and those of modules as they were registered.
        let statistics = self.info("commandstats")?;
        let fields = [command.to_owned(), command.to_lowercase()].into_iter();
        let line = fields.map(|name| format!("cmdstat_{name}")).find_map(|field| statistics.get(&field));
        let line = line.with_context(|| format!("the server has no statistics of {command}"))?;
        // The server's own quotient has two digits behind the point.
        let field = |name: &str| -> Result<f64> {
            let value = line.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
            Ok(value.with_context(|| format!("the statistics lack {name}"))?.parse()?)
        };
        Ok(field("usec")? / field("calls")?)
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
