//! Dictionaries of features in the files of [SAELens](https://github.com/decoderesearch/SAELens): sparse autoencoders and
//! transcoders.
//!
//! ```no_run
//! use gpt2_loader::DictionaryCheckpoint;
//!
//! # fn main() -> Result<(), gpt2_loader::LoadError> {
//! let checkpoint = DictionaryCheckpoint::open("blocks.8.hook_resid_pre".as_ref())?;
//! let dictionary = checkpoint.load()?;
//! println!("{} features of {}", dictionary.features(), checkpoint.config().hook);
//! # Ok(())
//! # }
//! ```

pub(crate) mod config;

use crate::error::LoadError;
use crate::files::{DICTIONARY_CONFIG as CONFIG, DICTIONARY_SAFETENSORS as WEIGHTS};
use crate::formats::{json, safetensors_file};
use crate::stored::bytes::Bytes;
use crate::stored::{Stored, not_finite};
use candle_core::{DType, Device, Tensor};
use config::{Architecture, DictionaryConfig, Normalization};
use gpt2_model::dictionary::{Dictionary, DictionaryTensors, Scaling, Selection};
use gpt2_model::hooks::Point;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Old files have it; SAELens ignores it where it is 1.
const SCALING_FACTOR: &str = "scaling_factor";

/// A dictionary: its settings and its tensors' headers. The data is read when it is loaded.
#[derive(Debug, Clone)]
pub struct DictionaryCheckpoint {
    /// Its name in messages.
    name: String,
    pub(crate) origin: Option<DictionaryOrigin>,
    config: DictionaryConfig,
    tensors: BTreeMap<String, Stored>,
}

/// The origin of a dictionary on the Hub.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct DictionaryOrigin {
    /// The commit.
    pub commit: String,
    /// The hash of the weights that the Hub announced and the file has.
    pub weights: Option<String>,
}

impl DictionaryCheckpoint {
    /// Reads the settings and the header of the weights in a folder, as SAELens' `save_model` writes them.
    ///
    /// # Errors
    /// When a file is missing or damaged, the settings ask for something that is not supported, or the tensors are not those
    /// that they call for.
    pub fn open(folder: &Path) -> Result<Self, LoadError> {
        Self::open_named(folder, folder.display().to_string())
    }

    /// Opens a dictionary in a folder; messages call it `name`.
    pub(crate) fn open_named(folder: &Path, name: String) -> Result<Self, LoadError> {
        let refused = |reason: String| LoadError::Dictionary { name: name.clone(), reason };
        for file in [CONFIG, WEIGHTS] {
            if folder.join(file).symlink_metadata().is_err() {
                let what = if folder.is_dir() { format!("no {file} here") } else { "no such folder".into() };
                return Err(refused(format!(
                    "{what}; expected a dictionary as SAELens writes it: a folder with {CONFIG} and {WEIGHTS}"
                )));
            }
        }
        let [config, weights] = Self::paths_in(folder);
        Self::of(name, (&config, &Bytes::open(&config)?), (&weights, &Bytes::open(&weights)?))
    }

    /// Reads a dictionary whose two files are compiled into the binary; messages call it `name`.
    ///
    /// # Errors
    /// See [`DictionaryCheckpoint::open`].
    pub fn embedded(name: &str, config: &'static [u8], weights: &'static [u8]) -> Result<Self, LoadError> {
        let [config_path, weights_path] = Self::paths_in(Path::new(name));
        let files = [config, weights].map(Bytes::Embedded);
        Self::of(name.to_owned(), (&config_path, &files[0]), (&weights_path, &files[1]))
    }

    fn of(
        name: String,
        (path, bytes): (&Path, &Bytes),
        (weights_path, weights): (&Path, &Bytes),
    ) -> Result<Self, LoadError> {
        let settings: Map<String, Value> = json::read(path, bytes, "config of a dictionary")?;
        let config = DictionaryConfig::new(&settings)
            .map_err(|reason| LoadError::Dictionary { name: path.display().to_string(), reason })?;
        let stored = safetensors_file::read(weights_path, weights)?;
        let tensors = stored.into_iter().map(|tensor| (tensor.info.name.clone(), tensor)).collect();
        let checkpoint = Self { name, origin: None, config, tensors };
        let problems = checkpoint.problems();
        if problems.is_empty() { Ok(checkpoint) } else { Err(checkpoint.damaged(&problems)) }
    }

    /// The name in messages: the folder, or the repository at its commit with the folder in it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its origin on the Hub; `None` for a folder.
    #[must_use]
    pub fn origin(&self) -> Option<&DictionaryOrigin> {
        self.origin.as_ref()
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &DictionaryConfig {
        &self.config
    }

    /// The files of a dictionary in this folder, whether they are there or not.
    #[must_use]
    pub fn paths_in(folder: &Path) -> [PathBuf; 2] {
        [CONFIG, WEIGHTS].map(|name| folder.join(name))
    }

    /// Reads the dictionary, in f32 on the CPU.
    ///
    /// # Errors
    /// When a file cannot be read, or a number is not finite.
    pub fn load(&self) -> Result<Dictionary, LoadError> {
        let failed = |source| LoadError::Tensor { name: self.name.clone(), source };
        let mut problems = String::new();
        let mut tensors: BTreeMap<&str, Tensor> = BTreeMap::new();
        for (name, stored) in &self.tensors {
            let tensor = stored.load(name, &Device::Cpu).map_err(failed)?;
            let count = not_finite(&tensor).map_err(failed)?;
            if count > 0 {
                let _ =
                    write!(problems, "\n  not finite  {name}: {count} of its numbers are NaN or infinite");
            }
            tensors.insert(name, tensor.to_dtype(DType::F32).map_err(failed)?);
        }
        if let Some(factor) = tensors.get(SCALING_FACTOR) {
            let largest = factor.affine(1.0, -1.0).and_then(|x| x.abs()?.max_all()?.to_scalar::<f32>());
            // SAELens' own tolerance.
            if largest.map_err(failed)? > 1e-5 {
                problems.push_str("\n  unsupported  scaling_factor is not 1: fold it into W_dec first");
            }
        }
        if !problems.is_empty() {
            return Err(self.damaged(&problems));
        }
        self.dictionary(&tensors).map_err(failed)
    }

    /// The dictionary of these tensors. `problems` has found all of them.
    fn dictionary(&self, tensors: &BTreeMap<&str, Tensor>) -> candle_core::Result<Dictionary> {
        let config = &self.config;
        let of = |name: &str| match tensors.get(name) {
            Some(tensor) => Ok(tensor.clone()),
            None => candle_core::bail!("{name} is missing"),
        };
        let is_gated = config.architecture == Architecture::Gated;
        let parts = DictionaryTensors {
            w_enc: of("W_enc")?,
            b_enc: of(if is_gated { "b_gate" } else { "b_enc" })?,
            w_dec: of("W_dec")?,
            b_dec: of("b_dec")?,
            skip: config.architecture.skips().then(|| of("W_skip")).transpose()?,
        };
        let selection = match (config.architecture, config.k) {
            (architecture, Some(k)) => Selection::TopK {
                k,
                by_norm: config.rescale_acts_by_decoder_norm,
                absolute: architecture == Architecture::AbsTopK,
            },
            (Architecture::Gated, None) => Selection::Gated { r_mag: of("r_mag")?, b_mag: of("b_mag")? },
            (architecture, None) if architecture.has_threshold() => Selection::JumpRelu(of("threshold")?),
            _ => Selection::Relu,
        };
        let mut dictionary = Dictionary::new(parts, selection)?.with_scaling(match config.normalization {
            Normalization::None => Scaling::None,
            Normalization::LayerNorm => Scaling::LayerNorm,
            Normalization::ConstantNorm => Scaling::ConstantNorm,
        });
        if config.apply_b_dec_to_input {
            dictionary = dictionary.subtracting_b_dec()?;
        }
        if config.centered && has_mean_zero(config.hook) {
            dictionary = dictionary.centering();
        }
        Ok(if config.architecture.is_transcoder() { dictionary.transcoding() } else { dictionary })
    }

    /// The tensors that the settings call for, with their shapes.
    fn expected(&self) -> Vec<(&'static str, Vec<usize>)> {
        let DictionaryConfig { architecture, d_in, d_sae, d_out, .. } = self.config;
        let mut all =
            vec![("W_enc", vec![d_in, d_sae]), ("W_dec", vec![d_sae, d_out]), ("b_dec", vec![d_out])];
        if architecture == Architecture::Gated {
            all.extend(["b_gate", "r_mag", "b_mag"].map(|name| (name, vec![d_sae])));
        } else {
            all.push(("b_enc", vec![d_sae]));
        }
        if architecture.has_threshold() {
            all.push(("threshold", vec![d_sae]));
        }
        if architecture.skips() {
            all.push(("W_skip", vec![d_out, d_in]));
        }
        all
    }

    /// Lists what is wrong with the tensors, a line each.
    fn problems(&self) -> String {
        let expected = self.expected();
        let mut problems = String::new();
        for (name, shape) in &expected {
            let _ = match self.tensors.get(*name).map(|tensor| &tensor.info) {
                None => write!(problems, "\n  missing     {name} {shape:?}"),
                Some(found) if found.shape != *shape || !found.dtype.is_float() => write!(
                    problems,
                    "\n  mis-shaped  {name} {} {:?}, expected a float dtype and {shape:?}",
                    found.dtype, found.shape
                ),
                Some(_) => Ok(()),
            };
        }
        for (name, tensor) in &self.tensors {
            if name != SCALING_FACTOR && !expected.iter().any(|(one, _)| one == name) {
                let _ =
                    write!(problems, "\n  unexpected  {name} {} {:?}", tensor.info.dtype, tensor.info.shape);
            }
        }
        problems
    }

    fn damaged(&self, problems: &str) -> LoadError {
        let architecture = self.config.architecture;
        LoadError::Dictionary {
            name: format!("{}/{WEIGHTS}", self.name),
            reason: format!(
                "its tensors are not those of the {architecture} dictionary that {CONFIG} describes{problems}\n\
                 fetch or write the folder again"
            ),
        }
    }
}

/// Whether a value's mean is 0 at each position in a model whose weights that write to the residual stream are centered.
fn has_mean_zero(point: Point) -> bool {
    use Point::{AttnOut, Embed, MlpIn, MlpOut, PosEmbed, ResidMid, ResidPost, ResidPre};
    matches!(
        point,
        Embed | PosEmbed | ResidPre(_) | AttnOut(_) | ResidMid(_) | MlpIn(_) | MlpOut(_) | ResidPost(_)
    )
}
