//! The page of `gpt2 attention`: one run, or a plain one beside one with interventions, and what `--with` adds.

use super::args::WithArg;
use super::effect::{self, Effects};
use super::json::{MOST_LINKED, run_json};
use super::scene::AttentionScene;
use crate::interventions::args::nothing_to_compare;
use crate::output::terminal::TERMINAL;
use crate::results::subject::{likely_by_layer, predictions};
use crate::results::weights_page::{Page, PageOptions};
use candle_core::Tensor;
use gpt2_circuits::Circuits;
use gpt2_circuits::discovery::Graph;
use gpt2_engine::interventions::LoadedCircuit;
use gpt2_model::analysis::{Ablation, HeadScores, RepeatedTokens, head_scores};
use gpt2_model::hooks::{Head, Interventions, Point};
use gpt2_model::{ForwardArgs, ModelOutput};
use gpt2_view::{FirstLook, HeadNumbers, LayerJson, RunJson, Silenced, visible_token};

/// The most features of a token that the page keeps.
const FEATURES: usize = 32;

/// The page, into which the layers of the run under interventions go one at a time.
pub(super) struct Looked {
    pub(super) page: Page,
    /// The index of the run under interventions: 1 in a comparison, else 0.
    pub(super) run: usize,
    /// The plain run of a comparison.
    plain: Option<ModelOutput>,
    /// The plain run of a comparison, for `--json`.
    pub(super) json: Option<RunJson>,
}

impl Looked {
    pub(super) fn new(scene: &AttentionScene) -> anyhow::Result<Self> {
        let (args, subject) = (scene.args, scene.subject);
        let changed = scene.subject.changes.texts.join(", ");
        if args.compare && changed.is_empty() {
            return Err(nothing_to_compare());
        }
        let options = PageOptions {
            top: args.top.map(usize::from),
            runs: if args.compare { vec!["plain".to_owned(), changed] } else { vec![] },
            prompt: None,
            next: None,
            neurons: args.with.contains(&WithArg::Neurons),
        };
        let mut page = Page::new(&subject, options)?;
        let mut first = (args.compare && args.study.json)
            .then(|| FirstLook::new(subject.ids, subject.shown, Silenced::default()))
            .transpose()?;
        let mut layers = vec![];
        let plain = args.compare.then(|| {
            let forward = ForwardArgs { output_hidden_states: lens(scene), ..Default::default() };
            let none = Interventions::default();
            scene.run_under(&none, forward, scene.subject.layers, kinds(scene), |layer, weights, values| {
                let weights = subject.of_chosen(weights)?;
                if let Some(first) = &mut first {
                    layers.push(LayerJson::new(layer, subject.heads, &weights, scene.is_chosen())?);
                    if subject.ids.len() <= MOST_LINKED {
                        first.layer(layer, subject.heads, &weights)?;
                    }
                }
                page.layer(&subject, 0, layer, &weights, values)
            })
        });
        let plain = plain.transpose()?;
        let json = match (&plain, &first) {
            (Some(plain), Some(first)) => {
                Some(run_json(scene, Some(first), layers, plain, &Silenced::default())?)
            }
            _ => None,
        };
        Ok(Self { page, run: usize::from(args.compare), plain, json })
    }

    /// The whole file; `output` comes from the run under interventions.
    pub(super) fn finish(mut self, scene: &AttentionScene, output: &ModelOutput) -> anyhow::Result<Vec<u8>> {
        for with in &scene.args.with {
            match with {
                WithArg::Effect => self.effects(scene)?,
                WithArg::Scores => self.scores(scene)?,
                WithArg::Rollout => self.rollout(scene)?,
                WithArg::Lens => {
                    for (run, output) in self.plain.iter().chain([output]).enumerate() {
                        lens_of_run(&mut self.page, scene, run, output)?;
                    }
                }
                WithArg::Features => self.features(scene)?,
                WithArg::Neurons => {} // with the layers
            }
        }
        if let Some(path) = &scene.args.study.interventions.circuit {
            let circuit =
                LoadedCircuit::read(path, Graph::of(scene.subject.opened.model.config())?, &TERMINAL)?;
            let edges: Vec<_> =
                circuit.edges.iter().map(|edge| (edge.from.to_string(), edge.to.to_string())).collect();
            self.page.writer.circuit(&edges)?;
        }
        let subject = scene.subject;
        let of = |output: &ModelOutput| predictions(&subject, &output.last_hidden_state.squeeze(0)?, None);
        match &self.plain {
            Some(plain) => {
                self.page.writer.predictions(self.run, &of(output)?)?;
                Ok(self.page.writer.finish(&of(plain)?)?)
            }
            None => Ok(self.page.writer.finish(&of(output)?)?),
        }
    }

    fn effects(&mut self, scene: &AttentionScene) -> anyhow::Result<()> {
        let found = Effects::of(scene, Ablation::Zero)?;
        let token = |id: u32| visible_token(&scene.subject.opened.shown(&[id]).concat());
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
            Ok(signed(name, meaning, scene, |Head { layer, head }| map[layer][head]))
        };
        let effect = format!("What ablating the head to zero adds to {predicted}: below 0, the head helps");
        let direct =
            format!("What the head's output adds directly to the logit, of {of}, past all later layers");
        let of_effect = format!("effect on {of}");
        let of_direct = format!("direct to {of}");
        self.page.writer.head_numbers(&numbers(&of_effect, effect, &found.total.change)?)?;
        Ok(self.page.writer.head_numbers(&numbers(&of_direct, direct, &found.direct.heads)?)?)
    }

    /// Adds the scores of `gpt2 heads` to the page. They are those of the plain model: interventions at positions of
    /// the prompt do not fit their random texts.
    fn scores(&mut self, scene: &AttentionScene) -> anyhow::Result<()> {
        let opened = scene.subject.opened;
        let seed = scene.args.study.model.run.seed;
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
            let numbers = signed(name, meaning, scene, |Head { layer, head }| {
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
        Ok(self.page.writer.head_numbers(&signed("copying", meaning.to_owned(), scene, copying))?)
    }

    /// The strongest features of each token, in each run.
    fn features(&mut self, scene: &AttentionScene) -> anyhow::Result<()> {
        let subject = scene.subject;
        let Some(source) = &scene.args.study.interventions.dictionary else { return Ok(()) };
        let found = subject.opened.dictionary(source, &TERMINAL)?;
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

    fn rollout(&mut self, scene: &AttentionScene) -> anyhow::Result<()> {
        let meaning =
            "How much of each token reaches each position, through all heads and the residual stream";
        let plain = Interventions::default();
        let runs = [(0, &plain), (self.run, &scene.subject.changes.list)];
        for (run, changes) in &runs[usize::from(self.run == 0)..] {
            for (layer, map) in effect::rollout_by_layer(scene, changes)?.iter().enumerate() {
                scene.subject.check_finite([map])?;
                self.page.writer.map(*run, &format!("rollout to block {layer}"), meaning, map)?;
            }
        }
        Ok(())
    }
}

fn lens_of_run(
    page: &mut Page,
    scene: &AttentionScene,
    run: usize,
    output: &ModelOutput,
) -> anyhow::Result<()> {
    let last = output.hidden_states.len() - 1;
    for (layer, hidden) in output.hidden_states.iter().skip(1).enumerate() {
        let likely = likely_by_layer(&scene.subject, &hidden.squeeze(0)?, layer + 1 == last)?;
        page.writer.lens(run, layer, &likely)?;
    }
    Ok(())
}

/// Whether the page shows the lens, for which a run keeps its hidden states.
pub(super) fn lens(scene: &AttentionScene) -> bool {
    scene.args.with.contains(&WithArg::Lens)
}

/// The points whose values a page keeps for each layer, besides the weights.
pub(super) fn kinds(scene: &AttentionScene) -> &'static [fn(usize) -> Point] {
    if scene.args.with.contains(&WithArg::Neurons) { &[Point::Q, Point::K, Point::V] } else { &[Point::V] }
}

/// A number of each chosen head.
#[allow(clippy::cast_possible_truncation)] // f32 is what is shown
fn signed(name: &str, meaning: String, scene: &AttentionScene, value: impl Fn(Head) -> f64) -> HeadNumbers {
    let heads = scene
        .subject
        .layers
        .iter()
        .flat_map(|&layer| scene.subject.heads.iter().map(move |&head| Head { layer, head }));
    HeadNumbers {
        name: name.to_owned(),
        meaning,
        values: heads.map(|head| value(head) as f32).collect(),
        signed: true,
    }
}
