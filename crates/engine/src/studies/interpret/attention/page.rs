//! The page of a run: one run, or a plain one beside one with interventions, and the parts that the caller asks for.

use super::effects::{EffectOptions, Effects};
use super::rollout::rollout_by_layer;
use super::subject::{MOST_LINKED, Subject, likely_by_layer, predictions, run_json};
use super::weights_page::{PageOptions, WeightsPage};
use crate::interventions::{LoadedCircuit, nothing_to_compare};
use crate::observer::Observer;
use crate::words::Choices;
use candle_core::Tensor;
use gpt2_circuits::Circuits;
use gpt2_circuits::discovery::Graph;
use gpt2_model::analysis::{Ablation, HeadScores, RepeatedTokens, head_scores};
use gpt2_model::hooks::{Head, Interventions, Point};
use gpt2_model::{ForwardArgs, ModelOutput};
use gpt2_view::{FirstLook, HeadNumbers, LayerJson, RunJson, Silenced, visible_token};
use std::path::PathBuf;

/// The most features of a token that the page keeps.
const FEATURES: usize = 32;

/// A part of a page besides the heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PagePart {
    /// The effect of ablating each head.
    Effect,
    /// The heads' scores on repeated tokens, and their copying scores.
    Scores,
    /// Attention rollout up to each block.
    Rollout,
    /// The predictions after each block.
    Lens,
    /// The features of a dictionary that fire at each token.
    Features,
    /// The products of queries and keys.
    Neurons,
}

/// The parts by name.
pub const PAGE_PARTS: &Choices<PagePart> = &[
    ("effect", PagePart::Effect),
    ("scores", PagePart::Scores),
    ("rollout", PagePart::Rollout),
    ("lens", PagePart::Lens),
    ("features", PagePart::Features),
    ("neurons", PagePart::Neurons),
];

/// The page of a run, and what it shows.
#[derive(Debug, Clone, Default)]
pub struct AttentionPageOptions {
    /// Keep only the largest weights of each row.
    pub top: Option<usize>,
    /// Whether the plain run stands beside the one with interventions.
    pub compare: bool,
    /// The parts besides the heads.
    pub with: Vec<PagePart>,
    /// The prediction of [`PagePart::Effect`].
    pub effect: EffectOptions,
    /// The seed of the texts of [`PagePart::Scores`].
    pub seed: u64,
    /// The dictionary of [`PagePart::Features`].
    pub dictionary: Option<String>,
    /// The file of the circuit that runs.
    pub circuit: Option<PathBuf>,
}

impl AttentionPageOptions {
    fn has(&self, part: PagePart) -> bool {
        self.with.contains(&part)
    }

    /// Whether the page shows the lens, for which a run keeps its hidden states.
    pub(super) fn lens(&self) -> bool {
        self.has(PagePart::Lens)
    }

    /// The points whose values a page keeps for each layer, besides the weights.
    pub(super) fn kinds(&self) -> &'static [fn(usize) -> Point] {
        if self.has(PagePart::Neurons) { &[Point::Q, Point::K, Point::V] } else { &[Point::V] }
    }
}

/// The page, into which the layers of the run under interventions go one at a time.
#[derive(Debug)]
pub(super) struct AttentionPage<'a> {
    options: &'a AttentionPageOptions,
    pub(super) page: WeightsPage,
    /// The index of the run under interventions: 1 in a comparison, else 0.
    pub(super) run: usize,
    /// The plain run of a comparison.
    plain: Option<ModelOutput>,
    /// The plain run of a comparison, for the report.
    pub(super) json: Option<RunJson>,
}

impl<'a> AttentionPage<'a> {
    /// The page before its first layer, with the plain run of a comparison. `report` says whether the report has that run, too, and with
    /// each weight.
    pub(super) fn new(
        subject: &Subject,
        options: &'a AttentionPageOptions,
        report: Option<bool>,
    ) -> anyhow::Result<Self> {
        let compare = options.compare;
        let changed = subject.changes.texts.join(", ");
        if compare && changed.is_empty() {
            return Err(nothing_to_compare(subject.opened.spelling));
        }
        let of_page = PageOptions {
            top: options.top,
            runs: if compare { vec!["plain".to_owned(), changed] } else { vec![] },
            prompt: None,
            next: None,
            neurons: options.has(PagePart::Neurons),
        };
        let mut page = WeightsPage::new(subject, of_page)?;
        let mut first = report
            .filter(|_| compare)
            .map(|_| FirstLook::new(subject.ids, subject.shown, Silenced::default()))
            .transpose()?;
        let mut layers = vec![];
        let plain = compare.then(|| {
            let forward = ForwardArgs { output_hidden_states: options.lens(), ..Default::default() };
            let none = Interventions::default();
            subject.run_under(&none, forward, subject.layers, options.kinds(), |layer, weights, values| {
                let weights = subject.of_chosen(weights)?;
                if let Some(first) = &mut first {
                    layers.push(LayerJson::new(layer, subject.heads, &weights, report == Some(true))?);
                    if subject.ids.len() <= MOST_LINKED {
                        first.layer(layer, subject.heads, &weights)?;
                    }
                }
                page.layer(subject, 0, layer, &weights, values)
            })
        });
        let plain = plain.transpose()?;
        let json = match (&plain, &first) {
            (Some(plain), Some(first)) => {
                Some(run_json(subject, Some(first), layers, plain, &Silenced::default())?)
            }
            _ => None,
        };
        Ok(Self { options, page, run: usize::from(compare), plain, json })
    }

    /// The whole file; `output` comes from the run under interventions.
    pub(super) fn finish(
        mut self,
        subject: &Subject,
        output: &ModelOutput,
        observer: &dyn Observer,
    ) -> anyhow::Result<Vec<u8>> {
        let options = self.options;
        for with in &options.with {
            match with {
                PagePart::Effect => self.effects(subject, observer)?,
                PagePart::Scores => self.scores(subject)?,
                PagePart::Rollout => self.rollout(subject)?,
                PagePart::Lens => {
                    for (run, output) in self.plain.iter().chain([output]).enumerate() {
                        lens_of_run(&mut self.page, subject, run, output)?;
                    }
                }
                PagePart::Features => self.features(subject, observer)?,
                PagePart::Neurons => {} // with the layers
            }
        }
        if let Some(path) = &options.circuit {
            let graph = Graph::of(subject.opened.model.config())?;
            let circuit = LoadedCircuit::read(path, graph, observer)?;
            let edges: Vec<_> =
                circuit.edges.iter().map(|edge| (edge.from.to_string(), edge.to.to_string())).collect();
            self.page.writer.circuit(&edges)?;
        }
        let of = |output: &ModelOutput| predictions(subject, &output.last_hidden_state.squeeze(0)?, None);
        match &self.plain {
            Some(plain) => {
                self.page.writer.predictions(self.run, &of(output)?)?;
                Ok(self.page.writer.finish(&of(plain)?)?)
            }
            None => Ok(self.page.writer.finish(&of(output)?)?),
        }
    }

    fn effects(&mut self, subject: &Subject, observer: &dyn Observer) -> anyhow::Result<()> {
        let found = Effects::of(subject, &self.options.effect, Ablation::Zero, observer)?;
        let token = |id: u32| visible_token(&subject.opened.shown(&[id]).concat());
        let target = token(found.target);
        let against = found.against.map(token);
        let of =
            against.as_ref().map_or_else(|| target.clone(), |against| format!("{target} less {against}"));
        let predicted = match &against {
            Some(_) => format!("the difference of the logits, {of}"),
            None => format!("the log-probability of {target} as the next token, in nats"),
        };
        let numbers = |name: &str, meaning: String, map: &Tensor| -> anyhow::Result<HeadNumbers> {
            let map = map.to_vec2::<f64>()?;
            Ok(signed(name, meaning, subject, |Head { layer, head }| map[layer][head]))
        };
        let effect = format!("What ablating the head to zero adds to {predicted}: below 0, the head helps");
        let direct =
            format!("What the head's output adds directly to the logit, of {of}, past all later layers");
        let of_effect = format!("effect on {of}");
        let of_direct = format!("direct to {of}");
        self.page.writer.head_numbers(&numbers(&of_effect, effect, &found.total.change)?)?;
        Ok(self.page.writer.head_numbers(&numbers(&of_direct, direct, &found.direct.heads)?)?)
    }

    /// Adds the scores of the study of heads to the page. They are those of the plain model: interventions at positions of
    /// the prompt do not fit their random texts.
    fn scores(&mut self, subject: &Subject) -> anyhow::Result<()> {
        let opened = subject.opened;
        let seed = self.options.seed;
        let config = opened.model.config();
        let bos = config.bos_token_id.filter(|&id| (id as usize) < config.vocab_size);
        let length = ((config.n_positions - 1) / 4).min(25);
        let texts = RepeatedTokens::random(bos, (length, 4), 10, config.vocab_size, seed);
        let found = head_scores(&opened.model.transformer, &texts, None)?;
        let kinds = [
            ("previous-token", "the token before"),
            ("duplicate-token", "earlier copies of the token"),
            ("induction", "what followed earlier copies"),
        ];
        for (i, (name, on)) in kinds.into_iter().enumerate() {
            let meaning = format!(
                "Mean weight on {on}, in repeated random tokens instead of this text, as gpt2 heads scores it; of the plain model"
            );
            let numbers = signed(name, meaning, subject, |Head { layer, head }| {
                let HeadScores { previous_token, duplicate_token, induction } = &found[layer][head];
                [previous_token, duplicate_token, induction][i].mean
            });
            self.page.writer.head_numbers(&HeadNumbers { signed: false, ..numbers })?;
        }
        let circuits = Circuits::new(&opened.model)?;
        let mut copying = vec![];
        for layer in 0..config.n_layer {
            let heads = (0..config.n_head).map(|head| circuits.copying_score(Head { layer, head }));
            copying.push(heads.collect::<Result<Vec<_>, _>>()?);
        }
        let meaning = "Whether the weights raise the logits of the tokens attended to, -1 to 1";
        let copying = |Head { layer, head }: Head| copying[layer][head];
        Ok(self.page.writer.head_numbers(&signed("copying", meaning.to_owned(), subject, copying))?)
    }

    /// The strongest features of each token, in each run.
    fn features(&mut self, subject: &Subject, observer: &dyn Observer) -> anyhow::Result<()> {
        let Some(source) = &self.options.dictionary else { return Ok(()) };
        let found = subject.opened.dictionary(source, observer)?;
        let checkpoint = &found.found.checkpoint;
        let name = format!("{}, {}", checkpoint.name(), checkpoint.config().hook);
        let model = &subject.opened.model;
        let features = found.features(model.config())?;
        let ids = subject.opened.input_ids(subject.ids)?;
        let plain = Interventions::default();
        let runs = [(0, &plain), (self.run, &subject.changes.list)];
        for (run, changes) in &runs[usize::from(self.run == 0)..] {
            let code = features.run(model, &ids, Some(*changes))?.code;
            let strongest =
                |row| code.strongest(row, FEATURES).into_iter().map(|one| (one.feature, one.value));
            let tokens: Vec<Vec<_>> = (0..code.rows()).map(|row| strongest(row).collect()).collect();
            self.page.writer.features(*run, &name, &tokens)?;
        }
        Ok(())
    }

    fn rollout(&mut self, subject: &Subject) -> anyhow::Result<()> {
        let meaning =
            "How much of each token reaches each position, through all heads and the residual stream";
        let plain = Interventions::default();
        let runs = [(0, &plain), (self.run, &subject.changes.list)];
        for (run, changes) in &runs[usize::from(self.run == 0)..] {
            for (layer, map) in rollout_by_layer(subject, changes)?.iter().enumerate() {
                subject.check_finite([map])?;
                self.page.writer.map(*run, &format!("rollout to block {layer}"), meaning, map)?;
            }
        }
        Ok(())
    }
}

fn lens_of_run(
    page: &mut WeightsPage,
    subject: &Subject,
    run: usize,
    output: &ModelOutput,
) -> anyhow::Result<()> {
    let last = output.hidden_states.len() - 1;
    for (layer, hidden) in output.hidden_states.iter().skip(1).enumerate() {
        let likely = likely_by_layer(subject, &hidden.squeeze(0)?, layer + 1 == last)?;
        page.writer.lens(run, layer, &likely)?;
    }
    Ok(())
}

/// A number of each chosen head.
#[allow(clippy::cast_possible_truncation)] // f32 is what is shown
fn signed(name: &str, meaning: String, subject: &Subject, value: impl Fn(Head) -> f64) -> HeadNumbers {
    let heads =
        subject.layers.iter().flat_map(|&layer| subject.heads.iter().map(move |&head| Head { layer, head }));
    HeadNumbers {
        name: name.to_owned(),
        meaning,
        values: heads.map(|head| value(head) as f32).collect(),
        signed: true,
    }
}
