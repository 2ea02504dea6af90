//! The linear algebra that EXLA lowers to custom calls on the CPU, as XLA FFI handlers.
//!
//! Load the shared object, register its symbols under their own names, and programs that call EXLA's targets
//! run on any PJRT CPU plugin:
//!
//! | symbol and target | operand | results |
//! |---|---|---|
//! | `qr_cpu_custom_call_{f32,f64,f16,bf16}` | A: `{..., m, n}` | Q: `{..., m, k}`, R: `{..., k, n}`, with k = min(m, n); or complete with k = m |
//! | `eigh_cpu_custom_call_{f32,f64}` | A: `{..., n, n}` | eigenvalues: `{..., n}`, eigenvectors: `{..., n, n}` |
//! | `lu_cpu_custom_call_{f32,f64,f16,bf16}` | A: `{..., n, n}` | P: u8 `{..., n, n}`, L: `{..., n, n}`, U: `{..., n, n}` |
//!
//! Operands and results are row-major. The leading dimensions, any number of them, are those of a batch; a size
//! of 0 is fine everywhere.
//!
//! # What they promise
//!
//! - **QR**: A = Q R, with orthonormal columns in Q and zeros below the diagonal of R. The shape of the results
//!   says whether it is reduced or complete, which are the same unless m > n. R's diagonal can be negative. No
//!   column counts as negligible: nearly dependent columns keep their digits.
//! - **Eigh**: A = V diag(w) Vᵀ with the eigenvectors as V's columns. Only the lower triangle of A is read, as by
//!   EXLA's own handler. Eigenvalues ascend, unless the attribute `order = "magnitude"` asks for the order of
//!   `Nx.LinAlg.eigh` and of EXLA's handler, which is by descending absolute value.
//! - **LU**: A = P L U with partial pivoting: ones on the diagonal of L, whose other elements are at most 1 in
//!   absolute value. A singular A has a zero on the diagonal of U and no NaN anywhere.
//! - `f16` and `bf16` are computed in `f32`, the eigenvalues of `f32` in `f64`, and rounded once. A result too large for `f16` becomes an infinity.
//! - **NaN and infinity**: a matrix with one of them, in the part that is read, has NaN for all that would have
//!   been computed of it. What needs no computing stays as it is: R's and U's zeros below the diagonal, L's
//!   zeros and ones, and P, which is the identity. Other matrices of the batch are not affected.
//!
//! Everything runs on the thread that XLA calls on; no threads are started.
//!
//! # Errors
//!
//! Wrong shapes are `INVALID_ARGUMENT`, with a message that names the buffer:
//!
//! ```text
//! operand 0 (a): expected matrices, at least 2 dimensions, found f32[3]
//! operand 0 (a): expected square matrices, found f32[2,3]
//! result 1 (r): expected f32[3,3], or f32[4,3] for a complete decomposition, found f32[2,3]
//! ```
//!
//! `INTERNAL` says that eigenvalues did not converge, and `RESOURCE_EXHAUSTED` that there was no memory for the
//! work space.

mod eigh;
mod lu;
mod matrix;
mod qr;
mod scalar;
mod shape;

#[cfg(test)]
mod reference;

use xla_ffi::half::{bf16, f16};
use xla_ffi::{Arg, Ret};

macro_rules! qr {
    ($($name:ident: $type:ty, in $work:ty;)*) => {
        xla_ffi::export! {
            $(
                /// QR decomposition: see [the crate](crate).
                pub fn $name(a: Arg<$type>) -> (q: Ret<$type>, r: Ret<$type>) {
                    qr::decompose::<$type, $work>(&a, &mut q, &mut r)
                }
            )*
        }
    };
}

qr! {
    qr_cpu_custom_call_f32: f32, in f32;
    qr_cpu_custom_call_f64: f64, in f64;
    qr_cpu_custom_call_f16: f16, in f32;
    qr_cpu_custom_call_bf16: bf16, in f32;
}

macro_rules! eigh {
    ($($name:ident: $type:ty, in $work:ty;)*) => {
        xla_ffi::export! {
            $(
                /// Eigenvalues and eigenvectors of symmetric matrices: see [the crate](crate).
                pub fn $name(a: Arg<$type>) -> (eigenvalues: Ret<$type>, eigenvectors: Ret<$type>)
                attrs { order: Option<&str> }
                {
                    let order = order.map_or(Ok(eigh::Order::Ascending), str::parse)?;
                    eigh::decompose::<$type, $work>(&a, &mut eigenvalues, &mut eigenvectors, order)
                }
            )*
        }
    };
}

eigh! {
    // In f32, some hundred rows leave five digits.
    eigh_cpu_custom_call_f32: f32, in f64;
    eigh_cpu_custom_call_f64: f64, in f64;
}

macro_rules! lu {
    ($($name:ident: $type:ty, in $work:ty;)*) => {
        xla_ffi::export! {
            $(
                /// LU decomposition with partial pivoting: see [the crate](crate).
                pub fn $name(a: Arg<$type>) -> (p: Ret<u8>, l: Ret<$type>, u: Ret<$type>) {
                    lu::decompose::<$type, $work>(&a, &mut p, &mut l, &mut u)
                }
            )*
        }
    };
}

lu! {
    lu_cpu_custom_call_f32: f32, in f32;
    lu_cpu_custom_call_f64: f64, in f64;
    lu_cpu_custom_call_f16: f16, in f32;
    lu_cpu_custom_call_bf16: bf16, in f32;
}

xla_ffi::library! {
    "qr_cpu_custom_call_f32" => qr_cpu_custom_call_f32,
    "qr_cpu_custom_call_f64" => qr_cpu_custom_call_f64,
    "qr_cpu_custom_call_f16" => qr_cpu_custom_call_f16,
    "qr_cpu_custom_call_bf16" => qr_cpu_custom_call_bf16,
    "eigh_cpu_custom_call_f32" => eigh_cpu_custom_call_f32,
    "eigh_cpu_custom_call_f64" => eigh_cpu_custom_call_f64,
    "lu_cpu_custom_call_f32" => lu_cpu_custom_call_f32,
    "lu_cpu_custom_call_f64" => lu_cpu_custom_call_f64,
    "lu_cpu_custom_call_f16" => lu_cpu_custom_call_f16,
    "lu_cpu_custom_call_bf16" => lu_cpu_custom_call_bf16,
}
