//! Random numbers that a failing run can repeat.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

pub struct Random {
    seed: u64,
    stream: fastrand::Rng,
}

impl Drop for Random {
    /// A test that fails prints what repeats it.
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("SEED={}", self.seed);
        }
    }
}

impl Random {
    /// A stream of its own for each `salt`. The environment's `SEED` gives other streams than the usual ones.
    pub fn new(salt: u64) -> Self {
        let seed = super::environment("SEED", 0);
        Self { seed, stream: fastrand::Rng::with_seed(seed ^ salt.rotate_left(32)) }
    }

    /// 0 to `end - 1`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.stream.u64(..end)
    }

    /// `low` to `high`, both included.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        self.stream.i64(low..=high)
    }

    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        self.stream.choice(items).expect("nothing to pick from")
    }

    #[allow(dead_code)] // Only chaos shuffles.
    pub fn shuffled<T: Clone>(&mut self, items: &[T]) -> Vec<T> {
        let mut items = items.to_vec();
        self.stream.shuffle(&mut items);
        items
    }

    /// One of those that a property would try.
    pub fn draw<T: std::fmt::Debug>(&mut self, strategy: &impl Strategy<Value = T>) -> T {
        let random = TestRng::from_seed(RngAlgorithm::ChaCha, &self.bytes(32));
        let mut runner = TestRunner::new_with_rng(Config::default(), random);
        strategy.new_tree(&mut runner).expect("nothing is rejected").current()
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.stream.u8(..)).collect()
    }
}
