//! Reads access logs and shows which rate limit would have denied whom.
//!
//! A request goes through these modules in their order:
//!
//! | module | what it does |
//! |---|---|
//! | [`options`] | the command line |
//! | [`read`] | lines of logs to requests; a file for each format |
//! | [`log`] | all requests, by key and time |
//! | [`table`] | the capacity for each rate at which a part of the keys would have been denied |
//! | [`replay`] | the decisions of given limits, by the module's own arithmetic |
//! | [`report`] | all of it as text, JSON or a page |

pub mod log;
pub mod options;
pub mod read;
pub mod replay;
pub mod report;
pub mod table;
