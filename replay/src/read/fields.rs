//! The values that were found in a line.

use std::ops::Range;

/// The values of the wanted fields of one line.
#[derive(Default)]
pub struct Fields {
    bytes: Vec<u8>,
    /// Where the values are; nowhere if they are empty.
    places: Vec<Range<u32>>,
}

impl Fields {
    /// Forgets all values, for a line of `count` wanted fields.
    pub fn clear(&mut self, count: usize) {
        self.bytes.clear();
        self.places.clear();
        self.places.resize(count, 0..0);
    }

    /// Sets a value. The first one counts, and `-` is none.
    pub fn set(&mut self, number: usize, value: &[u8]) {
        if let Some(place) =
            self.places.get_mut(number).filter(|place| place.start == place.end && value != b"-")
        {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(value);
            // A line has at most 1 MiB, and there are few fields.
            *place = start as u32..self.bytes.len() as u32;
        }
    }

    /// Returns a value.
    #[must_use]
    pub fn get(&self, number: usize) -> Option<&[u8]> {
        let place = self.places.get(number).filter(|place| place.start < place.end)?;
        self.bytes.get(place.start as usize..place.end as usize)
    }
}
