//! [`ActivationSizes`]: how large a feature's activations are, over any number of tokens.

use std::collections::BTreeMap;

/// The bins of a doubling.
const BINS: f64 = 16.0;
/// The bins that a bar of the histogram joins.
const JOINED: i32 = 4;

/// The counts of a feature's activations in bins of the logarithm of their size, 16 to a doubling.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ActivationSizes(BTreeMap<i32, u64>);

/// A bar of a histogram: activations from `from` up to `to`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Bar {
    /// The lower end.
    pub from: f64,
    /// The upper end.
    pub to: f64,
    /// The number of activations between them.
    pub count: u64,
}

/// The lower end of a bin.
fn start(bin: i32) -> f64 {
    (f64::from(bin) / BINS).exp2()
}

impl ActivationSizes {
    /// Counts the size of an activation, which is not 0.
    pub(super) fn add(&mut self, activation: f32) {
        // An infinite one counts as the largest finite one.
        let size = f64::from(activation.abs().min(f32::MAX));
        #[allow(clippy::cast_possible_truncation)] // a logarithm
        let bin = (size.log2() * BINS).floor() as i32;
        *self.0.entry(bin).or_default() += 1;
    }

    /// The size below which a share of the activations lies: the middle of a bin, at most 2.2 % away. `None` without activations.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let all: u64 = self.0.values().sum();
        let mut below = 0;
        for (&bin, &count) in &self.0 {
            below += count;
            if below as f64 >= share * all as f64 {
                return Some((start(bin) * start(bin + 1)).sqrt());
            }
        }
        None
    }

    /// The histogram, with four bars to a doubling, from the smallest to the largest.
    #[must_use]
    pub fn bars(&self) -> Vec<Bar> {
        let bar = |bin: i32| bin.div_euclid(JOINED);
        let (Some((&first, _)), Some((&last, _))) = (self.0.first_key_value(), self.0.last_key_value())
        else {
            return vec![];
        };
        let of = |number: i32| {
            let bins = number * JOINED..(number + 1) * JOINED;
            let count = self.0.range(bins.clone()).map(|(_, count)| count).sum();
            Bar { from: start(bins.start), to: start(bins.end), count }
        };
        (bar(first)..=bar(last)).map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_bars_are_those_of_the_sorted_activations() {
        let mut sizes = ActivationSizes::default();
        assert_eq!((sizes.quantile(0.5), sizes.bars()), (None, vec![]));
        let all: Vec<f32> =
            (1..=1000u16).map(|i| f32::from(i) / 100.0 * if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
        for &activation in &all {
            sizes.add(activation);
        }
        for share in [0.01, 0.5, 0.9, 0.99, 1.0] {
            let exact = share * 10.0;
            let found = sizes.quantile(share).expect("there are activations");
            assert!((found / exact - 1.0).abs() < 0.0225, "{share}: {found}, exactly {exact}");
        }
        let bars = sizes.bars();
        assert_eq!(bars.iter().map(|bar| bar.count).sum::<u64>(), 1000);
        for bar in &bars {
            let inside = all.iter().filter(|x| (bar.from..bar.to).contains(&f64::from(x.abs()))).count();
            assert_eq!(bar.count, inside as u64, "{bar:?}");
            assert!((bar.to / bar.from - 2f64.powf(0.25)).abs() < 1e-12, "{bar:?}");
        }
        sizes.add(f32::INFINITY);
        assert!(sizes.bars().len() < 1200, "four to each doubling of f32");
        assert!(bars.windows(2).all(|two| two[0].to.to_bits() == two[1].from.to_bits()));
    }
}
