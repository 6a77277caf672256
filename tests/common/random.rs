//! Random numbers that a failing run can repeat.

/// A stream of numbers that a seed decides (splitmix64).
pub struct Random(u64);

impl Random {
    /// A stream of its own for each `salt`. The environment's `SEED` gives other streams than the usual ones;
    /// the seed is printed, and a test that fails shows what it printed.
    pub fn new(salt: u64) -> Self {
        let seed = std::env::var("SEED").map_or(0, |seed| seed.parse().expect("SEED must be a whole number"));
        println!("SEED={seed}");
        Self(seed ^ salt.rotate_left(32))
    }

    pub fn next(&mut self) -> u64 {
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

    /// `low` to `high`, both included.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        low + i64::try_from(self.below(high.abs_diff(low) + 1)).unwrap()
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of several.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[usize::try_from(self.below(items.len() as u64)).unwrap()]
    }

    /// Any bytes, `len` of them.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next().to_le_bytes()[0]).collect()
    }
}
