//! Just enough HTTP to stand before a proxy, and behind it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// A reply.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: String,
}

impl Reply {
    /// A header by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn number(&self, name: &str) -> Option<u64> {
        self.header(name)?.split(',').next()?.trim().parse().ok()
    }
}

pub fn get(port: u16, path: &str, headers: &[(&str, &str)]) -> Reply {
    ask(port, "GET", path, headers, "")
}

/// Asks on a connection of its own. A refused or broken connection is a reply with status 0.
pub fn ask(port: u16, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
    exchange(port, method, path, headers, body).unwrap_or_default()
}

fn exchange(port: u16, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Option<Reply> {
    let connection = TcpStream::connect(("127.0.0.1", port)).ok()?;
    connection.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: edge.example\r\nConnection: close\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    text += &format!("Content-Length: {}\r\n\r\n{body}", body.len());
    // Latin-1: a test can send every byte.
    let bytes: Vec<u8> = text.chars().map(|char| char as u8).collect();
    (&connection).write_all(&bytes).ok()?;
    let mut replies = BufReader::new(connection);
    let (first, headers) = head(&mut replies)?;
    let status = first.split(' ').nth(1)?.parse().ok()?;
    let mut body = Vec::new();
    // A proxy that ends the connection hard has sent all the same.
    let _ = replies.read_to_end(&mut body);
    Some(Reply { status, headers, body: String::from_utf8_lossy(&body).into_owned() })
}

type Head = (String, Vec<(String, String)>);

/// The first line, and the headers with their names in lower case.
fn head(from: &mut impl BufRead) -> Option<Head> {
    let mut lines = from.lines().map_while(Result::ok).take_while(|line| !line.is_empty());
    let first = lines.next()?;
    let header = |line: String| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_owned()))
    };
    Some((first, lines.filter_map(header).collect()))
}

/// An application behind a proxy: answers 200 with its name and the body of the request, and counts.
pub struct Backend {
    pub port: u16,
    seen: Arc<AtomicUsize>,
}

impl Backend {
    pub fn start(name: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let seen = Arc::new(AtomicUsize::new(0));
        let known = seen.clone();
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let known = known.clone();
                std::thread::spawn(move || while serve(&connection, name, &known).is_some() {});
            }
        });
        Self { port, seen }
    }

    /// How many requests reached it.
    pub fn requests(&self) -> usize {
        self.seen.load(Ordering::Relaxed)
    }
}

fn serve(connection: &TcpStream, name: &str, seen: &AtomicUsize) -> Option<()> {
    let mut requests = BufReader::new(connection);
    let (_, headers) = head(&mut requests)?;
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length: usize = length.map_or(0, |(_, value)| value.parse().unwrap_or(0));
    let mut body = vec![0; length];
    requests.read_exact(&mut body).ok()?;
    seen.fetch_add(1, Ordering::Relaxed);
    let body = format!("{name} {}", String::from_utf8_lossy(&body));
    let reply =
        format!("HTTP/1.1 200 OK\r\nX-Tokens-Used: 60000\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let mut connection = connection;
    connection.write_all(reply.as_bytes()).ok()
}
