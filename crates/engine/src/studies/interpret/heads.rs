//! Previous-token, duplicate-token and induction scores of each head, and how much it copies.

use crate::interventions::Reads;
use crate::provenance::RunProvenance;
use crate::spelling::Spelling;
use crate::studies::study::{Outcome, Run, Study};
use anyhow::bail;
use candle_core::{Device, Tensor};
use gpt2_circuits::Circuits;
use gpt2_model::analysis::{HeadScores, RepeatedTokens, Score, chance_scores, head_scores};
use gpt2_model::hooks::{Chain, Head, Interventions, Point, on};
use serde::{Deserialize, Serialize};
use std::cell::Cell;

/// The texts of random tokens that come several times (Olsson et al. 2022).
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Random tokens, which a text repeats.
    pub length: usize,
    /// The number of times a text has them.
    pub repeats: usize,
    /// Texts.
    pub batch: usize,
    /// Whether texts begin with a random token instead of the model's first token.
    pub no_bos: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { length: 25, repeats: 4, batch: 10, no_bos: false }
    }
}

/// The scores of all heads.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The facts that it depends on.
    pub provenance: RunProvenance,
    /// The model's name.
    pub model: String,
    /// The tokens that a text repeats.
    pub length: usize,
    /// The number of times it has them.
    pub repeats: usize,
    /// The number of texts.
    pub batch: usize,
    /// Whether each text begins with the model's first token.
    pub bos: bool,
    /// The seed of the texts.
    pub seed: u64,
    /// The texts' tokens, one row each.
    pub ids: Vec<Vec<u32>>,
    /// The scores of uniform attention.
    pub chance: Chance,
    /// The heads, layer by layer.
    pub heads: Vec<ScoredHead>,
}

/// The scores of uniform attention.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Chance {
    /// The weight on the token before.
    pub previous_token: f64,
    /// The weight on earlier copies of the token.
    pub duplicate_token: f64,
    /// The weight on the tokens after those copies.
    pub induction: f64,
}

/// A mean over the texts; its standard error is null for a single text.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct MeanOverTexts {
    /// The mean.
    pub mean: f64,
    /// Its standard error.
    pub standard_error: Option<f64>,
}

impl From<Score> for MeanOverTexts {
    fn from(score: Score) -> Self {
        let error = Some(score.standard_error).filter(|error| !error.is_nan());
        Self { mean: score.mean, standard_error: error }
    }
}

/// The scores of one head.
#[derive(Debug, Clone, Serialize)]
pub struct ScoredHead {
    /// Its layer.
    pub layer: usize,
    /// Its number in the layer.
    pub head: usize,
    /// The intervention that silences the head, such as "ablated"; `None` if the run uses its output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silenced: Option<&'static str>,
    /// The weight on the token before.
    pub previous_token: MeanOverTexts,
    /// The weight on all earlier copies of the token.
    pub duplicate_token: MeanOverTexts,
    /// The weight on the tokens after those copies.
    pub induction: MeanOverTexts,
    /// Olsson et al.'s: the mean over all pairs of a token and an earlier copy, rather than the sum over the copies.
    pub prefix_matching: f64,
    /// The sum of the eigenvalues of the OV circuit divided by the sum of their sizes; null for a head whose values are 0.
    pub copying: Option<f64>,
}

impl Options {
    /// Refuses texts without tokens, repetitions or a text.
    fn check(&self, spelling: Spelling) -> anyhow::Result<()> {
        let least = [("length", self.length, 1), ("repeats", self.repeats, 2), ("batch", self.batch, 1)];
        match least.into_iter().find(|(_, given, least)| given < least) {
            Some((name, given, least)) => bail!("{}: expected {least} at least", spelling.given(name, given)),
            None => Ok(()),
        }
    }

    fn texts(&self, run: &Run) -> anyhow::Result<RepeatedTokens> {
        self.check(run.opened.spelling)?;
        let config = run.opened.model.config();
        let bos = config.bos_token_id.filter(|&id| !self.no_bos && (id as usize) < config.vocab_size);
        if bos.is_none() && !self.no_bos {
            run.observer.note(
                "the model's config names no first token (bos_token_id): the texts begin with a random one",
            );
        }
        let tokens = self.length.saturating_mul(self.repeats).saturating_add(usize::from(bos.is_some()));
        let n = config.n_positions;
        if tokens > n {
            let option = |name| run.opened.spelling.option(name);
            bail!(
                "{tokens} tokens in a text, but the model has n_positions = {n}: lower {} or {}",
                option("length"),
                option("repeats")
            );
        }
        let lengths = (self.length, self.repeats);
        Ok(RepeatedTokens::random(bos, lengths, self.batch, config.vocab_size, run.seed))
    }
}

impl Options {
    /// The scores under `changes`; tells the observer how many texts were read.
    fn scores(
        &self,
        run: &Run,
        texts: &RepeatedTokens,
        changes: &Interventions,
    ) -> candle_core::Result<Vec<Vec<HeadScores>>> {
        let model = &run.opened.model.transformer;
        let done = Cell::new(0);
        // Each text reads the last layer's weights once.
        let counter = on([Point::Pattern(model.config().n_layer - 1)], |_, _| {
            done.set(done.get() + 1);
            run.observer.step("texts", done.get(), Some(self.batch as u64))?;
            Ok(None)
        });
        head_scores(model, texts, Some(&Chain(&[changes, &counter])))
    }
}

impl Study for Options {
    const NAME: &'static str = "heads";
    // The texts are random: none of their positions means anything, and no other prompt goes with them.
    const REFUSES: &'static [&'static str] = &["block", "patch", "from-prompt"];
    type Report = Report;

    fn run(&self, run: &Run) -> anyhow::Result<Outcome<Report>> {
        let opened = run.opened;
        let texts = self.texts(run)?;
        let applied = run.interventions.of(Reads::Others("random tokens"))?;
        let scores = self.scores(run, &texts, &applied.list)?;
        let numbers: Vec<f64> = scores.iter().flatten().map(|head| head.induction.mean).collect();
        let read = Tensor::from_vec(texts.rows.concat(), (texts.rows.len(), texts.tokens()), &opened.device)?;
        run.check_finite(&read, Some(&applied.list), [&Tensor::new(numbers, &Device::Cpu)?])?;
        let circuits = match Circuits::new(&opened.model) {
            Ok(circuits) => Some(circuits),
            Err(_) if run.allow_nonfinite => None,
            Err(error) => return Err(error.into()),
        };
        let scored = |head: Head, scores: HeadScores| -> anyhow::Result<ScoredHead> {
            let HeadScores { previous_token, duplicate_token, induction } = scores;
            let copying = circuits.as_ref().map(|of| of.copying_score(head)).transpose()?;
            Ok(ScoredHead {
                layer: head.layer,
                head: head.head,
                silenced: applied.list.silence(head, texts.tokens()),
                previous_token: previous_token.into(),
                duplicate_token: duplicate_token.into(),
                induction: induction.into(),
                prefix_matching: induction.mean / texts.copies_per_query(),
                copying: copying.filter(|score| !score.is_nan()),
            })
        };
        let mut heads = vec![];
        for (layer, scores) in scores.into_iter().enumerate() {
            for (head, scores) in scores.into_iter().enumerate() {
                heads.push(scored(Head { layer, head }, scores)?);
            }
        }
        let [previous_token, duplicate_token, induction] = chance_scores(&texts);
        Ok(Outcome::new(Report {
            provenance: RunProvenance::of_tokens(opened, texts.tokens())?.under(&applied),
            model: opened.name.clone(),
            length: self.length,
            repeats: self.repeats,
            batch: self.batch,
            bos: texts.begins,
            seed: run.seed,
            ids: texts.rows,
            chance: Chance { previous_token, duplicate_token, induction },
            heads,
        }))
    }
}
