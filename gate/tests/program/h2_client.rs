//! A client of HTTP/2 that can do what clients of gRPC do not.

use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use tokio::task::JoinHandle;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::Bytes;

use crate::gate::Gate;

/// What precedes a message of 1 MiB.
const PREFIX: [u8; 5] = [0, 0, 16, 0, 0];

/// One connection.
pub struct Client {
    calls: SendRequest<Bytes>,
    connection: JoinHandle<()>,
}

/// A call that is not finished while this lives.
pub struct Unfinished {
    _reply: ResponseFuture,
    _body: SendStream<Bytes>,
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

    /// Begins a call whose message has 1 MiB, of which so many bytes are sent. Nothing if the call is refused.
    pub async fn begin(&self, path: &str, size: usize) -> Option<Unfinished> {
        let mut calls = self.calls.clone().ready().await.ok()?;
        let (reply, mut body) = calls.send_request(call(path), false).ok()?;
        send(&mut body, &[&PREFIX[..], &vec![b'x'; size]].concat()).await?;
        Some(Unfinished { _reply: reply, _body: body })
    }
}

/// Sends a whole message, and returns the status in the head of the reply, where that of a refusal is.
pub async fn status_of(client: &Client, path: &str, message: &[u8]) -> Option<String> {
    let mut calls = client.calls.clone().ready().await.ok()?;
    let (reply, mut body) = calls.send_request(call(path), false).ok()?;
    let length = u32::try_from(message.len()).expect("a message").to_be_bytes();
    send(&mut body, &[&[0][..], &length, message].concat()).await?;
    body.send_data(Bytes::new(), true).ok()?;
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
