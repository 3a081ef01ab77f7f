//! Linear weights that other programs write as (out, in), and layers that they write without biases.

use crate::stored::bytes::Bytes;
use crate::stored::names::h_of;
use crate::stored::{Encoding, Stored, TensorInfo};
use gpt2_model::parameters::{LM_HEAD, Parameter, Role, WTE};
use safetensors::Dtype;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Turns the linear weights of a GPT-2 over if the files hold all of them as (out, in), as `nn.Linear` has them; whether it did.
/// Square ones cannot be told by their shape, so all others must be of one mind.
pub(super) fn turn_linear(tensors: &mut BTreeMap<String, Stored>, parameters: &[Parameter]) -> bool {
    let linear: Vec<&Parameter> = parameters
        .iter()
        .filter(|p| p.role == Role::LinearWeight && p.shape.len() == 2 && h_of(&p.name).is_some())
        .collect();
    let reversed = |p: &Parameter| -> Option<bool> {
        let found = &tensors.get(&p.name)?.info.shape;
        let square = p.shape[0] == p.shape[1];
        (!square).then(|| found.iter().rev().eq(&p.shape))
    };
    let told: Vec<bool> = linear.iter().filter_map(|p| reversed(p)).collect();
    if told.is_empty() || told.contains(&false) {
        return false;
    }
    for parameter in linear {
        if let Some(tensor) = tensors.get_mut(&parameter.name) {
            tensor.transpose();
        }
    }
    true
}

/// Gives zeros to a model that was trained without biases, as nanoGPT's `bias=False`; whether it did.
pub(super) fn add_biases(tensors: &mut BTreeMap<String, Stored>, parameters: &[Parameter]) -> bool {
    let is_bias = |p: &&Parameter| matches!(p.role, Role::LinearBias | Role::NormBias);
    let biases: Vec<&Parameter> = parameters.iter().filter(is_bias).collect();
    if biases.iter().any(|bias| tensors.contains_key(&bias.name)) {
        return false;
    }
    let Some(file) = tensors.values().next().map(|tensor| tensor.info.file.clone()) else { return false };
    let numbers = |p: &Parameter| p.shape.iter().product::<usize>();
    let longest = biases.iter().map(|bias| numbers(bias)).max().unwrap_or(0);
    let zeros = Bytes::InMemory(Arc::new(vec![0; 4 * longest]));
    for bias in biases {
        let info = TensorInfo {
            name: bias.name.clone(),
            dtype: Encoding::Plain(Dtype::F32),
            shape: bias.shape.clone(),
            file: file.clone(),
        };
        let (bytes, range) = (zeros.clone(), 0..4 * numbers(bias));
        let zero = Stored { info, bytes, range, entry: None, strides: None, transposed: false };
        tensors.insert(bias.name.clone(), zero);
    }
    true
}

/// Leaves out an output projection that is the token embedding's own bytes.
pub(super) fn drop_shared_head(tensors: &mut BTreeMap<String, Stored>) {
    let shared = tensors.get(WTE).zip(tensors.get(LM_HEAD)).is_some_and(|(a, b)| a.is_the_same_place(b));
    if shared {
        tensors.remove(LM_HEAD);
    }
}
