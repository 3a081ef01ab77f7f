//! The choice of the next token from the logits.
//!
//! The steps run in the same order as in transformers' `generate`: repetition penalty, temperature,
//! top-k, top-p, min-p, typical-p, draw.

use super::ranked::{Ranked, descending, highest};
use candle_core::Result;
use candle_fused::{FoundTokens, TokenSearch};
use rand_philox::philox4x32_10;

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

    /// The tokens to draw from, given all logits.
    fn keep(&self, logits: &[f32]) -> Vec<(usize, f32)> {
        self.keep_of(Ranked::all(logits)).unwrap_or_default() // all are known
    }

    /// The tokens to draw from; `None` if that takes more than is known of the logits.
    fn keep_of(&self, mut ranked: Ranked) -> Option<Vec<(usize, f32)>> {
        let highest = ranked.highest();
        let vocabulary = ranked.vocabulary();
        let mut count = self.top_k.map_or(vocabulary, |k| k.min(vocabulary));
        if let Some(top_p) = self.top_p {
            count = self.nucleus(&mut ranked, highest, count, top_p)?;
        }
        if let Some(min_p) = self.min_p {
            for i in 0..count {
                if self.weight(ranked.get(i)?.1, highest) < min_p {
                    count = i;
                    break;
                }
            }
        }
        let kept = ranked.first(count)?;
        Some(match self.typical_p {
            Some(p) => self.typical(kept, p),
            None => kept,
        })
    }

    /// The number of the first `count` tokens that have `top_p` of their weights; `None` if that takes more than is known.
    fn nucleus(&self, ranked: &mut Ranked, highest: f32, count: usize, top_p: f64) -> Option<usize> {
        let weight = |logit| self.weight(logit, highest);
        let (total, error) = if count < ranked.vocabulary() {
            let mut total = 0.0;
            for i in 0..count {
                total += weight(ranked.get(i)?.1);
            }
            (total, 0.0)
        } else {
            ranked.sum(weight)
        };
        let mass = top_p * total;
        let mut sum = 0.0;
        for i in 0..count {
            sum += weight(ranked.get(i)?.1);
            if error > 0.0 && (sum - mass).abs() <= error * mass {
                return None; // the sum of all logits may be on either side
            }
            if sum >= mass {
                return Some(i + 1);
            }
        }
        Some(count)
    }

    /// The search through logits on a GPU that is enough for the choice of a token; `None` if that takes all logits.
    pub(super) fn search(&self) -> Option<TokenSearch> {
        let plain = TokenSearch {
            listed: 0,
            temperature: self.temperature,
            #[allow(clippy::cast_possible_truncation)] // logits are f32
            penalty: self.repetition_penalty as f32,
            sums: false,
            seed: None,
        };
        if self.temperature == 0.0 {
            return Some(plain);
        }
        if !TokenSearch::TEMPERATURES.contains(&self.temperature) {
            return None;
        }
        match (self.top_k, self.top_p, self.min_p) {
            (Some(k), _, _) => (k <= TokenSearch::MOST).then_some(TokenSearch { listed: k, ..plain }),
            (None, Some(p), _) if p < 1.0 => {
                Some(TokenSearch { listed: TokenSearch::MOST, sums: true, ..plain })
            }
            (None, None, Some(_)) => Some(TokenSearch { listed: TokenSearch::MOST, ..plain }),
            (None, None, None) if self.typical_p.is_none() => {
                Some(TokenSearch { seed: Some(self.seed), ..plain })
            }
            _ => None,
        }
    }

    /// The next token given what a GPU has [found](Self::search) in as many logits as the vocabulary has tokens; `None` if that takes all
    /// logits.
    fn choose_found(&self, found: &FoundTokens, vocabulary: usize, place: usize) -> Result<Option<u32>> {
        if let Some((token, logit)) = found.not_finite {
            return Err(not_finite(token as usize, logit));
        }
        if self.temperature == 0.0 {
            return Ok(Some(found.highest.0));
        }
        if found.listed.is_empty() {
            return Ok(found.drawn);
        }
        let kept = self.keep_of(Ranked::first_of(vocabulary, &found.listed, found.sum));
        kept.map(|kept| self.draw(&kept, place)).transpose()
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
    match logits.iter().position(|l| !l.is_finite()) {
        Some(i) => Err(not_finite(i, logits[i])),
        None => Ok(()),
    }
}

fn not_finite(token: usize, logit: f32) -> candle_core::Error {
    candle_core::Error::msg(format!("the logit of token {token} is {logit}, so no token can be chosen"))
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
        self.sampling.choose(logits, text, self.place(text))
    }

    /// The next token after `text`, given what a GPU has [found](Sampling::search) in its logits; `None` if that takes all logits.
    pub(super) fn choose_found(
        &self,
        found: &FoundTokens,
        vocabulary: usize,
        text: &[u32],
    ) -> Result<Option<u32>> {
        self.sampling.choose_found(found, vocabulary, self.place(text))
    }

    /// The number of tokens after the prompt.
    pub(super) fn place(&self, text: &[u32]) -> usize {
        text.len().saturating_sub(self.prompt)
    }
}

fn id(index: usize) -> Result<u32> {
    u32::try_from(index).map_err(candle_core::Error::wrap)
}

#[cfg(test)]
#[path = "sampling_tests.rs"]
mod tests;
