//! `gpt2 attention`: what each token attends to.

mod args;
mod effect;
mod scene;
mod views;

pub(crate) use args::AttentionArgs;

use crate::interventions::args::holds_one_run;
use crate::output;
use crate::output::terminal::TERMINAL;
use crate::output::written_files::Outputs;
use crate::results::browser::open;
use crate::results::live_page;
use crate::results::weights_file::{Format, beside};
use crate::study::over_texts::{Job, Ran};
use crate::values::select_heads;
use anyhow::bail;
use gpt2_engine::interventions::{Applied, Reads};
use gpt2_engine::studies::Points;
use gpt2_engine::studies::interpret::attention::{
    AttentionPageOptions, ChosenHeads, Keep, Look, PagePart, Subject,
};
use gpt2_engine::texts::{Content, Prompt};
use gpt2_engine::{Observer, Opened, Silent, Spelling};
use gpt2_view::page_fragment;
use gpt2_web::PageRequest;
use scene::AttentionScene;
use std::io::Write;
use views::{StdoutView, Views};

pub(crate) fn run(args: &AttentionArgs) -> anyhow::Result<()> {
    check_effects(args)?;
    let with = |what| args.with.contains(&what);
    if args.effect.is_some() || with(PagePart::Effect) || with(PagePart::Lens) || with(PagePart::Features) {
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
            shown(&args.scene(&opened, &points, chosen, prompt, changes)?)
        };
        return job.run(None, each, StdoutView::print);
    }
    let prompt = args.prompt.one.encode(text, &opened)?;
    let reads = Reads::Whole(&[&prompt.ids]);
    let options = args.study.interventions.options();
    if args.effect.is_some() || args.rollout {
        options.check(reads, Spelling::Flags)?;
        return effect::show(args, &opened, &prompt, outputs);
    }
    let changes = options.build(&opened, reads, &TERMINAL)?;
    if args.live.wanted {
        return write_live(args, &opened, &prompt, &changes, outputs);
    }
    show(&args.scene(&opened, &points, chosen, &prompt, &changes)?, outputs)
}

impl AttentionArgs {
    /// Whether the user named any layers or heads.
    fn is_chosen(&self) -> bool {
        !(self.layer.is_empty() && self.head.is_empty())
    }

    fn scene<'a>(
        &'a self,
        opened: &'a Opened,
        points: &'a Points,
        chosen: ChosenHeads<'a>,
        prompt: &'a Prompt,
        changes: &'a Applied,
    ) -> anyhow::Result<AttentionScene<'a>> {
        let subject = Subject::new(opened, prompt, chosen, changes, self.study.finite.allow_nonfinite)?;
        Ok(AttentionScene { args: self, subject, text: prompt.text.as_deref(), points })
    }

    /// The parts of a run that the outputs need.
    fn keep(&self, each_layer: bool) -> Keep {
        let has_page = self.html.is_some() || self.open || self.fragment.is_some();
        let is_chosen = self.is_chosen();
        let json = self.study.json;
        Keep {
            summaries: !is_chosen,
            weights: is_chosen && json,
            looks: (json || !is_chosen) && self.fragment.is_none(),
            report: json,
            each_layer,
            outputs: self.export.is_some(),
            page: has_page.then(|| self.page()),
        }
    }

    fn page(&self) -> AttentionPageOptions {
        AttentionPageOptions {
            top: self.top.map(usize::from),
            compare: self.compare,
            with: self.with.clone(),
            effect: effect::options(self, Content::default()),
            seed: self.study.model.run.seed,
            dictionary: self.study.interventions.dictionary.clone(),
            circuit: self.study.interventions.circuit.clone(),
        }
    }
}

/// Refuses options of effects where no effect is measured: `--with` may ask for other parts of the page.
fn check_effects(args: &AttentionArgs) -> anyhow::Result<()> {
    if args.effect.is_some() || args.with.contains(&PagePart::Effect) {
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
    let shows = args.with.contains(&PagePart::Features);
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
    let keep = args.keep(views.want_weights());
    let mut look = look(scene, &keep, &mut views, &TERMINAL)?;
    let page = views.finish(scene, &mut look, &mut outputs)?;
    let print = || StdoutView::new(scene, views, look)?.print();
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
    let keep = scene.args.keep(views.want_weights());
    // Many texts have a bar of their own.
    let look = look(scene, &keep, &mut views, &Silent)?;
    let tensors = views.tensors(scene, &look)?;
    Ok(Ran::new(StdoutView::new(scene, views, look)?, tensors))
}

/// Runs the model and gives `views` what they need.
fn look<'a>(
    scene: &AttentionScene,
    keep: &'a Keep,
    views: &mut Views,
    observer: &dyn Observer,
) -> anyhow::Result<Look<'a>> {
    Look::new(&scene.subject, keep, scene.points, observer, |layer, weights| {
        views.layer(scene, layer, weights)
    })
}
