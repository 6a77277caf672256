//! Lines of words, quotations and brackets, whose fields have fixed places: what the text formats share.

use memchr::{memchr, memchr2};

use super::{Fields, Format};

/// The number of the first token in braces, which do not count otherwise: there may be none.
const BRACES: usize = 100;

/// What a text format is.
pub struct Layout {
    /// Its name in the report.
    pub name: &'static str,
    /// Finds where the numbered tokens begin.
    pub start: fn(&[u8]) -> Option<usize>,
    /// The token in square brackets, which is the time.
    pub time: usize,
    /// The other fields: the number of their token, and behind a point that of a word in it, of a request line the method, the
    /// path or the protocol. Tokens in braces have numbers of their own, from [`BRACES`] on.
    pub fields: &'static str,
}

/// A text format, and its fields that are wanted.
pub struct Text {
    layout: &'static Layout,
    /// Token, word in it, and the number of the field, sorted.
    wanted: Vec<(usize, Option<usize>, usize)>,
}

impl Text {
    /// Reads lines of this layout.
    pub fn format(layout: &'static Layout) -> Option<Box<dyn Format>> {
        Some(Box::new(Self { layout, wanted: Vec::new() }))
    }

    /// Returns the token of a field, and the word in it.
    fn place(&self, name: &str) -> Option<(usize, Option<usize>)> {
        if name == "time" {
            return Some((self.layout.time, None));
        }
        let mut fields = self.layout.fields.split(' ').filter_map(|field| field.split_once('='));
        let place = fields.find(|(field, _)| *field == name)?.1;
        let (token, word) =
            place.split_once('.').map_or((place, None), |(token, word)| (token, word.parse().ok()));
        Some((token.parse().ok()?, word))
    }
}

impl Format for Text {
    fn name(&self) -> &'static str {
        self.layout.name
    }

    fn select(&mut self, names: &[String]) {
        let places = names.iter().zip(0..).filter_map(|(name, number)| {
            let (token, word) = self.place(name)?;
            Some((token, word, number))
        });
        self.wanted = places.collect();
        self.wanted.sort_unstable();
    }

    fn read(&mut self, line: &[u8], fields: &mut Fields) -> bool {
        let Some(start) = (self.layout.start)(line) else { return false };
        let mut rest = line.get(start..).unwrap_or_default();
        let (mut tokens, mut braces, mut wanted) = (0, BRACES, self.wanted.as_slice());
        while !wanted.is_empty() {
            let Some((token, kind)) = next_token(&mut rest) else { break };
            if tokens == self.layout.time && kind != b'[' {
                return false;
            }
            if kind == b'{' {
                let in_braces = wanted.iter().filter(|(place, ..)| *place == braces);
                in_braces.for_each(|(.., number)| fields.set(*number, token));
                braces += 1;
                continue;
            }
            while let Some(((place, word, number), others)) =
                wanted.split_first().filter(|(next, _)| next.0 <= tokens)
            {
                if *place == tokens {
                    fields.set(*number, word.map_or(token, |word| nth_word(token, word)));
                }
                wanted = others;
            }
            tokens += 1;
        }
        true
    }
}

/// Returns a word without a query.
fn nth_word(token: &[u8], number: usize) -> &[u8] {
    let word = token.split(|byte| *byte == b' ').nth(number).unwrap_or_default();
    word.split(|byte| *byte == b'?').next().unwrap_or_default()
}

/// Returns what the next token contains, and the byte with which it began.
fn next_token<'l>(rest: &mut &'l [u8]) -> Option<(&'l [u8], u8)> {
    let text = rest.trim_ascii_start();
    let kind = *text.first()?;
    let (from, to) = match kind {
        b'[' => (1, memchr(b']', text)?),
        b'{' => (1, memchr(b'}', text)?),
        b'"' => (1, end_of_quotation(text)?),
        _ => (0, memchr(b' ', text).unwrap_or(text.len())),
    };
    *rest = text.get(to + from..)?;
    Some((text.get(from..to)?, kind))
}

/// Finds the quotation mark that ends what begins with one; a backslash escapes.
fn end_of_quotation(text: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        at += memchr2(b'"', b'\\', text.get(at..)?)?;
        if text.get(at) == Some(&b'"') {
            return Some(at);
        }
        at += 2;
    }
}
