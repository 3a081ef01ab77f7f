//! `gpt2 attention`: what each token attends to.

mod args;
mod effect;
mod json;
mod page;
mod scene;
mod views;

pub(crate) use args::AttentionArgs;

use crate::interventions::args::holds_one_run;
use crate::output;
use crate::output::terminal::TERMINAL;
use crate::output::written_files::Outputs;
use crate::results::live_page;
use crate::results::subject::Subject;
use crate::results::weights_file::{Format, beside};
use crate::results::weights_page::open;
use crate::study::over_texts::{ChosenHeads, Job, Ran};
use crate::values::select_heads;
use anyhow::bail;
use args::WithArg;
use gpt2_engine::Opened;
use gpt2_engine::RunProvenance;
use gpt2_engine::interventions::Applied;
use gpt2_engine::interventions::Reads;
use gpt2_engine::studies::Points;
use gpt2_engine::texts::Prompt;
use gpt2_model::hooks::Chain;
use gpt2_model::{ForwardArgs, ModelOutput};
use gpt2_view::page_fragment;
use gpt2_web::PageRequest;
use scene::AttentionScene;
use std::io::Write;
use views::{StdoutView, Views};

pub(crate) fn run(args: &AttentionArgs) -> anyhow::Result<()> {
    check_effects(args)?;
    let with = |what| args.with.contains(&what);
    if args.effect.is_some() || with(WithArg::Effect) || with(WithArg::Lens) || with(WithArg::Features) {
        args.study.interventions.no_circuit("effects, the lens or features")?;
    }
    check_features(args)?;
    check_compare(args)?;
    let text = args.prompt.read()?;
    let outputs = outputs(args)?;
    let inputs = args.prompt.inputs();
    args.live.check(&args.study.model, &args.study.first_token)?;
    let opened = args.study.open_for(inputs, &outputs)?;
    let config = opened.model.config();
    let (layers, heads) = select_heads(&args.layer, &args.head, config)?;
    let chosen = ChosenHeads { layers: &layers, heads: &heads };
    let points = args.points.of(&opened)?;
    if args.prompt.texts.is_some() {
        let prompts = &args.prompt;
        let study = &args.study;
        let export = args.export.as_deref();
        let job = Job { prompts, study, opened: &opened, chosen: Some(chosen), export, outputs };
        let each = |prompt: &Prompt, changes: &Applied| {
            with_scene(args, &opened, &points, chosen, prompt, changes, shown)
        };
        return job.run(None, each, StdoutView::print);
    }
    let prompt = args.prompt.one.encode(text, &opened)?;
    let changes =
        args.study.interventions.options().build(&opened, Reads::Whole(&[&prompt.ids]), &TERMINAL)?;
    if args.live.wanted {
        return write_live(args, &opened, &prompt, &changes, outputs);
    }
    with_scene(args, &opened, &points, chosen, &prompt, &changes, |scene| {
        if let Some(ablation) = args.effect {
            effect::show_effect(scene, ablation, outputs)
        } else if args.rollout {
            effect::show_rollout(scene, outputs)
        } else {
            show(scene, outputs)
        }
    })
}

fn with_scene<T>(
    args: &AttentionArgs,
    opened: &Opened,
    points: &Points,
    ChosenHeads { layers, heads }: ChosenHeads,
    prompt: &Prompt,
    changes: &Applied,
    then: impl FnOnce(&AttentionScene) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let made_by = RunProvenance::new(opened, &prompt.ids)?.of(layers, heads).under(changes);
    let subject = Subject {
        opened,
        ids: &prompt.ids,
        tokens: &prompt.tokens,
        shown: &prompt.shown,
        layers,
        heads,
        changes,
        finite: &args.study.finite,
        made_by: &made_by,
    };
    then(&AttentionScene { args, subject, text: prompt.text.as_deref(), points })
}

/// Refuses options of effects where no effect is measured: `--with` may ask for other parts of the page.
fn check_effects(args: &AttentionArgs) -> anyhow::Result<()> {
    if args.effect.is_some() || args.with.contains(&WithArg::Effect) {
        return Ok(());
    }
    let given =
        [("--target", args.target.is_some()), ("--against", args.against.is_some()), ("--raw", args.raw)];
    match given.iter().find(|(_, given)| *given) {
        Some((option, _)) => bail!("{option}: only for --effect, and for a page --with effect"),
        None => Ok(()),
    }
}

/// Refuses `--with features` without a dictionary, and a dictionary for nothing.
fn check_features(args: &AttentionArgs) -> anyhow::Result<()> {
    let interventions = &args.study.interventions;
    let shows = args.with.contains(&WithArg::Features);
    if shows && interventions.dictionary.is_none() {
        bail!("--with features: needs --dictionary, whose features the page shows");
    }
    if !shows && interventions.dictionary.is_some() && interventions.features().is_empty() {
        bail!(
            "--dictionary: nothing here uses it; add --with features or an option such as --ablate-feature"
        );
    }
    Ok(())
}

/// Refuses a comparison that no output would show, and outputs that hold one run.
fn check_compare(args: &AttentionArgs) -> anyhow::Result<()> {
    if !args.compare {
        return Ok(());
    }
    if args.html.is_none() && !args.open && args.fragment.is_none() {
        bail!(
            "--compare shows both runs on a page: add --html FILE or --open. For the predictions alone, use gpt2 forward --compare"
        );
    }
    let given = [("--export", args.export.is_some()), ("--picture", args.picture.is_wanted())];
    match given.iter().find(|(_, given)| *given) {
        Some((option, _)) => Err(holds_one_run(option)),
        None => Ok(()),
    }
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
        let needs = [
            ("--export-point", !args.points.export_point.is_empty()),
            ("--texts", args.prompt.texts.is_some()),
        ];
        if let Some((option, _)) = needs.iter().find(|(_, given)| *given && format != Format::Safetensors) {
            bail!("--export {}: with {option}, expected a name that ends in .safetensors", path.display())
        }
    }
    args.picture.add(&mut outputs)?;
    if let Some(path) = &args.html {
        outputs.add("--html", path);
    }
    Ok(outputs)
}

fn show(scene: &AttentionScene, mut outputs: Outputs) -> anyhow::Result<()> {
    let args = scene.args;
    let mut views = Views::new(scene)?;
    let output = look(scene, &mut views)?;
    let page = views.finish(scene, &output, &mut outputs)?;
    let print = || StdoutView::new(scene, views, &output)?.print();
    let Some(page) = page else { return outputs.commit_after(print) };
    if let Some(height) = args.fragment {
        outputs.commit_after(|| Ok(writeln!(output::stdout(), "{}", page_fragment(&page, height))?))?;
        return if args.open { open(args.html.as_deref(), &page) } else { Ok(()) };
    }
    outputs.commit()?;
    open(args.html.as_deref(), &page)?;
    print()
}

/// Writes and opens the page with the model in it.
fn write_live(
    args: &AttentionArgs,
    opened: &Opened,
    prompt: &Prompt,
    changes: &Applied,
    outputs: Outputs,
) -> anyhow::Result<()> {
    let ids = if prompt.text.is_none() { prompt.ids.clone() } else { vec![] };
    let text = prompt.text.clone().unwrap_or_default();
    let changes = live_page::changes_for_page(changes)?;
    let first = PageRequest { text, ids, changes, ..PageRequest::default() };
    let page = live_page::page_of(&args.study.model, opened, &first)?;
    if let Some(height) = args.fragment {
        writeln!(output::stdout(), "{}", page_fragment(&page, height))?;
    }
    live_page::deliver(&page, args.html.as_deref(), args.open, outputs)
}

/// The result of one of many texts.
fn shown(scene: &AttentionScene) -> anyhow::Result<Ran<StdoutView>> {
    let mut views = Views::new(scene)?;
    let output = look(scene, &mut views)?;
    let tensors = views.tensors(scene, &output)?;
    Ok(Ran::new(StdoutView::new(scene, views, &output)?, tensors))
}

/// Runs the model and gives `views` what they need.
fn look(scene: &AttentionScene, views: &mut Views) -> anyhow::Result<ModelOutput> {
    let forward = ForwardArgs {
        output_summaries: !scene.is_chosen(),
        output_attention_outputs: scene.args.export.is_some(),
        output_hidden_states: page::lens(scene),
        ..Default::default()
    };
    let kinds = if views.page.is_some() { page::kinds(scene) } else { &[] };
    let wanted: &[usize] = if views.want_weights(scene) { scene.subject.layers } else { &[] };
    let recorder = scene.points.recorder();
    let hooks = Chain(&[&scene.subject.changes.list, &recorder]);
    let output = scene.run_under(&hooks, forward, wanted, kinds, |layer, weights, values| {
        views.layer(scene, layer, weights, values)
    })?;
    views.points(scene, &recorder)?;
    Ok(output)
}
