//! An application to stand behind a proxy.

use std::io::{BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use crate::gate::head;

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
