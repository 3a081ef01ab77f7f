//! The attention of a generated text, as files: one row per token, from the cache.

use super::args::GenerateArgs;
use crate::output::written_files::Outputs;
use crate::results::browser::open;
use crate::results::live_page;
use crate::results::weights_file::{Export, Format};
use crate::values::select_heads;
use gpt2_engine::Opened;
use gpt2_engine::RunProvenance;
use gpt2_engine::interventions::Applied;
use gpt2_engine::studies::interpret::attention::{
    LayerValues, PageOptions, Subject, WeightsPage, predictions,
};
use gpt2_model::hooks::WeightRows;
use gpt2_model::{ForwardArgs, KvCache};
use gpt2_web::{DrawSettings, PageRequest};

/// The attention weights that generation leaves, of the chosen layers and heads; none unless an option needs them.
pub(super) struct Recorded {
    /// `None` if nothing is to be written of them: hooks cost time on a GPU.
    pub(super) rows: Option<WeightRows>,
    layers: Vec<usize>,
    heads: Vec<usize>,
    /// The interventions of a page with the model in it, as the page reads them.
    live: Option<Vec<String>>,
}

/// A generated text.
pub(super) struct GeneratedText<'a> {
    pub(super) opened: &'a Opened,
    pub(super) prompt: &'a [u32],
    pub(super) new: &'a [u32],
    pub(super) changes: &'a Applied,
    pub(super) made_by: &'a RunProvenance,
}

pub(super) fn outputs(args: &GenerateArgs) -> anyhow::Result<Outputs> {
    check_live(args)?;
    let mut outputs = Outputs::new(args.overwrite);
    if let Some(path) = &args.export {
        Format::of(path)?;
        outputs.add("--export", path);
    }
    if let Some(path) = &args.html {
        outputs.add("--html", path);
    }
    Ok(outputs)
}

impl Recorded {
    pub(super) fn new(
        args: &GenerateArgs,
        opened: &Opened,
        live: Option<Vec<String>>,
    ) -> anyhow::Result<Self> {
        let config = opened.model.config();
        let (layers, heads) = select_heads(&args.layer, &args.head, config)?;
        let is_paged = (args.html.is_some() || args.open) && live.is_none();
        let wanted = args.export.is_some() || is_paged;
        let rows = wanted.then(|| WeightRows::new(layers.iter().copied()));
        Ok(Self { rows, layers, heads, live })
    }

    /// Writes the files, and opens the page.
    pub(super) fn write(
        self,
        args: &GenerateArgs,
        text: &GeneratedText,
        mut outputs: Outputs,
    ) -> anyhow::Result<()> {
        if let Some(changes) = self.live {
            return write_live(args, changes, text, outputs);
        }
        let paged = args.html.is_some() || args.open;
        let Some(rows) = self.rows else { return Ok(()) };
        // The model never read the last token.
        let Some((&last, read)) = text.new.split_last() else {
            anyhow::bail!("no token was generated, so there is no attention to write")
        };
        let ids = [text.prompt, read].concat();
        let tokens = text.opened.labels(&ids);
        let shown = text.opened.shown(&ids);
        let mut made_by = text.made_by.clone().of(&self.layers, &self.heads);
        made_by.ids.clone_from(&ids);
        let subject = Subject {
            opened: text.opened,
            ids: &ids,
            tokens: &tokens,
            shown: &shown,
            layers: &self.layers,
            heads: &self.heads,
            changes: text.changes,
            allow_nonfinite: false,
            made_by,
        };
        let options = PageOptions {
            top: args.top.map(usize::from),
            prompt: Some(text.prompt.len()),
            next: Some(text.opened.shown(&[last]).concat()),
            ..PageOptions::default()
        };
        let mut page = paged.then(|| WeightsPage::new(&subject, options)).transpose()?;
        let mut export = args.export.as_deref().map(|path| Export::new(&subject, path, false)).transpose()?;
        for &layer in &self.layers {
            let weights = rows.weights(layer, 0, ids.len())?.unsqueeze(0)?; // (1, H, T, T)
            let weights = subject.of_chosen(&weights)?;
            subject.check_finite([&weights])?;
            if let Some(page) = &mut page {
                page.layer(&subject, 0, layer, &weights, &LayerValues::default())?;
            }
            if let Some(export) = &mut export {
                export.layer(&subject, layer, &weights)?;
            }
        }
        if let (Some(path), Some(export)) = (&args.export, export) {
            export.finish(&subject, None, path, &mut outputs)?;
        }
        let Some(page) = page else { return outputs.commit() };
        // Through a cache like that of the steps, where positions beyond a patched text stay as they are.
        let model = &text.opened.model;
        let device = &text.opened.device;
        let kv = args.kv.unwrap_or(model.dtype().into());
        let mut cache = KvCache::new(model.config(), 1, ids.len(), kv, device)?;
        let hooks = Some(&text.changes.list as &dyn gpt2_model::hooks::Hooks);
        let forward = ForwardArgs { hooks, cache: Some(&mut cache), ..Default::default() };
        let hidden = model.transformer.forward(&text.opened.input_ids(&ids)?, forward)?;
        let page =
            page.writer.finish(&predictions(&subject, &hidden.last_hidden_state.squeeze(0)?, Some(last))?)?;
        if let Some(path) = &args.html {
            outputs.stage_bytes(path, &page)?;
        }
        outputs.commit()?;
        if args.open { open(args.html.as_deref(), &page) } else { Ok(()) }
    }
}

/// The largest integer up to which JavaScript represents every integer exactly.
const SAFE: u64 = (1 << 53) - 1;

/// Refuses ways to draw that a page with the model in it does not have.
fn check_live(args: &GenerateArgs) -> anyhow::Result<()> {
    let given = [
        ("--min-p", args.min_p.is_some()),
        ("--typical-p", args.typical_p.is_some()),
        ("--repetition-penalty", args.repetition_penalty.to_bits() != 1f64.to_bits()),
        ("--kv", args.kv.is_some()),
        ("--seed", args.model.run.seed > SAFE),
    ];
    match given.iter().find(|(_, given)| *given && args.live.wanted) {
        Some((option, _)) => {
            anyhow::bail!(
                "{option}: not with --live: the page draws by temperature, top-k, top-p and a seed below 2^53; leave it out"
            )
        }
        None => Ok(()),
    }
}

/// Writes and opens the page with the model in it, which goes on where the text ends.
fn write_live(
    args: &GenerateArgs,
    changes: Vec<String>,
    text: &GeneratedText,
    outputs: Outputs,
) -> anyhow::Result<()> {
    let temperature = if args.greedy { 0.0 } else { args.temperature };
    let top_k = Some(args.top_k).filter(|&k| k > 0);
    let first = PageRequest {
        ids: [text.prompt, text.new].concat(),
        prompt: Some(text.prompt.len()),
        changes,
        draw: DrawSettings { temperature, top_k, top_p: args.top_p, seed: args.model.run.seed },
        ..PageRequest::default()
    };
    let page = live_page::page_of(&args.model, text.opened, &first)?;
    live_page::deliver(&page, args.html.as_deref(), args.open, outputs)
}
