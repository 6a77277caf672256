//! The descriptors of an HTTP request, for proxies that call over HTTP.
//!
//! | module | |
//! |---|---|
//! | `file` | reads the file of rules |
//! | `forwarded` | the request of a proxy's caller |
//! | `rule` | from a forwarded request to descriptors |
//! | `pattern` | `*` and `{name}` in paths and hosts |
//! | `reply` | status and headers |

mod file;
mod forwarded;
mod pattern;
mod reply;
mod rule;

use std::net::IpAddr;

use axum::http::HeaderMap;
use axum::response::Response;

use crate::decide::Decider;
use crate::limits::Limits;
pub use rule::Rules;

/// Answers `/check`: decides on the request that these headers describe. `peer` is the calling proxy.
///
/// Path, query, method and host of the carrying request are the proxy's own, and are ignored.
pub async fn answer(
    rules: &Rules,
    limits: Option<&Limits>,
    decider: &Decider,
    headers: &HeaderMap,
    peer: Option<IpAddr>,
) -> Response {
    let request = rules.request(headers, peer);
    // The decider refuses a request without descriptors. Here it has no limit.
    if request.descriptors.is_empty() {
        return reply::allowed();
    }
    match decider.decide_now(limits, &request).await {
        Ok(response) => reply::decided(limits, &request, &response, rules.denied_status),
        Err(refusal) => reply::refused(&refusal),
    }
}
