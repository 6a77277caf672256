//! The units of periods: milliseconds to days.

/// The unit of a period: `per_second` of them last `seconds`. One of the two is 1.
#[derive(Clone, Copy)]
pub(crate) struct Unit {
    pub(crate) per_second: u64,
    pub(crate) seconds: u64,
}

impl Unit {
    /// Returns the length in microseconds.
    pub(crate) fn us(self) -> u64 {
        self.seconds.saturating_mul(1_000_000).checked_div(self.per_second).unwrap_or(0)
    }
}

pub(crate) const SECOND: Unit = Unit { per_second: 1, seconds: 1 };

#[inline] // Folds into the two multiplications that it is for.
pub(crate) fn unit(name: &[u8]) -> Option<Unit> {
    Some(match name {
        b"ms" => Unit { per_second: 1000, seconds: 1 },
        b"s" => SECOND,
        b"m" => Unit { per_second: 1, seconds: 60 },
        b"h" => Unit { per_second: 1, seconds: 3600 },
        b"d" => Unit { per_second: 1, seconds: 86_400 },
        _ => return None,
    })
}
