//! `gpt2 attention`: what each token attends to.

mod effect;
mod export;
mod page;
mod rollout;
mod views;

use crate::args::AttentionArgs;
use crate::output;
use crate::prompt::Prompt;
use crate::session::Session;
use crate::values::select;
use candle_core::Tensor;
use gpt2_model::hooks::{Chain, Hooks, Interventions, Point, on};
use gpt2_model::{ForwardArgs, ModelOutput, Summary};
use gpt2_view::{HeadJson, HeadSummary, LayerJson, QueryNumbers, overview, visible_text};
use std::cell::RefCell;
use std::io::Write;
use std::process::ExitCode;
use views::Views;

/// What is looked at.
struct Scene<'a> {
    args: &'a AttentionArgs,
    session: &'a Session,
    prompt: &'a Prompt,
    /// The chosen layers, and the chosen heads of each.
    layers: Vec<usize>,
    heads: Vec<usize>,
    interventions: Interventions,
}

pub(crate) fn run(args: &AttentionArgs) -> anyhow::Result<ExitCode> {
    let text = args.prompt.read()?;
    if let Some(path) = &args.export {
        export::Format::of(path)?;
    }
    let session = args.model.session()?;
    let config = session.model.config();
    let (layers, heads) =
        (select("layer", &args.layer, config.n_layer)?, select("head", &args.head, config.n_head)?);
    let prompt = args.prompt.encode(text, &session)?;
    let interventions = args.interventions.build(config)?;
    let scene = Scene { args, session: &session, prompt: &prompt, layers, heads, interventions };
    if let Some(ablation) = args.effect {
        effect::show(&scene, ablation)?;
    } else if args.rollout {
        rollout::show(&scene)?;
    } else {
        show(&scene)?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Scene<'_> {
    /// Whether some layers or heads were named.
    fn is_chosen(&self) -> bool {
        !(self.args.layer.is_empty() && self.args.head.is_empty())
    }

    /// Runs the transformer; `each` is handed the layers that it names with their weights (1, H, T, T), one at a
    /// time, while the model runs. The logits are not shown, so the output projection is left out.
    fn run(
        &self,
        args: ForwardArgs,
        layers: &[usize],
        each: impl FnMut(usize, &Tensor) -> anyhow::Result<()>,
    ) -> anyhow::Result<ModelOutput> {
        let state = RefCell::new((each, None));
        let reader = on(layers.iter().map(|&layer| Point::Pattern(layer)), |at, weights| {
            let Point::Pattern(layer) = at.point else { return Ok(None) };
            let (each, failed) = &mut *state.borrow_mut();
            each(layer, weights).map_err(|e| {
                let error = candle_core::Error::msg(format!("{e:#}"));
                *failed = Some(e);
                error
            })?;
            Ok(None)
        });
        let hooks: [&dyn Hooks; 2] = [&self.interventions, &reader];
        let args = ForwardArgs { hooks: Some(&Chain(&hooks)), ..args };
        let output = self.session.model.transformer.forward(&self.session.input_ids(&self.prompt.ids)?, args);
        drop(reader);
        match state.into_inner().1 {
            Some(error) => Err(error),
            None => Ok(output?),
        }
    }
}

fn show(scene: &Scene) -> anyhow::Result<()> {
    let args = scene.args;
    let mut views = Views::new(scene)?;
    let forward = ForwardArgs {
        output_summaries: !scene.is_chosen(),
        output_attention_outputs: args.export.is_some(),
        ..Default::default()
    };
    let wanted: &[usize] = if views.want_weights() { &scene.layers } else { &[] };
    let output = scene.run(forward, wanted, |layer, weights| views.layer(scene, layer, weights))?;
    views.finish(scene, &output)?;
    if !scene.is_chosen() {
        let layers = summaries(scene, &output.summaries)?;
        if args.json {
            views::print_json(scene, layers)?;
        } else {
            print_overview(scene, &layers)?;
        }
    }
    Ok(())
}

/// The summaries of the chosen layers and heads, from those of all, each (1, H, T).
fn summaries(scene: &Scene, all: &[Summary]) -> anyhow::Result<Vec<LayerJson>> {
    let numbers = |tensor: &Tensor, head: usize| tensor.get(0)?.get(head)?.to_vec1::<f32>();
    let head = |of: &Summary, head: usize| -> anyhow::Result<HeadJson> {
        let numbers = QueryNumbers {
            entropy: &numbers(&of.entropy, head)?,
            mean_distance: &numbers(&of.mean_distance, head)?,
            on_self: &numbers(&of.on_self, head)?,
            on_previous: &numbers(&of.on_previous, head)?,
            on_first: &numbers(&of.on_first, head)?,
        };
        Ok(HeadJson { head, summary: HeadSummary::of_queries(0, numbers)?, weights: None })
    };
    let layer = |&layer: &usize| -> anyhow::Result<LayerJson> {
        let heads = scene.heads.iter().map(|&i| head(&all[layer], i)).collect::<anyhow::Result<_>>()?;
        Ok(LayerJson { layer, heads })
    };
    scene.layers.iter().map(layer).collect()
}

fn print_overview(scene: &Scene, layers: &[LayerJson]) -> anyhow::Result<()> {
    let rows: Vec<_> = layers
        .iter()
        .map(|layer| (layer.layer, layer.heads.iter().map(|head| (head.head, head.summary)).collect()))
        .collect();
    let mut out = output::stdout();
    writeln!(
        out,
        "{}: {} tokens, {} layers of {} heads",
        visible_text(&scene.session.name),
        scene.prompt.tokens.len(),
        scene.layers.len(),
        scene.heads.len()
    )?;
    writeln!(out, "means over the tokens; for one head token by token: --layer L --head H\n")?;
    write!(out, "{}", overview(&rows, &output::style(scene.args.color)))?;
    Ok(())
}
