//! Attention without the matrix of scores, for XLA on the CPU: the forward and the backward pass of FlashAttention 2.
//!
//! `flash_attention_forward_f32` takes `q` of B, S, Hq, D and `k` and `v` of B, Skv, Hkv, D, all row-major, and
//! writes
//!
//! - `out` of B, S, Hq, D: softmax(softmax_scale * q kᵀ) v, for each head;
//! - `lse` of B, Hq, S: the natural logarithm of the sums in those softmaxes, which a backward pass needs and with
//!   which results over parts of the keys can be joined;
//! - `workspace` of B, Hq, 64 * (D + 66): scratch memory, see [`attention::workspace`]. Its size does not depend
//!   on the lengths of the sequences, and its contents mean nothing but for the first element of each head: Hq as
//!   the call saw it. It is a note for tests, which read from it how many heads each device of several got.
//!
//! `flash_attention_backward_f32` takes the gradient `dout` of `out`, then `q`, `k`, `v`, `out` and `lse`, and writes
//! the gradients `dq`, `dk` and `dv`, of the shapes of `q`, `k` and `v`, and six workspaces:
//!
//! - `softmax_d` of B, Hq, S: the sums over D of dout ∘ out;
//! - `softmax_lse_log2` of B, Hq, S: `lse` as a logarithm to base 2;
//! - `dq_accum` of B, Hq, ⌈S / 64⌉ * 64 * D: sums of `dq` in f32, by blocks of 64 queries;
//! - `dq_semaphore` of B, Hq, ⌈S / 64⌉, s32: counts the blocks of keys that a block of queries has in `dq_accum`. When
//!   they are all there, it becomes a note for tests as well: Hq as the call saw it;
//! - `dk_accum` and `dv_accum` of B, Hkv, (⌈Skv / 64⌉ + 1) * 64 * D: sums of `dk` and `dv` over the query heads that
//!   share a key head, by blocks of 64 keys, and the block of keys or values that is worked on.
//!
//! Two of its attributes depend on sizes: `heads` is Hq and `query_blocks` is ⌈S / 64⌉. A call that got other sizes is
//! refused: where a call is split over devices, its attributes must be those of the part.
//!
//! Hq must be a multiple of Hkv. If it is a larger one, neighbouring query heads share a key and value head.
//!
//! With `causal`, query i sees key j if j - Skv <= i - S: the last query sees all keys, as in FlashAttention 2. So
//! if there are more queries than keys, the first ones see none. A query that sees no key, or keys with scores of
//! minus infinity only, gets an `out` of zeroes and an `lse` of minus infinity,
//! and gradients of zero.

mod attention;
mod backward;

use attention::Problem;
use xla_ffi::{Arg, Element, Error, Result, Ret};

xla_ffi::export! {
    /// The forward pass; see the documentation of the crate.
    pub fn flash_attention_forward_f32(q: Arg<f32>, k: Arg<f32>, v: Arg<f32>)
        -> (out: Ret<f32>, lse: Ret<f32>, workspace: Ret<f32>)
    attrs { causal: bool, softmax_scale: f32 }
    {
        let problem = problem(&q, &k, &v, causal, softmax_scale)?;
        let Problem { batch, queries, query_heads, depth, .. } = problem;
        expect(&out, &[batch, queries, query_heads, depth], "the dimensions of q")?;
        expect(&lse, &[batch, query_heads, queries], "B, Hq, S")?;
        let scratch = attention::workspace(depth)
            .ok_or_else(|| q.error(format!("a head of {depth} elements is too large")))?;
        expect(&workspace, &[batch, query_heads, scratch], "B, Hq, 64 * (D + 66)")?;
        attention::forward(&problem, &q, &k, &v, &mut out, &mut lse, &mut workspace);
        Ok(())
    }

    /// The backward pass; see the documentation of the crate.
    pub fn flash_attention_backward_f32(
        dout: Arg<f32>, q: Arg<f32>, k: Arg<f32>, v: Arg<f32>, out: Arg<f32>, lse: Arg<f32>
    ) -> (
        dq: Ret<f32>, dk: Ret<f32>, dv: Ret<f32>, softmax_d: Ret<f32>, softmax_lse_log2: Ret<f32>,
        dq_accum: Ret<f32>, dq_semaphore: Ret<i32>, dk_accum: Ret<f32>, dv_accum: Ret<f32>
    )
    attrs { causal: bool, softmax_scale: f32, query_blocks: i64, heads: i64 }
    {
        let problem = problem(&q, &k, &v, causal, softmax_scale)?;
        let Problem { batch, queries, query_heads, key_heads, .. } = problem;
        let sizes = backward::Sizes::new(&problem)
            .ok_or_else(|| q.error(format!("a head of {} elements is too large", problem.depth)))?;
        let of_queries = [batch, query_heads, queries];
        expect_operand(&dout, q.dims(), "the dimensions of q")?;
        expect_operand(&out, q.dims(), "the dimensions of q")?;
        expect_operand(&lse, &of_queries, "B, Hq, S")?;
        expect_attribute("heads", heads, query_heads, "Hq")?;
        expect_attribute("query_blocks", query_blocks, sizes.query_blocks, "S / 64, rounded up")?;
        expect(&dq, q.dims(), "the dimensions of q")?;
        expect(&dk, k.dims(), "the dimensions of k")?;
        expect(&dv, v.dims(), "the dimensions of v")?;
        expect(&softmax_d, &of_queries, "B, Hq, S")?;
        expect(&softmax_lse_log2, &of_queries, "B, Hq, S")?;
        let accumulator = [batch, query_heads, sizes.queries];
        expect(&dq_accum, &accumulator, "B, Hq, blocks of queries * 64 * D")?;
        let semaphore = [batch, query_heads, sizes.query_blocks];
        expect(&dq_semaphore, &semaphore, "B, Hq, blocks of queries")?;
        let accumulator = [batch, key_heads, sizes.keys];
        expect(&dk_accum, &accumulator, "B, Hkv, (blocks of keys + 1) * 64 * D")?;
        expect(&dv_accum, &accumulator, "B, Hkv, (blocks of keys + 1) * 64 * D")?;
        let operands =
            backward::Operands { dout: &dout, q: &q, k: &k, v: &v, out: &out, lse: &lse };
        let results = backward::Results {
            dq: &mut dq,
            dk: &mut dk,
            dv: &mut dv,
            softmax_d: &mut softmax_d,
            softmax_lse_log2: &mut softmax_lse_log2,
            dq_accum: &mut dq_accum,
            dq_semaphore: &mut dq_semaphore,
            dk_accum: &mut dk_accum,
            dv_accum: &mut dv_accum,
        };
        backward::backward(&problem, sizes, &operands, results);
        Ok(())
    }

    /// The elements of x in the order they lie in memory, as one dimension: shows the layout of an operand.
    pub fn layout_probe_f32(x: Arg<f32>) -> (elements: Ret<f32>) {
        expect(&elements, &[x.len()], "one for all elements of x")?;
        elements.copy_from_slice(&x);
        Ok(())
    }
}

fn problem(
    q: &Arg<'_, f32>,
    k: &Arg<'_, f32>,
    v: &Arg<'_, f32>,
    causal: bool,
    softmax_scale: f32,
) -> Result<Problem> {
    let [batch, queries, query_heads, depth] = q.shape()?;
    let [key_batch, keys, key_heads, key_depth] = k.shape()?;
    if key_batch != batch || key_depth != depth {
        return Err(k.error(format!(
            "expected B and D as in q, which are {batch} and {depth}, found {k}"
        )));
    }
    if v.dims() != k.dims() {
        return Err(v.error(format!("expected the dimensions of k, {k}, found {v}")));
    }
    if depth == 0 {
        return Err(q.error(format!("expected D to be positive, found {q}")));
    }
    if key_heads == 0 || query_heads % key_heads != 0 {
        return Err(q.error(format!(
            "expected the number of heads to be a multiple of that of k, {key_heads}, found {query_heads}"
        )));
    }
    if !softmax_scale.is_finite() {
        return Err(Error::invalid_argument(format!(
            "attribute \"softmax_scale\": expected a finite number, found {softmax_scale}"
        )));
    }
    Ok(Problem {
        batch,
        queries,
        keys,
        query_heads,
        key_heads,
        depth,
        causal,
        softmax_scale,
    })
}

fn expect<T: Element>(result: &Ret<'_, T>, dims: &[usize], what: &str) -> Result<()> {
    if result.dims() == dims {
        Ok(())
    } else {
        Err(result.error(format!(
            "expected dimensions {dims:?} ({what}), found {result}"
        )))
    }
}

fn expect_operand(operand: &Arg<'_, f32>, dims: &[usize], what: &str) -> Result<()> {
    if operand.dims() == dims {
        Ok(())
    } else {
        Err(operand.error(format!(
            "expected dimensions {dims:?} ({what}), found {operand}"
        )))
    }
}

/// Holds an attribute that depends on sizes against those of the operands.
fn expect_attribute(name: &str, found: i64, expected: usize, what: &str) -> Result<()> {
    if usize::try_from(found) == Ok(expected) {
        Ok(())
    } else {
        Err(Error::invalid_argument(format!(
            "attribute \"{name}\": expected {expected} ({what}, of the operands), found {found}; where a call is \
             split over devices, make its attributes from the shapes of a part"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xla_ffi::testing::Frame;

    fn frame_without_scale(q: [usize; 4], k: [usize; 4]) -> Frame {
        let ones = |dims: [usize; 4]| vec![1f32; dims.iter().product()];
        Frame::new()
            .operand(&q, &ones(q))
            .operand(&k, &ones(k))
            .operand(&k, &ones(k))
            .attribute("causal", false)
    }

    fn frame(q: [usize; 4], k: [usize; 4]) -> Frame {
        frame_without_scale(q, k).attribute("softmax_scale", 0.5f32)
    }

    fn results(frame: Frame, q: [usize; 4]) -> Frame {
        let [batch, queries, heads, depth] = q;
        frame
            .result::<f32>(&q)
            .result::<f32>(&[batch, heads, queries])
            .result::<f32>(&[batch, heads, 64 * (depth + 66)])
    }

    fn call(frame: &mut Frame) -> Result<()> {
        // SAFETY: `export!` made the handler.
        unsafe { frame.call(flash_attention_forward_f32) }
    }

    #[test]
    fn runs_as_a_handler() {
        let q = [1, 3, 2, 4];
        let mut frame = results(frame(q, [1, 5, 1, 4]), q);
        call(&mut frame).unwrap();
        assert!(frame
            .values::<f32>(0)
            .iter()
            .all(|value| (value - 1.0).abs() < 1e-6));
        let lse = 2.0 + 5f32.ln();
        assert!(frame
            .values::<f32>(1)
            .iter()
            .all(|value| (value - lse).abs() < 1e-6));
    }

    #[test]
    fn says_what_is_wrong() {
        let q = [1, 3, 4, 8];
        let message = |frame: Frame| call(&mut frame.clone()).unwrap_err().to_string();
        assert_eq!(
            message(results(frame(q, [1, 5, 3, 8]), q)),
            "operand 0 (q): expected the number of heads to be a multiple of that of k, 3, found 4"
        );
        assert_eq!(
            message(results(frame(q, [1, 5, 2, 4]), q)),
            "operand 1 (k): expected B and D as in q, which are 1 and 8, found f32[1,5,2,4]"
        );
        let short = frame(q, [1, 5, 2, 8])
            .result::<f32>(&q)
            .result::<f32>(&[1, 4, 3]);
        assert_eq!(message(short.clone()), "expected 3 results, found 2");
        assert_eq!(
            message(short.result::<f32>(&[1])),
            "result 2 (workspace): expected dimensions [1, 4, 4736] (B, Hq, 64 * (D + 66)), found f32[1]"
        );
        let unscaled = results(frame_without_scale(q, q), q);
        assert_eq!(
            message(unscaled.clone()),
            "attribute \"softmax_scale\": missing, expected f32"
        );
        assert_eq!(
            message(unscaled.attribute("softmax_scale", f32::INFINITY)),
            "attribute \"softmax_scale\": expected a finite number, found inf"
        );
        assert_eq!(
            message(results(frame(q, q), q).attribute("window", 1i32)),
            "attribute \"window\": unexpected, the handler takes \"causal\", \"softmax_scale\""
        );
    }

    fn backward_frame(q: [usize; 4], k: [usize; 4], query_blocks: i64, heads: i64) -> Frame {
        let [batch, queries, query_heads, depth] = q;
        let [_, keys, key_heads, _] = k;
        let ones = |dims: &[usize]| vec![1f32; dims.iter().product()];
        let lse = [batch, query_heads, queries];
        let query_blocks_found = queries.div_ceil(64);
        let dk_accum = [batch, key_heads, (keys.div_ceil(64) + 1) * 64 * depth];
        Frame::new()
            .operand(&q, &ones(&q))
            .operand(&q, &ones(&q))
            .operand(&k, &ones(&k))
            .operand(&k, &ones(&k))
            .operand(&q, &ones(&q))
            .operand(&lse, &ones(&lse))
            .result::<f32>(&q)
            .result::<f32>(&k)
            .result::<f32>(&k)
            .result::<f32>(&lse)
            .result::<f32>(&lse)
            .result::<f32>(&[batch, query_heads, query_blocks_found * 64 * depth])
            .result::<i32>(&[batch, query_heads, query_blocks_found])
            .result::<f32>(&dk_accum)
            .result::<f32>(&dk_accum)
            .attribute("causal", false)
            .attribute("softmax_scale", 0.5f32)
            .attribute("query_blocks", query_blocks)
            .attribute("heads", heads)
    }

    fn call_backward(frame: &mut Frame) -> Result<()> {
        // SAFETY: `export!` made the handler.
        unsafe { frame.call(flash_attention_backward_f32) }
    }

    #[test]
    fn runs_backward_as_a_handler() {
        let mut frame = backward_frame([1, 70, 4, 2], [1, 3, 2, 2], 2, 4);
        call_backward(&mut frame).unwrap();
        assert_eq!(frame.values::<i32>(6), [4; 8]);
    }

    #[test]
    fn refuses_attributes_of_other_sizes_than_the_operands() {
        let message = |query_blocks, heads| {
            let mut frame = backward_frame([1, 70, 4, 2], [1, 3, 2, 2], query_blocks, heads);
            call_backward(&mut frame).unwrap_err().to_string()
        };
        assert_eq!(
            message(2, 8),
            "attribute \"heads\": expected 4 (Hq, of the operands), found 8; where a call is split over devices, \
             make its attributes from the shapes of a part"
        );
        assert_eq!(
            message(-1, 4),
            "attribute \"query_blocks\": expected 2 (S / 64, rounded up, of the operands), found -1; where a call \
             is split over devices, make its attributes from the shapes of a part"
        );
    }

    #[test]
    fn probes_the_layout() {
        let mut frame = Frame::new()
            .operand(&[2, 3], &[0f32, 3.0, 1.0, 4.0, 2.0, 5.0])
            .result::<f32>(&[6]);
        // SAFETY: `export!` made the handler.
        unsafe { frame.call(layout_probe_f32) }.unwrap();
        assert_eq!(frame.values::<f32>(0), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    }
}
