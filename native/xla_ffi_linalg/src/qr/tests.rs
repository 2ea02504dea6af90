use crate::reference::{assert_within, call, for_each_type, refusal, Matrix, Random, Real};
use xla_ffi::half::{bf16, f16};
use xla_ffi::testing::Frame;

fn inner(a: &Matrix, complete: bool) -> usize {
    if complete {
        a.rows
    } else {
        a.rows.min(a.columns)
    }
}

fn qr<S: Real>(a: &Matrix, complete: bool) -> (Matrix, Matrix) {
    let (m, n, k) = (a.rows, a.columns, inner(a, complete));
    let mut frame = Frame::new()
        .operand(&[m, n], &a.elements::<S>())
        .result::<S>(&[m, k])
        .result::<S>(&[k, n]);
    call(&mut frame, S::QR).unwrap();
    (
        Matrix::of(m, k, &frame.values::<S>(0)),
        Matrix::of(k, n, &frame.values::<S>(1)),
    )
}

/// Decomposes the matrix in both ways, and checks all that holds of the results; returns the reduced ones.
#[track_caller]
fn check<S: Real>(a: &Matrix) -> (Matrix, Matrix) {
    let a = &a.rounded::<S>();
    for complete in [true, false] {
        let (q, r) = qr::<S>(a, complete);
        let k = inner(a, complete);
        let shape = format!("{} {}x{} {complete}", S::DATA_TYPE, a.rows, a.columns);
        let error = q.times(&r).minus(a).norm();
        assert_within(
            error,
            S::tolerance(k) * a.norm(),
            &format!("QR - A, {shape}"),
        );
        assert_within(
            q.orthogonality(),
            S::tolerance(k),
            &format!("QᵀQ - 1, {shape}"),
        );
        r.assert_upper();
        if !complete {
            return (q, r);
        }
    }
    unreachable!()
}

fn all_shapes<S: Real>() {
    let mut random = Random::new(1);
    for m in 0..=9 {
        for n in 0..=9 {
            check::<S>(&Matrix::random(m, n, &mut random));
        }
    }
    for (m, n) in [
        (40, 40),
        (130, 70),
        (70, 130),
        (300, 3),
        (3, 300),
        (200, 200),
    ] {
        check::<S>(&Matrix::random(m, n, &mut random));
    }
}

#[test]
fn random_matrices_of_all_shapes() {
    for_each_type!(all_shapes in f32, f64, f16, bf16);
}

fn special_matrices<S: Real>() {
    let mut random = Random::new(2);
    for n in [1, 2, 5, 33, 80] {
        check::<S>(&Matrix::from_fn(n, n, |_, _| 0.0));
        check::<S>(&Matrix::from_fn(n + 3, n, |_, _| 0.0));
        check::<S>(&Matrix::from_fn(n, n, |_, _| 1.0));
        check::<S>(&Matrix::identity(n));
        check::<S>(&Matrix::from_fn(n, n, |i, j| (n * i + j) as f64 / n as f64));
        check::<S>(&Matrix::from_fn(n, n, |i, j| 1.0 / (i + j + 1) as f64));
        for rank in [1, n / 2, n - 1] {
            check::<S>(&Matrix::of_rank(rank, n, n, &mut random));
            check::<S>(&Matrix::of_rank(rank, n + 20, n, &mut random));
            check::<S>(&Matrix::of_rank(rank, n, n + 20, &mut random));
        }
        // Columns of zeros between others.
        check::<S>(&Matrix::from_fn(n, n, |_, j| {
            (j % 3) as f64 * random.next()
        }));
    }
}

#[test]
fn singular_and_other_special_matrices() {
    for_each_type!(special_matrices in f32, f64, f16, bf16);
}

fn triangular<S: Real>() {
    let mut random = Random::new(3);
    for (m, n) in [(1, 1), (4, 4), (6, 4), (4, 6), (50, 50)] {
        let upper = Matrix::from_fn(m, n, |i, j| if i > j { 0.0 } else { random.next() });
        let upper = upper.rounded::<S>();
        let (q, r) = check::<S>(&upper);
        assert_eq!(q, Matrix::from_fn(m, m.min(n), |i, j| f64::from(i == j)));
        assert_eq!(r.values, upper.values[..r.values.len()]);
    }
}

#[test]
fn upper_triangular_matrices_are_their_own_r() {
    for_each_type!(triangular in f32, f64, f16, bf16);
}

/// Classical Gram and Schmidt, twice, in `f64`: another way to R, up to the signs of its rows.
fn gram_schmidt(a: &Matrix) -> Matrix {
    let mut columns: Vec<Vec<f64>> = a
        .transposed()
        .values
        .chunks(a.rows)
        .map(Vec::from)
        .collect();
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
    let mut r = Matrix::from_fn(a.columns, a.columns, |_, _| 0.0);
    for j in 0..a.columns {
        for _ in 0..2 {
            for i in 0..j {
                let along = dot(&columns[i], &columns[j]);
                r.values[i * a.columns + j] += along;
                let direction = columns[i].clone();
                for (x, d) in columns[j].iter_mut().zip(direction) {
                    *x -= along * d;
                }
            }
        }
        let norm = dot(&columns[j], &columns[j]).sqrt();
        r.values[j * a.columns + j] = norm;
        columns[j].iter_mut().for_each(|x| *x /= norm);
    }
    r
}

#[test]
fn r_is_that_of_another_method() {
    let mut random = Random::new(4);
    for (m, n) in [(1, 1), (5, 5), (60, 40), (40, 40)] {
        let a = Matrix::random(m, n, &mut random);
        let (_, r) = qr::<f64>(&a, false);
        let r = Matrix::from_fn(n, n, |i, j| r.at(i, j) * r.at(i, i).signum());
        let error = r.minus(&gram_schmidt(&a)).norm();
        assert_within(error, 1e-12 * a.norm(), "R by Gram-Schmidt");
    }
}

#[test]
fn nearly_dependent_columns_keep_their_digits() {
    let mut random = Random::new(5);
    for small in [1e-3, 1e-4, 1e-5] {
        let base = Matrix::random(1000, 1, &mut random);
        let a = Matrix::from_fn(1000, 3, |i, j| {
            base.at(i, 0) + j as f64 * small * random.next()
        });
        let a = a.rounded::<f32>();
        let (_, r) = check::<f32>(&a);
        // What remains of the last columns is small, but right.
        let expected = gram_schmidt(&a);
        for i in 1..3 {
            let error = (r.at(i, i).abs() - expected.at(i, i)).abs();
            assert_within(error, 1e-6 * a.norm(), "small diagonal of R");
        }
    }
}

#[test]
fn sizes_at_the_ends_of_the_range() {
    let mut random = Random::new(6);
    for (scale, size) in [(1e-43, 2e-45), (1e-36, 1e-42), (1e30, 1e24), (1e38, 1e32)] {
        let a = Matrix::random(20, 12, &mut random)
            .map(|x| x * scale)
            .rounded::<f32>();
        let (q, r) = qr::<f32>(&a, false);
        assert!(r.is_finite());
        assert_within(q.orthogonality(), 1e-5, "QᵀQ - 1");
        // Elements of R cannot be had better than to the last place of a subnormal number.
        assert_within(q.times(&r).minus(&a).norm(), 16.0 * size, "QR - A");
    }
    for scale in [1e-300, 1e300] {
        check::<f64>(&Matrix::random(20, 12, &mut random).map(|x| x * scale));
    }
    // Small beside large: scaling the matrix as a whole would lose it.
    let (_, r) = qr::<f32>(&Matrix::diagonal(&[1e30, 1e-20]), false);
    assert_eq!(r.elements::<f32>(), [1e30, 0.0, 0.0, 1e-20]);
}

#[test]
fn results_beyond_f16_are_infinite() {
    let (q, r) = qr::<f16>(&Matrix::from_fn(2, 1, |_, _| 60000.0), false);
    assert_within(q.orthogonality(), f16::tolerance(1), "QᵀQ - 1");
    assert_eq!(r.values, [f64::NEG_INFINITY]);
    let (_, r) = qr::<bf16>(&Matrix::from_fn(2, 1, |_, _| 60000.0), false);
    assert!(r.is_finite());
}

#[test]
fn batches_over_all_leading_dimensions() {
    let mut random = Random::new(7);
    let (m, n) = (5, 3);
    let matrices: Vec<_> = (0..6).map(|_| Matrix::random(m, n, &mut random)).collect();
    let elements: Vec<f32> = matrices.iter().flat_map(Matrix::elements::<f32>).collect();
    for dims in [&[6][..], &[2, 3], &[3, 1, 2]] {
        for k in [n, m] {
            let mut frame = Frame::new()
                .operand(&[dims, &[m, n]].concat(), &elements)
                .result::<f32>(&[dims, &[m, k]].concat())
                .result::<f32>(&[dims, &[k, n]].concat());
            call(&mut frame, f32::QR).unwrap();
            let (q, r) = (frame.values::<f32>(0), frame.values::<f32>(1));
            for (index, a) in matrices.iter().enumerate() {
                let (one_q, one_r) = qr::<f32>(a, k == m);
                assert_eq!(q[index * m * k..][..m * k], one_q.elements::<f32>());
                assert_eq!(r[index * k * n..][..k * n], one_r.elements::<f32>());
            }
        }
    }
}

#[test]
fn empty_batches_and_matrices() {
    for dims in [&[0, 3, 2][..], &[2, 0, 4, 4], &[5, 0, 0]] {
        let (batch, inner) = dims.split_at(dims.len() - 2);
        let k = inner[0].min(inner[1]);
        let mut frame = Frame::new()
            .operand::<f64>(dims, &[])
            .result::<f64>(&[batch, &[inner[0], k]].concat())
            .result::<f64>(&[batch, &[k, inner[1]]].concat());
        call(&mut frame, f64::QR).unwrap();
    }
    // A complete decomposition of nothing is a basis of the whole space.
    let mut frame = Frame::new()
        .operand::<f64>(&[2, 2, 0], &[])
        .result::<f64>(&[2, 2, 2])
        .result::<f64>(&[2, 2, 0]);
    call(&mut frame, f64::QR).unwrap();
    assert_eq!(
        frame.values::<f64>(0),
        [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0]
    );
}

#[test]
fn nan_and_infinity_become_nan() {
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        for place in 0..6 {
            for complete in [false, true] {
                let mut a = Matrix::from_fn(3, 2, |i, j| (i + 2 * j) as f64 + 1.0);
                a.values[place] = bad;
                let (q, r) = qr::<f32>(&a, complete);
                assert!(q.values.iter().all(|x| x.is_nan()));
                r.assert_upper();
                assert!(r.at(0, 0).is_nan() && r.at(0, 1).is_nan() && r.at(1, 1).is_nan());
            }
        }
    }
    let mut frame = Frame::new()
        .operand(&[3, 1, 1], &[2f64, f64::NAN, -3.0])
        .result::<f64>(&[3, 1, 1])
        .result::<f64>(&[3, 1, 1]);
    call(&mut frame, f64::QR).unwrap();
    let r = frame.values::<f64>(1);
    assert_eq!((r[0], r[2]), (2.0, -3.0));
    assert!(r[1].is_nan());
}

#[test]
fn wrong_shapes() {
    let message = |a: &[usize], q: &[usize], r: &[usize]| {
        let values = vec![0f32; a.iter().product()];
        let frame = Frame::new()
            .operand(a, &values)
            .result::<f32>(q)
            .result::<f32>(r);
        refusal(frame, f32::QR)
    };
    assert_eq!(
        message(&[3], &[3, 3], &[3, 3]),
        "operand 0 (a): expected matrices, at least 2 dimensions, found f32[3]"
    );
    assert_eq!(
        message(&[], &[], &[]),
        "operand 0 (a): expected matrices, at least 2 dimensions, found f32[]"
    );
    assert_eq!(
        message(&[4, 3], &[3, 3], &[3, 3]),
        "result 0 (q): expected f32[4,3], or f32[4,4] for a complete decomposition, found f32[3,3]"
    );
    assert_eq!(
        message(&[2, 3, 4], &[2, 3, 4], &[2, 3, 4]),
        "result 0 (q): expected f32[2,3,3], found f32[2,3,4]"
    );
    assert_eq!(
        message(&[2, 4, 3], &[2, 4, 3], &[4, 3]),
        "result 1 (r): expected f32[2,3,3], or f32[2,4,3] for a complete decomposition, found f32[4,3]"
    );
    assert_eq!(
        message(&[4, 3], &[4, 4], &[3, 3]),
        "result 1 (r): expected f32[4,3] beside f32[4,4] as result 0 (q), found f32[3,3]"
    );
    assert_eq!(
        message(&[4, 3], &[4, 3], &[4, 3]),
        "result 1 (r): expected f32[3,3] beside f32[4,3] as result 0 (q), found f32[4,3]"
    );
    assert_eq!(
        message(&[2, 2], &[1, 2, 2], &[2, 2]),
        "result 0 (q): expected f32[2,2], found f32[1,2,2]"
    );
}

#[test]
fn wrong_types_and_counts() {
    let a = || Frame::new().operand(&[1, 1], &[1f32]);
    let both = || a().result::<f32>(&[1, 1]).result::<f32>(&[1, 1]);
    assert_eq!(
        refusal(both(), f64::QR),
        "operand 0 (a): expected f64, found f32"
    );
    assert_eq!(
        refusal(a().result::<f32>(&[1, 1]).result::<f64>(&[1, 1]), f32::QR),
        "result 1 (r): expected f32, found f64"
    );
    assert_eq!(
        refusal(a().result::<f32>(&[1, 1]), f32::QR),
        "expected 2 results, found 1"
    );
    assert_eq!(
        refusal(both().attribute("mode", "complete"), f32::QR),
        "attribute \"mode\": unexpected, the handler takes none"
    );
}
