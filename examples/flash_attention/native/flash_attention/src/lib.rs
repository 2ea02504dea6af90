//! Attention without the matrix of scores, for XLA on the CPU: the forward pass of FlashAttention 2.
//!
//! `flash_attention_forward_f32` takes `q` of B, S, Hq, D and `k` and `v` of B, Skv, Hkv, D, all row-major, and
//! writes
//!
//! - `out` of B, S, Hq, D: softmax(softmax_scale * q kᵀ) v, for each head;
//! - `lse` of B, Hq, S: the natural logarithm of the sums in those softmaxes, which a backward pass needs and with
//!   which results over parts of the keys can be joined;
//! - `workspace` of B, Hq, 64 * (D + 66): scratch memory, see [`attention::workspace`]. Its size does not depend
//!   on the lengths of the sequences, and its contents mean nothing.
//!
//! Hq must be a multiple of Hkv. If it is a larger one, neighbouring query heads share a key and value head.
//!
//! With `causal`, query i sees key j if j - Skv <= i - S: the last query sees all keys, as in FlashAttention 2. So
//! if there are more queries than keys, the first ones see none. A query that sees no key, or keys with scores of
//! minus infinity only, gets an `out` of zeroes and an `lse` of minus infinity.

mod attention;

use attention::Problem;
use xla_ffi::{Arg, Error, Result, Ret};

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

fn expect(result: &Ret<'_, f32>, dims: &[usize], what: &str) -> Result<()> {
    if result.dims() == dims {
        Ok(())
    } else {
        Err(result.error(format!(
            "expected dimensions {dims:?} ({what}), found {result}"
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
