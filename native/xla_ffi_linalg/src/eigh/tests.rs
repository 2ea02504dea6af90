use crate::reference::{assert_within, call, for_each_type, refusal, Matrix, Random, Real};
use crate::{eigh_cpu_custom_call_f32, eigh_cpu_custom_call_f64};
use xla_ffi::sys::Handler;
use xla_ffi::testing::Frame;

trait Eigh: Real {
    const EIGH: Handler;
}

impl Eigh for f32 {
    const EIGH: Handler = eigh_cpu_custom_call_f32;
}

impl Eigh for f64 {
    const EIGH: Handler = eigh_cpu_custom_call_f64;
}

fn frame<S: Eigh>(a: &Matrix) -> Frame {
    let n = a.rows;
    Frame::new()
        .operand(&[n, n], &a.elements::<S>())
        .result::<S>(&[n])
        .result::<S>(&[n, n])
}

fn run<S: Eigh>(mut frame: Frame, n: usize) -> (Vec<f64>, Matrix) {
    call(&mut frame, S::EIGH).unwrap();
    (
        Matrix::of(n, 1, &frame.values::<S>(0)).values,
        Matrix::of(n, n, &frame.values::<S>(1)),
    )
}

fn eigh<S: Eigh>(a: &Matrix) -> (Vec<f64>, Matrix) {
    run::<S>(frame::<S>(a), a.rows)
}

/// Decomposes the symmetric matrix and checks all that holds of the results.
#[track_caller]
fn check<S: Eigh>(a: &Matrix) -> (Vec<f64>, Matrix) {
    let a = a.rounded::<S>();
    let (values, vectors) = eigh::<S>(&a);
    let what = format!("{} {}", S::DATA_TYPE, a.rows);
    let again = vectors
        .times(&Matrix::diagonal(&values))
        .times(&vectors.transposed());
    let error = again.minus(&a).norm();
    assert_within(
        error,
        S::TOLERANCE * a.norm(),
        &format!("V w Vᵀ - A, {what}"),
    );
    assert_within(
        vectors.orthogonality(),
        S::TOLERANCE,
        &format!("VᵀV - 1, {what}"),
    );
    assert!(values.is_sorted(), "{values:?}");
    (values, vectors)
}

/// Jacobi's method, with rotations of one pair of rows and columns after another: the eigenvalues, ascending.
fn jacobi(a: &Matrix) -> Vec<f64> {
    let n = a.rows;
    let mut a = a.clone();
    for _sweep in 0..30 {
        for p in 0..n {
            for q in p + 1..n {
                if a.at(p, q).abs() < 1e-300 {
                    continue;
                }
                let theta = (a.at(q, q) - a.at(p, p)) / (2.0 * a.at(p, q));
                let t = theta.signum() / (theta.abs() + theta.hypot(1.0));
                let c = 1.0 / t.hypot(1.0);
                let s = t * c;
                for k in 0..n {
                    let (x, y) = (a.at(k, p), a.at(k, q));
                    a.values[k * n + p] = c * x - s * y;
                    a.values[k * n + q] = s * x + c * y;
                }
                for k in 0..n {
                    let (x, y) = (a.at(p, k), a.at(q, k));
                    a.values[p * n + k] = c * x - s * y;
                    a.values[q * n + k] = s * x + c * y;
                }
            }
        }
    }
    let mut values: Vec<f64> = (0..n).map(|i| a.at(i, i)).collect();
    values.sort_by(f64::total_cmp);
    values
}

#[track_caller]
fn assert_close(found: &[f64], expected: &[f64], tolerance: f64) {
    let size = expected.iter().fold(0.0f64, |a, x| a.max(x.abs()));
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert_within((found - expected).abs(), tolerance * size, "an eigenvalue");
    }
}

fn random_matrices<S: Eigh>() {
    let mut random = Random::new(11);
    for n in (0..=20).chain([31, 64, 100]) {
        let a = Matrix::random(n, n, &mut random)
            .symmetrised()
            .rounded::<S>();
        let (values, _) = check::<S>(&a);
        assert_close(&values, &jacobi(&a), S::TOLERANCE);
    }
}

#[test]
fn random_matrices_agree_with_jacobi() {
    for_each_type!(random_matrices in f32, f64);
}

/// From 128 rows on, faer divides and conquers.
fn large<S: Eigh>() {
    let mut random = Random::new(12);
    for n in [127, 129, 200] {
        check::<S>(&Matrix::random(n, n, &mut random).symmetrised());
        // Small as a whole: what counts as negligible has to follow.
        check::<S>(
            &Matrix::random(n, n, &mut random)
                .symmetrised()
                .map(|x| x * 1e-6),
        );
        check::<S>(
            &Matrix::random(n, n, &mut random)
                .symmetrised()
                .map(|x| x * 1e6),
        );
        check::<S>(&Matrix::identity(n));
        check::<S>(&Matrix::from_fn(n, n, |_, _| 1.0));
        // A chain of equal springs, and Wilkinson's matrices glued together: eigenvalues in pairs that agree to
        // all digits.
        check::<S>(&tridiagonal(n, |_| 2.0, |_| -1.0));
        check::<S>(&tridiagonal(
            n,
            |i| (i % 21) as f64 - 10.0,
            |i| if i % 21 == 20 { 1e-7 } else { 1.0 },
        ));
        let clustered: Vec<f64> = (0..n).map(|i| (i % 3) as f64 + i as f64 * 1e-9).collect();
        check::<S>(&Matrix::with_eigenvalues(&clustered, &mut random));
        let low_rank: Vec<f64> = (0..n)
            .map(|i| if i < 5 { i as f64 + 1.0 } else { 0.0 })
            .collect();
        check::<S>(&Matrix::with_eigenvalues(&low_rank, &mut random));
        let graded: Vec<f64> = (0..n).map(|i| 0.9f64.powi(i as i32)).collect();
        check::<S>(&Matrix::with_eigenvalues(&graded, &mut random));
    }
}

fn tridiagonal(n: usize, on: impl Fn(usize) -> f64, off: impl Fn(usize) -> f64) -> Matrix {
    Matrix::from_fn(n, n, |i, j| match i.abs_diff(j) {
        0 => on(i),
        1 => off(i.min(j)),
        _ => 0.0,
    })
}

#[test]
fn large_matrices() {
    for_each_type!(large in f32, f64);
}

fn known<S: Eigh>() {
    let mut random = Random::new(13);
    for eigenvalues in [
        &[3.0][..],
        &[-2.0, 5.0],
        &[1.0, 1.0],
        &[-1.0, 1.0],
        &[0.0, 0.0, 0.0],
        &[2.0, 2.0, 2.0, 2.0],
        &[-1.0, -1.0, 5.0],
        &[0.0, 0.0, 0.0, 0.0, 7.0],
        &[-3.0, -3.0, 1e-3, 1.0, 1.0, 4.0],
        &[-1e4, -1.0, 0.0, 1.0, 1e4],
    ] {
        for _ in 0..5 {
            let a = Matrix::with_eigenvalues(eigenvalues, &mut random);
            let (found, _) = check::<S>(&a);
            assert_close(&found, eigenvalues, S::TOLERANCE);
        }
        // Already diagonal, in another order.
        let mut backwards = eigenvalues.to_vec();
        backwards.reverse();
        let (found, vectors) = check::<S>(&Matrix::diagonal(&backwards));
        assert_close(&found, eigenvalues, S::TOLERANCE);
        assert!(
            vectors.values.iter().all(|x| [0.0, 1.0].contains(&x.abs())),
            "{vectors:?}"
        );
    }
    // Singular, and with eigenvectors that are known.
    let (values, vectors) = check::<S>(&Matrix::from_fn(2, 2, |_, _| 1.0));
    assert_close(&values, &[0.0, 2.0], S::TOLERANCE);
    let slope = vectors.at(1, 1) / vectors.at(0, 1);
    assert_within(
        (slope - 1.0).abs(),
        S::TOLERANCE,
        "eigenvectors are columns",
    );
}

#[test]
fn known_and_repeated_eigenvalues() {
    for_each_type!(known in f32, f64);
}

#[test]
fn sizes_at_the_ends_of_the_range() {
    let mut random = Random::new(14);
    for n in [2, 3, 20, 130] {
        for scale in [1e-35, 1e37] {
            check::<f32>(
                &Matrix::random(n, n, &mut random)
                    .symmetrised()
                    .map(|x| x * scale),
            );
        }
        for scale in [1e-290, 1e306] {
            check::<f64>(
                &Matrix::random(n, n, &mut random)
                    .symmetrised()
                    .map(|x| x * scale),
            );
        }
    }
}

#[test]
fn only_the_lower_triangle_is_read() {
    let mut a = Matrix::from_fn(3, 3, |i, j| [4.0, 1.0, -2.0][i.abs_diff(j)]);
    let expected = eigh::<f64>(&a);
    for (i, j) in [(0, 1), (0, 2), (1, 2)] {
        a.values[3 * i + j] = f64::NAN;
    }
    assert_eq!(eigh::<f64>(&a), expected);
}

#[test]
fn orders() {
    let a = Matrix::diagonal(&[-3.0, 2.0, 3.0, -1.0]);
    let values = |order: Option<&str>| {
        let frame = frame::<f32>(&a);
        let (values, vectors) = run::<f32>(
            match order {
                Some(order) => frame.attribute("order", order),
                None => frame,
            },
            4,
        );
        let again = vectors
            .times(&Matrix::diagonal(&values))
            .times(&vectors.transposed());
        assert_within(again.minus(&a).norm(), 1e-5, "V w Vᵀ - A");
        Matrix {
            rows: 4,
            columns: 1,
            values,
        }
        .map(f64::round)
        .values
    };
    assert_eq!(values(None), [-3.0, -1.0, 2.0, 3.0]);
    assert_eq!(values(Some("ascending")), [-3.0, -1.0, 2.0, 3.0]);
    let magnitude = values(Some("magnitude"));
    assert_eq!(magnitude[2..], [2.0, -1.0]);
    assert_eq!(magnitude[0] + magnitude[1], 0.0);
    assert_eq!(
        refusal(frame::<f32>(&a).attribute("order", "up"), f32::EIGH),
        "attribute \"order\": expected \"ascending\" or \"magnitude\", found \"up\""
    );
    assert_eq!(
        refusal(frame::<f32>(&a).attribute("order", 1i64), f32::EIGH),
        "attribute \"order\": expected a UTF-8 string, found s64"
    );
}

#[test]
fn batches_over_all_leading_dimensions() {
    let mut random = Random::new(15);
    let n = 4;
    let matrices: Vec<_> = (0..6)
        .map(|_| Matrix::random(n, n, &mut random).symmetrised())
        .collect();
    let elements: Vec<f64> = matrices.iter().flat_map(Matrix::elements::<f64>).collect();
    for dims in [&[6][..], &[2, 3], &[1, 3, 2]] {
        let mut frame = Frame::new()
            .operand(&[dims, &[n, n]].concat(), &elements)
            .result::<f64>(&[dims, &[n]].concat())
            .result::<f64>(&[dims, &[n, n]].concat());
        call(&mut frame, f64::EIGH).unwrap();
        let (values, vectors) = (frame.values::<f64>(0), frame.values::<f64>(1));
        for (index, a) in matrices.iter().enumerate() {
            let (one_values, one_vectors) = eigh::<f64>(a);
            assert_eq!(values[index * n..][..n], one_values);
            assert_eq!(vectors[index * n * n..][..n * n], one_vectors.values);
        }
    }
}

#[test]
fn empty_batches_and_matrices() {
    for (batch, n) in [(&[0][..], 3), (&[2, 0], 1), (&[], 0), (&[5], 0)] {
        let mut frame = Frame::new()
            .operand::<f32>(&[batch, &[n, n]].concat(), &[])
            .result::<f32>(&[batch, &[n]].concat())
            .result::<f32>(&[batch, &[n, n]].concat());
        call(&mut frame, f32::EIGH).unwrap();
    }
}

#[test]
fn nan_and_infinity_become_nan() {
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        for n in [1, 2, 3, 130] {
            for (i, j) in [(0, 0), (n - 1, 0), (n - 1, n - 1)] {
                let mut a = Matrix::from_fn(n, n, |i, j| 1.0 / (1 + i + j) as f64);
                a.values[n * i + j] = bad;
                let (values, vectors) = eigh::<f64>(&a);
                assert!(values.iter().chain(&vectors.values).all(|x| x.is_nan()));
            }
        }
    }
    let mut frame = Frame::new()
        .operand(&[3, 1, 1], &[2f32, f32::INFINITY, -3.0])
        .result::<f32>(&[3, 1])
        .result::<f32>(&[3, 1, 1]);
    call(&mut frame, f32::EIGH).unwrap();
    let values = frame.values::<f32>(0);
    assert_eq!((values[0], values[2]), (2.0, -3.0));
    assert!(values[1].is_nan());
}

#[test]
fn wrong_shapes() {
    let message = |a: &[usize], values: &[usize], vectors: &[usize]| {
        let elements = vec![0f64; a.iter().product()];
        let frame = Frame::new()
            .operand(a, &elements)
            .result::<f64>(values)
            .result::<f64>(vectors);
        refusal(frame, f64::EIGH)
    };
    assert_eq!(
        message(&[3], &[3], &[3]),
        "operand 0 (a): expected matrices, at least 2 dimensions, found f64[3]"
    );
    assert_eq!(
        message(&[2, 3], &[2], &[2, 2]),
        "operand 0 (a): expected square matrices, found f64[2,3]"
    );
    assert_eq!(
        message(&[5, 2, 2], &[2], &[5, 2, 2]),
        "result 0 (eigenvalues): expected f64[5,2], found f64[2]"
    );
    // Results the wrong way round.
    assert_eq!(
        message(&[2, 2], &[2, 2], &[2]),
        "result 0 (eigenvalues): expected f64[2], found f64[2,2]"
    );
    assert_eq!(
        message(&[2, 2], &[2], &[2, 3]),
        "result 1 (eigenvectors): expected f64[2,2], found f64[2,3]"
    );
}
