use faer::traits::RealField;
use std::convert::identity;
use std::ops::{Add, Div, Mul, Sub};
use xla_ffi::half::{bf16, f16};
use xla_ffi::Element;

/// The type of a handler's elements, which it computes in `W`.
pub(crate) trait Scalar<W: Work>: Element {
    /// The same value.
    fn widen(self) -> W;

    /// The nearest value.
    fn narrow(value: W) -> Self;
}

/// A type to compute in.
pub(crate) trait Work:
    RealField + Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    const ZERO: Self;
    const ONE: Self;
    const NAN: Self;
    /// Numbers between 2^-SAFE_EXPONENT and 2^SAFE_EXPONENT have squares that neither vanish nor overflow, and
    /// neither do sums of millions of them.
    const SAFE_EXPONENT: i32;

    fn abs(self) -> Self;
    fn is_finite(self) -> bool;

    /// The largest e with 2^e ≤ |self|, or nearly so; of a number other than 0.
    fn exponent(self) -> i32;

    /// self · 2^exponent, which may be far from 1.
    fn times_power_of_two(self, exponent: i32) -> Self;
}

macro_rules! work {
    ($($type:ty: $safe_exponent:literal,)*) => {
        $(
            impl Work for $type {
                const ZERO: Self = 0.0;
                const ONE: Self = 1.0;
                const NAN: Self = <$type>::NAN;
                const SAFE_EXPONENT: i32 = $safe_exponent;

                fn abs(self) -> Self {
                    <$type>::abs(self)
                }

                fn is_finite(self) -> bool {
                    <$type>::is_finite(self)
                }

                fn exponent(self) -> i32 {
                    f64::from(self).abs().log2().floor() as i32
                }

                fn times_power_of_two(self, exponent: i32) -> Self {
                    // 2^exponent itself need not be a number of the type, where the product is one.
                    let half = exponent / 2;
                    let two: $type = 2.0;
                    self * two.powi(half) * two.powi(exponent - half)
                }
            }
        )*
    };
}

work! {
    f32: 50,
    f64: 500,
}

macro_rules! scalars {
    ($($type:ty, computed in $work:ty: $widen:expr, $narrow:expr;)*) => {
        $(
            impl Scalar<$work> for $type {
                fn widen(self) -> $work {
                    $widen(self)
                }

                fn narrow(value: $work) -> Self {
                    $narrow(value)
                }
            }
        )*
    };
}

scalars! {
    f32, computed in f32: identity, identity;
    f64, computed in f64: identity, identity;
    f32, computed in f64: f64::from, |value| value as f32;
    f16, computed in f32: f16::to_f32, f16::from_f32;
    bf16, computed in f32: bf16::to_f32, bf16::from_f32;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_two_at_the_ends_of_the_range() {
        for exponent in [-149, -126, -1, 0, 1, 127] {
            let power = 1f32.times_power_of_two(exponent);
            assert!(power > 0.0 && power.is_finite(), "2^{exponent}");
            assert_eq!(Work::exponent(power), exponent);
            assert_eq!(power.times_power_of_two(-exponent), 1.0);
        }
        for exponent in [-1074, -1022, -1, 0, 1, 1023] {
            let power = 1f64.times_power_of_two(exponent);
            assert!(power > 0.0 && power.is_finite(), "2^{exponent}");
            assert_eq!(Work::exponent(power), exponent);
            assert_eq!(power.times_power_of_two(-exponent), 1.0);
        }
    }
}
