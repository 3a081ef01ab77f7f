//! A model that is ready to run, built from the options that every subcommand has.

use super::adapters::{self, AdapterArgs, Used};
use super::device::RunArgs;
use super::dictionaries::{self, OpenedDictionary};
use super::hub::{self, HubArgs};
use crate::output::note;
use crate::output::read_files::ReadFiles;
use crate::output::written_files::Outputs;
use crate::values::{one_of, without_folders};
use anyhow::{Context, anyhow, bail};
use candle_core::{DType, Device, Tensor};
use candle_fused::{BlockFormat, Implementation};
use gpt2_engine::{DEMO_NAME, Named};
use gpt2_loader::{AdapterFiles, Checkpoint, Files, Hub, HubError, LoadError, ModelId, Source, Tokenizer};
use gpt2_model::{CacheDType, Gpt2LMHeadModel};
use gpt2_view::visible_token;
use serde::{Serialize, Serializer};
use std::cell::OnceCell;
use std::path::Path;

/// The help of every option that names a model.
pub(crate) const MODEL: &str = "A folder, a file of weights, a model on the Hugging Face Hub, or demo, which is built in. Names on the Hub: \
     gpt2, gpt2-medium, gpt2-large, gpt2-xl, distilgpt2, owner/name, owner/name/FILE.gguf [default: demo]";

/// Options of every command that runs a model.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Model and device")]
pub(crate) struct ModelArgs {
    #[arg(short, long, value_name = "DIR|FILE|NAME", help = MODEL)]
    pub(crate) model: Option<String>,
    /// Precision of the activations. With f32 on the CPU, weights stay as they are in the file: f16, bf16 or
    /// quantized. Otherwise they are converted. Scores and softmax are f32 at least
    #[arg(long, value_name = "DTYPE", default_value = "f32", value_parser = one_of(DTYPES))]
    pub(crate) dtype: DType,
    /// Quantize the weights as they load, to 8.5 or 4.5 bits each. This takes less memory, decodes faster and is less
    /// exact. It needs the CPU and --dtype f32
    #[arg(long, value_name = "FORMAT", value_parser = one_of(FORMATS))]
    pub(crate) quantize: Option<BlockFormat>,
    /// What computes attention and, on GPUs, the layers around it. fused is one kernel without a (T, T) tensor. eager
    /// is plain Candle operations. auto is fused on the CPU, and eager on GPUs, where no fused kernel has run yet
    #[arg(long = "impl", value_name = "IMPL", default_value = "auto", value_parser = one_of(IMPLEMENTATIONS))]
    pub(crate) implementation: Implementation,
    #[command(flatten)]
    pub(crate) adapters: AdapterArgs,
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
}

/// Precisions by name.
pub(crate) const DTYPES: &[(&str, DType)] =
    &[("f32", DType::F32), ("f16", DType::F16), ("bf16", DType::BF16), ("f64", DType::F64)];

/// The dtypes of cached keys and values, by name.
pub(crate) const CACHES: &[(&str, CacheDType)] = &[
    ("f32", CacheDType::Plain(DType::F32)),
    ("f16", CacheDType::Plain(DType::F16)),
    ("bf16", CacheDType::Plain(DType::BF16)),
    ("q8_0", CacheDType::Q8_0),
];

/// The formats that a model is quantized to when it is loaded, by name.
pub(crate) const FORMATS: &[(&str, BlockFormat)] =
    &[("q8_0", BlockFormat::Q8_0), ("q4_0", BlockFormat::Q4_0)];

/// The implementations by name. On GPUs, `auto` is eager: nobody has verified the fused kernels there yet.
pub(crate) const IMPLEMENTATIONS: &[(&str, Implementation)] =
    &[("auto", Implementation::Auto), ("fused", Implementation::Fused), ("eager", Implementation::Eager)];

impl ModelArgs {
    /// The format of `--quantize`; refuses a dtype that quantized layers do not have.
    pub(crate) fn quantize_on(
        &self,
        checkpoint: Option<&Checkpoint>,
        device: &Device,
    ) -> anyhow::Result<Option<BlockFormat>> {
        if self.quantize.is_some() && self.dtype != DType::F32 {
            bail!("--quantize: quantized layers compute in f32; leave --dtype out");
        }
        quantize("--quantize", self.quantize, checkpoint, device)
    }
}

/// The format that `option` asks to quantize a model to as it is loaded; refuses a device that has no quantized layers
/// and a checkpoint that is quantized already.
pub(crate) fn quantize(
    option: &str,
    format: Option<BlockFormat>,
    checkpoint: Option<&Checkpoint>,
    device: &Device,
) -> anyhow::Result<Option<BlockFormat>> {
    let Some(format) = format else { return Ok(None) };
    if !device.is_cpu() {
        bail!("{option}: quantized layers run on the CPU only; give --device cpu");
    }
    if let Some((checkpoint, format)) = checkpoint.and_then(|of| Some((of, *of.formats().first()?))) {
        bail!(
            "{option}: the weights of {} are quantized already ({format}); leave it out",
            checkpoint.name()
        );
    }
    Ok(Some(format))
}

/// A loaded model with its tokenizer and files.
pub(crate) struct Session {
    pub(crate) name: String,
    pub(crate) model: Gpt2LMHeadModel,
    /// The formats of quantized weights, most frequent first.
    pub(crate) formats: Vec<BlockFormat>,
    pub(crate) adapters: Vec<Used>,
    pub(crate) device: Device,
    pub(crate) files: Files,
    tokenizer: OnceCell<Tokenizer>,
    hub: HubArgs,
    dictionary: OnceCell<OpenedDictionary>,
}

/// A token: in JSON as its text, on a terminal in a form that shows all of it.
#[derive(Debug, Clone)]
pub(crate) struct Label {
    text: String,
    shown: String,
}

impl std::fmt::Display for Label {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Serialize for Label {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.text)
    }
}

/// The files of a folder, of a model on the Hub, or of the demo model; prints a line that says which.
pub(crate) fn files(model: Option<&str>, args: &HubArgs) -> anyhow::Result<Files> {
    files_by(model, args, |hub, id, revision| Source::hub(hub, id, revision).open())
}

/// Like [`files`]; for a model on the Hub, calls `fetch` with the Hub, the model's id and the revision.
pub(crate) fn files_by(
    model: Option<&str>,
    args: &HubArgs,
    fetch: impl FnOnce(Hub, ModelId, &str) -> Result<Files, LoadError>,
) -> anyhow::Result<Files> {
    let Some(model) = model.filter(|name| *name != DEMO_NAME) else {
        hub::no_revision(args, "the built-in demo model")?;
        if model.is_none() {
            note("model: tiny-shakespeare, the built-in demo; for GPT-2 small, give --model gpt2");
        } else if Path::new(DEMO_NAME).is_dir() {
            note("model: demo, the built-in one; for the folder of that name, give ./demo");
        }
        return Ok(Source::Embedded(gpt2_web::DEMO).open()?);
    };
    let named = hub::resolve(model, args)?;
    let revision = named.revision(args.revision.as_deref()).to_owned();
    match named {
        Named::Folder(dir) => Source::directory(&dir).open().map_err(|error| no_model(error, &dir)),
        Named::Gguf(path) => Ok(Source::Gguf(path).open()?),
        Named::File(path) => Ok(Source::File(path).open()?),
        Named::HubGguf(id, _, file) => {
            let snapshot = hub::settings(args)?.open_gguf(&id, &revision, &file);
            let files = snapshot
                .with_context(|| format!("there is no file {model}, so it was taken for one of the Hub"))?
                .files;
            note(&format!("model: {}", files.name));
            Ok(files)
        }
        Named::Hub(id, _) => {
            let files = match fetch(hub::settings(args)?, id, &revision) {
                Err(LoadError::Hub(HubError::FileNotFound { file, found, .. }))
                    if file == "config.json" && found.split(", ").any(|one| one == "adapter_config.json") =>
                {
                    bail!(
                        "{model}: is a LoRA adapter, not a model; give its model, as in --model gpt2 --adapter {model}"
                    )
                }
                files => files.with_context(|| {
                    format!("there is no folder {model}, so it was taken for a model of the Hub")
                })?,
            };
            note(&format!("model: {}", files.name));
            Ok(files)
        }
    }
}

/// The checkpoint of these files; notes what is read otherwise than it is stored, and what is not used.
pub(crate) fn checkpoint(files: &Files) -> Result<Checkpoint, LoadError> {
    let checkpoint = Checkpoint::open(files)?;
    checkpoint.notes().iter().for_each(|line| note(line));
    Ok(checkpoint)
}

/// The tokenizer of a model, with a note if its files say something that is not used.
pub(crate) fn open_tokenizer(files: &Files, vocab_size: usize) -> Result<Tokenizer, LoadError> {
    let tokenizer = Tokenizer::open(files, vocab_size)?;
    tokenizer.note().iter().for_each(|text| note(text));
    Ok(tokenizer)
}

/// Turns the loader's error about a folder into advice for the command line.
fn no_model(error: LoadError, dir: &Path) -> anyhow::Error {
    match error {
        LoadError::NotFound { .. } => anyhow!("{error}; or give {DEMO_NAME}, the built-in model"),
        LoadError::NoConfig { .. } if AdapterFiles::is_in(dir) => {
            let (dir, base) = (dir.display(), adapters::base(dir));
            let (of, base) =
                base.map_or((String::new(), "MODEL".into()), |base| (format!(" of {base}"), base));
            anyhow!("{dir}: is a LoRA adapter{of}, not a model; give --model {base} --adapter {dir}")
        }
        other => other.into(),
    }
}

impl ModelArgs {
    /// Loads the model onto the device, after checking that `outputs` do no harm to it, the Hub's cache and `inputs`.
    pub(crate) fn session_for(&self, mut inputs: ReadFiles, outputs: &Outputs) -> anyhow::Result<Session> {
        hub::inputs(&self.hub, &mut inputs);
        // Check twice, so that whatever can be refused before the model is fetched is refused at once.
        outputs.check(&inputs)?;
        let device = self.run.open()?;
        let files = files(self.model.as_deref(), &self.hub)?;
        inputs.model(&files)?;
        let adapters = adapters::find(&self.adapters.list, &self.hub, &mut inputs)?;
        outputs.check(&inputs)?;
        let checkpoint = checkpoint(&files)?.with_implementation(self.implementation);
        // The tokenizer is built while the weights are read.
        let (loaded, opened) = rayon::join(
            || self.load(&checkpoint, &device),
            || Tokenizer::open(&files, checkpoint.config().vocab_size),
        );
        let (model, formats) = loaded?;
        let (model, adapters) = adapters::put_on(model, &adapters, self.model.is_none())?;
        let tokenizer = OnceCell::new();
        if let Ok(opened) = opened {
            opened.note().iter().for_each(|text| note(text));
            let _ = tokenizer.set(opened); // an error is one when the tokenizer is needed
        }
        let name = checkpoint.name().to_string();
        if model.config().add_cross_attention {
            note(
                "the model has cross-attention, but no command gives it an encoder: cross-attention is skipped",
            );
        }
        let hub = self.hub.clone();
        let dictionary = OnceCell::new();
        Ok(Session { name, model, formats, adapters, device, files, tokenizer, hub, dictionary })
    }

    /// The model, and the formats of the weights that stay quantized.
    fn load(
        &self,
        checkpoint: &Checkpoint,
        device: &Device,
    ) -> anyhow::Result<(Gpt2LMHeadModel, Vec<BlockFormat>)> {
        if let Some(format) = self.quantize_on(Some(checkpoint), device)? {
            return Ok((checkpoint.load_quantized(format)?, vec![format]));
        }
        Ok((checkpoint.load_model(self.dtype, device)?, kept(checkpoint.formats(), self.dtype, device)))
    }
}

/// The formats of a file's weights that stay quantized; notes if none do, because they are unpacked.
pub(crate) fn kept(formats: Vec<BlockFormat>, dtype: DType, device: &Device) -> Vec<BlockFormat> {
    match formats.first() {
        Some(format) if dtype != DType::F32 || !device.is_cpu() => {
            note(&format!(
                "weights in {format} are unpacked to {}: quantized layers run in f32 on the CPU",
                dtype.as_str()
            ));
            vec![]
        }
        _ => formats,
    }
}

impl Session {
    /// The model's name in a file that others will see.
    pub(crate) fn title(&self) -> String {
        without_folders(&self.name)
    }

    /// The tokenizer, opened on first use: a prompt of ids needs none.
    pub(crate) fn tokenizer(&self) -> Result<&Tokenizer, LoadError> {
        if let Some(tokenizer) = self.tokenizer.get() {
            return Ok(tokenizer);
        }
        let tokenizer = Tokenizer::open(&self.files, self.model.config().vocab_size)?;
        Ok(self.tokenizer.get_or_init(|| tokenizer))
    }

    /// The dictionary of features that `--dictionary` names, read on first use.
    pub(crate) fn dictionary(&self, source: &str) -> anyhow::Result<&OpenedDictionary> {
        if let Some(opened) = self.dictionary.get() {
            return Ok(opened);
        }
        let opened = dictionaries::find(source, &self.hub)?.load()?;
        Ok(self.dictionary.get_or_init(|| opened))
    }

    /// A label for each id: its text, or its number if there is no tokenizer.
    pub(crate) fn labels(&self, ids: &[u32]) -> Vec<String> {
        match self.tokenizer() {
            Ok(tokenizer) => tokenizer.tokens(ids),
            Err(_) => ids.iter().map(u32::to_string).collect(),
        }
    }

    /// A label for each id, for display: its text, with a part of a character as its bytes, or its number if there is
    /// no tokenizer.
    pub(crate) fn shown(&self, ids: &[u32]) -> Vec<String> {
        match self.tokenizer() {
            Ok(tokenizer) => tokenizer.spelled(ids),
            Err(_) => ids.iter().map(u32::to_string).collect(),
        }
    }

    /// A token for a report.
    pub(crate) fn label(&self, id: u32) -> Label {
        Label { text: self.labels(&[id]).concat(), shown: visible_token(&self.shown(&[id]).concat()) }
    }

    /// The ids as a batch of one row, (1, T).
    pub(crate) fn input_ids(&self, ids: &[u32]) -> anyhow::Result<Tensor> {
        Ok(self.model.ids(ids)?)
    }
}
