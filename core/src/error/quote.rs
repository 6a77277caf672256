//! Quotes arguments in errors.

/// The most bytes of an argument that a line quotes.
pub const MAX_QUOTED: usize = 32;

/// Returns the value in quotation marks, cut to [`MAX_QUOTED`] bytes. `None` if these are not printable ASCII.
pub(super) fn quoted(value: &[u8]) -> Option<String> {
    let shown = value.get(..MAX_QUOTED).unwrap_or(value);
    let text = printable(shown)?;
    let dots = if shown.len() < value.len() { "..." } else { "" };
    Some(format!("'{text}'{dots}"))
}

pub(super) fn printable(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    text.bytes().all(|byte| (b' '..=b'~').contains(&byte)).then_some(text)
}
