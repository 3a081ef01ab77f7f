//! `gpt2 attention`: what each token attends to.

mod args;
mod effect;
mod page;
mod scene;
mod views;

pub(super) use args::AttentionArgs;

use crate::changes::Reads;
use crate::output;
use crate::outputs::Outputs;
use crate::provenance::Provenance;
use crate::values::select;
use crate::weights::{Format, Subject, beside, open};
use anyhow::bail;
use gpt2_model::ForwardArgs;
use gpt2_view::{PictureFormat, page_fragment};
use scene::Scene;
use std::io::Write;
use views::Views;

pub(crate) fn run(args: &AttentionArgs) -> anyhow::Result<()> {
    let text = args.prompt.read()?;
    let outputs = outputs(args)?;
    let session = args.study.session_for(args.prompt.inputs(), &outputs)?;
    let config = session.model.config();
    let (layers, heads) =
        (select("layer", &args.layer, config.n_layer)?, select("head", &args.head, config.n_head)?);
    let prompt = args.prompt.encode(text, &session)?;
    let changes = args.study.interventions.build(&session, Reads::Whole(&prompt.ids))?;
    let made_by = Provenance::new(&session, &prompt.ids)?.of(&layers, &heads).under(&changes);
    let subject = Subject {
        session: &session,
        ids: &prompt.ids,
        tokens: &prompt.tokens,
        layers: &layers,
        heads: &heads,
        changes: &changes,
        finite: &args.study.finite,
        made_by: &made_by,
    };
    let scene = Scene { args, subject, text: prompt.text.as_deref() };
    if let Some(ablation) = args.effect {
        effect::show_effect(&scene, ablation)?;
    } else if args.rollout {
        effect::show_rollout(&scene)?;
    } else {
        show(&scene, outputs)?;
    }
    Ok(())
}

fn outputs(args: &AttentionArgs) -> anyhow::Result<Outputs> {
    let mut outputs = Outputs::new(args.overwrite);
    if let Some(path) = &args.export {
        let format = Format::of(path)?;
        outputs.add("--export", path);
        if args.provenance && format != Format::Npy {
            bail!("--provenance: only for .npy files; {} itself records what made it", path.display())
        }
        if args.provenance {
            outputs.add("--provenance", &beside(path));
        }
    }
    if let Some(path) = &args.picture {
        PictureFormat::from_path(path)?;
        outputs.add("--picture", path);
    }
    if let Some(path) = &args.html {
        outputs.add("--html", path);
    }
    Ok(outputs)
}

fn show(scene: &Scene, mut outputs: Outputs) -> anyhow::Result<()> {
    let args = scene.args;
    let mut views = Views::new(scene)?;
    let forward = ForwardArgs {
        output_summaries: !scene.is_chosen(),
        output_attention_outputs: args.export.is_some(),
        output_hidden_states: page::lens(scene),
        ..Default::default()
    };
    let kinds = if views.page.is_some() { page::kinds(scene) } else { &[] };
    let wanted: &[usize] = if views.want_weights(scene) { scene.subject.layers } else { &[] };
    let output =
        scene.run_under(&scene.subject.changes.list, forward, wanted, kinds, |layer, weights, values| {
            views.layer(scene, layer, weights, values)
        })?;
    let page = views.finish(scene, &output, &mut outputs)?;
    let Views { maps, json, first, .. } = views;
    let print = || match (maps, json, first) {
        (Some(maps), ..) => Ok(output::stdout().write_all(maps.as_bytes())?),
        (None, Some(layers), _) => views::print_json(scene, layers),
        (None, None, Some(first)) => views::print_first(scene, &first, &output),
        (None, None, None) => views::print_json(scene, scene::summaries(scene, &output.summaries)?),
    };
    let Some(page) = page else { return outputs.commit_after(print) };
    if let Some(height) = args.fragment {
        outputs.commit_after(|| Ok(writeln!(output::stdout(), "{}", page_fragment(&page, height))?))?;
        return if args.open { open(args.html.as_deref(), &page) } else { Ok(()) };
    }
    outputs.commit()?;
    open(args.html.as_deref(), &page)?;
    print()
}
