//! The model's predictions after each block: the logit lens (nostalgebraist 2020).

use crate::open::Label;
use crate::provenance::RunProvenance;
use crate::studies::study::{Outcome, Run, Study};
use crate::studies::study::{PointName, Points};
use crate::texts::Content;
use anyhow::bail;
use candle_core::{D, DType, Tensor};
use candle_nn::ops::log_softmax;
use gpt2_model::analysis::{highest, logit_lens};
use gpt2_model::hooks::Chain;
use serde::{Deserialize, Serialize};

/// The options of the lens.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The text, or its ids.
    pub prompt: Content,
    /// The position whose next token to predict; by default the last.
    pub position: Option<usize>,
    /// The number of tokens to list for each layer.
    pub top_k: usize,
    /// Points of the run whose values are returned as tensors, too.
    pub export_point: Vec<PointName>,
}

impl Default for Options {
    fn default() -> Self {
        Self { prompt: Content::default(), position: None, top_k: 3, export_point: vec![] }
    }
}

/// The predictions, layer by layer.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The facts that it depends on.
    pub provenance: RunProvenance,
    /// The model's name.
    pub model: String,
    /// The position whose next token is predicted.
    pub position: usize,
    /// The token at that position.
    pub token: Label,
    /// The predictions before the first block and after each, likeliest first.
    pub layers: Vec<Vec<TokenGuess>>,
}

/// A token that may come next.
#[derive(Debug, Serialize)]
pub struct TokenGuess {
    /// Its id.
    pub id: u32,
    /// Its text.
    pub token: Label,
    /// Its probability.
    pub probability: f32,
}

impl Study for Options {
    const NAME: &'static str = "lens";
    // Within a circuit, no part reads the residual stream as a whole.
    const REFUSES: &'static [&'static str] = &["circuit"];
    type Report = Report;

    /// The tensor `lens` holds the logits (L + 1, V).
    fn run(&self, run: &Run) -> anyhow::Result<Outcome<Report>> {
        let opened = run.opened;
        let prompt = run.prompt(&self.prompt)?;
        let applied = run.on_prompt(&prompt)?;
        let t = prompt.ids.len();
        let position = self.position.unwrap_or(t - 1);
        if position >= t {
            let given = opened.spelling.given("position", position);
            bail!("{given}: the prompt has positions 0 to {}", t - 1);
        }
        let option = opened.spelling.option("export-point");
        let points = Points::new(&option, &self.export_point, opened.model.config().n_layer)?;
        let ids = opened.input_ids(&prompt.ids)?; // (1, T)
        let recorder = points.recorder();
        let hooks = Chain(&[&applied.list, &recorder]);
        let logits = logit_lens(&opened.model, &ids, position, Some(&hooks))?; // (L + 1, 1, V)
        let logits = logits.squeeze(1)?.to_dtype(DType::F32)?; // (L + 1, V)
        let check = |x: &Tensor| run.check_finite(&ids, Some(&applied.list), [x]);
        check(&logits)?;
        let log_probs = log_softmax(&logits, D::Minus1)?.to_vec2::<f32>()?;
        let guesses = |log_probs: &Vec<f32>| -> Vec<TokenGuess> {
            let guess = |&id: &u32| TokenGuess {
                id,
                token: opened.label(id),
                probability: log_probs[id as usize].exp(),
            };
            highest(log_probs, self.top_k).iter().map(guess).collect()
        };
        let layers = log_probs.iter().map(guesses).collect();
        let mut tensors = vec![("lens".to_owned(), logits)];
        points.add_to(&mut tensors, &recorder, check)?;
        let provenance = RunProvenance::new(opened, &prompt.ids)?.under(&applied);
        let token = opened.label(prompt.ids[position]);
        let report = Report { provenance, model: opened.name.clone(), position, token, layers };
        Ok(Outcome { report, tensors })
    }
}
