//! llama.cpp's names for GPT-2's tensors.

/// The names outside the blocks: llama.cpp's, and the checkpoint's.
const ROOT: [(&str, &str); 3] = [("token_embd", "wte"), ("position_embd", "wpe"), ("output_norm", "ln_f")];

/// The output projection, if it is not the token embedding.
pub(super) const OUTPUT: (&str, &str) = ("output.weight", gpt2_model::parameters::LM_HEAD);

/// The names inside a block, and whether the weight is one of a `Conv1D`: GGUF holds its transpose.
const BLOCK: [(&str, &str, bool); 6] = [
    ("attn_norm", "ln_1", false),
    ("attn_qkv", "attn.c_attn", true),
    ("attn_output", "attn.c_proj", true),
    ("ffn_norm", "ln_2", false),
    ("ffn_up", "mlp.c_fc", true),
    ("ffn_down", "mlp.c_proj", true),
];

/// The checkpoint's name for `name`, and whether the tensor is transposed.
pub(super) fn of_checkpoint(name: &str) -> Option<(String, bool)> {
    if name == OUTPUT.0 {
        return Some((OUTPUT.1.into(), false));
    }
    let (module, parameter) = name.rsplit_once('.')?;
    if let Some((_, found)) = ROOT.iter().find(|(theirs, _)| *theirs == module) {
        return Some((format!("{found}.{parameter}"), false));
    }
    let (layer, module) = module.strip_prefix("blk.")?.split_once('.')?;
    let (_, found, conv1d) = BLOCK.iter().find(|(theirs, ..)| *theirs == module)?;
    Some((format!("h.{layer}.{found}.{parameter}"), *conv1d && parameter == "weight"))
}

/// llama.cpp's name for the checkpoint's `name`, and whether the tensor is transposed.
pub(super) fn of_gguf(name: &str) -> Option<(String, bool)> {
    if name == OUTPUT.1 {
        return Some((OUTPUT.0.into(), false));
    }
    let (module, parameter) = name.rsplit_once('.')?;
    if let Some((found, _)) = ROOT.iter().find(|(_, ours)| *ours == module) {
        return Some((format!("{found}.{parameter}"), false));
    }
    let (layer, module) = module.strip_prefix("h.")?.split_once('.')?;
    let (found, _, conv1d) = BLOCK.iter().find(|(_, ours, _)| *ours == module)?;
    Some((format!("blk.{layer}.{found}.{parameter}"), *conv1d && parameter == "weight"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpt2_model::Config;

    #[test]
    fn every_parameter_has_a_name_and_gets_its_own_back() {
        let config = Config { n_layer: 2, tie_word_embeddings: false, ..Config::gpt2() };
        for parameter in config.parameters().expect("valid") {
            let (name, transposed) = of_gguf(&parameter.name).expect("a name");
            assert_eq!(of_checkpoint(&name), Some((parameter.name.clone(), transposed)), "{name}");
        }
        assert_eq!(of_gguf("h.11.mlp.c_proj.weight"), Some(("blk.11.ffn_down.weight".into(), true)));
        assert_eq!(of_checkpoint("rope_freqs.weight"), None);
    }
}
