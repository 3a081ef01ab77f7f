//! The types of tensors in GGUF files, by ggml's numbers, and which of them each tensor of a written file gets.

use crate::stored::Encoding;
use crate::stored::names;
use crate::stored::unpack_to_f32::Packed;
use gpt2_model::Config;
use gpt2_model::linear::BlockFormat;
use gpt2_model::parameters::{LM_HEAD, Parameter, WTE};
use safetensors::Dtype;
use std::fmt;
use std::str::FromStr;

/// Types that this crate reads, and their numbers.
const KNOWN: [(u32, Encoding); 18] = [
    (0, Encoding::Plain(Dtype::F32)),
    (1, Encoding::Plain(Dtype::F16)),
    (2, Encoding::Blocks(BlockFormat::Q4_0)),
    (3, Encoding::Packed(Packed::Q4_1)),
    (6, Encoding::Blocks(BlockFormat::Q5_0)),
    (7, Encoding::Packed(Packed::Q5_1)),
    (8, Encoding::Blocks(BlockFormat::Q8_0)),
    (10, Encoding::Packed(Packed::Q2K)),
    (11, Encoding::Packed(Packed::Q3K)),
    (12, Encoding::Blocks(BlockFormat::Q4K)),
    (13, Encoding::Blocks(BlockFormat::Q5K)),
    (14, Encoding::Blocks(BlockFormat::Q6K)),
    (15, Encoding::Packed(Packed::Q8K)),
    (20, Encoding::Packed(Packed::Iq4Nl)),
    (23, Encoding::Packed(Packed::Iq4Xs)),
    (28, Encoding::Plain(Dtype::F64)),
    (30, Encoding::Plain(Dtype::BF16)),
    (39, Encoding::Packed(Packed::Mxfp4)),
];

/// The names of the types that it does not read.
const UNKNOWN: [(u32, &str); 15] = [
    (9, "Q8_1"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (40, "NVFP4"),
];

/// The encoding of ggml's type `number`.
pub(super) fn encoding(number: u32) -> Encoding {
    let known = KNOWN.into_iter().find(|(n, _)| *n == number).map(|(_, encoding)| encoding);
    known.unwrap_or_else(|| {
        let name = UNKNOWN.into_iter().find(|(n, _)| *n == number).map(|(_, name)| name);
        Encoding::Unknown { number, name }
    })
}

/// ggml's number, for a type that this crate reads.
pub(crate) fn number(encoding: Encoding) -> Option<u32> {
    KNOWN.into_iter().find(|(_, known)| *known == encoding).map(|(number, _)| number)
}

/// A type of GGUF file, by llama.cpp's name. Biases, layer norms and positions are in f32 in all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GgufType {
    /// Weights in f16.
    F16,
    /// Weights in `Q8_0`.
    Q8_0,
    /// Weights in `Q4_0`, the output projection in `Q6_K`.
    Q4_0,
    /// Weights in `Q4_K`, the output projection and, in half of the blocks, `c_attn` and the MLP's `c_proj` in `Q6_K`.
    Q4KM,
}

impl GgufType {
    /// Every type.
    pub const ALL: &[Self] = &[Self::F16, Self::Q8_0, Self::Q4_0, Self::Q4KM];

    /// Its bits per weight, in a few words.
    #[must_use]
    pub fn about(self) -> &'static str {
        match self {
            Self::F16 => "16 bits a weight",
            Self::Q8_0 => "8.5 bits a weight",
            Self::Q4_0 => "4.5 bits a weight, and 6.6 or 8.5 in the output projection",
            Self::Q4KM => "4.5 to 8.5 bits a weight, as llama.cpp mixes them",
        }
    }

    /// The name in lower case.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Q4KM => "q4_k_m",
        }
    }

    /// llama.cpp's number, `general.file_type`.
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q8_0 => 7,
            Self::Q4KM => 15,
        }
    }
}

impl FromStr for GgufType {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().copied().find(|kind| kind.as_str() == name);
        found.ok_or_else(|| format!("{name:?} is no type of GGUF files"))
    }
}

impl fmt::Display for GgufType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A tensor to be written.
pub(crate) struct PlannedTensor {
    /// The checkpoint's name.
    pub(crate) source: String,
    /// GGUF's.
    pub(crate) name: String,
    /// Whether the file holds the transpose.
    pub(crate) transposed: bool,
    /// The last dimension first.
    pub(crate) dims: Vec<usize>,
    pub(crate) encoding: Encoding,
    pub(crate) bytes: usize,
}

/// Every tensor of a file, in the model's order.
pub(crate) fn plan(config: &Config, kind: GgufType) -> Result<Vec<PlannedTensor>, String> {
    check(config)?;
    let parameters = config.parameters().map_err(|e| e.to_string())?;
    parameters.iter().map(|parameter| planned(config, kind, parameter)).collect()
}

/// Refuses what GGUF's keys cannot say of a GPT-2.
fn check(config: &Config) -> Result<(), String> {
    use gpt2_model::config::Activation::{GeluNew, GeluPytorchTanh};
    if !matches!(config.activation_function, GeluNew | GeluPytorchTanh) {
        return Err(format!("activation_function is {:?}; expected gelu_new", config.activation_function));
    }
    if !config.scale_attn_weights {
        return Err("scale_attn_weights is false; expected true".into());
    }
    if config.scale_attn_by_inverse_layer_idx {
        return Err("scale_attn_by_inverse_layer_idx is true; expected false".into());
    }
    Ok(())
}

fn planned(config: &Config, kind: GgufType, parameter: &Parameter) -> Result<PlannedTensor, String> {
    let source = parameter.name.clone();
    let (name, transposed) =
        names::in_gguf(&source).ok_or_else(|| format!("{source} has no name in GGUF files"))?;
    let mut shape = parameter.shape.clone();
    if transposed {
        shape.reverse();
    }
    let is_weight = transposed || matches!(source.as_str(), WTE | LM_HEAD);
    let inputs = shape.last().copied().unwrap_or_default();
    let encoding =
        if is_weight { weight(config, kind, &source, inputs)? } else { Encoding::Plain(Dtype::F32) };
    let row = encoding.bytes_of(inputs);
    let rows: usize = shape.iter().rev().skip(1).product();
    let bytes = row.and_then(|row| row.checked_mul(rows)).ok_or_else(|| format!("{source} is too large"))?;
    let dims = shape.into_iter().rev().collect();
    Ok(PlannedTensor { source, name, transposed, dims, encoding, bytes })
}

/// The type of a weight whose rows have `inputs` numbers: as llama.cpp chooses, also where blocks of 256 do not divide them.
fn weight(config: &Config, kind: GgufType, name: &str, inputs: usize) -> Result<Encoding, String> {
    let is_output = name == LM_HEAD || (name == WTE && config.tie_word_embeddings);
    let format = match kind {
        GgufType::F16 => return Ok(Encoding::Plain(Dtype::F16)),
        GgufType::Q8_0 => BlockFormat::Q8_0,
        _ if is_output => BlockFormat::Q6K,
        GgufType::Q4_0 => BlockFormat::Q4_0,
        GgufType::Q4KM if takes_more_bits(name, config.n_layer) => BlockFormat::Q6K,
        GgufType::Q4KM => BlockFormat::Q4K,
    };
    let format = match format {
        BlockFormat::Q6K if !inputs.is_multiple_of(256) => BlockFormat::Q8_0,
        BlockFormat::Q4K if !inputs.is_multiple_of(256) => BlockFormat::Q5_0,
        fits => fits,
    };
    format.check_inputs(inputs).map_err(|e| format!("{name}: {e}"))?;
    Ok(Encoding::Blocks(format))
}

/// Whether this is `c_attn` or the MLP's `c_proj` in the first or last eighth of the blocks, or in every third between.
fn takes_more_bits(name: &str, layers: usize) -> bool {
    let Some((layer, rest)) = name.strip_prefix("h.").and_then(|name| name.split_once('.')) else {
        return false;
    };
    let Ok(layer) = layer.parse::<usize>() else { return false };
    let eighth = layers / 8;
    matches!(rest, "attn.c_attn.weight" | "mlp.c_proj.weight")
        && (layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_types_are_those_that_llama_cpp_chooses() {
        let type_of = |config: &Config, kind, name: &str| {
            let plan = plan(config, kind).expect("a plan");
            plan.into_iter().find(|tensor| tensor.source == name).expect("a tensor").encoding.to_string()
        };
        let gpt2 = Config::gpt2();
        for layer in 0..12 {
            let more = [0, 3, 6, 9, 10, 11].contains(&layer);
            for name in ["attn.c_attn", "mlp.c_proj"] {
                let name = format!("h.{layer}.{name}.weight");
                assert_eq!(
                    type_of(&gpt2, GgufType::Q4KM, &name),
                    if more { "Q6_K" } else { "Q4_K" },
                    "{name}"
                );
            }
        }
        // An eighth of GPT-2 medium's blocks is three.
        let medium = Config { n_layer: 24, ..gpt2.clone() };
        for layer in 0..24 {
            let more = [0, 1, 2, 5, 8, 11, 14, 17, 20, 21, 22, 23].contains(&layer);
            let found = type_of(&medium, GgufType::Q4KM, &format!("h.{layer}.mlp.c_proj.weight"));
            assert_eq!(found, if more { "Q6_K" } else { "Q4_K" }, "{layer}");
        }
        let untied = Config { tie_word_embeddings: false, ..gpt2.clone() };
        assert_eq!(type_of(&untied, GgufType::Q4_0, "wte.weight"), "Q4_0");
        assert_eq!(type_of(&untied, GgufType::Q4_0, "lm_head.weight"), "Q6_K");
        assert_eq!(type_of(&gpt2, GgufType::Q4KM, "h.0.mlp.c_fc.weight"), "Q4_K");
        assert_eq!(type_of(&gpt2, GgufType::Q4_0, "wte.weight"), "Q6_K");
        assert_eq!(type_of(&gpt2, GgufType::Q8_0, "wte.weight"), "Q8_0");
        assert_eq!(type_of(&gpt2, GgufType::F16, "h.3.attn.c_proj.weight"), "F16");
        assert_eq!(type_of(&gpt2, GgufType::F16, "wpe.weight"), "F32");
        let narrow = Config { n_embd: 128, n_head: 2, ..gpt2.clone() };
        assert_eq!(type_of(&narrow, GgufType::Q4KM, "wte.weight"), "Q8_0");
        assert_eq!(type_of(&narrow, GgufType::Q4KM, "h.1.mlp.c_fc.weight"), "Q5_0");
        let odd = Config { n_embd: 48, n_head: 2, ..gpt2 };
        assert!(plan(&odd, GgufType::Q8_0).err().expect("refused").contains("48"));
    }
}
