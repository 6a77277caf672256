//! A client of HTTP/2 that can do what clients of gRPC do not.

use std::collections::HashSet;
use std::io::{Read, Write};

use futures_util::FutureExt;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use tokio::task::JoinHandle;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::Bytes;

use crate::flood::SHOULD_RATE_LIMIT;
use crate::gate::{connect, Gate, PATIENCE};

/// The head of a call to [`SHOULD_RATE_LIMIT`], as of HPACK: its path has 60 bytes.
const HEAD: [&[u8]; 3] =
    [b"\x83\x86\x04\x3c", SHOULD_RATE_LIMIT.as_bytes(), b"\x01\x04gate\x0f\x10\x10application/grpc"];

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const LAST: u8 = 1;
const END_OF_HEAD: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a frame").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Writes the first bytes of a connection in one go, as Envoy does: calls that it cancels, and others. Returns how many of these are
/// answered.
pub fn answered_at_once(gate: &Gate, cancelled: u32, calls: u32, message: &[u8]) -> usize {
    let message = prefixed(message);
    let settings = frame(SETTINGS, 0, 0, &[]);
    let window = frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 24).to_be_bytes());
    let begun = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &settings[..], &window].concat();
    let sent = (0..cancelled + calls).flat_map(|number| {
        let stream = 2 * number + 1;
        let end = if number < cancelled {
            frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())
        } else {
            frame(DATA, LAST, stream, &message)
        };
        [frame(HEADERS, END_OF_HEAD, stream, &HEAD.concat()), end].concat()
    });
    let mut connection = connect(gate.grpc);
    connection.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    connection.write_all(&begun.into_iter().chain(sent).collect::<Vec<_>>()).expect("a connection");
    let mut answered = HashSet::new();
    while answered.len() < calls as usize {
        let mut head = [0; 9];
        if connection.read_exact(&mut head).is_err() || head[3] == GOAWAY || head[3] == RST_STREAM {
            break;
        }
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        connection.read_exact(&mut payload).expect("a frame");
        if head[3] == HEADERS {
            answered.insert([head[5], head[6], head[7], head[8]]);
        }
    }
    answered.len()
}

/// A message as gRPC sends it.
fn prefixed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("a message").to_be_bytes();
    [&[0][..], &length, message].concat()
}

/// What precedes a message of 1 MiB.
const PREFIX: [u8; 5] = [0, 0, 16, 0, 0];

/// One connection.
pub struct Client {
    calls: SendRequest<Bytes>,
    connection: JoinHandle<()>,
}

/// A call that is not finished while this lives.
pub struct Unfinished {
    reply: ResponseFuture,
    _body: SendStream<Bytes>,
}

impl Unfinished {
    /// Returns the status in the head of the reply, if it has come.
    pub fn status(self) -> Option<String> {
        let reply = self.reply.now_or_never()?.ok()?;
        Some(reply.headers().get("grpc-status")?.to_str().ok()?.to_owned())
    }
}

impl Client {
    pub async fn connect(gate: &Gate) -> Self {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", gate.grpc)).await.expect("a connection");
        let (calls, connection) = h2::client::handshake(stream).await.expect("a connection");
        let connection = tokio::spawn(async move {
            let _ = connection.await;
        });
        Self { calls, connection }
    }

    /// Returns whether it takes new calls.
    pub async fn is_open(&self) -> bool {
        self.calls.clone().ready().await.is_ok()
    }

    /// Begins a call with a head of so many bytes, whose message has 1 MiB, of which so many bytes are sent. Nothing if the call is
    /// refused.
    pub async fn begin(&self, path: &str, head: usize, size: usize) -> Option<Unfinished> {
        let mut calls = self.calls.clone().ready().await.ok()?;
        let mut call = call(path);
        call.headers_mut().insert("tracestate", "x".repeat(head).parse().expect("a header"));
        let (reply, mut body) = calls.send_request(call, false).ok()?;
        send(&mut body, &[&PREFIX[..], &vec![b'x'; size]].concat()).await?;
        Some(Unfinished { reply, _body: body })
    }
}

/// Sends a whole message, and returns the status in the head of the reply, where that of a refusal is.
pub async fn status_of(client: &Client, path: &str, message: &[u8]) -> Option<String> {
    let mut calls = client.calls.clone().ready().await.ok()?;
    let (reply, mut body) = calls.send_request(call(path), false).ok()?;
    send(&mut body, &prefixed(message)).await?;
    // Refused by what has arrived, perhaps.
    let _ = body.send_data(Bytes::new(), true);
    let reply = reply.await.ok()?;
    Some(reply.headers().get("grpc-status")?.to_str().ok()?.to_owned())
}

impl Drop for Client {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// Watches the health.
pub async fn watch(client: &Client) -> Response<RecvStream> {
    let mut calls = client.calls.clone().ready().await.expect("a connection");
    let (reply, mut body) = calls.send_request(call("/grpc.health.v1.Health/Watch"), false).expect("a call");
    body.send_data(Bytes::from_static(&[0; 5]), true).expect("a call");
    reply.await.expect("a reply")
}

fn call(path: &str) -> Request<()> {
    let request = Request::post(format!("http://gate{path}")).header("content-type", "application/grpc");
    request.body(()).expect("a request")
}

/// Sends as fast as the gate reads.
async fn send(body: &mut SendStream<Bytes>, mut bytes: &[u8]) -> Option<()> {
    while !bytes.is_empty() {
        body.reserve_capacity(bytes.len());
        let capacity = std::future::poll_fn(|cx| body.poll_capacity(cx)).await?.ok()?;
        let (now, later) = bytes.split_at(capacity);
        body.send_data(Bytes::copy_from_slice(now), false).ok()?;
        bytes = later;
    }
    Some(())
}
