//! Several servers that form a cluster.
