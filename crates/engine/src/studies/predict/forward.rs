//! The next token's probabilities, and how surprising the prompt is.

use crate::interventions::nothing_to_compare;
use crate::open::Label;
use crate::provenance::RunProvenance;
use crate::studies::study::{Outcome, Run, Study};
use crate::studies::study::{PointName, Points};
use crate::texts::{Content, Prompt};
use anyhow::bail;
use candle_core::{D, DType, Tensor};
use candle_nn::ops::log_softmax;
use gpt2_model::ForwardArgs;
use gpt2_model::analysis::highest;
use gpt2_model::hooks::Chain;
use serde::{Deserialize, Serialize};

/// The options of a pass over a prompt.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The text, or its ids.
    pub prompt: Content,
    /// The number of next tokens to list.
    pub top_k: usize,
    /// Whether to run without the interventions, too.
    pub compare: bool,
    /// Points of the run whose values are returned as tensors, too.
    pub export_point: Vec<PointName>,
}

impl Default for Options {
    fn default() -> Self {
        Self { prompt: Content::default(), top_k: 10, compare: false, export_point: vec![] }
    }
}

/// The predictions of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The facts that it depends on.
    pub provenance: RunProvenance,
    /// The model's name.
    pub model: String,
    /// The run, with the interventions.
    #[serde(flatten)]
    pub run: OneRun,
    /// The run without interventions, if the two are compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plain: Option<OneRun>,
    /// The most probable next tokens of both, those of the plain run first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<TokenInBothRuns>,
}

/// The predictions along a prompt.
#[derive(Debug, Serialize)]
pub struct OneRun {
    /// The prompt's tokens.
    pub tokens: Vec<ScoredToken>,
    /// exp of the mean negative log-probability of all tokens but the first; `None` for a single token.
    pub perplexity: Option<f64>,
    /// The most probable next tokens.
    pub next: Vec<LikelyToken>,
    /// The log-probability of each token of the vocabulary after the prompt.
    #[serde(skip)]
    last: Vec<f32>,
}

/// The probabilities of a next token in both runs.
#[derive(Debug, Serialize)]
pub struct TokenInBothRuns {
    /// Its id.
    pub id: u32,
    /// Its text.
    pub token: Label,
    /// Its probability in the plain run.
    pub plain: f32,
    /// Its probability in the run with interventions.
    pub changed: f32,
}

/// A token of the prompt.
#[derive(Debug, Serialize)]
pub struct ScoredToken {
    /// Its id.
    pub id: u32,
    /// Its text.
    pub token: Label,
    /// In nats, given the tokens before it; `None` for the first token.
    pub log_prob: Option<f32>,
}

/// A token that may come next.
#[derive(Debug, Serialize)]
pub struct LikelyToken {
    /// Its id.
    pub id: u32,
    /// Its text.
    pub token: Label,
    /// Its probability.
    pub probability: f32,
    /// Its log-probability in nats.
    pub log_prob: f32,
}

impl Study for Options {
    const NAME: &'static str = "forward";
    type Report = Report;

    /// The tensors are `logits` (1, T, V) and `hidden_states` (L + 1, T, C), of the run with the interventions.
    fn run(&self, run: &Run) -> anyhow::Result<Outcome<Report>> {
        let opened = run.opened;
        let prompt = run.prompt(&self.prompt)?;
        let applied = run.on_prompt(&prompt)?;
        let spelling = opened.spelling;
        if self.compare && applied.texts.is_empty() {
            return Err(nothing_to_compare(spelling));
        }
        let option = spelling.option("export-point");
        let points = Points::new(&option, &self.export_point, opened.model.config().n_layer)?;
        let recorder = points.recorder();
        let args = ForwardArgs {
            output_hidden_states: run.wants_tensors,
            hooks: Some(&Chain(&[&applied.list, &recorder])),
            ..Default::default()
        };
        let ids = opened.input_ids(&prompt.ids)?; // (1, T)
        let output = opened.model.forward(&ids, args)?;
        let logits = output.logits.to_dtype(DType::F32)?; // (1, T, V)
        let check = |x: &Tensor| run.check_finite(&ids, Some(&applied.list), [x]);
        check(&logits)?;
        let mut tensors = vec![];
        if run.wants_tensors {
            let states = Tensor::cat(&output.transformer.hidden_states, 0)?.to_dtype(DType::F32)?; // (L + 1, T, C)
            check(&states)?;
            tensors = vec![("logits".to_owned(), logits.clone()), ("hidden_states".to_owned(), states)];
            points.add_to(&mut tensors, &recorder, check)?;
        }
        let provenance = RunProvenance::new(opened, &prompt.ids)?.under(&applied);
        let changed = self.read_off(run, &prompt, &logits.squeeze(0)?)?;
        let plain = self.compare.then(|| self.without(run, &prompt, &ids)).transpose()?;
        let changes = plain.as_ref().map_or_else(Vec::new, |plain| differences(plain, &changed));
        let model = opened.name.clone();
        Ok(Outcome { report: Report { provenance, model, run: changed, plain, changes }, tensors })
    }
}

impl Options {
    /// The run without the interventions.
    fn without(&self, run: &Run, prompt: &Prompt, ids: &Tensor) -> anyhow::Result<OneRun> {
        let logits = run.opened.model.forward(ids, ForwardArgs::default())?.logits;
        let logits = logits.to_dtype(DType::F32)?; // (1, T, V)
        run.check_finite(ids, None, [&logits])?;
        self.read_off(run, prompt, &logits.squeeze(0)?)
    }

    /// The predictions of a run with these logits (T, V).
    fn read_off(&self, run: &Run, prompt: &Prompt, logits: &Tensor) -> anyhow::Result<OneRun> {
        let opened = run.opened;
        let t = prompt.ids.len();
        let log_probs = log_softmax(logits, D::Minus1)?; // (T, V)
        let mut given = vec![None];
        if t > 1 {
            let next = Tensor::new(&prompt.ids[1..], logits.device())?.unsqueeze(1)?; // (T - 1, 1)
            let scores = log_probs.narrow(0, 0, t - 1)?.gather(&next, 1)?.flatten_all()?;
            given.extend(scores.to_vec1::<f32>()?.into_iter().map(Some));
        }
        let sum: f64 = given.iter().flatten().map(|&l| f64::from(l)).sum();
        let perplexity = (t > 1).then(|| (-sum / (t - 1) as f64).exp());
        if perplexity.is_some_and(f64::is_infinite) && !run.allow_nonfinite {
            bail!(
                "the perplexity is not finite: the prompt's tokens are all but impossible under this model, with a mean \
                 log-probability of {:.0} nats; are the weights damaged? {} shows the result anyway",
                sum / (t - 1) as f64,
                opened.spelling.switch("allow-nonfinite")
            )
        }
        let last = log_probs.get(t - 1)?.to_vec1::<f32>()?; // (V)
        let candidate = |&id: &u32| {
            let log_prob = last[id as usize];
            LikelyToken { id, token: opened.label(id), probability: log_prob.exp(), log_prob }
        };
        let next = highest(&last, self.top_k).iter().map(candidate).collect();
        let scored = |(&id, log_prob)| ScoredToken { id, token: opened.label(id), log_prob };
        let tokens = prompt.ids.iter().zip(given).map(scored).collect();
        Ok(OneRun { tokens, perplexity, next, last })
    }
}

/// The next tokens of both runs, each once.
fn differences(plain: &OneRun, changed: &OneRun) -> Vec<TokenInBothRuns> {
    let known = |id: u32| plain.next.iter().any(|token| token.id == id);
    let others = changed.next.iter().filter(|token| !known(token.id));
    let probability = |run: &OneRun, id: u32| run.last[id as usize].exp();
    let both = plain.next.iter().chain(others).map(|token| TokenInBothRuns {
        id: token.id,
        token: token.token.clone(),
        plain: probability(plain, token.id),
        changed: probability(changed, token.id),
    });
    both.collect()
}
