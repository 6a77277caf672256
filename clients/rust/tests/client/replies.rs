//! Servers in this process, whose replies a test makes up.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{TcpListener, TcpStream};

pub enum Reply {
    /// At once. An empty one leaves the command without a reply.
    Text(String),
    Late(Duration, String),
    /// Neither to this command nor to those that follow it on the connection.
    Never,
    /// Ends the connection.
    Cut,
}

/// Starts a server, which replies by the number of the connection and the name of the command, or "reset" when a client has
/// reset the connection. Returns its URL.
pub async fn serve(reply: impl FnMut(usize, &str) -> Reply + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let reply = Arc::new(Mutex::new(reply));
    tokio::spawn(async move {
        for number in 0.. {
            let (stream, reply) = (listener.accept().await.unwrap().0, reply.clone());
            tokio::spawn(answer(stream, move |command| reply.lock().unwrap()(number, command)));
        }
    });
    url
}

async fn answer(mut stream: TcpStream, mut reply: impl FnMut(&str) -> Reply) {
    let mut buffer = [0; 65536];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        let text = String::from_utf8_lossy(&buffer[..count]);
        for command in text.split('*').filter_map(|words| words.split("\r\n").nth(2)) {
            let text = match reply(command) {
                Reply::Text(text) => text,
                Reply::Late(by, text) => {
                    tokio::time::sleep(by).await;
                    text
                }
                Reply::Never => pending().await,
                Reply::Cut => return,
            };
            let _ = stream.write_all(text.as_bytes()).await;
        }
    }
    if stream.ready(Interest::ERROR).await.is_ok() {
        reply("reset");
    }
}
