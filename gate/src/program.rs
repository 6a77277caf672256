//! Start, signals, end.
