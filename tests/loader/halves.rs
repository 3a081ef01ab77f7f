//! Checkpoints in f16 and bf16 keep their halves in memory, and give the bits of the same numbers in f32.

use super::{demo, logit_bits, parameter_bits};
use crate::common::{Result, data};
use crate::folder::{Folder, Raw, Tensors, read};
use candle_core::{DType, Device};
use gpt2_loader::{Checkpoint, GgufType, Source, save_gguf};
use gpt2_model::Gpt2LMHeadModel;
use gpt2_model::linear::WeightDType;
use gpt2_model::parameters::Role;
use half::{bf16, f16};
use safetensors::Dtype;

/// The tensors of a case rounded to a half, once stored as halves and once widened to f32.
fn rounded(case: &str, dtype: Dtype) -> Result<(Tensors, Tensors)> {
    let mut halves = Tensors::new();
    let mut wide = Tensors::new();
    for (name, tensor) in read(&data(case).join("model.safetensors"))? {
        let numbers = tensor.data.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]]));
        let mut half = vec![];
        let mut f32s = vec![];
        for x in numbers {
            let (bytes, x) = match dtype {
                Dtype::F16 => (f16::from_f32(x).to_le_bytes(), f16::from_f32(x).to_f32()),
                _ => (bf16::from_f32(x).to_le_bytes(), bf16::from_f32(x).to_f32()),
            };
            half.extend(bytes);
            f32s.extend(x.to_le_bytes());
        }
        halves.insert(name.clone(), Raw { dtype, shape: tensor.shape.clone(), data: half });
        wide.insert(name, Raw { data: f32s, ..tensor });
    }
    Ok((halves, wide))
}

#[test]
fn a_checkpoint_in_halves_has_the_bits_of_the_same_numbers_in_f32() -> Result {
    for case in ["odd", "untied", "bigcode"] {
        for (stored, dtype) in [(Dtype::F16, DType::F16), (Dtype::BF16, DType::BF16)] {
            let (halves, wide) = rounded(case, stored)?;
            let halves = Folder::with_tensors(case, &halves)?.load()?;
            let wide = Folder::with_tensors(case, &wide)?.load()?;
            assert!(logit_bits(&halves)? == logit_bits(&wide)?, "{case}, {stored:?}: other logits");
            assert!(parameter_bits(&halves)? == parameter_bits(&wide)?, "{case}, {stored:?}");
            assert_eq!(halves.dtype(), DType::F32, "activations");
            let parameters = halves.config().parameters()?;
            for (parameter, (name, values)) in parameters.iter().zip(halves.named_parameters()) {
                let weight = matches!(
                    parameter.role,
                    Role::LinearWeight | Role::TokenEmbedding | Role::OutputProjection
                );
                let expected = if weight { dtype } else { DType::F32 };
                assert_eq!(values.dtype(), WeightDType::Plain(expected), "{case}, {name}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_gguf_file_in_f16_keeps_its_halves_and_gives_the_bits_of_f32() -> Result {
    let (checkpoint, tokenizer) = demo()?;
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("f16.gguf");
    save_gguf(&path, &checkpoint, &tokenizer, GgufType::F16, &mut |_, _, _| Ok(()))?;
    let checkpoint = Checkpoint::open(&Source::Gguf(path).open()?)?;
    let halves = checkpoint.load_model(DType::F32, &Device::Cpu)?;
    let held = halves.named_parameters();
    let held = held.iter().filter(|(_, values)| values.dtype() == WeightDType::Plain(DType::F16));
    assert_eq!(held.count(), 4 * halves.config().n_layer + 1);
    let wide = Gpt2LMHeadModel::load(checkpoint.var_builder(DType::F32, &Device::Cpu)?, halves.config())?;
    assert!(logit_bits(&halves)? == logit_bits(&wide)?);
    Ok(())
}
