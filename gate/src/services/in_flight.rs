//! Bounds the memory of all requests together, whatever their number of connections.
//!
//! A small request that arrives at once needs only a place. A large or slow one holds memory too, until its reply. So a
//! flood of unfinished requests leaves places for the requests of proxies.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Bytes;
use axum::http::{HeaderMap, Request};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::codegen::StdError;
use tonic::Status;

/// The most concurrent requests: more than Redis decides within its timeout.
const MOST_REQUESTS: usize = 8_192;

/// Memory that unfinished and large requests hold.
const MOST_BYTES: usize = 64 << 20;

/// The most replies without an end, such as health watches.
const MOST_STREAMS: usize = 1_000;

/// Bytes that an unfinished request holds beside its head and its body. So half of the places stay for requests that arrive at once.
const BYTES_OF_REQUEST: usize = 16 << 10;

/// A head with its body beyond this holds memory even if it arrives at once.
const SMALL_BYTES: usize = 8 << 10;

/// The server and the router copy the method, whose length nothing else bounds.
const COPIES_OF_METHOD: usize = 8;

/// Bytes that a header holds beside its name and value. HTTP/2 sends one in a single byte.
const BYTES_OF_HEADER: usize = 104;

/// Counts what is in flight on all connections.
#[derive(Debug)]
pub struct InFlight {
    requests: AtomicUsize,
    bytes: AtomicUsize,
    streams: Arc<Semaphore>,
}

impl Default for InFlight {
    fn default() -> Self {
        let (requests, bytes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { requests, bytes, streams: Arc::new(Semaphore::new(MOST_STREAMS)) }
    }
}

impl InFlight {
    /// Returns a place for a request, which is refused if there are too many.
    pub(super) fn request(self: &Arc<Self>) -> Arc<Held> {
        let others = self.requests.fetch_add(1, Ordering::Relaxed);
        let is_refused = AtomicBool::new(others >= MOST_REQUESTS);
        Arc::new(Held { of: self.clone(), bytes: AtomicUsize::new(0), is_refused })
    }

    /// Returns whether too many refusals are pending to read from connections.
    pub(super) fn is_crowded(&self) -> bool {
        self.requests.load(Ordering::Relaxed) > 2 * MOST_REQUESTS
    }

    /// Returns a place for a reply without an end; `None` if there are too many.
    pub(super) fn stream(&self) -> Option<OwnedSemaphorePermit> {
        self.streams.clone().try_acquire_owned().ok()
    }
}

/// The place of a request, and the memory that it holds, both released on drop.
#[derive(Debug)]
pub(super) struct Held {
    of: Arc<InFlight>,
    bytes: AtomicUsize,
    is_refused: AtomicBool,
}

impl Held {
    /// Holds more bytes. Returns false if there are too few.
    pub(super) fn hold(&self, bytes: usize) -> bool {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let others = self.of.bytes.fetch_add(bytes, Ordering::Relaxed);
        let has_memory = others.saturating_add(bytes) <= MOST_BYTES;
        if !has_memory {
            self.is_refused.store(true, Ordering::Relaxed);
        }
        has_memory
    }

    /// Returns whether there was no place for it, or no memory.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.of.requests.fetch_sub(1, Ordering::Relaxed);
        self.of.bytes.fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
    }
}

/// Returns the reply to a request for which there is no place or no memory.
pub(super) fn too_many() -> Status {
    Status::resource_exhausted("too many unfinished requests")
}

/// Bytes that arrive. Holds memory for them once they are many, or the rest is late.
#[derive(Debug, Default)]
struct Arrived {
    /// Bytes that are not held yet.
    bytes: usize,
    /// Says that all bytes are held.
    is_holding: bool,
}

impl Arrived {
    /// Returns whether there is memory for these bytes too; `is_late` says that more have to come.
    fn note(&mut self, bytes: usize, is_late: bool, held: impl FnOnce() -> Arc<Held>) -> bool {
        self.bytes = self.bytes.saturating_add(bytes);
        if !self.is_holding && (is_late || self.bytes > SMALL_BYTES) {
            self.is_holding = true;
            self.bytes = self.bytes.saturating_add(BYTES_OF_REQUEST);
        }
        !self.is_holding || self.bytes == 0 || held().hold(std::mem::take(&mut self.bytes))
    }
}

/// The body of a request, with what its head holds. Fails when there is no memory for the rest.
#[derive(Debug)]
pub(super) struct Arriving<B> {
    body: B,
    held: Arc<Held>,
    arrived: Arrived,
}

impl<B> Arriving<B> {
    /// Refuses the request if there is no memory for its head.
    pub(super) fn new(request: Request<B>, held: Arc<Held>) -> Request<Self> {
        let mut arrived = Arrived::default();
        arrived.note(bytes_of_head(&request), false, || held.clone());
        request.map(|body| Self { body, held, arrived })
    }
}

fn bytes_of_head<B>(request: &Request<B>) -> usize {
    let uri = request.uri();
    let path = uri.path_and_query().map_or(0, |path| path.as_str().len());
    let authority = uri.authority().map_or(0, |authority| authority.as_str().len());
    let method = COPIES_OF_METHOD * request.method().as_str().len();
    bytes_of(request.headers()) + path + authority + method
}

fn bytes_of(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + BYTES_OF_HEADER).sum()
}

/// Says whether a connection waits for the head of a request.
pub(super) type WantsHead = Arc<AtomicBool>;

/// The head of a request over HTTP, as its bytes arrive.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) is_wanted: WantsHead,
    in_flight: Arc<InFlight>,
    arrived: Arrived,
    held: Option<Arc<Held>>,
}

impl Head {
    pub(super) fn new(in_flight: Arc<InFlight>) -> Self {
        let (is_wanted, arrived) = (Arc::new(AtomicBool::new(true)), Arrived::default());
        Self { is_wanted, in_flight, arrived, held: None }
    }

    /// Returns whether there is memory for more bytes. Releases that of a head that is complete.
    pub(super) fn note(&mut self, bytes: usize, is_late: bool) -> bool {
        if !self.is_wanted.load(Ordering::Relaxed) {
            (self.arrived, self.held) = (Arrived::default(), None);
            return true;
        }
        let Self { arrived, held, in_flight, .. } = self;
        // A connection that says nothing needs no memory.
        let is_late = is_late && (arrived.bytes > 0 || arrived.is_holding);
        arrived.note(bytes, is_late, || held.get_or_insert_with(|| in_flight.request()).clone())
            && held.as_ref().is_none_or(|held| !held.is_refused())
    }
}

impl<B: Body<Data = Bytes, Error: Into<StdError>> + Unpin> Body for Arriving<B> {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let bytes = match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                frame.data_ref().map_or(0, Bytes::len) + frame.trailers_ref().map_or(0, bytes_of)
            }
            _ => 0,
        };
        let Self { arrived, held, .. } = &mut *self;
        if !arrived.note(bytes, polled.is_pending(), || held.clone()) {
            return Poll::Ready(Some(Err(too_many().into())));
        }
        polled.map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Returns a reply that keeps a place until its end.
pub(super) fn until_end<B: Body>(
    body: B,
    place: OwnedSemaphorePermit,
) -> impl Body<Data = B::Data, Error = B::Error> {
    body.map_frame(move |frame| {
        let _ = &place;
        frame
    })
}

/// Returns a reply that holds memory until it is sent: servers drop a body before they have sent its last bytes.
pub(super) fn until_sent<B: Body<Data = Bytes>>(
    body: B,
    held: Arc<Held>,
) -> impl Body<Data = Bytes, Error = B::Error> {
    body.map_frame(move |frame| {
        frame.map_data(|bytes| Bytes::from_owner(Unsent { bytes, _held: held.clone() }))
    })
}

struct Unsent {
    bytes: Bytes,
    _held: Arc<Held>,
}

impl AsRef<[u8]> for Unsent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
