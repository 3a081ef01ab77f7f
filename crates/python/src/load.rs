//! A model by its name, loaded.

use crate::error::Failed;
use crate::guard::Raised;
use crate::loaded::Loaded;
use anyhow::{Context, anyhow, bail};
use candle_core::utils::{cuda_is_available, metal_is_available};
use candle_core::{DType, Device};
use candle_fused::{BlockFormat, Implementation};
use gpt2_engine::{DEMO_NAME, HubOptions, Named, NamedAdapter};
use gpt2_loader::hub::Event;
use gpt2_loader::{AdapterCheckpoint, AdapterFiles, Checkpoint, Files, LoadError, Source, Tokenizer};
use pyo3::prelude::*;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The model to load, and the options: see `gpt2_candle.Model.load`.
#[derive(Debug, FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct LoadRequest {
    name: Option<String>,
    dtype: String,
    quantize: Option<String>,
    adapters: Vec<(String, f64)>,
    device: String,
    implementation: String,
    revision: Option<String>,
    offline: bool,
    cache_dir: Option<PathBuf>,
    endpoint: Option<String>,
    timeout: Option<u64>,
    /// Called with the kind of an event of the Hub, a file and two numbers.
    progress: Option<Py<PyAny>>,
}

impl LoadRequest {
    pub(crate) fn load(self, raised: &Arc<Raised>) -> Result<Loaded, Failed> {
        Ok(self.open(raised)?)
    }

    fn open(self, raised: &Arc<Raised>) -> anyhow::Result<Loaded> {
        let mut notes = vec![];
        let dtype = one_of("dtype", &self.dtype, &DTYPES)?;
        let implementation = one_of("implementation", &self.implementation, &IMPLEMENTATIONS)?;
        let quantize =
            self.quantize.as_deref().map(|format| one_of("quantize", format, &FORMATS)).transpose()?;
        let device = device(&self.device)?;
        if quantize.is_some() && (dtype != DType::F32 || !device.is_cpu()) {
            bail!("quantize: quantized layers compute in f32 on the CPU; leave dtype and device out");
        }
        let files = self.files(raised, &mut notes)?;
        let checkpoint = Checkpoint::open(&files)?.with_implementation(implementation);
        notes.extend(checkpoint.notes());
        let known = checkpoint.formats();
        if let (Some(_), Some(format)) = (quantize, known.first()) {
            bail!(
                "quantize: the weights of {} are quantized already ({format}); leave it out",
                checkpoint.name()
            );
        }
        let (mut model, formats) = if let Some(format) = quantize {
            (checkpoint.load_quantized(format)?, vec![format])
        } else {
            let stay = dtype == DType::F32 && device.is_cpu();
            (checkpoint.load_model(dtype, &device)?, if stay { known } else { vec![] })
        };
        // Ids need no tokenizer: that there is none, or a damaged one, is an error where a text needs it.
        let (tokenizer, no_tokenizer) = match Tokenizer::open(&files, model.config().vocab_size) {
            Ok(tokenizer) => {
                notes.extend(tokenizer.note().map(str::to_owned));
                (Some(Arc::new(tokenizer)), None)
            }
            Err(LoadError::NoTokenizer { .. }) => (None, None),
            Err(error) => {
                notes.push(format!("{error}; until it is mended, give token ids instead of text"));
                (None, Some(error.to_string()))
            }
        };
        let mut adapters = vec![];
        for (source, weight) in &self.adapters {
            let files = self.adapter(raised, source)?;
            let adapter = AdapterCheckpoint::open(&files)?.load(model.config())?;
            model = model.with_adapter(&files.name, &adapter, *weight)?;
            adapters.push(files.name);
        }
        let name = checkpoint.name().to_owned();
        let commit = files.commit.clone();
        Ok(Loaded {
            name,
            model,
            tokenizer,
            no_tokenizer,
            formats,
            adapters,
            commit,
            notes,
            files: Some(files),
            trained: None,
        })
    }

    fn files(&self, raised: &Arc<Raised>, notes: &mut Vec<String>) -> anyhow::Result<Files> {
        let Some(name) = self.name.as_deref().filter(|name| *name != DEMO_NAME) else {
            if self.revision.is_some() {
                bail!("revision is for models of the Hub; the built-in demo model has no revisions");
            }
            return Ok(Source::Embedded(gpt2_web::DEMO).open()?);
        };
        let named = Named::find(name)?;
        named.check_revision("revision", self.revision.as_deref())?;
        notes.extend(named.note());
        let revision = named.revision(self.revision.as_deref()).to_owned();
        match named {
            Named::Folder(dir) => Source::directory(&dir).open().map_err(|error| no_model(error, &dir)),
            Named::Gguf(path) => Ok(Source::Gguf(path).open()?),
            Named::File(path) => Ok(Source::File(path).open()?),
            Named::HubGguf(id, _, file) => {
                let snapshot = self.hub(raised)?.open_gguf(&id, &revision, &file);
                Ok(snapshot
                    .with_context(|| format!("there is no file {name}, so it was taken for one of the Hub"))?
                    .files)
            }
            Named::Hub(id, _) => {
                let source = Source::hub(self.hub(raised)?, id, revision);
                source.open().with_context(|| {
                    format!("there is no folder {name}, so it was taken for a model of the Hub")
                })
            }
        }
    }

    fn adapter(&self, raised: &Arc<Raised>, source: &str) -> anyhow::Result<AdapterFiles> {
        match NamedAdapter::find(source)? {
            NamedAdapter::Folder(dir) => Ok(AdapterFiles::directory(&dir)?),
            NamedAdapter::Hub(id, revision) => {
                self.hub(raised)?.open_adapter(&id, &revision).with_context(|| {
                    format!("there is no folder {source}, so it was taken for an adapter on the Hub")
                })
            }
        }
    }

    fn options(&self) -> HubOptions {
        HubOptions {
            revision: self.revision.clone(),
            offline: self.offline,
            cache_dir: self.cache_dir.clone(),
            endpoint: self.endpoint.clone(),
            timeout: self.timeout,
        }
    }

    fn hub(&self, raised: &Arc<Raised>) -> anyhow::Result<gpt2_loader::Hub> {
        let mut hub = self.options().hub()?;
        let progress = self.progress.as_ref().map(|progress| Python::attach(|py| progress.clone_ref(py)));
        let raised = Arc::clone(raised);
        hub.progress = Some(Arc::new(move |event| {
            let told = match event {
                Event::Waiting { file } => Some(("waiting", *file, 0, None)),
                Event::Fetching { file, size, have } => Some(("fetching", *file, *have, *size)),
                Event::Received { file, bytes } => Some(("received", *file, *bytes, None)),
                Event::Fetched { file } => Some(("fetched", *file, 0, None)),
                Event::Verifying { file, size } => Some(("verifying", *file, *size, None)),
                _ => None,
            };
            let heard = raised.check_signals().and_then(|()| match progress.as_ref().zip(told) {
                Some((progress, told)) => raised.attached(|py| progress.call1(py, told).map(drop)),
                None => Ok(()),
            });
            // The exception comes up when the model is loaded.
            if heard.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        }));
        Ok(hub)
    }
}

const DTYPES: [(&str, DType); 4] =
    [("f32", DType::F32), ("f16", DType::F16), ("bf16", DType::BF16), ("f64", DType::F64)];
const FORMATS: [(&str, BlockFormat); 2] = [("q8_0", BlockFormat::Q8_0), ("q4_0", BlockFormat::Q4_0)];
const IMPLEMENTATIONS: [(&str, Implementation); 3] =
    [("auto", Implementation::Auto), ("fused", Implementation::Fused), ("eager", Implementation::Eager)];

fn one_of<T: Copy>(what: &str, name: &str, choices: &[(&str, T)]) -> anyhow::Result<T> {
    choices.iter().find(|(known, _)| *known == name).map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
        anyhow!("{what} {name:?}: expected one of {}", names.join(", "))
    })
}

fn device(name: &str) -> anyhow::Result<Device> {
    let (kind, ordinal) = name.split_once(':').unwrap_or((name, "0"));
    let ordinal: usize =
        ordinal.parse().with_context(|| format!("device {name:?}: expected a number after the colon"))?;
    match kind {
        "cpu" if !name.contains(':') => Ok(Device::Cpu),
        "cuda" if !cuda_is_available() => bail!("device {name:?}: this package was built without CUDA"),
        "cuda" => candle_fused::open_cuda(ordinal)
            .with_context(|| format!("device {name:?}: this GPU does not respond")),
        "metal" if !metal_is_available() => bail!("device {name:?}: this package was built without Metal"),
        "metal" => {
            Device::new_metal(ordinal).with_context(|| format!("device {name:?}: this GPU does not respond"))
        }
        _ => bail!("device {name:?}: expected cpu, cuda, cuda:N, metal or metal:N"),
    }
}

/// Why a folder is no model, with what a caller of Python can do.
fn no_model(error: LoadError, dir: &Path) -> anyhow::Error {
    match error {
        LoadError::NoConfig { .. } if AdapterFiles::is_in(dir) => {
            anyhow!(
                "{0}: is a LoRA adapter, not a model; load its model with adapter={0:?}",
                dir.display().to_string()
            )
        }
        other => other.into(),
    }
}
