//! A model by its name, and how to load it.

use super::adapters::{AdapterChoice, FoundAdapter, base_of_adapter};
use super::attention_layer::implementation_of;
use super::device::{DeviceChoice, device_name};
use super::opened::Opened;
use super::taken::{HubThing, TakenForHub};
use crate::hub::HubOptions;
use crate::names::{DEMO_NAME, Named};
use crate::observer::Observer;
use crate::read_files::ReadFiles;
use crate::spelling::Spelling;
use crate::words::Choices;
use anyhow::{Context, anyhow, bail};
use candle_core::{DType, Device};
use candle_fused::{BlockFormat, Implementation};
use gpt2_loader::{AdapterFiles, Checkpoint, Files, Hub, HubError, LoadError, ModelId, Source, Tokenizer};
use gpt2_model::{CacheDType, Gpt2LMHeadModel};
use std::path::Path;

/// Precisions by name.
pub const DTYPES: &Choices<DType> =
    &[("f32", DType::F32), ("f16", DType::F16), ("bf16", DType::BF16), ("f64", DType::F64)];

/// The dtypes of cached keys and values, by name.
pub const CACHES: &Choices<CacheDType> = &[
    ("f32", CacheDType::Plain(DType::F32)),
    ("f16", CacheDType::Plain(DType::F16)),
    ("bf16", CacheDType::Plain(DType::BF16)),
    ("q8_0", CacheDType::Q8_0),
];

/// The formats that a model is quantized to when it is loaded, by name.
pub const FORMATS: &Choices<BlockFormat> = &[("q8_0", BlockFormat::Q8_0), ("q4_0", BlockFormat::Q4_0)];

/// The implementations of attention by name. `auto` is eager on Metal, where nobody has verified fused attention yet.
pub const IMPLEMENTATIONS: &Choices<Implementation> =
    &[("auto", Implementation::Auto), ("fused", Implementation::Fused), ("eager", Implementation::Eager)];

/// A model by its name, and how to load it.
#[derive(Debug, Clone)]
pub struct ModelOptions {
    /// A folder, a file of weights, a model on the Hub, or `demo`, the built-in one, which is also the default.
    pub model: Option<String>,
    /// The precision of the activations. With f32 on the CPU, weights stay as they are in the file.
    pub dtype: DType,
    /// The format to quantize the weights to as they load.
    pub quantize: Option<BlockFormat>,
    /// The code that computes attention and, on GPUs, the layers around it.
    pub implementation: Implementation,
    /// The adapters to put on the model.
    pub adapters: Vec<AdapterChoice>,
    /// Whether to process the weights as TransformerLens does by default: see [`Gpt2LMHeadModel::processed`].
    pub processed: bool,
    /// The Hub's address and cache.
    pub hub: HubOptions,
    /// The face that messages speak to.
    pub spelling: Spelling,
}

impl Default for ModelOptions {
    fn default() -> Self {
        Self {
            model: None,
            dtype: DType::F32,
            quantize: None,
            implementation: Implementation::Auto,
            adapters: vec![],
            processed: false,
            hub: HubOptions::default(),
            spelling: Spelling::default(),
        }
    }
}

/// The files of a model and of its adapters, before any weight is read.
#[derive(Debug)]
pub struct FoundModel {
    /// The model's files.
    pub files: Files,
    /// The adapters' files.
    pub adapters: Vec<FoundAdapter>,
}

/// A model that is loaded, and the formats of its quantized weights.
struct LoadedWeights {
    model: Gpt2LMHeadModel,
    formats: Vec<BlockFormat>,
}

impl ModelOptions {
    /// Opens the model on a device.
    ///
    /// # Errors
    /// When it cannot be found, read or put on the device.
    pub fn open(&self, device: DeviceChoice, tf32: bool, observer: &dyn Observer) -> anyhow::Result<Opened> {
        let cpu_only = self.quantize.map(|_| "quantize");
        let device = device.for_options(cpu_only.as_slice(), self.spelling, observer);
        let device = device.open(tf32, self.spelling, observer)?;
        let found = self.find(observer)?;
        self.load(found, device, observer)
    }

    /// Finds the files, and fetches them if they are on the Hub.
    ///
    /// # Errors
    /// When there is no such model or adapter, or the Hub fails.
    pub fn find(&self, observer: &dyn Observer) -> anyhow::Result<FoundModel> {
        Ok(FoundModel { files: self.files(observer)?, adapters: self.find_adapters(observer)? })
    }

    /// The files of a folder, of a model on the Hub, or of the demo model.
    ///
    /// # Errors
    /// When there is no such model, or the Hub fails.
    pub fn files(&self, observer: &dyn Observer) -> anyhow::Result<Files> {
        self.files_by(observer, |hub, id, revision| Source::hub(hub, id, revision).open())
    }

    /// Like [`ModelOptions::files`]; for a model on the Hub, calls `fetch` with the Hub, the model's id and the revision.
    ///
    /// # Errors
    /// See [`ModelOptions::files`].
    pub fn files_by(
        &self,
        observer: &dyn Observer,
        fetch: impl FnOnce(Hub, ModelId, &str) -> Result<Files, LoadError>,
    ) -> anyhow::Result<Files> {
        let revision = self.hub.revision.as_deref();
        let Some(model) = self.model.as_deref().filter(|name| *name != DEMO_NAME) else {
            if revision.is_some() {
                let option = self.spelling.option("revision");
                bail!("{option} is for models of the Hub; the built-in demo model has no revisions");
            }
            if self.model.is_some() && Path::new(DEMO_NAME).is_dir() {
                observer.note("model: demo, the built-in one; for the folder of that name, give ./demo");
            }
            return Ok(Source::Embedded(gpt2_web::DEMO).open()?);
        };
        let named = self.named(model, observer)?;
        let revision = named.revision(revision).to_owned();
        match named {
            Named::Folder(dir) => Source::directory(&dir).open().map_err(|error| self.no_model(error, &dir)),
            Named::Gguf(path) => Ok(Source::Gguf(path).open()?),
            Named::File(path) => Ok(Source::File(path).open()?),
            Named::HubGguf(id, _, file) => {
                let snapshot = self.hub.connect(observer)?.open_gguf(&id, &revision, &file);
                let files = snapshot
                    .context(TakenForHub { name: model.to_owned(), kind: HubThing::ModelFile })?
                    .files;
                observer.found("model", &files.name);
                Ok(files)
            }
            Named::Hub(id, _) => {
                let files = match fetch(self.hub.connect(observer)?, id, &revision) {
                    Err(LoadError::Hub(HubError::FileNotFound { file, found, .. }))
                        if file == "config.json"
                            && found.split(", ").any(|one| one == "adapter_config.json") =>
                    {
                        bail!("{}", self.is_adapter(model, "", "gpt2"))
                    }
                    files => files.context(TakenForHub { name: model.to_owned(), kind: HubThing::Model })?,
                };
                observer.found("model", &files.name);
                Ok(files)
            }
        }
    }

    /// The model that a name stands for. A note tells if a folder here bears the name of a model on the Hub.
    ///
    /// # Errors
    /// When there is a file of that name that is no model, or a revision that does not fit it.
    pub fn named(&self, model: &str, observer: &dyn Observer) -> anyhow::Result<Named> {
        let named = Named::find(model)?;
        named.check_revision(&self.spelling.option("revision"), self.hub.revision.as_deref())?;
        if let Some(text) = named.note() {
            observer.note(&text);
        }
        Ok(named)
    }

    /// Turns the loader's error about a folder into advice.
    fn no_model(&self, error: LoadError, dir: &Path) -> anyhow::Error {
        match error {
            LoadError::NotFound { .. } => {
                let meant = meant(&dir.to_string_lossy())
                    .map_or_else(String::new, |name| format!("; did you mean {name}?"));
                let text = format!("{error}; or give {DEMO_NAME}, the built-in model{meant}");
                anyhow::Error::new(error).context(text)
            }
            LoadError::NoConfig { .. } if AdapterFiles::is_in(dir) => {
                let dir_name = dir.display().to_string();
                match base_of_adapter(dir) {
                    Some(base) => anyhow!("{}", self.is_adapter(&dir_name, &format!(" of {base}"), &base)),
                    None => anyhow!("{}", self.is_adapter(&dir_name, "", "MODEL")),
                }
            }
            other => other.into(),
        }
    }

    fn is_adapter(&self, name: &str, of: &str, base: &str) -> String {
        let model = self.spelling.given("model", base);
        match self.spelling {
            Spelling::Flags => {
                format!("{name}: is a LoRA adapter{of}, not a model; give {model} --adapter {name}")
            }
            Spelling::Keywords => {
                format!("{name}: is a LoRA adapter{of}, not a model; load its model with adapter={name:?}")
            }
        }
    }

    /// Loads what was found onto the device, and puts the adapters on it.
    ///
    /// # Errors
    /// When a file is damaged, or a format does not fit the device.
    pub fn load(
        &self,
        FoundModel { files, adapters }: FoundModel,
        device: Device,
        observer: &dyn Observer,
    ) -> anyhow::Result<Opened> {
        let checkpoint = checkpoint(&files, observer)?.with_implementation(self.implementation);
        // The tokenizer is built while the weights are read.
        let (loaded, tokenizer) = rayon::join(
            || self.weights(&checkpoint, &device, observer),
            || Tokenizer::open(&files, checkpoint.config().vocab_size),
        );
        let LoadedWeights { model, formats } = loaded?;
        let (model, used) = self.with_adapters(model, &adapters, observer)?;
        let (model, formats) = self.view(model, formats, observer)?;
        if let Ok(tokenizer) = &tokenizer {
            tokenizer.note().iter().for_each(|text| observer.note(text));
        }
        self.note_implementation(&model, &device, observer)?;
        let name = checkpoint.name().to_string();
        let mut opened = Opened::new(name, model, device, self.spelling);
        opened.formats = formats;
        opened.adapters = used;
        opened.processed = self.processed;
        opened.hub = self.hub.clone();
        let read = ReadFiles::of(&files, opened.adapters.iter().flat_map(|adapter| &adapter.files))?;
        opened.read = ReadFiles { cache: opened.hub.cache_dir().ok(), ..read }.absolute();
        opened = opened.with_files(files);
        // An error is one when the tokenizer is needed.
        Ok(match tokenizer {
            Ok(tokenizer) => opened.with_tokenizer(tokenizer),
            Err(_) => opened,
        })
    }

    /// The model with its weights as they are or processed, and the formats of those that are quantized.
    fn view(
        &self,
        model: Gpt2LMHeadModel,
        formats: Vec<BlockFormat>,
        observer: &dyn Observer,
    ) -> anyhow::Result<(Gpt2LMHeadModel, Vec<BlockFormat>)> {
        if !self.processed {
            return Ok((model, formats));
        }
        let option = self.spelling.option("processed");
        if self.quantize.is_some() {
            bail!("{option}: processed weights are dense; leave {} out", self.spelling.option("quantize"));
        }
        if let Some(format) = formats.first() {
            observer.note(&format!("{option}: weights in {format} are unpacked"));
        }
        Ok((model.processed()?, vec![]))
    }

    /// Says so if `fused` was asked for and no kernel of ours can run this model's attention on this device.
    fn note_implementation(
        &self,
        model: &Gpt2LMHeadModel,
        device: &Device,
        observer: &dyn Observer,
    ) -> anyhow::Result<()> {
        if self.implementation != Implementation::Fused {
            return Ok(());
        }
        let runs = implementation_of(model.config(), (2, 2, false), model.dtype(), device)?;
        if runs != Implementation::Fused {
            let option = if self.spelling == Spelling::Flags { "impl" } else { "implementation" };
            observer.note(&format!(
                "{}: no kernel of ours computes this model's attention in {} on {}: {} runs instead",
                self.spelling.given(option, "fused"),
                model.dtype().as_str(),
                device_name(device),
                runs.as_str()
            ));
        }
        Ok(())
    }

    fn weights(
        &self,
        checkpoint: &Checkpoint,
        device: &Device,
        observer: &dyn Observer,
    ) -> anyhow::Result<LoadedWeights> {
        if let Some(format) = self.quantized(Some(checkpoint), device)? {
            return Ok(LoadedWeights { model: checkpoint.load_quantized(format)?, formats: vec![format] });
        }
        let model = checkpoint.load_model(self.dtype, device)?;
        Ok(LoadedWeights { model, formats: kept_formats(checkpoint.formats(), self.dtype, device, observer) })
    }

    /// The format to quantize to; refuses a dtype that quantized layers do not have.
    ///
    /// # Errors
    /// When the dtype, the device or the checkpoint does not allow it.
    pub fn quantized(
        &self,
        checkpoint: Option<&Checkpoint>,
        device: &Device,
    ) -> anyhow::Result<Option<BlockFormat>> {
        let option = self.spelling.option("quantize");
        if self.quantize.is_some() && self.dtype != DType::F32 {
            bail!("{option}: quantized layers compute in f32; leave {} out", self.spelling.option("dtype"));
        }
        quantized(&option, self.quantize, checkpoint, device, self.spelling)
    }
}

/// The format that `option` asks to quantize a model to as it is loaded; refuses a device that has no quantized layers
/// and a checkpoint that is quantized already.
///
/// # Errors
/// When the device or the checkpoint does not allow it.
pub fn quantized(
    option: &str,
    format: Option<BlockFormat>,
    checkpoint: Option<&Checkpoint>,
    device: &Device,
    spelling: Spelling,
) -> anyhow::Result<Option<BlockFormat>> {
    let Some(format) = format else { return Ok(None) };
    if !device.is_cpu() {
        bail!("{option}: quantized layers run on the CPU only; give {}", spelling.given("device", "cpu"));
    }
    if let Some((checkpoint, format)) = checkpoint.and_then(|of| Some((of, *of.formats().first()?))) {
        bail!(
            "{option}: the weights of {} are quantized already ({format}); leave it out",
            checkpoint.name()
        );
    }
    Ok(Some(format))
}

/// The formats of a file's weights that stay quantized; notes if none do, because they are unpacked.
pub fn kept_formats(
    formats: Vec<BlockFormat>,
    dtype: DType,
    device: &Device,
    observer: &dyn Observer,
) -> Vec<BlockFormat> {
    match formats.first() {
        Some(format) if dtype != DType::F32 || !device.is_cpu() => {
            observer.note(&format!(
                "weights in {format} are unpacked to {}: quantized layers run in f32 on the CPU",
                dtype.as_str()
            ));
            vec![]
        }
        _ => formats,
    }
}

/// The checkpoint of these files; notes what is read otherwise than it is stored, and what is not used.
///
/// # Errors
/// When the files are damaged, or of another architecture.
pub fn checkpoint(files: &Files, observer: &dyn Observer) -> Result<Checkpoint, LoadError> {
    let checkpoint = Checkpoint::open(files)?;
    checkpoint.notes().iter().for_each(|line| observer.note(line));
    Ok(checkpoint)
}

/// The tokenizer of a model, with a note if its files say something that is not used.
///
/// # Errors
/// When there is none, or it does not fit the vocabulary.
pub fn open_tokenizer(
    files: &Files,
    vocab_size: usize,
    observer: &dyn Observer,
) -> Result<Tokenizer, LoadError> {
    let tokenizer = Tokenizer::open(files, vocab_size)?;
    tokenizer.note().iter().for_each(|text| observer.note(text));
    Ok(tokenizer)
}

/// The name of a model that whoever typed this probably meant.
fn meant(typed: &str) -> Option<&'static str> {
    let plain = |name: &str| name.to_lowercase().replace(['-', '_'], "");
    let far = |name: &str| strsim::osa_distance(&plain(typed), &plain(name));
    ModelId::aliases().map(|(name, _)| name).filter(|name| far(name) <= 1).min_by_key(|name| far(name))
}
