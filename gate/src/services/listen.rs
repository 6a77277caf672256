//! Accepts connections, few enough to serve all of them.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::listen;
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::{mpsc, OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, sleep_until, timeout, Instant, Sleep};
use tonic::transport::server::Connected;

use super::in_flight::{Head, InFlight, WantsHead};
use super::tls::Tls;

/// The time for a TLS handshake.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);

/// Open connections of one listener, if there are files enough.
const MOST_CONNECTIONS: u64 = 10_000;

/// File descriptors for everything else: Redis, files that are read, and listeners with few connections.
const OTHER_FILES: u64 = 200;

/// Connections of a port that wait to be accepted: as many as proxies open in a burst, and the kernel's
/// `net.core.somaxconn` at most. One too many comes in a second later, for which no proxy waits.
const BACKLOG: i32 = 4_096;

/// Returns the most connections of each of the two listeners for proxies. Raises the limit of open files as far as this
/// process may: the default is often 1,024, for programs that use select.
pub fn most_connections() -> usize {
    let mut limits = getrlimit(Resource::Nofile);
    if setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits }).is_ok() {
        limits = getrlimit(Resource::Nofile);
    }
    let files = limits.current.unwrap_or(u64::MAX).saturating_sub(OTHER_FILES) / 2;
    usize::try_from(files.clamp(16, MOST_CONNECTIONS)).unwrap_or(usize::MAX)
}

/// Without free file descriptors accepting fails at once: waits for some to be closed.
const AFTER_FAILED_ACCEPT: Duration = Duration::from_millis(50);

#[derive(Clone, Debug)]
pub struct Terms {
    /// The most connections at a time; others are closed at once.
    pub most: usize,
    /// A connection is closed after a silence of one to two of these.
    pub idle: Duration,
    /// The age at which connections are closed, even active ones.
    pub last: Option<Duration>,
    /// Pauses reading while too many refusals are pending.
    pub in_flight: Arc<InFlight>,
    /// Holds memory for heads of requests: of HTTP/1, since HTTP/2 bounds its own.
    pub bounds_heads: bool,
}

/// A port or a Unix socket.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// The file of a Unix socket, removed on drop.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Replaces the backlog of 128 that Tokio asks for. A Unix socket has the kernel's bound.
fn with_backlog(listener: TcpListener) -> io::Result<TcpListener> {
    listen(&listener, BACKLOG)?;
    Ok(listener)
}

impl Listener {
    /// Listens on a port, without a host on all addresses. `variable` names the setting in errors.
    ///
    /// # Errors
    ///
    /// One line that names address and variable.
    pub async fn tcp(host: &str, port: u16, variable: &str) -> Result<Self, String> {
        let host = if host.is_empty() { "0.0.0.0" } else { host };
        let listener = TcpListener::bind((host, port)).await.and_then(with_backlog);
        listener
            .map(Self::Tcp)
            .map_err(|error| format!("cannot listen on {host}:{port} ({variable}): {error}"))
    }

    /// Listens on a Unix socket. Replaces the file of a program that is gone.
    ///
    /// # Errors
    ///
    /// One line that names path and variable.
    pub async fn unix(path: &str, variable: &str) -> Result<Self, String> {
        let path = Path::new(path);
        let is_left_over =
            UnixStream::connect(path).await.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
        if is_left_over {
            let _ = std::fs::remove_file(path);
        }
        let listener = UnixListener::bind(path);
        listener
            .map(|listener| Self::Unix(listener, SocketFile(path.to_owned())))
            .map_err(|error| format!("cannot listen on {} ({variable}): {error}", path.display()))
    }

    /// Logs where it listens.
    pub fn announced(self, name: &str) -> Self {
        log::info!("listens for {name} on {}", self.address());
        self
    }

    fn address(&self) -> String {
        match self {
            Self::Tcp(listener) => {
                listener.local_addr().as_ref().map(SocketAddr::to_string).unwrap_or_default()
            }
            Self::Unix(_, file) => file.0.display().to_string(),
        }
    }

    /// A Unix socket has no address of the other end.
    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Option<IpAddr>)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                // Replies are small, and clients wait for them.
                let _ = stream.set_nodelay(true);
                Ok((Box::new(stream), Some(address.ip())))
            }
            Self::Unix(listener, _) => Ok((Box::new(listener.accept().await?.0), None)),
        }
    }

    /// Accepts connections until the receiver is dropped.
    pub fn connections(self, tls: Option<Arc<Tls>>, terms: Terms) -> mpsc::Receiver<io::Result<Connection>> {
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            let places = Arc::new(Semaphore::new(terms.most));
            loop {
                let accepted = tokio::select! {
                    accepted = self.accept() => accepted,
                    () = sender.closed() => return,
                };
                match (accepted, places.clone().try_acquire_owned()) {
                    (Ok((stream, peer)), Ok(place)) => {
                        let (terms, tls, sender) = (terms.clone(), tls.clone(), sender.clone());
                        // In a task of its own: a slow client must not block the others.
                        tokio::spawn(hand_over(stream, peer, place, terms, tls, sender));
                    }
                    (Ok(_), Err(_)) => {
                        log::debug!("closed a connection: {} are open on {}", terms.most, self.address())
                    }
                    (Err(error), _) => {
                        log::debug!("cannot accept on {}: {error}", self.address());
                        sleep(AFTER_FAILED_ACCEPT).await;
                    }
                }
            }
        });
        receiver
    }
}

/// Hands over a connection that can be read: with TLS after its handshake.
async fn hand_over(
    stream: Box<dyn Stream>,
    peer: Option<IpAddr>,
    place: OwnedSemaphorePermit,
    terms: Terms,
    tls: Option<Arc<Tls>>,
    sender: mpsc::Sender<io::Result<Connection>>,
) {
    let stream = match tls.filter(|_| peer.is_some()) {
        None => stream,
        Some(tls) => match timeout(HANDSHAKE_WITHIN, tls.accept(stream)).await {
            Ok(Ok(stream)) => Box::new(stream),
            Ok(Err(error)) => return log::debug!("TLS handshake with {peer:?}: {error}"),
            Err(_) => return log::debug!("TLS handshake with {peer:?}: too slow"),
        },
    };
    let end = End::new(&terms);
    let head = terms.bounds_heads.then(|| Head::new(terms.in_flight.clone()));
    let connection = Connection { stream, peer, end, in_flight: terms.in_flight, head, _place: place };
    let _ = sender.send(Ok(connection)).await;
}

#[derive(Debug)]
pub struct Connection {
    stream: Box<dyn Stream>,
    peer: Option<IpAddr>,
    end: End,
    in_flight: Arc<InFlight>,
    head: Option<Head>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    /// Returns a flag that says whether it waits for the head of a request.
    pub(super) fn wants_head(&self) -> WantsHead {
        self.head.as_ref().map(|head| head.is_wanted.clone()).unwrap_or_default()
    }
}

/// When a connection is closed: nothing came from the client lately, or it is too old. Costs a read no more than a flag.
#[derive(Debug)]
struct End {
    idle: Duration,
    last: Option<Instant>,
    has_read: bool,
    look: Pin<Box<Sleep>>,
}

impl End {
    fn new(terms: &Terms) -> Self {
        let last = terms.last.and_then(|age| Instant::now().checked_add(age));
        Self { idle: terms.idle, last, has_read: false, look: Box::pin(next_look(terms.idle, last)) }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.look.as_mut().poll(cx).is_ready() {
            let is_too_old = self.last.is_some_and(|last| last <= Instant::now());
            if is_too_old || !std::mem::take(&mut self.has_read) {
                return Poll::Ready(());
            }
            self.look.set(next_look(self.idle, self.last));
        }
        Poll::Pending
    }
}

fn next_look(idle: Duration, last: Option<Instant>) -> Sleep {
    let look = Instant::now().checked_add(idle);
    look.into_iter().chain(last).min().map_or_else(|| sleep(idle), sleep_until)
}

trait Stream: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin> Stream for S {}

/// Returns the address of the other end, which a Unix socket does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub Option<IpAddr>);

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        Peer(self.peer)
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.in_flight.is_crowded() {
            // Waits until pending refusals are sent.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        let bytes = buf.filled().len().saturating_sub(before);
        if self.head.as_mut().is_some_and(|head| !head.note(bytes, polled.is_pending())) {
            return Poll::Ready(Err(io::Error::other("too many unfinished requests")));
        }
        match polled {
            Poll::Ready(read) => {
                self.end.has_read = true;
                Poll::Ready(read)
            }
            Poll::Pending => self.end.poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into())),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
