use super::*;

fn slice(starts: &[usize], sizes: &[usize]) -> Slice {
    Slice {
        starts: starts.to_vec(),
        sizes: sizes.to_vec(),
    }
}

fn message<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.unwrap_err().to_string()
}

/// The bytes 0, 1, 2, ...
fn count(len: usize) -> Vec<u8> {
    (0..len).map(|byte| byte as u8).collect()
}

#[test]
fn columns_are_copied_row_by_row() {
    let halves = [slice(&[0, 0], &[2, 2]), slice(&[0, 2], &[2, 2])];
    assert_eq!(
        split(&count(8), 1, &[2, 4], &halves),
        Ok(vec![
            Part::Copied(vec![0, 1, 4, 5]),
            Part::Copied(vec![2, 3, 6, 7])
        ])
    );
    assert_eq!(
        join(&[&[0, 1, 4, 5], &[2, 3, 6, 7]], 1, &[2, 4], &halves),
        Ok(Joined::Copied(count(8)))
    );
}

#[test]
fn rows_and_the_whole_lie_in_one_piece() {
    let slices = [
        slice(&[0, 0], &[2, 4]),
        slice(&[1, 0], &[1, 4]),
        slice(&[1, 2], &[1, 2]),
    ];
    assert_eq!(
        split(&count(16), 2, &[2, 4], &slices),
        Ok(vec![
            Part::Range(0..16),
            Part::Range(8..16),
            Part::Range(12..16)
        ])
    );
}

#[test]
fn a_slice_that_was_there_before_is_not_copied_again() {
    let column = slice(&[0, 1], &[2, 1]);
    assert_eq!(
        split(&count(4), 1, &[2, 2], &[column.clone(), column]),
        Ok(vec![Part::Copied(vec![1, 3]), Part::Same(0)])
    );
}

#[test]
fn a_part_that_is_the_whole_tensor_is_the_tensor() {
    let whole = slice(&[0], &[4]);
    assert_eq!(
        join(&[&count(4), &[9; 4]], 1, &[4], &[whole.clone(), whole]),
        Ok(Joined::Part(0))
    );
}

#[test]
fn where_slices_overlap_the_first_one_counts() {
    let slices = [
        slice(&[1], &[2]),
        slice(&[1], &[2]),
        slice(&[0], &[3]),
        slice(&[0], &[4]),
    ];
    assert_eq!(
        join(
            &[&[11, 12], &[21, 22], &[30, 31, 32], &[40, 41, 42, 43]],
            1,
            &[4],
            &slices
        ),
        Ok(Joined::Copied(vec![30, 11, 12, 43]))
    );
}

#[test]
fn a_scalar_is_one_element() {
    let scalar = slice(&[], &[]);
    assert_eq!(
        split(&count(4), 4, &[], std::slice::from_ref(&scalar)),
        Ok(vec![Part::Range(0..4)])
    );
    assert_eq!(join(&[&count(4)], 4, &[], &[scalar]), Ok(Joined::Part(0)));
}

#[test]
fn a_tensor_without_elements_needs_no_slice() {
    assert_eq!(
        split(&[], 4, &[3, 0], &[slice(&[1, 0], &[2, 0])]),
        Ok(vec![Part::Range(0..0)])
    );
    assert_eq!(join(&[], 4, &[3, 0], &[]), Ok(Joined::Copied(vec![])));
    assert_eq!(
        join(&[&[]], 4, &[3, 0], &[slice(&[1, 0], &[2, 0])]),
        Ok(Joined::Copied(vec![]))
    );
}

#[test]
fn an_element_that_no_slice_has_is_named() {
    let slices = [slice(&[0, 0], &[1, 3]), slice(&[1, 0], &[1, 2])];
    assert_eq!(
        message(join(&[&count(3), &count(2)], 1, &[2, 3], &slices)),
        "slices of a tensor: no slice has the elements that start at [1, 2] and are [1, 1] in number; the slices \
         have to cover the whole tensor"
    );
    assert_eq!(
        message(join(&[], 1, &[], &[])),
        "slices of a tensor: no slice has the elements that start at [] and are [] in number; the slices have to \
         cover the whole tensor"
    );
}

#[test]
fn slices_outside_of_the_tensor_are_refused() {
    let refusal = |slice: Slice| {
        let split = message(split(&count(6), 1, &[2, 3], std::slice::from_ref(&slice)));
        assert_eq!(message(join(&[&[]], 1, &[2, 3], &[slice])), split);
        split
    };
    assert_eq!(
        refusal(slice(&[0, 2], &[2, 2])),
        "slices of a tensor: slice 0 starts at 2 and takes 2 in dimension 1, which has 3"
    );
    assert_eq!(
        refusal(slice(&[usize::MAX, 0], &[2, 1])),
        "slices of a tensor: slice 0 starts at 18446744073709551615 and takes 2 in dimension 0, which has 2"
    );
    assert_eq!(
        refusal(slice(&[3, 0], &[0, 1])),
        "slices of a tensor: slice 0 starts at 3 and takes 0 in dimension 0, which has 2"
    );
    assert_eq!(
        refusal(slice(&[0], &[2, 3])),
        "slices of a tensor: slice 0 has 1 starts and 2 sizes; the tensor has 2 dimensions"
    );
}

#[test]
fn binaries_of_other_sizes_are_refused() {
    assert_eq!(
        message(split(&count(7), 4, &[2], &[])),
        "slices of a tensor: the tensor takes 8 bytes, its binary has 7"
    );
    assert_eq!(
        message(join(&[&count(7)], 4, &[2], &[slice(&[0], &[2])])),
        "slices of a tensor: slice 0 takes 8 bytes, its binary has 7"
    );
    assert_eq!(
        message(join(&[&count(8), &count(8)], 4, &[2], &[slice(&[0], &[2])])),
        "slices of a tensor: there are 1 slices and 2 binaries; each slice has to have one"
    );
}

#[test]
fn tensors_that_memory_cannot_have_are_refused() {
    assert_eq!(
        message(split(&[], 1, &[1 << 32, 1 << 32], &[])),
        "slices of a tensor: [4294967296, 4294967296] elements of 1 bytes are more than memory can have"
    );
    // Nothing would be in them, and yet the products of their sizes do not fit.
    assert_eq!(
        message(join(&[], 2, &[0, 1 << 62], &[])),
        "slices of a tensor: [0, 4611686018427387904] elements of 2 bytes are more than memory can have"
    );
    assert_eq!(
        message(split(&[], 0, &[2], &[])),
        "slices of a tensor: an element has 0 bytes; it has to have some"
    );
}

/// Numbers that are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % bound
    }
}

/// Cuts at random places along every dimension, in a random order.
fn grid(numbers: &mut Numbers, dimensions: &[usize]) -> Vec<Slice> {
    let mut slices = vec![slice(&[], &[])];
    for &size in dimensions {
        let mut cuts = vec![0, size];
        cuts.extend((0..numbers.below(3)).map(|_| numbers.below(size + 1)));
        cuts.sort_unstable();
        slices = slices
            .iter()
            .flat_map(|outer| {
                cuts.windows(2).map(|cut| {
                    let mut slice = outer.clone();
                    slice.starts.push(cut[0]);
                    slice.sizes.push(cut[1] - cut[0]);
                    slice
                })
            })
            .collect();
    }
    for index in (1..slices.len()).rev() {
        slices.swap(index, numbers.below(index + 1));
    }
    slices
}

fn bytes_of(data: &[u8], parts: &[Part]) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    for part in parts {
        all.push(match part {
            Part::Range(range) => data[range.clone()].to_vec(),
            Part::Copied(bytes) => bytes.clone(),
            Part::Same(index) => all[*index].clone(),
        });
    }
    all
}

#[test]
fn what_was_split_is_joined_to_the_same_again() {
    let mut numbers = Numbers(1);
    for _ in 0..2_000 {
        let rank = numbers.below(5);
        let dimensions: Vec<usize> = (0..rank).map(|_| numbers.below(6)).collect();
        let element_bytes = [1, 2, 3, 4, 8, 16][numbers.below(6)];
        let len = element_bytes * dimensions.iter().product::<usize>();
        let data: Vec<u8> = (0..len).map(|_| numbers.below(256) as u8).collect();

        let mut slices = grid(&mut numbers, &dimensions);
        // Some of them again, as on devices that have the same, and one that lies across.
        slices.extend_from_within(..slices.len() / 2);
        slices.extend(grid(&mut numbers, &dimensions).pop());

        let parts = bytes_of(
            &data,
            &split(&data, element_bytes, &dimensions, &slices).unwrap(),
        );
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let joined = match join(&parts, element_bytes, &dimensions, &slices).unwrap() {
            Joined::Part(index) => parts[index].to_vec(),
            Joined::Copied(bytes) => bytes,
        };
        assert_eq!(joined, data, "{dimensions:?} {slices:?}");
    }
}

#[test]
fn a_slice_has_the_elements_at_its_indexes() {
    let mut numbers = Numbers(2);
    let dimensions = [4, 3, 5];
    let data = count(60);
    for slice in (0..50).flat_map(|_| grid(&mut numbers, &dimensions)) {
        let [a, b, c] =
            [0, 1, 2].map(|axis| slice.starts[axis]..slice.starts[axis] + slice.sizes[axis]);
        let expected: Vec<u8> = a
            .flat_map(|x| {
                let (b, c) = (b.clone(), c.clone());
                b.flat_map(move |y| c.clone().map(move |z| (15 * x + 5 * y + z) as u8))
            })
            .collect();
        let parts = split(&data, 1, &dimensions, std::slice::from_ref(&slice)).unwrap();
        assert_eq!(bytes_of(&data, &parts), [expected], "{slice:?}");
    }
}

#[test]
fn without_one_of_its_slices_a_tensor_is_not_joined() {
    let mut numbers = Numbers(3);
    for _ in 0..500 {
        let dimensions = [1 + numbers.below(5), 1 + numbers.below(5)];
        let mut slices = grid(&mut numbers, &dimensions);
        slices.retain(|slice| !slice.sizes.contains(&0));
        slices.pop();
        let parts: Vec<Vec<u8>> = slices.iter().map(|slice| vec![0; slice.bytes(1)]).collect();
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        assert!(join(&parts, 1, &dimensions, &slices).is_err(), "{slices:?}");
    }
}
