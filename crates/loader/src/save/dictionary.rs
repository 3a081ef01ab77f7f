//! Writes a dictionary in SAELens' files.

use crate::error::LoadError;
use crate::files::{DICTIONARY_CONFIG as CONFIG, DICTIONARY_SAFETENSORS as WEIGHTS};
use candle_core::Tensor;
use gpt2_files::{atomic, write_safetensors};
use gpt2_model::dictionary::{DictionaryTensors, Selection};
use gpt2_model::hooks::Point;
use serde_json::{Value, json};
use std::path::Path;

/// The version of SAELens whose form of `cfg.json` is written.
const SAELENS: &str = "6.0.0";

/// The settings that `cfg.json` records for a trained dictionary, besides its sizes.
#[derive(Debug, Clone)]
pub struct NewDictionary {
    /// The value that it reads.
    pub hook: Point,
    /// The value that a transcoder predicts; `None` for a sparse autoencoder.
    pub hook_out: Option<Point>,
    /// The model.
    pub model_name: Option<String>,
    /// Whether texts began with the end-of-text token.
    pub prepend_bos: bool,
    /// The number of tokens that the model read together.
    pub context_size: Option<u64>,
    /// The origin of the dictionary, for readers of the file.
    pub made_by: Value,
}

/// Writes `cfg.json` and `sae_weights.safetensors` into `dir`, which is created if it does not exist. Each file is written under a
/// temporary name, then renamed. SAELens' `SAE.load_from_disk` reads them. The dictionary subtracts `b_dec` from its input, unless
/// it is a transcoder.
///
/// # Errors
/// When the selection is one that no dictionary is trained with here, or the folder cannot be written to.
pub fn save_dictionary(
    dir: &Path,
    tensors: &DictionaryTensors,
    selection: &Selection,
    about: &NewDictionary,
) -> Result<(), LoadError> {
    let failed = |source| LoadError::Tensor { name: dir.display().to_string(), source };
    let DictionaryTensors { w_enc, b_enc, w_dec, b_dec, skip } = tensors;
    let mut named: Vec<(&str, &Tensor)> =
        vec![("W_enc", w_enc), ("b_enc", b_enc), ("W_dec", w_dec), ("b_dec", b_dec)];
    let (d_in, d_sae) = w_enc.dims2().map_err(failed)?;
    let mut config = json!({
        "d_in": d_in,
        "d_sae": d_sae,
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": about.hook_out.is_none(),
        "normalize_activations": "none",
        "reshape_activations": if matches!(about.hook, Point::Z(_)) { "hook_z" } else { "none" },
        "metadata": {
            "sae_lens_version": SAELENS,
            "model_name": about.model_name,
            "hook_name": about.hook.to_string(),
            "prepend_bos": about.prepend_bos,
            "context_size": about.context_size,
        },
        "made_by": about.made_by,
    });
    if let Some(hook_out) = about.hook_out {
        config["d_out"] = json!(w_dec.dim(1).map_err(failed)?);
        config["metadata"]["hook_name_out"] = json!(hook_out.to_string());
    }
    match (selection, about.hook_out) {
        (Selection::TopK { k, by_norm: false, absolute: false }, None) => {
            config["architecture"] = json!("topk");
            config["k"] = json!(k);
            config["rescale_acts_by_decoder_norm"] = json!(false);
        }
        (Selection::JumpRelu(threshold), hook_out) => {
            let is_transcoder = hook_out.is_some();
            config["architecture"] = json!(if is_transcoder { "jumprelu_transcoder" } else { "jumprelu" });
            named.push(("threshold", threshold));
        }
        _ => {
            let reason =
                "only TopK and JumpReLU dictionaries and JumpReLU transcoders are written".to_owned();
            return Err(LoadError::Dictionary { name: dir.display().to_string(), reason });
        }
    }
    if skip.is_some() {
        let reason = "skip transcoders are not written".to_owned();
        return Err(LoadError::Dictionary { name: dir.display().to_string(), reason });
    }
    let json =
        serde_json::to_string_pretty(&config).map_err(candle_core::Error::wrap).map_err(failed)? + "\n";
    let contiguous =
        named.iter().map(|(_, tensor)| tensor.contiguous()).collect::<candle_core::Result<Vec<_>>>();
    let contiguous = contiguous.map_err(failed)?;
    let named: Vec<(&str, &Tensor)> = named.iter().map(|(name, _)| *name).zip(&contiguous).collect();
    std::fs::create_dir_all(dir).map_err(LoadError::io(dir))?;
    // Without its settings, a folder is no dictionary: two that are mixed could look like one.
    match std::fs::remove_file(dir.join(CONFIG)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(LoadError::io(&dir.join(CONFIG))(error));
        }
        _ => {}
    }
    atomic::write(&dir.join(WEIGHTS), |temporary| {
        write_safetensors(temporary, &named, &[("format", "pt".to_owned())])
    })?;
    Ok(atomic::write_bytes(&dir.join(CONFIG), json.as_bytes())?)
}
