//! Pages of random weights that look like attention: sinks, neighbors, sharp and diffuse heads.

use candle_core::{Device, Result, Tensor};
use gpt2_view::{HeadNumbers, NextToken, PageHeader, PageWriter, Provenance};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::io::Write;

/// Width of the random queries and keys.
const D: usize = 16;

/// The character of a head: the deviation of its scores, how they fall with distance, and the bonus of the first
/// and the previous token.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) sharpness: f32,
    pub(crate) decay: f32,
    pub(crate) first: f32,
    pub(crate) previous: f32,
}

impl Kind {
    /// Twelve kinds of head, in turn.
    pub(crate) fn mixed(layer: usize, head: usize) -> Self {
        let at = (layer * 5 + head) % 12;
        let of = |values: [f32; 12]| values[at];
        Self {
            sharpness: of([0.5, 1.0, 1.5, 2.0, 3.0, 1.0, 1.5, 2.5, 4.0, 1.0, 2.0, 1.2]),
            decay: of([0.0, 0.3, 0.1, 0.5, 0.05, 1.0, 0.02, 0.1, 0.0, 0.2, 0.3, 0.05]),
            first: of([0.0, 2.0, 7.0, 4.0, 10.0, 1.0, 9.0, 12.0, 8.0, 5.0, 6.0, 3.0]),
            previous: of([0.0, 0.0, 0.0, 6.0, 0.0, 0.0, 2.0, 0.0, 0.0, 9.0, 0.0, 0.0]),
        }
    }

    /// The heaviest load for a page: many weights of many sizes in every row.
    pub(crate) const NOISE: Self = Self { sharpness: 1.0, decay: 0.0, first: 0.0, previous: 0.0 };
}

/// (H, T, T): each row a softmax over the keys up to its query.
pub(crate) fn weights(kinds: &[Kind], t: usize, seed: u64) -> Result<Tensor> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // A sum of uniform numbers is close enough to normal.
    let mut normal = || (0..4).map(|_| rng.random::<f32>() - 0.5).sum::<f32>() * 3f32.sqrt();
    let mut all = vec![0f32; kinds.len() * t * t];
    for (kind, map) in kinds.iter().zip(all.chunks_exact_mut(t * t)) {
        let vectors: Vec<f32> = (0..2 * t * D).map(|_| normal()).collect();
        let (queries, keys) = vectors.split_at(t * D);
        for i in 0..t {
            let q = &queries[i * D..][..D];
            let row = &mut map[i * t..][..=i];
            for (j, weight) in row.iter_mut().enumerate() {
                let dot: f32 = q.iter().zip(&keys[j * D..][..D]).map(|(q, k)| q * k).sum();
                let place = if j == 0 { kind.first } else { 0.0 };
                let near = if j + 1 == i { kind.previous } else { 0.0 };
                *weight = dot / (D as f32).sqrt() * kind.sharpness - kind.decay * ((i - j) as f32).sqrt()
                    + place
                    + near;
            }
            let highest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let total: f32 = row.iter().map(|w| (w - highest).exp()).sum();
            for weight in row {
                *weight = (*weight - highest).exp() / total;
            }
        }
    }
    Tensor::from_vec(all, (kinds.len(), t, t), &Device::Cpu)
}

/// `t` words of a repetitive text.
pub(crate) fn tokens(t: usize) -> Vec<String> {
    const TEXT: &str = "Four score and seven years ago our fathers brought forth upon this continent , a new \
                        nation , conceived in liberty , and dedicated to the proposition that all men are \
                        created equal . ⏎ Now we are engaged in a great civil war , testing whether that \
                        nation , or any nation so conceived and so dedicated , can long endure . ⏎";
    let word = |word: &str| if word == "⏎" { "\n".to_owned() } else { format!(" {word}") };
    TEXT.split(' ').filter(|w| !w.is_empty()).cycle().take(t).map(word).collect()
}

/// The 12 heads of one of 12 layers, (12, T, T).
pub(crate) fn layer(layer: usize, t: usize, kind: impl Fn(usize, usize) -> Kind) -> Result<Tensor> {
    weights(&(0..12).map(|head| kind(layer, head)).collect::<Vec<_>>(), t, layer as u64)
}

/// Writes a page of `layers`, each (12, T, T).
pub(crate) fn write<W: Write>(out: W, t: usize, layers: &[Tensor]) -> Result<W> {
    let tokens = tokens(t);
    let heads: Vec<usize> = (0..12).collect();
    let provenance = Provenance::default();
    let header = PageHeader::new("random weights", &tokens, 12 * layers.len(), &provenance);
    let mut page = PageWriter::new(out, &header)?;
    for (i, weights) in layers.iter().enumerate() {
        page.layer(i, &heads, weights)?;
    }
    let next = |i: usize| NextToken {
        likely: (1..6u8)
            .map(|n| (tokens[(i * 7 + usize::from(n)) % t].clone(), 0.5f32.powi(n.into())))
            .collect(),
        actual: (i + 1 < t).then_some(0.125),
    };
    page.finish(&(0..t).map(next).collect::<Vec<_>>())
}

/// The heads of each layer in [`everything`], and the width of their queries and keys.
pub(crate) const HEADS: usize = 4;
pub(crate) const WIDTH: usize = 8;

/// The data of a page that has all kinds of them.
pub(crate) struct Everything {
    pub(crate) tokens: Vec<String>,
    /// For each run, three layers of (HEADS, T, T).
    pub(crate) runs: [Vec<Tensor>; 2],
    /// (HEADS, T) for every layer alike.
    pub(crate) norms: Tensor,
    /// (HEADS, T, WIDTH)
    pub(crate) q: Tensor,
    pub(crate) k: Tensor,
    /// The map that is no head, (T, T).
    pub(crate) rollout: Tensor,
}

impl Everything {
    pub(crate) fn new(t: usize) -> Result<Self> {
        let kinds = |layer| (0..HEADS).map(|head| Kind::mixed(layer, head)).collect::<Vec<_>>();
        let clean = (0..3).map(|l| weights(&kinds(l), t, l as u64)).collect::<Result<Vec<_>>>()?;
        // The second run differs from layer 1 on, more and more.
        let second = |l: usize| -> Result<Tensor> {
            let share = [0.0, 0.2, 0.6][l];
            (&clean[l] * (1.0 - share))? + (weights(&kinds(l + 1), t, 90 + l as u64)? * share)?
        };
        let second = (0..3).map(second).collect::<Result<Vec<_>>>()?;
        let wave = |n: usize, scale: f32| (0..n).map(move |i| (i as f32 * scale).sin()).collect::<Vec<_>>();
        let vectors =
            |scale| Tensor::from_vec(wave(HEADS * t * WIDTH, scale), (HEADS, t, WIDTH), &Device::Cpu);
        let norms = wave(HEADS * t, 0.7).into_iter().map(|x| 2.0 + x).collect::<Vec<_>>();
        let rollout = clean[0].mean(0)?;
        let norms = Tensor::from_vec(norms, (HEADS, t), &Device::Cpu)?;
        Ok(Self {
            tokens: tokens(t),
            runs: [clean, second],
            norms,
            q: vectors(0.37)?,
            k: vectors(0.11)?,
            rollout,
        })
    }

    /// The page of the first `runs` runs; the last third of the text is generated.
    pub(crate) fn write<W: Write>(&self, out: W, runs: &[&str]) -> Result<W> {
        let t = self.tokens.len();
        let heads: Vec<usize> = (0..HEADS).collect();
        let provenance = Provenance { caption: "f32 on cpu; seed 1".to_owned(), ..Provenance::default() };
        let mut header = PageHeader::new("all kinds of data", &self.tokens, 3 * HEADS, &provenance);
        header.runs = runs;
        header.prompt = Some(t - t / 3);
        let mut page = PageWriter::new(out, &header)?;
        let next = |shift: usize| -> Vec<NextToken> {
            let likely = |i: usize| {
                (0..3).map(move |n| (self.tokens[(i + n + shift) % t].clone(), 0.5 / (1 << n) as f32))
            };
            (0..t)
                .map(|i| NextToken { likely: likely(i).collect(), actual: (i + 1 < t).then_some(0.25) })
                .collect()
        };
        for run in 0..runs.len().max(1) {
            for (layer, weights) in self.runs[run].iter().enumerate() {
                page.layer_of_run(run, layer, &heads, weights)?;
                page.value_norms(run, layer, &heads, &self.norms)?;
                page.vectors(run, layer, &heads, &self.q, &self.k, 0.5)?;
                let guess = |i: usize| (self.tokens[(i + layer + run) % t].clone(), 0.2 + 0.1 * layer as f32);
                page.lens(run, layer, &(0..t).map(guess).collect::<Vec<_>>())?;
            }
            page.map(run, "rollout", "All layers multiplied", &self.rollout)?;
            // Feature 7 fires everywhere, others at every third token; the second run halves them.
            let fires = |i: usize| {
                let half = 1.0 / (1 + run) as f32;
                vec![(7, half * (1 + i % 5) as f32), ([0, 1, 2][i % 3], 0.5 * half)]
            };
            page.features(run, "a dictionary", &(0..t).map(fires).collect::<Vec<_>>())?;
            if run == 1 {
                page.predictions(run, &next(2))?;
            }
        }
        let edge = |from: &str, to: &str| (from.to_owned(), to.to_owned());
        page.circuit(&[
            edge("embed", "0.1.v"),
            edge("0.1", "1.0.k"),
            edge("1.0", "2.mlp"),
            edge("1.0", "logits"),
        ])?;
        page.head_numbers(&HeadNumbers {
            name: "effect".to_owned(),
            meaning: "How much the loss rises without the head".to_owned(),
            values: (0..3 * HEADS).map(|n| if n == 5 { f32::NAN } else { n as f32 * 0.125 - 0.5 }).collect(),
            signed: true,
        })?;
        page.finish(&next(1))
    }
}
