//! An application to stand behind a proxy.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use axum::http::Uri;
use axum::Router;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// A path at which the application closes the connection without a reply.
pub const FATAL: &str = "/fatal";

/// An application behind a proxy: answers 200 with its name and the body of the request, and counts.
pub struct Backend {
    pub port: u16,
    seen: Arc<AtomicUsize>,
    _runtime: Runtime,
}

impl Backend {
    pub fn start() -> Self {
        let (runtime, seen) = (Runtime::new().expect("threads"), Arc::new(AtomicUsize::new(0)));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let known = seen.clone();
        let reply = async move |uri: Uri, body: String| {
            known.fetch_add(1, Ordering::Relaxed);
            if uri.path() == FATAL {
                std::panic::resume_unwind(Box::new(FATAL));
            }
            ([("X-Tokens-Used", "60000")], format!("from the backend {body}"))
        };
        runtime.spawn(async { axum::serve(listener, Router::new().fallback(reply)).await });
        Self { port, seen, _runtime: runtime }
    }

    /// How many requests reached it.
    pub fn requests(&self) -> usize {
        self.seen.load(Ordering::Relaxed)
    }
}
