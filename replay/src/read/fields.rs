//! The values that were found in a line.

use std::ops::Range;

/// The values of the wanted fields of one line.
#[derive(Default)]
pub struct Fields {
    bytes: Vec<u8>,
    places: Vec<Option<Range<usize>>>,
}

impl Fields {
    /// Forgets all values, for a line of `count` wanted fields.
    pub fn clear(&mut self, count: usize) {
        self.bytes.clear();
        self.places.clear();
        self.places.resize(count, None);
    }

    /// Sets a value. The first one counts, and `-` is none.
    pub fn set(&mut self, number: usize, value: &[u8]) {
        if let Some(place @ None) = self.places.get_mut(number) {
            if !value.is_empty() && value != b"-" {
                *place = Some(self.bytes.len()..self.bytes.len() + value.len());
                self.bytes.extend_from_slice(value);
            }
        }
    }

    /// Returns a value.
    #[must_use]
    pub fn get(&self, number: usize) -> Option<&[u8]> {
        self.bytes.get(self.places.get(number)?.clone()?)
    }
}
