//! `gpt2 attention`: what each token attends to.

mod effect;
mod export;
mod first;
mod page;
mod rollout;
mod scene;
mod summaries;
mod views;

use crate::args::AttentionArgs;
use crate::output;
use crate::outputs::Outputs;
use crate::provenance::Provenance;
use crate::values::select;
use anyhow::bail;
use gpt2_model::ForwardArgs;
use gpt2_view::FileKind;
use scene::Scene;
use std::io::Write;
use std::process::ExitCode;
use summaries::summaries;
use views::{Finished, Views};

pub(crate) fn run(args: &AttentionArgs) -> anyhow::Result<ExitCode> {
    let text = args.prompt.read()?;
    let outputs = outputs(args)?;
    let session = args.model.session_for(args.prompt.inputs(), &outputs)?;
    let config = session.model.config();
    let (layers, heads) =
        (select("layer", &args.layer, config.n_layer)?, select("head", &args.head, config.n_head)?);
    let prompt = args.prompt.encode(text, &session)?;
    let interventions = args.interventions.build(config)?;
    let made_by = Provenance::new(&session, &prompt.ids)?.of(&layers, &heads).under(&interventions);
    let ids = session.input_ids(&prompt.ids)?;
    let scene =
        Scene { args, session: &session, prompt: &prompt, ids, layers, heads, interventions, made_by };
    if let Some(ablation) = args.effect {
        effect::show(&scene, ablation)?;
    } else if args.rollout {
        rollout::show(&scene)?;
    } else {
        show(&scene, outputs)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The files that the options ask for.
fn outputs(args: &AttentionArgs) -> anyhow::Result<Outputs> {
    let mut outputs = Outputs::new(args.overwrite);
    if let Some(path) = &args.export {
        let format = export::Format::of(path)?;
        outputs.add("--export", path, format.kind());
        if args.provenance && format != export::Format::Npy {
            bail!("--provenance: only for .npy files; {} itself records what made it", path.display())
        }
        if args.provenance {
            outputs.add("--provenance", &export::beside(path), FileKind::Provenance);
        }
    }
    if let Some(path) = &args.png {
        outputs.add("--png", path, FileKind::Png);
    }
    if let Some(path) = &args.html {
        outputs.add("--html", path, FileKind::Page);
    }
    Ok(outputs)
}

fn show(scene: &Scene, mut outputs: Outputs) -> anyhow::Result<()> {
    let args = scene.args;
    let mut views = Views::new(scene)?;
    let forward = ForwardArgs {
        output_summaries: !scene.is_chosen(),
        output_attention_outputs: args.export.is_some(),
        ..Default::default()
    };
    let wanted: &[usize] = if views.want_weights(scene) { &scene.layers } else { &[] };
    let output = scene.run(forward, wanted, |layer, weights| views.layer(scene, layer, weights))?;
    let Finished { maps, json, first, page } = views.finish(scene, &output, &mut outputs)?;
    let print = || match (maps, json, first) {
        (Some(maps), ..) => Ok(output::stdout().write_all(maps.as_bytes())?),
        (None, Some(layers), _) => views::print_json(scene, layers),
        (None, None, Some(first)) => first::print(scene, &first, &output),
        (None, None, None) => views::print_json(scene, summaries(scene, &output.summaries)?),
    };
    let Some(page) = page else { return outputs.commit_after(print) };
    outputs.commit()?;
    page::open(args.html.as_deref(), &page)?;
    print()
}
