//! Which descriptors an HTTP request has, for proxies that ask over HTTP.
