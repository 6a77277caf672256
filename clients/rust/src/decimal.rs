//! Decimal numbers as the server reads them.

/// `digits` times ten to the power of `exponent`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decimal {
    digits: u128,
    exponent: i32,
}

impl Decimal {
    pub(crate) const ONE: Self = Self { digits: 1, exponent: 0 };

    /// `10`, `0.5`, `1e3`, `+.5`; None for anything else, and for more digits than anybody means.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('+').unwrap_or(text);
        let (mantissa, power) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{whole}{fraction}");
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let exponent = power.parse::<i32>().ok()?.checked_sub(fraction.len().try_into().ok()?)?;
        Some(Self { digits: digits.parse().ok()?, exponent }.without_trailing_zeros())
    }

    fn without_trailing_zeros(mut self) -> Self {
        while self.digits > 0 && self.digits.is_multiple_of(10) {
            self.digits /= 10;
            self.exponent += 1;
        }
        self
    }

    pub(crate) fn is_zero(self) -> bool {
        self.digits == 0
    }

    /// More of a rate's digits may be dropped.
    pub(crate) fn with_12_digits(mut self) -> Self {
        while self.digits >= 1_000_000_000_000 {
            self.digits /= 10;
            self.exponent += 1;
        }
        self
    }

    /// Itself times ten to `power`, rounded as told.
    pub(crate) fn times_10_to(self, power: i32, rounds_up: bool) -> Option<u128> {
        let exponent = self.exponent.checked_add(power)?;
        let factor = 10_u128.checked_pow(exponent.unsigned_abs());
        match (self.digits, factor) {
            (0, _) => Some(0),
            (digits, Some(factor)) if exponent >= 0 => digits.checked_mul(factor),
            (digits, Some(factor)) if rounds_up => Some(digits.div_ceil(factor)),
            (digits, Some(factor)) => Some(digits / factor),
            (_, None) if exponent >= 0 => None,
            (_, None) => Some(u128::from(rounds_up)),
        }
    }

    /// In millionths. What is within 10^-12 of a whole number of them is that number: so floats are what they were meant
    /// to be.
    pub(crate) fn millionths(self, rounds_up: bool) -> Option<u128> {
        let (below, above) = (self.times_10_to(12, false)?, self.times_10_to(12, true)?);
        let (whole, rest) = (below / 1_000_000, below % 1_000_000);
        let is_more = above - whole * 1_000_000 > 1;
        Some(if rest == 999_999 || (rounds_up && is_more) { whole + 1 } else { whole })
    }

    /// Itself over another, as a ratio of whole numbers.
    pub(crate) fn over(self, other: Self) -> Option<(u128, u128)> {
        let exponent = self.exponent.checked_sub(other.exponent)?;
        if self.is_zero() {
            return Some((0, 1));
        }
        let factor = 10_u128.checked_pow(exponent.unsigned_abs())?;
        if exponent >= 0 {
            Some((self.digits.checked_mul(factor)?, other.digits))
        } else {
            Some((self.digits, other.digits.checked_mul(factor)?))
        }
    }
}
