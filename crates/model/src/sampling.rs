//! The choice of the next token from the logits.
//!
//! The steps run in the same order as in transformers' `generate`: repetition penalty, temperature,
//! top-k, top-p, draw.

use candle_core::Result;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use std::cmp::Ordering;

/// How to choose the next token from the logits.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 always picks the most probable token (greedy decoding).
    pub temperature: f64,
    /// Keep only the k most probable tokens.
    pub top_k: Option<usize>,
    /// Keep the fewest tokens whose probabilities sum to p (nucleus sampling, Holtzman et al. 2020).
    pub top_p: Option<f64>,
    /// Makes every token that already occurs in the text less probable: it divides positive logits and
    /// multiplies negative ones (Keskar et al. 2019). 1 changes nothing.
    pub repetition_penalty: f64,
    /// The same seed gives the same text.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 1.0, top_k: None, top_p: None, repetition_penalty: 1.0, seed: 0 }
    }
}

impl Sampling {
    /// Always picks the most probable token.
    #[must_use]
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Rejects meaningless values.
    ///
    /// # Errors
    /// For a negative temperature, a `top_k` of 0, a `top_p` outside (0, 1] or a penalty that is not above 0.
    pub fn validate(&self) -> Result<()> {
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            candle_core::bail!("temperature is {}, expected a finite number of at least 0", self.temperature)
        }
        if self.top_k == Some(0) {
            candle_core::bail!("top_k is 0, expected at least 1")
        }
        if let Some(p) = self.top_p
            && !(p > 0.0 && p <= 1.0)
        {
            candle_core::bail!("top_p is {p}, expected above 0 and at most 1")
        }
        #[allow(clippy::cast_possible_truncation)] // logits are f32, so they are divided in f32
        let penalty = self.repetition_penalty as f32;
        if !(penalty >= f32::MIN_POSITIVE && penalty.is_finite()) {
            candle_core::bail!(
                "repetition_penalty is {}, expected a finite number above 0",
                self.repetition_penalty
            )
        }
        Ok(())
    }

    /// The next token after `text`, given the logits at its end.
    pub(crate) fn choose(&self, logits: &mut [f32], text: &[u32], rng: &mut ChaCha8Rng) -> Result<u32> {
        self.penalize(logits, text);
        if let Some(i) = logits.iter().position(|l| !l.is_finite()) {
            candle_core::bail!("the logit of token {i} is {}, so no token can be chosen", logits[i])
        }
        if self.temperature == 0.0 {
            let best =
                logits.iter().enumerate().fold(0, |best, (i, l)| if *l > logits[best] { i } else { best });
            return id(best);
        }
        // One draw per step, however many tokens are kept, so that a step's random number does not
        // depend on the filters.
        self.draw(self.keep(logits), rng.random())
    }

    /// Draws one of the tokens that are kept, with a `random` number below 1.
    fn draw(&self, mut kept: Kept, random: f64) -> Result<u32> {
        let mut rest = random * kept.total;
        let mut last = 0;
        for i in 0..kept.count {
            let (token, logit) = kept.ranked.get(i);
            rest -= self.weight(logit, kept.highest);
            if rest < 0.0 {
                return id(token);
            }
            last = token;
        }
        id(last) // rounding left nothing of the last one
    }

    fn penalize(&self, logits: &mut [f32], text: &[u32]) {
        #[allow(clippy::float_cmp)] // exactly 1 is the documented "off"
        if self.repetition_penalty == 1.0 {
            return;
        }
        #[allow(clippy::cast_possible_truncation)] // logits are f32
        let penalty = self.repetition_penalty as f32;
        let mut seen = text.to_vec();
        seen.sort_unstable();
        seen.dedup();
        for id in seen {
            if let Some(l) = logits.get_mut(id as usize) {
                *l = if *l > 0.0 { *l / penalty } else { *l * penalty };
            }
        }
    }

    /// The probability of a token beside that of the most probable one.
    fn weight(&self, logit: f32, highest: f32) -> f64 {
        ((f64::from(logit) - f64::from(highest)) / self.temperature).exp()
    }

    /// The tokens to draw from.
    fn keep(&self, logits: &[f32]) -> Kept {
        let mut ranked = Ranked::new(logits);
        let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut count = logits.len();
        let mut total = if let Some(k) = self.top_k.filter(|&k| k < count) {
            count = k;
            (0..k).map(|i| self.weight(ranked.get(i).1, highest)).sum()
        } else {
            logits.iter().map(|&logit| self.weight(logit, highest)).sum::<f64>()
        };
        if let Some(top_p) = self.top_p {
            let mass = top_p * total;
            let mut sum = 0.0;
            let enough = (0..count).find(|&i| {
                sum += self.weight(ranked.get(i).1, highest);
                sum >= mass
            });
            if let Some(i) = enough {
                (count, total) = (i + 1, sum);
            }
        }
        Kept { ranked, count, highest, total }
    }
}

/// The tokens to draw from: the first `count` of all, most probable first.
struct Kept {
    ranked: Ranked,
    count: usize,
    /// The largest logit.
    highest: f32,
    /// The sum of their weights.
    total: f64,
}

fn id(index: usize) -> Result<u32> {
    u32::try_from(index).map_err(candle_core::Error::wrap)
}

/// The number of tokens to sort at first; each further step sorts three times the number that is already sorted. A draw rarely looks
/// further than the first ones, and to sort a whole vocabulary takes milliseconds.
const FIRST: usize = 64;

/// Tokens and their logits, the highest first; of equal ones, the lower token first.
struct Ranked {
    tokens: Vec<(usize, f32)>,
    /// The number of tokens in order; all others come after these.
    sorted: usize,
}

fn descending(a: &(usize, f32), b: &(usize, f32)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

impl Ranked {
    fn new(logits: &[f32]) -> Self {
        Self { tokens: logits.iter().copied().enumerate().collect(), sorted: 0 }
    }

    /// The token of this rank, and its logit.
    fn get(&mut self, rank: usize) -> (usize, f32) {
        while rank >= self.sorted && self.sorted < self.tokens.len() {
            let rest = &mut self.tokens[self.sorted..];
            let next = (3 * self.sorted).max(FIRST).min(rest.len());
            if next < rest.len() {
                rest.select_nth_unstable_by(next, descending);
            }
            rest[..next].sort_unstable_by(descending);
            self.sorted += next;
        }
        self.tokens[rank]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn rng() -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(1)
    }

    #[test]
    fn top_k_and_top_p_keep_the_most_probable() {
        let logits = [0.0, 3.0, 1.0, 2.0].map(|x: f32| x);
        let ids = |s: Sampling| {
            let mut kept = s.keep(&logits);
            (0..kept.count).map(|i| kept.ranked.get(i).0).collect::<Vec<_>>()
        };
        assert_eq!(ids(Sampling { top_k: Some(2), ..Sampling::default() }), [1, 3]);
        // softmax: 0.644, 0.237, 0.087, 0.032
        assert_eq!(ids(Sampling { top_p: Some(0.64), ..Sampling::default() }), [1]);
        assert_eq!(ids(Sampling { top_p: Some(0.65), ..Sampling::default() }), [1, 3]);
        assert_eq!(ids(Sampling { top_p: Some(1.0), ..Sampling::default() }), [1, 3, 2, 0]);
    }

    #[test]
    fn draws_follow_the_probabilities() -> Result<()> {
        let sampling = Sampling::default();
        let mut rng = rng();
        let mut counts = [0usize; 2];
        for _ in 0..20_000 {
            let mut logits = [3f32.ln(), 0.0]; // 0.75, 0.25
            counts[sampling.choose(&mut logits, &[], &mut rng)? as usize] += 1;
        }
        // Five standard deviations of a binomial with n = 20000, p = 0.75.
        assert!((14_700..15_300).contains(&counts[0]), "{counts:?}");
        Ok(())
    }

    #[test]
    fn a_penalty_makes_what_was_said_less_probable_whatever_its_sign() -> Result<()> {
        let sampling = Sampling { repetition_penalty: 2.0, ..Sampling::greedy() };
        assert_eq!(sampling.choose(&mut [4.0, 3.0], &[0, 0], &mut rng())?, 1);
        assert_eq!(sampling.choose(&mut [-1.0, -1.5], &[0], &mut rng())?, 1);
        Ok(())
    }

    #[test]
    fn what_is_not_finite_is_an_error_and_not_a_token() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for sampling in [Sampling::greedy(), Sampling::default()] {
                assert!(sampling.choose(&mut [0.0, bad], &[], &mut rng()).is_err());
            }
        }
        assert!(Sampling { repetition_penalty: 1e-50, ..Sampling::default() }.validate().is_err());
        let least = Sampling { repetition_penalty: f32::MIN_POSITIVE.into(), ..Sampling::default() };
        assert!(least.validate().is_ok());
    }

    #[test]
    fn top_p_is_a_part_of_what_temperature_and_top_k_leave() {
        let logits = [3f32, 2., 1., 0.]; // 0.644, 0.237, 0.087, 0.032
        let kept = |s: Sampling| s.keep(&logits).count;
        // Of the two most probable tokens, the first has 0.731 and the second 0.269.
        assert_eq!(kept(Sampling { top_k: Some(2), top_p: Some(0.7), ..Sampling::default() }), 1);
        assert_eq!(kept(Sampling { top_k: Some(2), top_p: Some(0.75), ..Sampling::default() }), 2);
        // At temperature 0.5 the first token alone has 0.865.
        assert_eq!(kept(Sampling { temperature: 0.5, top_p: Some(0.8), ..Sampling::default() }), 1);
        assert_eq!(kept(Sampling { top_p: Some(0.8), ..Sampling::default() }), 2);
    }

    /// Against a full sort, for logits with many ties.
    #[test]
    fn a_draw_is_the_one_from_all_tokens_in_order() -> Result<()> {
        let logits: Vec<f32> =
            (0..5000u32).map(|i| (i.wrapping_mul(2_654_435_769) >> 20) as f32 / 300.0).collect();
        for (top_k, top_p, temperature) in [
            (None, None, 1.0),
            (Some(3), None, 0.5),
            (Some(700), Some(0.9), 2.0),
            (None, Some(0.999), 5.0),
            (None, Some(1.0), 1.0),
            (Some(9000), None, 3.0),
        ] {
            let sampling = Sampling { temperature, top_k, top_p, ..Sampling::default() };
            let mut all: Vec<(usize, f64)> = logits.iter().map(|&l| f64::from(l)).enumerate().collect();
            all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            all.truncate(top_k.unwrap_or(usize::MAX));
            let highest = all[0].1;
            for (_, l) in &mut all {
                *l = ((*l - highest) / temperature).exp();
            }
            let mass = top_p.unwrap_or(1.0) * all.iter().map(|(_, p)| p).sum::<f64>();
            let mut sum = 0.0;
            let kept = all.iter().position(|(_, p)| {
                sum += p;
                sum >= mass * (1.0 - 1e-12)
            });
            all.truncate(kept.map_or(all.len(), |i| i + 1));
            let total: f64 = all.iter().map(|(_, p)| p).sum();
            for random in [0.0, 0.1, 0.37, 0.5, 0.83, 0.99, 0.9999] {
                let mut rest = random * total;
                let expected = all.iter().find(|(_, p)| {
                    rest -= p;
                    rest < 0.0
                });
                let drawn = sampling.draw(sampling.keep(&logits), random)?;
                assert_eq!(Some(drawn as usize), expected.map(|x| x.0), "{sampling:?} {random}");
            }
        }
        Ok(())
    }
}
