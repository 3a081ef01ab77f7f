//! The largest numbers of a row.

use super::sparse_activations::ActiveFeature;
use std::borrow::Cow;

/// The length of a part of a row; the search first finds the largest number of each part.
const PART: usize = 64;

/// The k largest numbers of a row that are above 0, in the order of the row; of equal ones, the first. With `norms`, numbers count
/// times these; if `absolute`, the largest in size that are not 0.
#[must_use]
pub fn largest(row: &[f32], norms: Option<&[f32]>, k: usize, absolute: bool) -> Vec<ActiveFeature> {
    if k == 0 {
        return vec![];
    }
    let value = |i: usize| norms.map_or(row[i], |norms| row[i] * norms[i]);
    let size = |i: usize| if absolute { value(i).abs() } else { value(i) };
    let sizes: Cow<[f32]> = match norms {
        None if !absolute => Cow::Borrowed(row),
        _ => (0..row.len()).map(size).collect(),
    };
    let mut order = candidates(&sizes, k);
    if k < order.len() {
        order.select_nth_unstable_by(k - 1, |&a, &b| {
            sizes[b as usize].total_cmp(&sizes[a as usize]).then(a.cmp(&b))
        });
        order.truncate(k);
        order.sort_unstable();
    }
    let fired = order.into_iter().map(|feature| ActiveFeature { feature, value: value(feature as usize) });
    fired.filter(|one| if absolute { one.value != 0.0 } else { one.value > 0.0 }).collect()
}

/// Numbers among which the k largest are.
fn candidates(sizes: &[f32], k: usize) -> Vec<u32> {
    if sizes.len() < 2 * k * PART {
        return (0..).zip(sizes).filter(|(_, size)| !size.is_nan()).map(|(i, _)| i).collect();
    }
    // The k-th of the parts' largest is no larger than the k-th of all, so that few parts hold one of these.
    let tops: Vec<f32> = sizes.chunks(PART).map(top).collect();
    let least = *tops.clone().select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1;
    let mut found = vec![];
    for ((first, part), top) in (0u32..).step_by(PART).zip(sizes.chunks(PART)).zip(tops) {
        if top >= least {
            found.extend((first..).zip(part).filter(|(_, size)| **size >= least).map(|(i, _)| i));
        }
    }
    found
}

/// The largest number, from lanes that a processor compares at once; NaN is less than any.
fn top(part: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; 16];
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let (rows, rest) = part.as_chunks::<16>();
    for row in rows {
        for (lane, x) in lanes.iter_mut().zip(row) {
            *lane = larger(*lane, *x);
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |a, &b| larger(a, b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    #[test]
    fn the_largest_number_is_found_wherever_it_stands() {
        for length in [1, 15, 16, 17, 40] {
            for place in 0..length {
                let mut part = vec![-2.0; length];
                part[place] = -1.0;
                assert_eq!(top(&part).to_bits(), (-1f32).to_bits(), "{place} of {length}");
            }
        }
    }

    /// A row long enough to be looked through by parts, with equal numbers, and one that is sorted whole.
    #[test]
    fn the_largest_are_those_of_a_sorted_row() {
        let mut rng = ChaCha8Rng::seed_from_u64(9);
        for (length, k) in [(4096, 8), (4096, 32), (100, 8), (5, 5)] {
            // Multiples of 1/16, so that many are equal.
            let row: Vec<f32> = (0..length).map(|_| f32::from(rng.random_range(-99i8..99)) / 16.0).collect();
            let norms: Vec<f32> = (0..length).map(|_| f32::from(rng.random_range(1u8..4))).collect();
            for (norms, absolute) in [(None, false), (None, true), (Some(&norms[..]), false)] {
                let value = |i: usize| norms.map_or(row[i], |norms| row[i] * norms[i]);
                let size = |i: usize| if absolute { value(i).abs() } else { value(i) };
                let mut order: Vec<usize> = (0..length).collect();
                order.sort_by(|&a, &b| size(b).total_cmp(&size(a)).then(a.cmp(&b)));
                order.truncate(k);
                order.sort_unstable();
                let expected: Vec<(usize, f32)> = order.into_iter().map(|i| (i, value(i))).collect();
                let expected: Vec<_> = expected
                    .into_iter()
                    .filter(|(_, x)| if absolute { *x != 0.0 } else { *x > 0.0 })
                    .collect();
                let found: Vec<(usize, f32)> = largest(&row, norms, k, absolute)
                    .iter()
                    .map(|one| (one.feature as usize, one.value))
                    .collect();
                assert_eq!(found, expected, "{length} {k} {absolute}");
            }
        }
    }
}
