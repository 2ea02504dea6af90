//! The forward pass, on slices, and what it has in common with the backward pass.
//!
//! For each batch and query head, blocks of queries go over blocks of keys. A block of scores is small enough to
//! stay in the cache; the softmax is corrected as larger scores appear, by what Milakov and Gimelshein call online
//! normalisation and FlashAttention builds on. The outputs of a block are accumulated in place.

/// Queries in a block.
pub const BLOCK_Q: usize = 64;
/// Keys in a block.
pub const BLOCK_K: usize = 64;
/// Rows that the innermost loops work on at once, so that what they load serves several times.
pub const ROWS: usize = 4;
/// Elements of a row that the innermost loops keep in registers: two vectors of AVX2.
pub const LANES: usize = 16;

const _: () = assert!(BLOCK_K.is_multiple_of(LANES) && BLOCK_Q.is_multiple_of(ROWS));

/// What to compute.
#[derive(Clone, Copy, Debug)]
pub struct Problem {
    pub batch: usize,
    pub queries: usize,
    pub keys: usize,
    pub query_heads: usize,
    /// Divides `query_heads`.
    pub key_heads: usize,
    /// Elements of a head; not 0.
    pub depth: usize,
    pub causal: bool,
    pub softmax_scale: f32,
}

impl Problem {
    /// How many keys a query sees, from the first one on.
    pub fn visible(&self, query: usize) -> usize {
        let Self {
            queries,
            keys,
            causal,
            ..
        } = *self;
        match causal {
            true => (query + 1 + keys).saturating_sub(queries).min(keys),
            false => keys,
        }
    }
}

/// The rows of a head in a tensor of batch, sequence, head and depth.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// From the first row of the head on.
    values: &'a [f32],
    stride: usize,
    depth: usize,
}

impl<'a> Rows<'a> {
    /// Those of one of `heads` heads, in a batch with `length` rows for each.
    #[inline(always)]
    pub fn new(
        tensor: &'a [f32],
        batch: usize,
        length: usize,
        heads: usize,
        head: usize,
        depth: usize,
    ) -> Self {
        Self {
            values: tensor
                .get((batch * length * heads + head) * depth..)
                .unwrap_or_default(),
            stride: heads * depth,
            depth,
        }
    }

    #[inline(always)]
    pub fn depth(&self) -> usize {
        self.depth
    }

    #[inline(always)]
    pub fn row(&self, index: usize) -> &'a [f32] {
        &self.values[index * self.stride..][..self.depth]
    }

    #[inline(always)]
    pub fn lanes<const L: usize>(&self, index: usize, start: usize) -> [f32; L] {
        lanes(self.values, index * self.stride + start)
    }

    /// Writes a block of keys (or values) by element and then by row, so that vectors are of neighbouring rows.
    #[inline(always)]
    pub fn pack(&self, first: usize, count: usize, packed: &mut [f32]) {
        // The products of rows that are not there are masked later, but must not be of old memory's NaNs:
        // arithmetic with those is slow on some processors.
        if count < BLOCK_K {
            packed.fill(0.0);
        }
        for column in 0..count {
            let row = self.row(first + column);
            for (to, from) in packed[column..].iter_mut().step_by(BLOCK_K).zip(row) {
                *to = *from;
            }
        }
    }

    /// products = scale * rows packedᵀ, for R rows and a packed block.
    #[inline(always)]
    pub fn products<const R: usize, const FUSED: bool>(
        &self,
        first: usize,
        packed: &[f32],
        scale: f32,
        products: &mut [f32],
    ) {
        let rows: [&[f32]; R] = std::array::from_fn(|row| self.row(first + row));
        for start in (0..BLOCK_K).step_by(LANES) {
            let mut sums = [[0.0; LANES]; R];
            for (index, packed) in packed.chunks_exact(BLOCK_K).take(self.depth).enumerate() {
                let packed = lanes::<LANES>(packed, start);
                for (sums, row) in sums.iter_mut().zip(&rows) {
                    for (sum, packed) in sums.iter_mut().zip(&packed) {
                        *sum = multiply_add::<FUSED>(row[index], *packed, *sum);
                    }
                }
            }
            for (products, sums) in products.chunks_exact_mut(BLOCK_K).zip(&sums) {
                for (product, sum) in products[start..].iter_mut().zip(sums) {
                    *product = scale * sum;
                }
            }
        }
    }
}

/// How many `f32` of scratch memory each batch and query head needs: 64 * (D + 66), or none if that is too many to
/// count.
///
/// They are a block of scores (64 * 64), a block of keys, transposed (64 * D), and for each query of a block the
/// largest score so far and the sum of the softmax so far (64 each).
pub fn workspace(depth: usize) -> Option<usize> {
    let scores = BLOCK_Q * BLOCK_K;
    depth
        .checked_mul(BLOCK_K)?
        .checked_add(scores + 2 * BLOCK_Q)
}

/// Computes the outputs and the logarithms of the sums of the softmaxes.
///
/// `q` and `out` are row-major in batch, query, head and depth, `k` and `v` likewise, `lse` in batch, head and
/// query, and `scratch` has [`workspace`] elements for each batch and head.
pub fn forward(
    problem: &Problem,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    out: &mut [f32],
    lse: &mut [f32],
    scratch: &mut [f32],
) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: the processor has both features.
        return unsafe { forward_avx2(problem, q, k, v, out, lse, scratch) };
    }
    forward_with::<false>(problem, q, k, v, out, lse, scratch);
}

/// The same code, compiled for the instructions of nearly all processors of today rather than of all.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn forward_avx2(
    problem: &Problem,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    out: &mut [f32],
    lse: &mut [f32],
    scratch: &mut [f32],
) {
    forward_with::<true>(problem, q, k, v, out, lse, scratch);
}

// This and all that it calls is always inlined, so that it is compiled with the features of its caller.
#[inline(always)]
fn forward_with<const FUSED: bool>(
    problem: &Problem,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    out: &mut [f32],
    lse: &mut [f32],
    scratch: &mut [f32],
) {
    let Problem {
        queries,
        keys,
        query_heads,
        key_heads,
        depth,
        ..
    } = *problem;
    if lse.is_empty() {
        return;
    }
    let heads = lse.chunks_exact_mut(queries);
    let scratches = scratch.chunks_exact_mut(scratch.len() / heads.len());
    for (index, (lse, scratch)) in heads.zip(scratches).enumerate() {
        let (batch, head) = (index / query_heads, index % query_heads);
        let key_head = head / (query_heads / key_heads);
        let q_start = (batch * queries * query_heads + head) * depth;
        Head::<FUSED> {
            problem,
            q: Rows::new(q, batch, queries, query_heads, head, depth),
            k: Rows::new(k, batch, keys, key_heads, key_head, depth),
            v: Rows::new(v, batch, keys, key_heads, key_head, depth),
        }
        .forward(&mut out[q_start..], lse, scratch);
        scratch[0] = query_heads as f32;
    }
}

/// One query head, with the key and value head it looks at.
struct Head<'a, const FUSED: bool> {
    problem: &'a Problem,
    q: Rows<'a>,
    k: Rows<'a>,
    v: Rows<'a>,
}

/// The scratch memory of a head.
struct Scratch<'a> {
    /// Of each query in a block with each key in a block; then the exponentials of their distance to the largest.
    scores: &'a mut [f32],
    /// A block of keys, by element and then by key, so that vectors are of neighbouring keys.
    keys: &'a mut [f32],
    /// The largest score of each query in a block so far.
    largest: &'a mut [f32],
    /// The sum of the exponentials so far.
    sums: &'a mut [f32],
}

impl<'a> Scratch<'a> {
    #[inline(always)]
    fn new(memory: &'a mut [f32], depth: usize) -> Self {
        let (scores, memory) = memory.split_at_mut(BLOCK_Q * BLOCK_K);
        let (keys, memory) = memory.split_at_mut(depth * BLOCK_K);
        let (largest, sums) = memory.split_at_mut(BLOCK_Q);
        Self {
            scores,
            keys,
            largest,
            sums,
        }
    }
}

impl<const FUSED: bool> Head<'_, FUSED> {
    #[inline(always)]
    fn forward(&self, out: &mut [f32], lse: &mut [f32], memory: &mut [f32]) {
        let Problem {
            queries,
            keys,
            depth,
            ..
        } = *self.problem;
        let mut scratch = Scratch::new(memory, depth);
        for first_query in (0..queries).step_by(BLOCK_Q) {
            let rows = BLOCK_Q.min(queries - first_query);
            scratch.largest.fill(f32::NEG_INFINITY);
            scratch.sums.fill(0.0);
            for row in 0..rows {
                out[(first_query + row) * self.q.stride..][..depth].fill(0.0);
            }
            // No query of the block sees more than its last one.
            for first_key in (0..self.problem.visible(first_query + rows - 1)).step_by(BLOCK_K) {
                let columns = BLOCK_K.min(keys - first_key);
                self.k.pack(first_key, columns, scratch.keys);
                let whole = rows - rows % ROWS;
                for row in (0..whole).step_by(ROWS) {
                    self.step::<ROWS>(first_query, row, first_key, columns, &mut scratch, out);
                }
                for row in whole..rows {
                    self.step::<1>(first_query, row, first_key, columns, &mut scratch, out);
                }
            }
            for row in 0..rows {
                let (largest, sum) = (scratch.largest[row], scratch.sums[row]);
                let reciprocal = if sum == 0.0 { 0.0 } else { sum.recip() };
                let out = &mut out[(first_query + row) * self.q.stride..][..depth];
                out.iter_mut().for_each(|value| *value *= reciprocal);
                lse[first_query + row] = largest + sum.ln();
            }
        }
    }

    /// Goes with R queries of a block over a block of keys.
    #[inline(always)]
    fn step<const R: usize>(
        &self,
        first_query: usize,
        first_row: usize,
        first_key: usize,
        columns: usize,
        scratch: &mut Scratch<'_>,
        out: &mut [f32],
    ) {
        let query = first_query + first_row;
        let seen = |row: usize| {
            self.problem
                .visible(query + row)
                .saturating_sub(first_key)
                .min(columns)
        };
        // The last of the queries sees most.
        let most = seen(R - 1);
        if most == 0 {
            return;
        }
        let scores = &mut scratch.scores[first_row * BLOCK_K..][..R * BLOCK_K];
        let scale = self.problem.softmax_scale;
        self.q
            .products::<R, FUSED>(query, scratch.keys, scale, scores);
        let mut corrections = [0.0; R];
        for (row, scores) in scores.chunks_exact_mut(BLOCK_K).enumerate() {
            scores[seen(row)..].fill(f32::NEG_INFINITY);
            corrections[row] = softmax::<FUSED>(
                scores,
                &mut scratch.largest[first_row + row],
                &mut scratch.sums[first_row + row],
            );
        }
        let whole = self.problem.depth - self.problem.depth % LANES;
        for start in (0..whole).step_by(LANES) {
            self.accumulate::<R, LANES>(query, first_key, most, start, scores, &corrections, out);
        }
        for start in whole..self.problem.depth {
            self.accumulate::<R, 1>(query, first_key, most, start, scores, &corrections, out);
        }
    }

    /// out = correction * out + scores * v, for R queries and L elements of the head from `start` on.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn accumulate<const R: usize, const L: usize>(
        &self,
        query: usize,
        first_key: usize,
        columns: usize,
        start: usize,
        scores: &[f32],
        corrections: &[f32; R],
        out: &mut [f32],
    ) {
        let place = |row: usize| (query + row) * self.q.stride + start;
        let mut sums: [[f32; L]; R] = std::array::from_fn(|row| lanes(out, place(row)));
        for (sums, correction) in sums.iter_mut().zip(corrections) {
            sums.iter_mut().for_each(|sum| *sum *= correction);
        }
        let scores: [&[f32]; R] = std::array::from_fn(|row| &scores[row * BLOCK_K..][..columns]);
        for column in 0..columns {
            let values = self.v.lanes::<L>(first_key + column, start);
            for (sums, scores) in sums.iter_mut().zip(&scores) {
                for (sum, value) in sums.iter_mut().zip(&values) {
                    *sum = multiply_add::<FUSED>(scores[column], *value, *sum);
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            out[place(row)..][..L].copy_from_slice(sums);
        }
    }
}

/// L neighbouring elements, by value so that they are in registers.
#[inline(always)]
pub fn lanes<const L: usize>(values: &[f32], start: usize) -> [f32; L] {
    let values = &values[start..][..L];
    std::array::from_fn(|lane| values[lane])
}

#[inline(always)]
pub fn multiply_add<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    // Without an instruction for it, the fused form is a slow call.
    if FUSED {
        a.mul_add(b, c)
    } else {
        a * b + c
    }
}

/// Turns scores into exponentials of their distance to the largest score so far, and adds their sum to the one so
/// far. Returns what sums and outputs so far must be multiplied with, since `largest` may have grown.
#[inline(always)]
fn softmax<const FUSED: bool>(scores: &mut [f32], largest: &mut f32, sum: &mut f32) -> f32 {
    let mut maxima = [*largest; LANES];
    for scores in scores.chunks_exact(LANES) {
        for (maximum, score) in maxima.iter_mut().zip(scores) {
            // Unlike `f32::max` this is one instruction.
            *maximum = if *score > *maximum { *score } else { *maximum };
        }
    }
    let maximum = maxima.into_iter().fold(*largest, f32::max);
    // Where all scores are minus infinity, any finite reference makes their exponentials zero rather than NaN.
    let reference = if maximum == f32::NEG_INFINITY {
        0.0
    } else {
        maximum
    };
    let mut sums = [0.0; LANES];
    for scores in scores.chunks_exact_mut(LANES) {
        for (sum, score) in sums.iter_mut().zip(scores) {
            *score = exp::<FUSED>(*score - reference);
            *sum += *score;
        }
    }
    let correction = exp::<FUSED>(*largest - reference);
    *sum = *sum * correction + sums.iter().sum::<f32>();
    *largest = maximum;
    correction
}

/// The exponential of a number that is not positive, to about one unit in the last place; zero where the result
/// would be subnormal, and NaN of NaN.
///
/// The standard library's is a call for each element. This is arithmetic only, so loops over it are vectorised.
#[inline(always)]
fn exp<const FUSED: bool>(x: f32) -> f32 {
    /// The exponents below lose precision, and then there are none.
    const LEAST: f32 = -87.33;
    /// ln 2 in two parts, of which the first has few enough bits for the product with an exponent to be exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;

    let rounded = multiply_add::<FUSED>(x, std::f32::consts::LOG2_E, ROUND);
    let exponent = rounded - ROUND;
    let rest = multiply_add::<FUSED>(exponent, -LN_2_HIGH, x);
    let rest = multiply_add::<FUSED>(exponent, -LN_2_LOW, rest);
    // Comparing this way round lets NaN through.
    if x < LEAST {
        0.0
    } else {
        series::<FUSED>(rest) * power_of_two(rounded)
    }
}

/// The same with base 2, and with infinity for what is too large for an f32.
#[inline(always)]
pub fn exp2<const FUSED: bool>(x: f32) -> f32 {
    let rounded = x + ROUND;
    let rest = x - (rounded - ROUND);
    let value = series::<FUSED>(rest * std::f32::consts::LN_2) * power_of_two(rounded);
    if x < -126.0 {
        0.0
    } else if x > 127.0 {
        f32::INFINITY
    } else {
        value
    }
}

/// Added to a small number, it leaves the nearest integer in the low bits of the sum.
const ROUND: f32 = 12_582_912.0;

/// The exponential of a number at most ln 2 / 2 from zero, where the series is exact to f32 after the seventh power.
#[inline(always)]
fn series<const FUSED: bool>(x: f32) -> f32 {
    let mut series = 1.0 / 5040.0;
    for coefficient in [
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        series = multiply_add::<FUSED>(series, x, coefficient);
    }
    series
}

/// 2 to the power of the integer that was rounded by adding [`ROUND`].
#[inline(always)]
fn power_of_two(rounded: f32) -> f32 {
    let exponent_bits = rounded
        .to_bits()
        .wrapping_sub(ROUND.to_bits())
        .wrapping_add(127)
        << 23;
    f32::from_bits(exponent_bits)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Numbers in -1..1 that look random.
    pub fn numbers(count: usize, seed: u64) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    /// Softmax attention as its definition has it, in f64.
    pub fn naive(problem: &Problem, q: &[f32], k: &[f32], v: &[f32]) -> (Vec<f64>, Vec<f64>) {
        let Problem {
            batch,
            queries,
            keys,
            query_heads,
            key_heads,
            depth,
            ..
        } = *problem;
        let mut out = vec![0.0; q.len()];
        let mut lse = vec![f64::NEG_INFINITY; batch * query_heads * queries];
        for b in 0..batch {
            for h in 0..query_heads {
                for i in 0..queries {
                    let q_at = ((b * queries + i) * query_heads + h) * depth;
                    let kv_at = |j: usize| {
                        ((b * keys + j) * key_heads + h / (query_heads / key_heads)) * depth
                    };
                    let scores: Vec<f64> = (0..keys)
                        .map(|j| {
                            if problem.causal && j as i64 - keys as i64 > i as i64 - queries as i64
                            {
                                return f64::NEG_INFINITY;
                            }
                            let dot: f64 = (0..depth)
                                .map(|d| q[q_at + d] as f64 * k[kv_at(j) + d] as f64)
                                .sum();
                            dot * problem.softmax_scale as f64
                        })
                        .collect();
                    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    if largest == f64::NEG_INFINITY {
                        continue;
                    }
                    let sum: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
                    lse[(b * query_heads + h) * queries + i] = largest + sum.ln();
                    for (j, score) in scores.iter().enumerate() {
                        let weight = (score - largest).exp() / sum;
                        for d in 0..depth {
                            out[q_at + d] += weight * v[kv_at(j) + d] as f64;
                        }
                    }
                }
            }
        }
        (out, lse)
    }

    type Forward = fn(&Problem, &[f32], &[f32], &[f32], &mut [f32], &mut [f32], &mut [f32]);

    fn run(
        forward: Forward,
        problem: &Problem,
        q: &[f32],
        k: &[f32],
        v: &[f32],
    ) -> (Vec<f32>, Vec<f32>) {
        // What results hold at first must not matter.
        let heads = problem.batch * problem.query_heads;
        let mut out = vec![f32::NAN; q.len()];
        let mut lse = vec![f32::NAN; heads * problem.queries];
        let mut scratch = vec![f32::NAN; heads * workspace(problem.depth).unwrap()];
        forward(problem, q, k, v, &mut out, &mut lse, &mut scratch);
        (out, lse)
    }

    #[track_caller]
    pub fn assert_close(found: &[f32], expected: &[f64], tolerance: f64) {
        assert_eq!(found.len(), expected.len());
        for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
            let found = *found as f64;
            let close = found == *expected
                || (found - expected).abs() <= tolerance * (1.0 + expected.abs());
            assert!(close, "element {index}: {found} is not {expected}");
        }
    }

    #[track_caller]
    fn check(problem: Problem, magnitude: f32, tolerance: f64) {
        let Problem {
            batch,
            queries,
            keys,
            query_heads,
            key_heads,
            depth,
            ..
        } = problem;
        let mut q = numbers(batch * queries * query_heads * depth, 1);
        let k = numbers(batch * keys * key_heads * depth, 2);
        let v = numbers(batch * keys * key_heads * depth, 3);
        q.iter_mut().for_each(|value| *value *= magnitude);
        let (out, lse) = naive(&problem, &q, &k, &v);
        for forward in [forward as Forward, forward_with::<false>] {
            let found = run(forward, &problem, &q, &k, &v);
            assert_close(&found.0, &out, tolerance);
            assert_close(&found.1, &lse, tolerance);
        }
    }

    pub const PROBLEM: Problem = Problem {
        batch: 2,
        queries: 64,
        keys: 128,
        query_heads: 2,
        key_heads: 2,
        depth: 32,
        causal: false,
        softmax_scale: 0.18,
    };

    #[test]
    fn whole_blocks() {
        check(PROBLEM, 1.0, 2e-6);
        check(
            Problem {
                causal: true,
                queries: 128,
                ..PROBLEM
            },
            1.0,
            2e-6,
        );
    }

    #[test]
    fn heads_that_share_keys() {
        check(
            Problem {
                query_heads: 6,
                ..PROBLEM
            },
            1.0,
            2e-6,
        );
        check(
            Problem {
                query_heads: 4,
                key_heads: 1,
                causal: true,
                ..PROBLEM
            },
            1.0,
            2e-6,
        );
    }

    #[test]
    fn sizes_that_fill_no_block() {
        for (queries, keys, depth) in [
            (1, 1, 1),
            (3, 1, 5),
            (65, 67, 24),
            (127, 130, 17),
            (70, 200, 40),
            (5, 64, 16),
        ] {
            for causal in [false, true] {
                let problem = Problem {
                    batch: 1,
                    queries,
                    keys,
                    depth,
                    causal,
                    ..PROBLEM
                };
                check(problem, 1.0, 2e-6);
            }
        }
    }

    #[test]
    fn causal_with_fewer_and_with_more_keys_than_queries() {
        for (queries, keys) in [(10, 100), (100, 10), (130, 70), (70, 130), (200, 1)] {
            check(
                Problem {
                    queries,
                    keys,
                    causal: true,
                    ..PROBLEM
                },
                1.0,
                2e-6,
            );
        }
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
        let (out, lse) = run(forward, &problem, &[1.0; 3], &[0.0; 2], &[1.0, 3.0]);
        assert_eq!(out, [0.0, 1.0, 2.0]);
        assert_eq!(lse, [f32::NEG_INFINITY, 0.0, 2f32.ln()]);
    }

    #[test]
    fn each_head_leaves_a_note_of_how_many_the_call_saw() {
        let problem = Problem {
            batch: 2,
            queries: 3,
            keys: 5,
            query_heads: 6,
            depth: 1,
            ..PROBLEM
        };
        let length = workspace(1).unwrap();
        let mut scratch = vec![f32::NAN; 12 * length];
        let (mut out, mut lse) = ([0.0; 36], [0.0; 36]);
        forward(
            &problem,
            &[1.0; 36],
            &[1.0; 20],
            &[1.0; 20],
            &mut out,
            &mut lse,
            &mut scratch,
        );
        let notes: Vec<f32> = scratch.iter().copied().step_by(length).collect();
        assert_eq!(notes, [6.0; 12]);
    }

    #[test]
    fn no_keys() {
        let problem = Problem { keys: 0, ..PROBLEM };
        let (out, lse) = run(forward, &problem, &[1.0; 2 * 64 * 2 * 32], &[], &[]);
        assert!(out.iter().all(|value| *value == 0.0));
        assert!(lse.iter().all(|value| *value == f32::NEG_INFINITY));
    }

    #[test]
    fn no_queries() {
        let (out, lse) = run(
            forward,
            &Problem {
                queries: 0,
                ..PROBLEM
            },
            &[],
            &[1.0; 8192 * 2],
            &[1.0; 8192 * 2],
        );
        assert!(out.is_empty() && lse.is_empty());
    }

    #[test]
    fn scores_too_large_for_an_exponential() {
        // exp(88.8) is more than an f32 holds, and the scores here go into the thousands.
        check(PROBLEM, 1e4, 1e-3);
        check(
            Problem {
                softmax_scale: -1.0,
                ..PROBLEM
            },
            1e3,
            1e-3,
        );
    }

    #[test]
    fn scores_of_minus_infinity() {
        let problem = Problem {
            batch: 1,
            queries: 2,
            keys: 3,
            query_heads: 1,
            key_heads: 1,
            depth: 1,
            softmax_scale: 1.0,
            ..PROBLEM
        };
        let infinity = f32::INFINITY;
        // One key that no query can see.
        let (out, lse) = run(
            forward,
            &problem,
            &[1.0, 2.0],
            &[0.0, -infinity, 0.0],
            &[1.0, 100.0, 3.0],
        );
        assert_eq!(out, [2.0, 2.0]);
        assert_eq!(lse, [2f32.ln(); 2]);
        // None that they can.
        let (out, lse) = run(
            forward,
            &problem,
            &[1.0, 2.0],
            &[-infinity; 3],
            &[1.0, 2.0, 3.0],
        );
        assert_eq!(out, [0.0, 0.0]);
        assert_eq!(lse, [-infinity; 2]);
    }

    #[test]
    fn a_nan_stays_with_its_query() {
        let problem = Problem {
            batch: 1,
            queries: 6,
            keys: 70,
            query_heads: 1,
            key_heads: 1,
            depth: 1,
            ..PROBLEM
        };
        let q = [1.0, 1.0, f32::NAN, 1.0, 1.0, 1.0];
        let (out, lse) = run(forward, &problem, &q, &[1.0; 70], &[1.0; 70]);
        for row in 0..6 {
            assert_eq!(out[row].is_nan(), row == 2);
            assert_eq!(lse[row].is_nan(), row == 2);
        }
    }

    #[test]
    fn the_exponential_is_as_good_as_the_standard_one() {
        for index in 0..=873_300 {
            let x = -(index as f32) / 10_000.0;
            let expected = (x as f64).exp();
            for found in [exp::<true>(x), exp::<false>(x)] {
                assert!(
                    (found as f64 - expected).abs() <= 2.4e-7 * expected,
                    "exp({x}) is {expected}, not {found}"
                );
            }
        }
        for index in 0..=127_000 {
            for x in [
                index as f32 / 1_000.0,
                -(index.min(126_000) as f32) / 1_000.0,
            ] {
                let expected = (x as f64).exp2();
                for found in [exp2::<true>(x), exp2::<false>(x)] {
                    assert!(
                        (found as f64 - expected).abs() <= 2.4e-7 * expected,
                        "exp2({x}) is {expected}, not {found}"
                    );
                }
            }
        }
        assert_eq!(exp2::<true>(0.0), 1.0);
        assert_eq!(exp2::<false>(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp2::<false>(f32::INFINITY), f32::INFINITY);
        assert!(exp2::<false>(f32::NAN).is_nan());
        assert_eq!(exp::<true>(0.0), 1.0);
        assert_eq!(exp::<false>(f32::NEG_INFINITY), 0.0);
        assert!(exp::<false>(f32::NAN).is_nan());
    }

    #[test]
    fn the_workspace_is_as_documented() {
        assert_eq!(workspace(64), Some(64 * (64 + 66)));
        assert_eq!(workspace(usize::MAX), None);
    }
}
