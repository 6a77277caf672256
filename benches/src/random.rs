//! Random numbers that are the same in every run.

/// A stream of numbers that a seed decides (splitmix64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// 0 to `end - 1`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// `len` different numbers from 0 to `end - 1`.
    pub fn distinct(&mut self, len: usize, end: u64) -> Vec<u64> {
        let mut chosen = Vec::with_capacity(len);
        while chosen.len() < len {
            let number = self.below(end);
            if !chosen.contains(&number) {
                chosen.push(number);
            }
        }
        chosen
    }
}
