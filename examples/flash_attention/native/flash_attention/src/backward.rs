//! The backward pass, on slices.
//!
//! Nothing of the size of all scores is stored: each block of softmax weights is computed again from q, k and the
//! logarithm of the sum of the softmax. Blocks of keys go over the blocks of queries of all heads that share them,
//! with
//!
//! - P = exp(scale * q kᵀ - lse), the weights, and dP = dout vᵀ;
//! - dS = P ∘ (dP - D), where D is the sum over a row of dout ∘ out: the gradients of the scores;
//! - dv += Pᵀ dout, dk += scale * dSᵀ q, dq += scale * dS k.

use crate::attention::{exp2, lanes, multiply_add, Problem, Rows, BLOCK_K, BLOCK_Q, LANES, ROWS};
use std::f32::consts::LOG2_E;
use std::ops::Range;

const _: () = assert!(BLOCK_K.is_multiple_of(ROWS));

/// Row-major, as in the forward pass.
pub struct Operands<'a> {
    pub dout: &'a [f32],
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    pub out: &'a [f32],
    pub lse: &'a [f32],
}

/// Row-major, the workspaces in batch and head first. Their sizes are those of [`Sizes`].
pub struct Results<'a> {
    pub dq: &'a mut [f32],
    pub dk: &'a mut [f32],
    pub dv: &'a mut [f32],
    /// The sums over the rows of dout ∘ out.
    pub softmax_d: &'a mut [f32],
    /// lse to base 2, since powers of two are the cheaper exponentials.
    pub softmax_lse_log2: &'a mut [f32],
    /// dS k so far, in blocks of queries.
    pub dq_accum: &'a mut [f32],
    /// How many blocks of keys each block of queries has in `dq_accum`. With the last of them its dq is written, and
    /// the element is free: it becomes the number of query heads of the call, a note for tests.
    pub dq_semaphore: &'a mut [i32],
    /// dSᵀ q so far, summed over the query heads that share the key head, in blocks of keys; then, as one block
    /// more, the keys that are worked on, transposed.
    pub dk_accum: &'a mut [f32],
    /// The same of Pᵀ dout and the values.
    pub dv_accum: &'a mut [f32],
}

/// The sizes of the workspaces, for each head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes {
    pub query_blocks: usize,
    /// Elements of `dq_accum` for a query head.
    pub queries: usize,
    /// Elements of `dk_accum`, and of `dv_accum`, for a key head.
    pub keys: usize,
}

impl Sizes {
    /// None if they are too large to count.
    pub fn new(problem: &Problem) -> Option<Self> {
        let query_blocks = problem.queries.div_ceil(BLOCK_Q);
        let key_blocks = problem.keys.div_ceil(BLOCK_K);
        Some(Self {
            query_blocks,
            queries: problem.depth.checked_mul(query_blocks * BLOCK_Q)?,
            keys: problem.depth.checked_mul((key_blocks + 1) * BLOCK_K)?,
        })
    }
}

/// Computes the gradients of q, k and v from those of out.
pub fn backward(problem: &Problem, sizes: Sizes, operands: &Operands<'_>, results: Results<'_>) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: the processor has both features.
        return unsafe { backward_avx2(problem, sizes, operands, results) };
    }
    backward_with::<false>(problem, sizes, operands, results);
}

/// The same code, compiled for the instructions of nearly all processors of today rather than of all.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn backward_avx2(problem: &Problem, sizes: Sizes, operands: &Operands<'_>, results: Results<'_>) {
    backward_with::<true>(problem, sizes, operands, results);
}

// This and all that it calls is always inlined, so that it is compiled with the features of its caller.
#[inline(always)]
fn backward_with<const FUSED: bool>(
    problem: &Problem,
    sizes: Sizes,
    operands: &Operands<'_>,
    mut results: Results<'_>,
) {
    for batch in 0..problem.batch {
        for key_head in 0..problem.key_heads {
            Group::<FUSED> {
                problem,
                sizes,
                batch,
                key_head,
                size: problem.query_heads / problem.key_heads,
            }
            .backward(operands, &mut results);
        }
    }
}

/// A key head, with the query heads that look at it.
struct Group<'a, const FUSED: bool> {
    problem: &'a Problem,
    sizes: Sizes,
    batch: usize,
    key_head: usize,
    /// How many query heads there are.
    size: usize,
}

/// A query head.
struct Head<'a> {
    /// Its number in the batch.
    number: usize,
    q: Rows<'a>,
    dout: Rows<'a>,
    /// Of `softmax_d` and `softmax_lse_log2`.
    softmax_d: &'a [f32],
    lse_log2: &'a [f32],
}

/// A block of keys and values, and what is summed for it.
struct Keys<'a> {
    first: usize,
    count: usize,
    k: Rows<'a>,
    packed_k: &'a [f32],
    packed_v: &'a [f32],
    dk: &'a mut [f32],
    dv: &'a mut [f32],
}

/// The weights P and the gradients dS of a block of queries and one of keys.
struct Scores {
    weights: [f32; BLOCK_Q * BLOCK_K],
    gradients: [f32; BLOCK_Q * BLOCK_K],
}

impl<const FUSED: bool> Group<'_, FUSED> {
    #[inline(always)]
    fn backward(&self, operands: &Operands<'_>, results: &mut Results<'_>) {
        let Problem {
            queries,
            keys,
            query_heads,
            key_heads,
            depth,
            softmax_scale,
            ..
        } = *self.problem;
        let Sizes { query_blocks, .. } = self.sizes;
        let heads = self.key_head * self.size..(self.key_head + 1) * self.size;
        for head in heads.clone() {
            self.prepare(head, operands, results);
        }
        let kv = |tensor| Rows::new(tensor, self.batch, keys, key_heads, self.key_head, depth);
        let (k, v) = (kv(operands.k), kv(operands.v));
        let sums = self.sizes.keys - BLOCK_K * depth;
        let start = (self.batch * key_heads + self.key_head) * self.sizes.keys;
        let (dk_accum, packed_k) = results.dk_accum[start..][..self.sizes.keys].split_at_mut(sums);
        let (dv_accum, packed_v) = results.dv_accum[start..][..self.sizes.keys].split_at_mut(sums);
        let mut scores = Scores {
            weights: [0.0; BLOCK_Q * BLOCK_K],
            gradients: [0.0; BLOCK_Q * BLOCK_K],
        };
        let blocks = dk_accum
            .chunks_exact_mut(BLOCK_K * depth)
            .zip(dv_accum.chunks_exact_mut(BLOCK_K * depth));
        for (key_block, (dk, dv)) in blocks.enumerate() {
            let first = key_block * BLOCK_K;
            let count = BLOCK_K.min(keys - first);
            k.pack(first, count, packed_k);
            v.pack(first, count, packed_v);
            dk.fill(0.0);
            dv.fill(0.0);
            let mut block = Keys {
                first,
                count,
                k,
                packed_k,
                packed_v,
                dk,
                dv,
            };
            for number in heads.clone() {
                let q = |tensor| Rows::new(tensor, self.batch, queries, query_heads, number, depth);
                let index = self.batch * query_heads + number;
                let head = Head {
                    number,
                    q: q(operands.q),
                    dout: q(operands.dout),
                    softmax_d: &results.softmax_d[index * queries..][..queries],
                    lse_log2: &results.softmax_lse_log2[index * queries..][..queries],
                };
                let accumulators = results.dq_accum[index * self.sizes.queries..]
                    [..self.sizes.queries]
                    .chunks_exact_mut(BLOCK_Q * depth);
                let semaphores =
                    results.dq_semaphore[index * query_blocks..][..query_blocks].iter_mut();
                for (query_block, (dq, added)) in accumulators.zip(semaphores).enumerate() {
                    let first_query = query_block * BLOCK_Q;
                    let rows = BLOCK_Q.min(queries - first_query);
                    // No query of the block sees more than its last one.
                    let visible = self.problem.visible(first_query + rows - 1);
                    if visible <= first {
                        continue;
                    }
                    self.block(&head, first_query, rows, &mut block, &mut scores, dq);
                    *added += 1;
                    if *added as usize == visible.div_ceil(BLOCK_K) {
                        self.finish(&head, first_query, dq, results.dq);
                        *added = query_heads as i32;
                    }
                }
            }
            for (accumulated, scale, to) in [
                (&*block.dk, softmax_scale, &mut *results.dk),
                (&*block.dv, 1.0, &mut *results.dv),
            ] {
                for (row, from) in accumulated.chunks_exact(depth).take(count).enumerate() {
                    let row = (self.batch * keys + first + row) * key_heads + self.key_head;
                    for (to, from) in to[row * depth..].iter_mut().zip(from) {
                        *to = scale * from;
                    }
                }
            }
        }
    }

    /// What is computed before the blocks, for a query head.
    #[inline(always)]
    fn prepare(&self, number: usize, operands: &Operands<'_>, results: &mut Results<'_>) {
        let Problem {
            queries,
            query_heads,
            depth,
            ..
        } = *self.problem;
        let Sizes { query_blocks, .. } = self.sizes;
        let rows = |tensor| Rows::new(tensor, self.batch, queries, query_heads, number, depth);
        let (dout, out) = (rows(operands.dout), rows(operands.out));
        let index = self.batch * query_heads + number;
        for query in 0..queries {
            let place = index * queries + query;
            results.softmax_d[place] = dot::<FUSED>(dout.row(query), out.row(query));
            results.softmax_lse_log2[place] = operands.lse[place] * LOG2_E;
        }
        results.dq_accum[index * self.sizes.queries..][..self.sizes.queries].fill(0.0);
        let semaphores = &mut results.dq_semaphore[index * query_blocks..][..query_blocks];
        for (query_block, semaphore) in semaphores.iter_mut().enumerate() {
            let first = query_block * BLOCK_Q;
            let rows = BLOCK_Q.min(queries - first);
            *semaphore = 0;
            // Such a block is met by no block of keys.
            if self.problem.visible(first + rows - 1) == 0 {
                for query in first..first + rows {
                    self.dq_row(number, query, results.dq).fill(0.0);
                }
                *semaphore = query_heads as i32;
            }
        }
    }

    #[inline(always)]
    fn dq_row<'a>(&self, head: usize, query: usize, dq: &'a mut [f32]) -> &'a mut [f32] {
        let Problem {
            queries,
            query_heads,
            depth,
            ..
        } = *self.problem;
        let row = (self.batch * queries + query) * query_heads + head;
        &mut dq[row * depth..][..depth]
    }

    /// A block of queries and one of keys.
    #[inline(always)]
    fn block(
        &self,
        head: &Head<'_>,
        first_query: usize,
        rows: usize,
        keys: &mut Keys<'_>,
        scores: &mut Scores,
        dq: &mut [f32],
    ) {
        let depth = self.problem.depth;
        let whole = rows - rows % ROWS;
        for row in (0..whole).step_by(ROWS) {
            self.scores::<ROWS>(head, first_query, row, keys, scores);
        }
        for row in whole..rows {
            self.scores::<1>(head, first_query, row, keys, scores);
        }
        let Scores { weights, gradients } = scores;
        // dS k: for each query a sum over the keys.
        add_products::<FUSED>(
            Weights::by_query(gradients),
            keys.k,
            keys.first..keys.first + keys.count,
            &mut dq[..rows * depth],
        );
        // dSᵀ q and Pᵀ dout: for each key a sum over the queries.
        let queries = first_query..first_query + rows;
        add_products::<FUSED>(
            Weights::by_key(gradients),
            head.q,
            queries.clone(),
            &mut keys.dk[..keys.count * depth],
        );
        add_products::<FUSED>(
            Weights::by_key(weights),
            head.dout,
            queries,
            &mut keys.dv[..keys.count * depth],
        );
    }

    /// P and dS for R queries.
    #[inline(always)]
    fn scores<const R: usize>(
        &self,
        head: &Head<'_>,
        first_query: usize,
        row: usize,
        keys: &Keys<'_>,
        scores: &mut Scores,
    ) {
        let query = first_query + row;
        let elements = row * BLOCK_K..(row + R) * BLOCK_K;
        let weights = &mut scores.weights[elements.clone()];
        let gradients = &mut scores.gradients[elements];
        let scale = self.problem.softmax_scale * LOG2_E;
        head.q
            .products::<R, FUSED>(query, keys.packed_k, scale, weights);
        head.dout
            .products::<R, FUSED>(query, keys.packed_v, 1.0, gradients);
        let rows = weights
            .chunks_exact_mut(BLOCK_K)
            .zip(gradients.chunks_exact_mut(BLOCK_K));
        for (row, (weights, gradients)) in rows.enumerate() {
            let query = query + row;
            let (lse, d) = (head.lse_log2[query], head.softmax_d[query]);
            let seen = match lse == f32::NEG_INFINITY {
                // There is no softmax.
                true => 0,
                false => self.problem.visible(query).saturating_sub(keys.first),
            };
            for (weight, gradient) in weights.iter_mut().zip(gradients.iter_mut()) {
                *weight = exp2::<FUSED>(*weight - lse);
                *gradient = *weight * (*gradient - d);
            }
            let seen = seen.min(keys.count);
            weights[seen..].fill(0.0);
            gradients[seen..].fill(0.0);
        }
    }

    /// Writes the dq of a block of queries.
    #[inline(always)]
    fn finish(&self, head: &Head<'_>, first_query: usize, accumulated: &[f32], dq: &mut [f32]) {
        let Problem {
            queries,
            depth,
            softmax_scale,
            ..
        } = *self.problem;
        let block = first_query..queries.min(first_query + BLOCK_Q);
        for (query, from) in block.zip(accumulated.chunks_exact(depth)) {
            // Without a softmax there are no gradients, but 0 times an infinite key is no number.
            let masked = head.lse_log2[query] == f32::NEG_INFINITY;
            for (to, from) in self.dq_row(head.number, query, dq).iter_mut().zip(from) {
                *to = if masked { 0.0 } else { softmax_scale * from };
            }
        }
    }
}

/// A block of P or dS, as it is or transposed. (Closures would not always be inlined.)
#[derive(Clone, Copy)]
struct Weights<'a> {
    values: &'a [f32],
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Weights<'a> {
    #[inline(always)]
    fn by_query(values: &'a [f32]) -> Self {
        Self {
            values,
            row_stride: BLOCK_K,
            column_stride: 1,
        }
    }

    #[inline(always)]
    fn by_key(values: &'a [f32]) -> Self {
        Self {
            values,
            row_stride: 1,
            column_stride: BLOCK_K,
        }
    }

    /// Without the first rows.
    #[inline(always)]
    fn from(self, row: usize) -> Self {
        Self {
            values: &self.values[row * self.row_stride..],
            ..self
        }
    }

    #[inline(always)]
    fn get(&self, row: usize, column: usize) -> f32 {
        self.values[row * self.row_stride + column * self.column_stride]
    }
}

/// Adds to each row of `sums` the rows of a range, multiplied with the weights of the two.
#[inline(always)]
fn add_products<const FUSED: bool>(
    weights: Weights<'_>,
    rows: Rows<'_>,
    range: Range<usize>,
    sums: &mut [f32],
) {
    let depth = rows.depth();
    let count = sums.len() / depth;
    let (several, rest) = sums.split_at_mut((count - count % ROWS) * depth);
    for (index, sums) in several.chunks_exact_mut(ROWS * depth).enumerate() {
        let weights = weights.from(index * ROWS);
        add_to_rows::<ROWS, FUSED>(weights, rows, range.clone(), sums);
    }
    for (index, sums) in rest.chunks_exact_mut(depth).enumerate() {
        let weights = weights.from(count - count % ROWS + index);
        add_to_rows::<1, FUSED>(weights, rows, range.clone(), sums);
    }
}

#[inline(always)]
fn add_to_rows<const R: usize, const FUSED: bool>(
    weights: Weights<'_>,
    rows: Rows<'_>,
    range: Range<usize>,
    sums: &mut [f32],
) {
    let whole = rows.depth() - rows.depth() % LANES;
    for start in (0..whole).step_by(LANES) {
        add_to_lanes::<R, LANES, FUSED>(weights, rows, range.clone(), start, sums);
    }
    for start in whole..rows.depth() {
        add_to_lanes::<R, 1, FUSED>(weights, rows, range.clone(), start, sums);
    }
}

/// For R rows and L elements of each from `start` on, which stay in registers.
#[inline(always)]
fn add_to_lanes<const R: usize, const L: usize, const FUSED: bool>(
    weights: Weights<'_>,
    rows: Rows<'_>,
    range: Range<usize>,
    start: usize,
    to: &mut [f32],
) {
    let place = |row: usize| row * rows.depth() + start;
    let mut sums: [[f32; L]; R] = std::array::from_fn(|row| lanes(to, place(row)));
    for (index, other) in range.enumerate() {
        let values = rows.lanes::<L>(other, start);
        for (row, sums) in sums.iter_mut().enumerate() {
            let weight = weights.get(row, index);
            for (sum, value) in sums.iter_mut().zip(&values) {
                *sum = multiply_add::<FUSED>(weight, *value, *sum);
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        to[place(row)..][..L].copy_from_slice(sums);
    }
}

#[inline(always)]
fn dot<const FUSED: bool>(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum = multiply_add::<FUSED>(*a, *b, *sum);
        }
    }
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::tests::{assert_close, naive, numbers, PROBLEM};

    /// The operands of a problem.
    struct Tensors {
        dout: Vec<f32>,
        q: Vec<f32>,
        k: Vec<f32>,
        v: Vec<f32>,
        out: Vec<f32>,
        lse: Vec<f32>,
    }

    impl Tensors {
        fn new(problem: &Problem, q: Vec<f32>, k: Vec<f32>, v: Vec<f32>, dout: Vec<f32>) -> Self {
            let (out, lse) = naive(problem, &q, &k, &v);
            let narrow = |values: Vec<f64>| values.iter().map(|value| *value as f32).collect();
            Self {
                dout,
                q,
                k,
                v,
                out: narrow(out),
                lse: narrow(lse),
            }
        }

        fn random(problem: &Problem) -> Self {
            let rows = problem.batch * problem.depth;
            let q = rows * problem.queries * problem.query_heads;
            let kv = rows * problem.keys * problem.key_heads;
            Self::new(
                problem,
                numbers(q, 1),
                numbers(kv, 2),
                numbers(kv, 3),
                numbers(q, 4),
            )
        }
    }

    /// What [`backward`] writes.
    struct Found {
        dq: Vec<f32>,
        dk: Vec<f32>,
        dv: Vec<f32>,
        softmax_d: Vec<f32>,
        softmax_lse_log2: Vec<f32>,
        dq_semaphore: Vec<i32>,
    }

    type Backward = fn(&Problem, Sizes, &Operands<'_>, Results<'_>);

    fn run(backward: Backward, problem: &Problem, tensors: &Tensors) -> Found {
        let sizes = Sizes::new(problem).unwrap();
        let query_heads = problem.batch * problem.query_heads;
        let key_heads = problem.batch * problem.key_heads;
        // What results hold at first must not matter.
        let nan = |length| vec![f32::NAN; length];
        let mut found = Found {
            dq: nan(tensors.q.len()),
            dk: nan(tensors.k.len()),
            dv: nan(tensors.v.len()),
            softmax_d: nan(query_heads * problem.queries),
            softmax_lse_log2: nan(query_heads * problem.queries),
            dq_semaphore: vec![-1; query_heads * sizes.query_blocks],
        };
        let operands = Operands {
            dout: &tensors.dout,
            q: &tensors.q,
            k: &tensors.k,
            v: &tensors.v,
            out: &tensors.out,
            lse: &tensors.lse,
        };
        let results = Results {
            dq: &mut found.dq,
            dk: &mut found.dk,
            dv: &mut found.dv,
            softmax_d: &mut found.softmax_d,
            softmax_lse_log2: &mut found.softmax_lse_log2,
            dq_accum: &mut nan(query_heads * sizes.queries),
            dq_semaphore: &mut found.dq_semaphore,
            dk_accum: &mut nan(key_heads * sizes.keys),
            dv_accum: &mut nan(key_heads * sizes.keys),
        };
        backward(problem, sizes, &operands, results);
        found
    }

    /// The gradients as their definition has them, in f64 and without blocks.
    fn naive_gradients(problem: &Problem, tensors: &Tensors) -> [Vec<f64>; 3] {
        let Problem {
            batch,
            queries,
            keys,
            query_heads,
            key_heads,
            depth,
            ..
        } = *problem;
        let scale = problem.softmax_scale as f64;
        let Tensors { dout, q, k, v, .. } = tensors;
        let (_, lse) = naive(problem, q, k, v);
        let dot = |a: &[f32], b: &[f32]| -> f64 {
            a.iter().zip(b).map(|(a, b)| *a as f64 * *b as f64).sum()
        };
        let mut dq = vec![0.0; q.len()];
        let mut dk = vec![0.0; k.len()];
        let mut dv = vec![0.0; v.len()];
        for b in 0..batch {
            for h in 0..query_heads {
                for i in 0..queries {
                    let q_at = ((b * queries + i) * query_heads + h) * depth;
                    let kv_at = |j: usize| {
                        ((b * keys + j) * key_heads + h / (query_heads / key_heads)) * depth
                    };
                    let q = &q[q_at..][..depth];
                    let dout = &dout[q_at..][..depth];
                    let seen: Vec<usize> = (0..keys)
                        .filter(|j| {
                            !problem.causal || *j as i64 - keys as i64 <= i as i64 - queries as i64
                        })
                        .collect();
                    let lse = lse[(b * query_heads + h) * queries + i];
                    let weight = |j: usize| (scale * dot(q, &k[kv_at(j)..]) - lse).exp();
                    let change = |j: usize| dot(dout, &v[kv_at(j)..]);
                    let mean: f64 = seen.iter().map(|j| weight(*j) * change(*j)).sum();
                    for j in seen {
                        let ds = scale * weight(j) * (change(j) - mean);
                        for d in 0..depth {
                            dq[q_at + d] += ds * k[kv_at(j) + d] as f64;
                            dk[kv_at(j) + d] += ds * q[d] as f64;
                            dv[kv_at(j) + d] += weight(j) * dout[d] as f64;
                        }
                    }
                }
            }
        }
        [dq, dk, dv]
    }

    #[track_caller]
    fn check(problem: Problem) {
        let tensors = Tensors::random(&problem);
        let [dq, dk, dv] = naive_gradients(&problem, &tensors);
        for backward in [backward as Backward, backward_with::<false>] {
            let found = run(backward, &problem, &tensors);
            assert_close(&found.dq, &dq, 4e-6);
            assert_close(&found.dk, &dk, 4e-6);
            assert_close(&found.dv, &dv, 4e-6);
        }
    }

    #[test]
    fn whole_blocks() {
        for causal in [false, true] {
            check(Problem {
                causal,
                queries: 128,
                batch: 1,
                ..PROBLEM
            });
        }
    }

    #[test]
    fn heads_that_share_keys() {
        for (query_heads, key_heads, causal) in [(6, 2, false), (4, 1, true)] {
            check(Problem {
                query_heads,
                key_heads,
                causal,
                ..PROBLEM
            });
        }
    }

    #[test]
    fn sizes_that_fill_no_block() {
        for (queries, keys, depth) in [
            (1, 1, 1),
            (3, 1, 5),
            (65, 67, 24),
            (127, 130, 17),
            (70, 200, 40),
            (200, 70, 3),
        ] {
            for causal in [false, true] {
                check(Problem {
                    batch: 1,
                    queries,
                    keys,
                    depth,
                    causal,
                    ..PROBLEM
                });
            }
        }
    }

    #[test]
    fn no_queries_or_no_keys_are_gradients_of_zero() {
        for (queries, keys) in [(0, 3), (3, 0)] {
            let problem = Problem {
                queries,
                keys,
                ..PROBLEM
            };
            let found = run(backward, &problem, &Tensors::random(&problem));
            for gradient in [found.dq, found.dk, found.dv] {
                assert!(gradient.iter().all(|value| *value == 0.0));
            }
        }
    }

    #[test]
    fn the_workspaces_hold_what_they_are_named_after() {
        let problem = Problem {
            batch: 1,
            queries: 2,
            keys: 1,
            query_heads: 1,
            key_heads: 1,
            depth: 2,
            softmax_scale: 1.0,
            ..PROBLEM
        };
        let tensors = Tensors::new(
            &problem,
            vec![1.0, 0.0, 0.0, 1.0],
            vec![2.0, 4.0],
            vec![3.0, 5.0],
            vec![1.0, 1.0, 2.0, -1.0],
        );
        let found = run(backward, &problem, &tensors);
        // With one key, out is v and lse the score.
        assert_eq!(found.softmax_d, [8.0, 1.0]);
        assert_eq!(found.softmax_lse_log2, [2.0 * LOG2_E, 4.0 * LOG2_E]);
    }

    #[test]
    fn each_block_of_queries_leaves_a_note_of_how_many_heads_the_call_saw() {
        for causal in [false, true] {
            // The first block of queries sees no key of a causal call.
            let problem = Problem {
                queries: 200,
                keys: 100,
                query_heads: 6,
                depth: 1,
                causal,
                ..PROBLEM
            };
            let found = run(backward, &problem, &Tensors::random(&problem));
            assert_eq!(found.dq_semaphore, [6; 2 * 6 * 4]);
        }
    }

    #[test]
    fn a_query_that_sees_no_key_has_gradients_of_zero() {
        let problem = Problem {
            batch: 1,
            queries: 3,
            keys: 2,
            query_heads: 1,
            key_heads: 1,
            depth: 1,
            causal: true,
            ..PROBLEM
        };
        let tensors = Tensors::new(
            &problem,
            vec![1.0; 3],
            vec![0.0; 2],
            vec![1.0, 3.0],
            vec![5.0, 1.0, 1.0],
        );
        let found = run(backward, &problem, &tensors);
        assert_eq!(found.dq, [0.0, 0.0, 0.0]);
        // Weights of 1 for query 1, and of a half for query 2.
        assert_eq!(found.dv, [1.5, 0.5]);
        let infinite = Tensors {
            k: vec![f32::NEG_INFINITY; 2],
            lse: vec![f32::NEG_INFINITY; 3],
            out: vec![0.0; 3],
            ..tensors
        };
        let found = run(backward, &problem, &infinite);
        for gradient in [found.dq, found.dk, found.dv] {
            assert!(gradient.iter().all(|value| *value == 0.0));
        }
    }

    #[test]
    fn a_head_too_large_to_count_has_no_sizes() {
        let problem = Problem {
            depth: usize::MAX,
            ..PROBLEM
        };
        assert_eq!(Sizes::new(&problem), None);
    }
}
