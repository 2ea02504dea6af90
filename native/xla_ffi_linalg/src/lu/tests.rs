use crate::reference::{assert_within, call, for_each_type, refusal, Matrix, Random, Real};
use xla_ffi::half::{bf16, f16};
use xla_ffi::testing::Frame;

fn lu<S: Real>(a: &Matrix) -> (Matrix, Matrix, Matrix) {
    let n = a.rows;
    let mut frame = Frame::new()
        .operand(&[n, n], &a.elements::<S>())
        .result::<u8>(&[n, n])
        .result::<S>(&[n, n])
        .result::<S>(&[n, n]);
    call(&mut frame, S::LU).unwrap();
    let p = frame.values::<u8>(0);
    (
        Matrix::from_fn(n, n, |i, j| p[n * i + j].into()),
        Matrix::of(n, n, &frame.values::<S>(1)),
        Matrix::of(n, n, &frame.values::<S>(2)),
    )
}

#[track_caller]
fn assert_permutation(p: &Matrix) {
    assert!(p.values.iter().all(|x| [0.0, 1.0].contains(x)));
    assert_eq!(p.transposed().times(p), Matrix::identity(p.rows));
}

#[track_caller]
fn assert_unit_lower(l: &Matrix) {
    l.transposed().assert_upper();
    for i in 0..l.rows {
        assert_eq!(l.at(i, i), 1.0);
    }
}

/// Decomposes the matrix and checks all that holds of the results.
#[track_caller]
fn check<S: Real>(a: &Matrix) -> (Matrix, Matrix, Matrix) {
    let a = a.rounded::<S>();
    let (p, l, u) = lu::<S>(&a);
    let what = format!("{} {}", S::DATA_TYPE, a.rows);
    assert_permutation(&p);
    assert_unit_lower(&l);
    u.assert_upper();
    assert!(l.values.iter().all(|x| x.abs() <= 1.0), "{l:?}");
    // Pivoting by columns bounds the error by the size of the factors.
    let size = l.abs().times(&u.abs()).norm();
    let error = p.times(&l).times(&u).minus(&a).norm();
    assert_within(error, S::tolerance(1) * size, &format!("PLU - A, {what}"));
    if S::EPSILON < 1e-5 {
        assert_within(
            error,
            S::TOLERANCE * a.norm(),
            &format!("PLU - A to A, {what}"),
        );
    }
    (p, l, u)
}

fn random_matrices<S: Real>() {
    let mut random = Random::new(21);
    for n in (0..=20).chain([33, 64, 100, 257]) {
        check::<S>(&Matrix::random(n, n, &mut random));
    }
}

#[test]
fn random_matrices_of_all_sizes() {
    for_each_type!(random_matrices in f32, f64, f16, bf16);
}

/// As in a textbook, row by row.
fn textbook(a: &Matrix) -> (Matrix, Matrix, Matrix) {
    let n = a.rows;
    let mut rows: Vec<Vec<f64>> = a.values.chunks(n).map(Vec::from).collect();
    let mut order: Vec<usize> = (0..n).collect();
    for j in 0..n {
        let pivot = (j..n)
            .max_by(|a, b| rows[*a][j].abs().total_cmp(&rows[*b][j].abs()))
            .unwrap();
        rows.swap(j, pivot);
        order.swap(j, pivot);
        for i in j + 1..n {
            let pivot = rows[j].clone();
            let factor = rows[i][j] / pivot[j];
            for (x, pivot) in rows[i].iter_mut().zip(pivot).skip(j) {
                *x -= factor * pivot;
            }
            rows[i][j] = factor;
        }
    }
    (
        Matrix::from_fn(n, n, |i, j| f64::from(order[j] == i)),
        Matrix::from_fn(
            n,
            n,
            |i, j| if i > j { rows[i][j] } else { f64::from(i == j) },
        ),
        Matrix::from_fn(n, n, |i, j| if i > j { 0.0 } else { rows[i][j] }),
    )
}

#[test]
fn results_are_those_of_another_method() {
    let mut random = Random::new(22);
    for n in [1, 2, 3, 8, 9, 17, 60] {
        let a = Matrix::random(n, n, &mut random);
        let (p, l, u) = lu::<f64>(&a);
        let (expected_p, expected_l, expected_u) = textbook(&a);
        assert_eq!(p, expected_p);
        assert_within(
            l.minus(&expected_l).norm(),
            1e-12 * l.norm(),
            "L by the textbook",
        );
        assert_within(
            u.minus(&expected_u).norm(),
            1e-12 * u.norm(),
            "U by the textbook",
        );
    }
}

/// `Nx.LinAlg.lu` documents P in this direction: A = P L U.
#[test]
fn p_is_on_the_left() {
    let a = Matrix::from_fn(3, 3, |i, j| {
        [[0.0, 1.0, 0.0], [0.0, 0.0, 2.0], [3.0, 0.0, 0.0]][i][j]
    });
    let (p, l, u) = lu::<f32>(&a);
    assert_eq!(p.values, [0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
    assert_eq!(l, Matrix::identity(3));
    assert_eq!(u, Matrix::diagonal(&[3.0, 1.0, 2.0]));
}

fn special_matrices<S: Real>() {
    let mut random = Random::new(23);
    for n in [1, 2, 3, 8, 9, 30, 70] {
        let zero = Matrix::from_fn(n, n, |_, _| 0.0);
        let (p, l, u) = check::<S>(&zero);
        let one = Matrix::identity(n);
        assert_eq!((p, l, u), (one.clone(), one.clone(), zero));
        assert_eq!(check::<S>(&one), (one.clone(), one.clone(), one.clone()));
        let ones = Matrix::from_fn(n, n, |_, _| 1.0);
        let (p, l, u) = check::<S>(&ones);
        assert_eq!(p, one);
        assert_eq!(l, Matrix::from_fn(n, n, |i, j| f64::from(i == j || j == 0)));
        assert_eq!(u, Matrix::from_fn(n, n, |i, _| f64::from(i == 0)));
        for rank in [1, n / 2, n - 1] {
            check::<S>(&Matrix::of_rank(rank, n, n, &mut random));
        }
        // Columns, and rows, of zeros between others: zero pivots in the middle.
        let gaps = Matrix::from_fn(n, n, |_, j| (j % 3) as f64 * random.next());
        check::<S>(&gaps);
        check::<S>(&gaps.transposed());
        let upper = Matrix::from_fn(n, n, |i, j| if i > j { 0.0 } else { random.next() });
        let upper = upper.rounded::<S>();
        assert_eq!(check::<S>(&upper), (one.clone(), one.clone(), upper));
        let lower = Matrix::from_fn(n, n, |i, j| match i.cmp(&j) {
            std::cmp::Ordering::Less => 0.0,
            std::cmp::Ordering::Equal => 1.0,
            std::cmp::Ordering::Greater => random.next() / n as f64,
        });
        let lower = lower.rounded::<S>();
        assert_eq!(check::<S>(&lower), (one.clone(), lower, one));
    }
}

#[test]
fn singular_and_triangular_matrices() {
    for_each_type!(special_matrices in f32, f64, f16, bf16);
}

#[test]
fn sizes_at_the_ends_of_the_range() {
    let mut random = Random::new(24);
    // The reciprocal of such a pivot is no number, the quotients are.
    let tiny = Matrix::random(12, 12, &mut random)
        .map(|x| x * 1e-39)
        .rounded::<f32>();
    let (p, l, u) = lu::<f32>(&tiny);
    assert_permutation(&p);
    assert!(l.is_finite() && u.is_finite());
    assert_within(p.times(&l).times(&u).minus(&tiny).norm(), 1e-43, "PLU - A");
    check::<f32>(&Matrix::random(12, 12, &mut random).map(|x| x * 1e37));
    check::<f64>(&Matrix::random(12, 12, &mut random).map(|x| x * 1e307));
    let graded = Matrix::diagonal(&[1e30, 1.0, 1e-30]).rounded::<f32>();
    let (_, _, u) = lu::<f32>(&graded);
    assert_eq!(u, graded);
}

#[test]
fn batches_over_all_leading_dimensions() {
    let mut random = Random::new(25);
    let n = 4;
    let matrices: Vec<_> = (0..6).map(|_| Matrix::random(n, n, &mut random)).collect();
    let elements: Vec<bf16> = matrices.iter().flat_map(Matrix::elements::<bf16>).collect();
    for dims in [&[6][..], &[2, 3], &[1, 3, 2]] {
        let square = [dims, &[n, n]].concat();
        let mut frame = Frame::new()
            .operand(&square, &elements)
            .result::<u8>(&square)
            .result::<bf16>(&square)
            .result::<bf16>(&square);
        call(&mut frame, bf16::LU).unwrap();
        let size = n * n;
        for (index, a) in matrices.iter().enumerate() {
            let (p, l, u) = lu::<bf16>(a);
            let one = frame.values::<u8>(0)[index * size..][..size].to_vec();
            assert_eq!(Matrix::from_fn(n, n, |i, j| one[n * i + j].into()), p);
            assert_eq!(
                frame.values::<bf16>(1)[index * size..][..size],
                l.elements::<bf16>()
            );
            assert_eq!(
                frame.values::<bf16>(2)[index * size..][..size],
                u.elements::<bf16>()
            );
        }
    }
}

#[test]
fn empty_batches_and_matrices() {
    for dims in [&[0, 3, 3][..], &[2, 0, 1, 1], &[0, 0], &[5, 0, 0]] {
        let mut frame = Frame::new()
            .operand::<f16>(dims, &[])
            .result::<u8>(dims)
            .result::<f16>(dims)
            .result::<f16>(dims);
        call(&mut frame, f16::LU).unwrap();
    }
}

#[test]
fn nan_and_infinity_become_nan() {
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        for place in 0..9 {
            let mut a = Matrix::from_fn(3, 3, |i, j| (i * j) as f64 + 1.0);
            a.values[place] = bad;
            let (p, l, u) = lu::<f64>(&a);
            assert_eq!(p, Matrix::identity(3));
            assert_unit_lower(&l);
            u.assert_upper();
            for (i, j) in [(0, 1), (0, 2), (1, 2)] {
                assert!(l.at(j, i).is_nan() && u.at(i, j).is_nan() && u.at(i, i).is_nan());
            }
        }
    }
    let mut frame = Frame::new()
        .operand(&[3, 1, 1], &[2f32, f32::NAN, -3.0])
        .result::<u8>(&[3, 1, 1])
        .result::<f32>(&[3, 1, 1])
        .result::<f32>(&[3, 1, 1]);
    call(&mut frame, f32::LU).unwrap();
    assert_eq!(frame.values::<u8>(0), [1, 1, 1]);
    assert_eq!(frame.values::<f32>(1), [1.0, 1.0, 1.0]);
    let u = frame.values::<f32>(2);
    assert_eq!((u[0], u[2]), (2.0, -3.0));
    assert!(u[1].is_nan());
}

#[test]
fn wrong_shapes() {
    let message = |a: &[usize], p: &[usize], l: &[usize], u: &[usize]| {
        let values = vec![0f32; a.iter().product()];
        let frame = Frame::new()
            .operand(a, &values)
            .result::<u8>(p)
            .result::<f32>(l)
            .result::<f32>(u);
        refusal(frame, f32::LU)
    };
    let square = &[2, 2][..];
    assert_eq!(
        message(&[2], square, square, square),
        "operand 0 (a): expected matrices, at least 2 dimensions, found f32[2]"
    );
    assert_eq!(
        message(&[3, 2], square, square, square),
        "operand 0 (a): expected square matrices, found f32[3,2]"
    );
    // Pivots as indices, as other libraries have them.
    assert_eq!(
        message(square, &[2], square, square),
        "result 0 (p): expected u8[2,2], found u8[2]"
    );
    assert_eq!(
        message(square, square, &[2, 1], square),
        "result 1 (l): expected f32[2,2], found f32[2,1]"
    );
    assert_eq!(
        message(&[7, 2, 2], &[7, 2, 2], &[7, 2, 2], square),
        "result 2 (u): expected f32[7,2,2], found f32[2,2]"
    );
}

#[test]
fn p_of_another_type() {
    let frame = Frame::new()
        .operand(&[1, 1], &[1f32])
        .result::<i32>(&[1, 1])
        .result::<f32>(&[1, 1])
        .result::<f32>(&[1, 1]);
    assert_eq!(
        refusal(frame, f32::LU),
        "result 0 (p): expected u8, found s32"
    );
}
