//! The choice of the next token from the logits.
//!
//! The steps run in the same order as in transformers' `generate`: repetition penalty, temperature,
//! top-k, top-p, min-p, typical-p, draw.

use candle_core::Result;
use rand_philox::philox4x32_10;
use std::cmp::Ordering;

/// The options for choosing the next token from the logits.
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
    /// The seed of the random draws: the same seed gives the same text.
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
        check_finite(logits)?;
        if self.temperature == 0.0 {
            return id(most_probable(logits).0);
        }
        self.draw(&self.keep(logits), place)
    }

    /// The tokens to draw from after a text, given the logits (V) at its end, and their probabilities among these, the most
    /// probable first; of equal ones, the lower id first. The repetition penalty plays no part.
    ///
    /// # Errors
    /// When a value is meaningless or a logit is not finite.
    pub fn probabilities(&self, logits: &[f32]) -> Result<Vec<(u32, f64)>> {
        self.validate()?;
        check_finite(logits)?;
        let mut kept = if self.temperature == 0.0 { vec![most_probable(logits)] } else { self.keep(logits) };
        kept.sort_unstable_by(descending);
        let highest = highest(&kept);
        let weights: Vec<f64> = match kept[..] {
            [_] => vec![1.0],
            _ => kept.iter().map(|&(_, logit)| self.weight(logit, highest)).collect(),
        };
        let total: f64 = weights.iter().sum();
        kept.iter().zip(weights).map(|(&(token, _), weight)| Ok((id(token)?, weight / total))).collect()
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
            let mass = top_p * total;
            let mut sum = 0.0;
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

    /// Keeps the tokens whose information, `-ln p`, is closest to the entropy, until their probabilities sum to `mass`.
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

fn check_finite(logits: &[f32]) -> Result<()> {
    if let Some(i) = logits.iter().position(|l| !l.is_finite()) {
        candle_core::bail!("the logit of token {i} is {}, so no token can be chosen", logits[i])
    }
    Ok(())
}

/// The token with the highest logit, and the logit; of equal ones, the lower token.
fn most_probable(logits: &[f32]) -> (usize, f32) {
    let first = (0, logits.first().copied().unwrap_or(f32::NEG_INFINITY));
    logits.iter().copied().enumerate().fold(first, |best, one| if one.1 > best.1 { one } else { best })
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
    /// Draws after a prompt of `prompt` tokens.
    #[must_use]
    pub fn new(sampling: Sampling, prompt: usize) -> Self {
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
#[path = "sampling_tests.rs"]
mod tests;
