//! What the tests compare with: matrices of `f64`, plain loops, and numbers that look random.

use xla_ffi::half::{bf16, f16};
use xla_ffi::sys::Handler;
use xla_ffi::testing::Frame;
use xla_ffi::{Element, Result};

/// An element type, as the tests see it.
pub(crate) trait Real: Element {
    const EPSILON: f64;
    /// How far a decomposition may be from its operand, relative to it, before its results are rounded.
    const TOLERANCE: f64;
    const QR: Handler;
    const LU: Handler;

    fn to_f64(self) -> f64;
    fn of(value: f64) -> Self;

    /// How far a product of two results, with `k` elements in each sum, may be from what it should be, relative to
    /// the product of their absolute values.
    ///
    /// Each element of the results is off by ε/2 of itself, if rounded from `f32`, so each product of two by ε of
    /// itself; of what the sums of such products then are off by, Cauchy and Schwarz leave √k ε of the norms.
    fn tolerance(k: usize) -> f64 {
        let rounded = if size_of::<Self>() == 2 {
            Self::EPSILON * (k as f64).sqrt()
        } else {
            0.0
        };
        Self::TOLERANCE + rounded
    }
}

macro_rules! reals {
    ($($type:ident: $epsilon:expr, $tolerance:literal, $of:ident;)*) => {
        $(
            impl Real for $type {
                const EPSILON: f64 = $epsilon;
                const TOLERANCE: f64 = $tolerance;
                const QR: Handler = handlers::$type::QR;
                const LU: Handler = handlers::$type::LU;

                fn to_f64(self) -> f64 {
                    self.into()
                }

                fn of(value: f64) -> Self {
                    $of(value)
                }
            }
        )*
    };
}

mod handlers {
    macro_rules! handlers {
        ($($type:ident: $qr:ident, $lu:ident;)*) => {
            $(
                pub(crate) mod $type {
                    use xla_ffi::sys::Handler;
                    pub(crate) const QR: Handler = crate::$qr;
                    pub(crate) const LU: Handler = crate::$lu;
                }
            )*
        };
    }

    handlers! {
        f32: qr_cpu_custom_call_f32, lu_cpu_custom_call_f32;
        f64: qr_cpu_custom_call_f64, lu_cpu_custom_call_f64;
        f16: qr_cpu_custom_call_f16, lu_cpu_custom_call_f16;
        bf16: qr_cpu_custom_call_bf16, lu_cpu_custom_call_bf16;
    }
}

fn f32_of(value: f64) -> f32 {
    value as f32
}

fn f64_of(value: f64) -> f64 {
    value
}

fn f16_of(value: f64) -> f16 {
    f16::from_f64(value)
}

fn bf16_of(value: f64) -> bf16 {
    bf16::from_f64(value)
}

reals! {
    f32: f32::EPSILON as f64, 1e-5, f32_of;
    f64: f64::EPSILON, 1e-12, f64_of;
    f16: 0.0009765625, 1e-5, f16_of;
    bf16: 0.0078125, 1e-5, bf16_of;
}

/// Runs the test for each of the types.
macro_rules! for_each_type {
    ($test:ident in $($type:ty),*) => {
        $($test::<$type>();)*
    };
}
pub(crate) use for_each_type;

/// Calls a handler of this crate.
pub(crate) fn call(frame: &mut Frame, handler: Handler) -> Result<()> {
    // SAFETY: all handlers of this crate are made by `export!`.
    unsafe { frame.call(handler) }
}

/// The message with which a handler of this crate refuses the frame.
pub(crate) fn refusal(mut frame: Frame, handler: Handler) -> String {
    call(&mut frame, handler).unwrap_err().to_string()
}

/// A row-major matrix.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Matrix {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) values: Vec<f64>,
}

impl Matrix {
    pub(crate) fn from_fn(
        rows: usize,
        columns: usize,
        mut value: impl FnMut(usize, usize) -> f64,
    ) -> Self {
        let mut values = Vec::with_capacity(rows * columns);
        for i in 0..rows {
            for j in 0..columns {
                values.push(value(i, j));
            }
        }
        Self {
            rows,
            columns,
            values,
        }
    }

    /// The matrix of these elements.
    pub(crate) fn of<S: Real>(rows: usize, columns: usize, values: &[S]) -> Self {
        assert_eq!(values.len(), rows * columns);
        let values = values.iter().map(|value| value.to_f64()).collect();
        Self {
            rows,
            columns,
            values,
        }
    }

    pub(crate) fn identity(n: usize) -> Self {
        Self::from_fn(n, n, |i, j| f64::from(i == j))
    }

    pub(crate) fn diagonal(values: &[f64]) -> Self {
        let n = values.len();
        Self::from_fn(n, n, |i, j| if i == j { values[i] } else { 0.0 })
    }

    pub(crate) fn random(rows: usize, columns: usize, random: &mut Random) -> Self {
        Self::from_fn(rows, columns, |_, _| random.next())
    }

    /// A product of random rows × rank and rank × columns matrices.
    pub(crate) fn of_rank(rank: usize, rows: usize, columns: usize, random: &mut Random) -> Self {
        Self::random(rows, rank, random).times(&Self::random(rank, columns, random))
    }

    /// A random orthogonal matrix: a product of reflections.
    pub(crate) fn orthogonal(n: usize, random: &mut Random) -> Self {
        let mut q = Self::identity(n);
        for _ in 0..n.min(8) {
            let v = Self::random(n, 1, random);
            let scale = -2.0 / v.values.iter().map(|v| v * v).sum::<f64>();
            let rank_one = v.times(&v.transposed().times(&q)).map(|x| x * scale);
            q = q.plus(&rank_one);
        }
        q
    }

    /// A symmetric matrix with these eigenvalues.
    pub(crate) fn with_eigenvalues(eigenvalues: &[f64], random: &mut Random) -> Self {
        let q = Self::orthogonal(eigenvalues.len(), random);
        q.times(&Self::diagonal(eigenvalues))
            .times(&q.transposed())
            .symmetrised()
    }

    /// With the elements above the diagonal replaced by those below it.
    pub(crate) fn symmetrised(&self) -> Self {
        Self::from_fn(self.rows, self.rows, |i, j| self.at(i.max(j), i.min(j)))
    }

    /// As it is after rounding to the type.
    pub(crate) fn rounded<S: Real>(&self) -> Self {
        self.map(|value| S::of(value).to_f64())
    }

    pub(crate) fn elements<S: Real>(&self) -> Vec<S> {
        self.values.iter().map(|value| S::of(*value)).collect()
    }

    pub(crate) fn at(&self, i: usize, j: usize) -> f64 {
        self.values[i * self.columns + j]
    }

    pub(crate) fn map(&self, f: impl Fn(f64) -> f64) -> Self {
        Self {
            values: self.values.iter().copied().map(f).collect(),
            ..*self
        }
    }

    pub(crate) fn abs(&self) -> Self {
        self.map(f64::abs)
    }

    pub(crate) fn transposed(&self) -> Self {
        Self::from_fn(self.columns, self.rows, |i, j| self.at(j, i))
    }

    pub(crate) fn plus(&self, other: &Self) -> Self {
        Self::from_fn(self.rows, self.columns, |i, j| {
            self.at(i, j) + other.at(i, j)
        })
    }

    pub(crate) fn minus(&self, other: &Self) -> Self {
        self.plus(&other.map(|x| -x))
    }

    pub(crate) fn times(&self, other: &Self) -> Self {
        assert_eq!(self.columns, other.rows);
        let mut product = Self::from_fn(self.rows, other.columns, |_, _| 0.0);
        for i in 0..self.rows {
            for k in 0..self.columns {
                let factor = self.at(i, k);
                for j in 0..other.columns {
                    product.values[i * other.columns + j] += factor * other.at(k, j);
                }
            }
        }
        product
    }

    /// The root of the sum of the squares, which neither overflows nor vanishes.
    pub(crate) fn norm(&self) -> f64 {
        let largest = self.values.iter().fold(0.0f64, |a, x| a.max(x.abs()));
        if largest == 0.0 {
            return 0.0;
        }
        largest
            * self
                .values
                .iter()
                .map(|x| (x / largest).powi(2))
                .sum::<f64>()
                .sqrt()
    }

    /// How far the columns are from being orthonormal, relative to what they are.
    pub(crate) fn orthogonality(&self) -> f64 {
        let identity = Self::identity(self.columns);
        let error = self.transposed().times(self).minus(&identity).norm();
        error / identity.norm().max(1.0)
    }

    pub(crate) fn assert_upper(&self) {
        for i in 0..self.rows {
            for j in 0..self.columns.min(i) {
                assert_eq!(self.at(i, j), 0.0, "({i}, {j})");
            }
        }
    }

    pub(crate) fn is_finite(&self) -> bool {
        self.values.iter().all(|x| x.is_finite())
    }
}

/// A generator of numbers between -1 and 1: xorshift.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(0x9e37_79b9_7f4a_7c15 ^ (seed + 1).wrapping_mul(0xd134_2543_de82_ef95))
    }

    pub(crate) fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

/// Asserts `found <= bound`; prints both where the environment asks for what was measured.
#[track_caller]
pub(crate) fn assert_within(found: f64, bound: f64, what: &str) {
    if std::env::var_os("LINALG_MEASURE").is_some() {
        println!("measured {what}: {found:.1e} of {bound:.1e}");
    }
    assert!(found <= bound, "{what}: {found:e}, more than {bound:e}");
}
