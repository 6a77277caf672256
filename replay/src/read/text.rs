//! Lines of words, quotations and brackets, whose fields have fixed places: what the text formats share.

use memchr::{memchr, memchr2};

use super::{Fields, Format};

/// Where a field is.
#[derive(Clone, Copy)]
pub enum Place {
    /// The word, quotation or bracket of this number, from 0.
    Token(usize),
    /// A word of that token: of a request line, the method, the path or the protocol.
    Word(usize, usize),
}

/// The number of the first token in braces, which do not count otherwise: there may be none.
pub const BRACES: usize = 100;

/// What a text format is.
pub struct Layout {
    /// Its name in the report.
    pub name: &'static str,
    /// Finds where the numbered tokens begin.
    pub start: fn(&[u8]) -> Option<usize>,
    /// The token in square brackets, which is the time.
    pub time: usize,
    /// The other fields.
    pub fields: &'static [(&'static str, Place)],
}

/// A text format, and its fields that are wanted.
pub struct Text {
    layout: &'static Layout,
    /// Sorted by token.
    wanted: Vec<(Place, usize)>,
}

impl Text {
    /// Reads lines of this layout.
    pub fn format(layout: &'static Layout) -> Option<Box<dyn Format>> {
        Some(Box::new(Self { layout, wanted: Vec::new() }))
    }

    fn place(&self, name: &str) -> Option<Place> {
        let time = (name == "time").then_some(Place::Token(self.layout.time));
        time.or_else(|| Some(self.layout.fields.iter().find(|(field, _)| *field == name)?.1))
    }
}

impl Format for Text {
    fn name(&self) -> &'static str {
        self.layout.name
    }

    fn select(&mut self, names: &[String]) {
        let places = names.iter().enumerate().filter_map(|(number, name)| Some((self.place(name)?, number)));
        self.wanted = places.collect();
        self.wanted.sort_by_key(|(place, _)| token_of(*place));
    }

    fn read(&mut self, line: &[u8], fields: &mut Fields) -> bool {
        let Some(start) = (self.layout.start)(line) else { return false };
        let mut rest = line.get(start..).unwrap_or_default();
        let (mut tokens, mut braces, mut wanted) = (0, BRACES, self.wanted.as_slice());
        while !wanted.is_empty() {
            let Some((token, kind)) = next_token(&mut rest) else { break };
            let counter = if kind == b'{' { &mut braces } else { &mut tokens };
            if *counter == self.layout.time && kind != b'[' {
                return false;
            }
            while let Some(((place, number), others)) = wanted.split_first() {
                match token_of(*place).cmp(counter) {
                    std::cmp::Ordering::Less => {}
                    std::cmp::Ordering::Equal => fields.set(*number, part(token, *place)),
                    std::cmp::Ordering::Greater => break,
                }
                wanted = others;
            }
            *counter += 1;
        }
        true
    }
}

fn token_of(place: Place) -> usize {
    match place {
        Place::Token(token) | Place::Word(token, _) => token,
    }
}

fn part(token: &[u8], place: Place) -> &[u8] {
    match place {
        Place::Token(_) => token,
        Place::Word(_, number) => {
            let word = token.split(|byte| *byte == b' ').nth(number).unwrap_or_default();
            word.split(|byte| *byte == b'?').next().unwrap_or_default()
        }
    }
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
