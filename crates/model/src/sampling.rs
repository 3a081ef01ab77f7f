//! The choice of the next token from the logits.
//!
//! The steps run in the same order as in transformers' `generate`: repetition penalty, temperature,
//! top-k, top-p, min-p, typical-p, draw.

use candle_core::Result;
use rand_philox::philox4x32_10;
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
    /// Keep only tokens at least this many times as probable as the most probable one (Nguyen et al. 2024).
    pub min_p: Option<f64>,
    /// Keep the tokens whose information is closest to the entropy, the fewest whose probabilities sum to p (Meister et al.
    /// 2023, "Locally Typical Sampling").
    pub typical_p: Option<f64>,
    /// Makes every token that already occurs in the text less probable: it divides positive logits and
    /// multiplies negative ones (Keskar et al. 2019). 1 changes nothing.
    pub repetition_penalty: f64,
    /// The same seed gives the same text.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: None,
            top_p: None,
            min_p: None,
            typical_p: None,
            repetition_penalty: 1.0,
            seed: 0,
        }
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
    /// For a negative temperature, a `top_k` of 0, a `top_p`, `min_p` or `typical_p` outside (0, 1], or a penalty that is not
    /// above 0.
    pub fn validate(&self) -> Result<()> {
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            candle_core::bail!("temperature is {}, expected a finite number of at least 0", self.temperature)
        }
        if self.top_k == Some(0) {
            candle_core::bail!("top_k is 0, expected at least 1")
        }
        for (name, p) in [("top_p", self.top_p), ("min_p", self.min_p), ("typical_p", self.typical_p)] {
            if let Some(p) = p.filter(|p| !(*p > 0.0 && *p <= 1.0)) {
                candle_core::bail!("{name} is {p}, expected above 0 and at most 1")
            }
        }
        check_penalty(self.repetition_penalty)
    }

    /// The next token after `text`, given the logits at its end. `place` counts the tokens after the prompt.
    fn choose(&self, logits: &mut [f32], text: &[u32], place: usize) -> Result<u32> {
        penalize(logits, text, self.repetition_penalty);
        if let Some(i) = logits.iter().position(|l| !l.is_finite()) {
            candle_core::bail!("the logit of token {i} is {}, so no token can be chosen", logits[i])
        }
        if self.temperature == 0.0 {
            let best =
                logits.iter().enumerate().fold(0, |best, (i, l)| if *l > logits[best] { i } else { best });
            return id(best);
        }
        self.draw(&self.keep(logits), place)
    }

    /// Draws one of the tokens that are kept, in proportion to their probabilities: the first to arrive, where token i arrives
    /// after an exponentially distributed time with rate `p_i` (the Gumbel-max trick, Maddison et al. 2014). Logits that hardly
    /// differ, such as those of a draft, then draw the same token nearly always.
    fn draw(&self, kept: &[(usize, f32)], place: usize) -> Result<u32> {
        let highest = highest(kept);
        let mut first = (f64::INFINITY, 0);
        for &(token, logit) in kept {
            let time = -self.random(place, token).ln() / self.weight(logit, highest);
            if time < first.0 {
                first = (time, token);
            }
        }
        id(first.1)
    }

    /// The random number of a token at a place, above 0 and below 1: 52 bits of Philox4x32-10 (Salmon et al. 2011) under the
    /// seed, at the counter (token / 2, place).
    #[allow(clippy::cast_possible_truncation)] // a seed and a place in halves; there are fewer than 2^32 tokens
    fn random(&self, place: usize, token: usize) -> f64 {
        let halves = |x: u64| [x as u32, (x >> 32) as u32];
        let [low, high] = halves(place as u64);
        let words = philox4x32_10([(token / 2) as u32, low, high, 0], halves(self.seed));
        let [low, high] = if token.is_multiple_of(2) { [words[0], words[1]] } else { [words[2], words[3]] };
        let bits = u64::from(high) << 20 | u64::from(low) >> 12;
        (bits as f64 + 0.5) / 2f64.powi(52)
    }

    /// The probability of a token beside that of the most probable one.
    fn weight(&self, logit: f32, highest: f32) -> f64 {
        ((f64::from(logit) - f64::from(highest)) / self.temperature).exp()
    }

    /// The tokens to draw from.
    fn keep(&self, logits: &[f32]) -> Vec<(usize, f32)> {
        let mut ranked = Ranked::new(logits);
        let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut count = self.top_k.map_or(logits.len(), |k| k.min(logits.len()));
        if let Some(top_p) = self.top_p {
            let total: f64 = if count < logits.len() {
                (0..count).map(|i| self.weight(ranked.get(i).1, highest)).sum()
            } else {
                logits.iter().map(|&logit| self.weight(logit, highest)).sum()
            };
            let (mass, mut sum) = (top_p * total, 0.0);
            let enough = (0..count).find(|&i| {
                sum += self.weight(ranked.get(i).1, highest);
                sum >= mass
            });
            count = enough.map_or(count, |i| i + 1);
        }
        if let Some(min_p) = self.min_p {
            count = (0..count).find(|&i| self.weight(ranked.get(i).1, highest) < min_p).unwrap_or(count);
        }
        let kept = ranked.first(count);
        match self.typical_p {
            Some(p) => self.typical(kept, p),
            None => kept,
        }
    }

    /// Those of `kept` whose information, `-ln p`, is closest to the entropy.
    fn typical(&self, kept: Vec<(usize, f32)>, mass: f64) -> Vec<(usize, f32)> {
        let highest = highest(&kept);
        let weights: Vec<f64> = kept.iter().map(|&(_, logit)| self.weight(logit, highest)).collect();
        let total: f64 = weights.iter().sum();
        let information = |weight: f64| -(weight / total).ln();
        // A weight of 0 has infinite information, and 0·ln 0 is 0, its limit.
        let of_entropy =
            |&weight: &f64| if weight > 0.0 { weight / total * information(weight) } else { 0.0 };
        let entropy: f64 = weights.iter().map(of_entropy).sum();
        let distance = |i: usize| (information(weights[i]) - entropy).abs();
        let mut order: Vec<usize> = (0..kept.len()).collect();
        order.sort_by(|&i, &j| distance(i).total_cmp(&distance(j)));
        let mut sum = 0.0;
        let enough = order.iter().position(|&i| {
            sum += weights[i] / total;
            sum >= mass
        });
        let farthest = distance(order[enough.unwrap_or(order.len() - 1)]);
        kept.into_iter()
            .enumerate()
            .filter(|&(i, _)| distance(i) <= farthest)
            .map(|(_, token)| token)
            .collect()
    }
}

pub(crate) fn check_penalty(repetition_penalty: f64) -> Result<()> {
    #[allow(clippy::cast_possible_truncation)] // logits are f32, so they are divided in f32
    let penalty = repetition_penalty as f32;
    if !(penalty >= f32::MIN_POSITIVE && penalty.is_finite()) {
        candle_core::bail!("repetition_penalty is {repetition_penalty}, expected a finite number above 0")
    }
    Ok(())
}

/// Makes the tokens of `text` less probable, see [`Sampling::repetition_penalty`].
pub(crate) fn penalize(logits: &mut [f32], text: &[u32], repetition_penalty: f64) {
    #[allow(clippy::float_cmp)] // exactly 1 is the documented "off"
    if repetition_penalty == 1.0 {
        return;
    }
    #[allow(clippy::cast_possible_truncation)] // logits are f32
    let penalty = repetition_penalty as f32;
    let mut seen = text.to_vec();
    seen.sort_unstable();
    seen.dedup();
    for id in seen {
        if let Some(l) = logits.get_mut(id as usize) {
            *l = if *l > 0.0 { *l / penalty } else { *l * penalty };
        }
    }
}

fn highest(tokens: &[(usize, f32)]) -> f32 {
    tokens.iter().fold(f32::NEG_INFINITY, |highest, (_, logit)| highest.max(*logit))
}

/// Chooses the tokens after one prompt. Each token has its own random number at each place, whatever was drawn before.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    /// The length of the prompt.
    prompt: usize,
}

impl Sampler {
    pub(crate) fn new(sampling: Sampling, prompt: usize) -> Self {
        Self { sampling, prompt }
    }

    /// The next token after `text`, which begins with the prompt, given the logits (V) at its end. They are changed.
    ///
    /// # Errors
    /// When a logit is not finite.
    pub fn choose(&self, logits: &mut [f32], text: &[u32]) -> Result<u32> {
        self.sampling.choose(logits, text, text.len().saturating_sub(self.prompt))
    }
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

    /// The first `count` tokens.
    fn first(mut self, count: usize) -> Vec<(usize, f32)> {
        if 0 < count && count < self.tokens.len() {
            self.get(count - 1);
        }
        self.tokens.truncate(count);
        self.tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn top_k_and_top_p_keep_the_most_probable() {
        let logits = [0.0, 3.0, 1.0, 2.0].map(|x: f32| x);
        let ids = |s: Sampling| s.keep(&logits).into_iter().map(|(token, _)| token).collect::<Vec<_>>();
        assert_eq!(ids(Sampling { top_k: Some(2), ..Sampling::default() }), [1, 3]);
        // softmax: 0.644, 0.237, 0.087, 0.032
        assert_eq!(ids(Sampling { top_p: Some(0.64), ..Sampling::default() }), [1]);
        assert_eq!(ids(Sampling { top_p: Some(0.65), ..Sampling::default() }), [1, 3]);
        assert_eq!(ids(Sampling { top_p: Some(1.0), ..Sampling::default() }), [1, 3, 2, 0]);
    }

    #[test]
    fn draws_follow_the_probabilities() -> Result<()> {
        let sampler = Sampler::new(Sampling { seed: 1, ..Sampling::default() }, 0);
        let mut counts = [0usize; 2];
        let text = vec![0; 20_000];
        for length in 0..text.len() {
            let mut logits = [3f32.ln(), 0.0]; // 0.75, 0.25
            counts[sampler.choose(&mut logits, &text[..length])? as usize] += 1;
        }
        // Five standard deviations of a binomial with n = 20000, p = 0.75.
        assert!((14_700..15_300).contains(&counts[0]), "{counts:?}");
        Ok(())
    }

    #[test]
    fn numbers_differ_by_seed_place_and_token_and_fill_the_unit_interval() {
        let sampling = |seed| Sampling { seed, ..Sampling::default() };
        let mut all: Vec<f64> = vec![];
        for seed in [1, 1 << 40] {
            for place in 0..50 {
                all.extend((0..200).map(|token| sampling(seed).random(place, token)));
            }
        }
        let n = all.len() as f64;
        let mean = all.iter().sum::<f64>() / n;
        assert!((mean - 0.5).abs() < 5.0 / (12.0 * n).sqrt(), "{mean}"); // five standard deviations
        all.sort_by(f64::total_cmp);
        assert!(all.windows(2).all(|two| two[0] < two[1]), "no number occurs twice");
        assert!(all[0] > 0.0 && all[all.len() - 1] < 1.0);
    }

    /// Logits that differ by a little, as those of a quantized model do, disagree as seldom as their probabilities differ.
    #[test]
    fn nearly_the_same_logits_draw_nearly_always_the_same_token() -> Result<()> {
        let sampler = Sampler::new(Sampling { seed: 3, ..Sampling::default() }, 0);
        let (tokens, draws) = (50, 4000);
        let logits: Vec<f32> = (0..tokens).map(|i| (i * 37 % 50) as f32 / 25.0).collect();
        let other: Vec<f32> = (0..tokens).zip(&logits).map(|(i, x)| x + 0.05 * (i as f32).sin()).collect();
        let text = vec![0; draws];
        let mut same = 0;
        for place in 0..draws {
            let [a, b] = [&logits, &other].map(|logits| sampler.choose(&mut logits.clone(), &text[..place]));
            same += usize::from(a? == b?);
        }
        // The total variation distance is below 0.02, and twice that bounds the share that differs.
        assert!(same > draws * 96 / 100, "{same} of {draws}");
        Ok(())
    }

    #[test]
    fn min_p_keeps_what_is_not_much_less_probable_than_the_best() {
        let logits = [0.0, 3.0, 1.0, 2.0].map(|x: f32| x); // beside the best: 0.0498, 1, 0.135, 0.368
        let kept = |min_p| Sampling { min_p: Some(min_p), ..Sampling::default() }.keep(&logits).len();
        assert_eq!([1.0, 0.4, 0.36, 0.13, 0.04].map(kept), [1, 1, 2, 3, 4]);
    }

    /// With probabilities 0.5, 0.25, 0.125, 0.125 the entropy is 1.75 bits, and the information 1, 2, 3 and 3: the distances are
    /// 0.75, 0.25, 1.25 and 1.25.
    #[test]
    fn typical_p_keeps_what_is_as_surprising_as_expected() {
        let logits = [0.5f32, 0.25, 0.125, 0.125].map(f32::ln);
        let kept = |p| {
            let sampling = Sampling { typical_p: Some(p), ..Sampling::default() };
            let mut ids: Vec<_> = sampling.keep(&logits).into_iter().map(|(token, _)| token).collect();
            ids.sort_unstable();
            ids
        };
        assert_eq!(kept(0.2), [1]);
        assert_eq!(kept(0.3), [0, 1]);
        assert_eq!(kept(0.8), [0, 1, 2, 3]); // the two last are as far
    }

    #[test]
    fn a_penalty_makes_what_was_said_less_probable_whatever_its_sign() -> Result<()> {
        let sampling = Sampling { repetition_penalty: 2.0, ..Sampling::greedy() };
        assert_eq!(sampling.choose(&mut [4.0, 3.0], &[0, 0], 0)?, 1);
        assert_eq!(sampling.choose(&mut [-1.0, -1.5], &[0], 0)?, 1);
        Ok(())
    }

    #[test]
    fn what_is_not_finite_is_an_error_and_not_a_token() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for sampling in [Sampling::greedy(), Sampling::default()] {
                assert!(sampling.choose(&mut [0.0, bad], &[], 0).is_err());
            }
        }
        assert!(Sampling { repetition_penalty: 1e-50, ..Sampling::default() }.validate().is_err());
        let least = Sampling { repetition_penalty: f32::MIN_POSITIVE.into(), ..Sampling::default() };
        assert!(least.validate().is_ok());
    }

    #[test]
    fn top_p_is_a_part_of_what_temperature_and_top_k_leave() {
        let logits = [3f32, 2., 1., 0.]; // 0.644, 0.237, 0.087, 0.032
        let kept = |s: Sampling| s.keep(&logits).len();
        // Of the two most probable tokens, the first has 0.731 and the second 0.269.
        assert_eq!(kept(Sampling { top_k: Some(2), top_p: Some(0.7), ..Sampling::default() }), 1);
        assert_eq!(kept(Sampling { top_k: Some(2), top_p: Some(0.75), ..Sampling::default() }), 2);
        // At temperature 0.5 the first token alone has 0.865.
        assert_eq!(kept(Sampling { temperature: 0.5, top_p: Some(0.8), ..Sampling::default() }), 1);
        assert_eq!(kept(Sampling { top_p: Some(0.8), ..Sampling::default() }), 2);
    }

    /// Against a full sort, for logits with many ties.
    #[test]
    fn what_is_kept_is_the_beginning_of_all_tokens_in_order() {
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
            let mut expected: Vec<usize> = all.iter().map(|(token, _)| *token).collect();
            expected.truncate(kept.filter(|_| top_p.is_some()).map_or(all.len(), |i| i + 1));
            let mut got: Vec<usize> = sampling.keep(&logits).into_iter().map(|(token, _)| token).collect();
            expected.sort_unstable();
            got.sort_unstable();
            assert_eq!(got, expected, "{sampling:?}");
        }
    }
}
