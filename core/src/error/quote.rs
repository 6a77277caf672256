//! Quoting what a client has sent.

/// The most bytes of a call that a line quotes.
pub const MAX_QUOTED: usize = 32;

/// Returns the value in quotation marks, cut to [`MAX_QUOTED`] bytes. `None` if these are not printable ASCII.
pub(super) fn quoted(value: &[u8]) -> Option<String> {
    let is_printable = |byte: &u8| (b' '..=b'~').contains(byte);
    let shown = value.get(..MAX_QUOTED).unwrap_or(value);
    let text = std::str::from_utf8(shown).ok().filter(|_| shown.iter().all(is_printable))?;
    let dots = if shown.len() < value.len() { "..." } else { "" };
    Some(format!("'{text}'{dots}"))
}
