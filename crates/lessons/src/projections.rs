//! The three linear layers of every step with weights, which turn `x` into queries, keys and values.

use candle_core::{D, Module, Result, Tensor};
use candle_nn::{Init, Linear, VarBuilder};

/// `W_query`, `W_key` and `W_value` below `vb`, each `d_in -> d_out`.
pub(crate) fn load_qkv(vb: &VarBuilder, d_in: usize, d_out: usize, bias: bool) -> Result<[Linear; 3]> {
    Ok([
        load_linear(vb.pp("W_query"), d_in, d_out, bias)?,
        load_linear(vb.pp("W_key"), d_in, d_out, bias)?,
        load_linear(vb.pp("W_value"), d_in, d_out, bias)?,
    ])
}

/// A linear layer `x·Wᵀ + b` in the layout of PyTorch's `nn.Linear`, W (out, in). If `vb` creates
/// variables, it draws them from that layer's own distribution, `U(-1/√in, 1/√in)`.
pub(crate) fn load_linear(vb: VarBuilder, n_in: usize, n_out: usize, bias: bool) -> Result<Linear> {
    if n_in == 0 || n_out == 0 {
        candle_core::bail!("{}: a layer of {n_in} inputs and {n_out} outputs is empty", vb.prefix())
    }
    let bound = 1. / (n_in as f64).sqrt();
    let init = Init::Uniform { lo: -bound, up: bound };
    let weight = vb.get_with_hints((n_out, n_in), "weight", init)?;
    let bias = if bias { Some(vb.get_with_hints(n_out, "bias", init)?) } else { None };
    Ok(Linear::new(weight, bias))
}

/// `x` (.., T, `d_in`) through the three layers: q, k and v, each (.., T, `d_out`).
///
/// Refuses an `x` without words, or one whose last dimension is not the layers' input width; the error names `who`.
pub(crate) fn project(who: &str, x: &Tensor, layers: [&Linear; 3]) -> Result<[Tensor; 3]> {
    let [query, key, value] = layers;
    if x.elem_count() == 0 {
        candle_core::bail!("{who}: x {:?} holds no word", x.dims())
    }
    if x.rank() < 2 {
        candle_core::bail!("{who}: x is {:?}, but must be (.., T, d_in): at least one row of words", x.dims())
    }
    for (name, layer) in [("W_query", query), ("W_key", key), ("W_value", value)] {
        let (_, n_in) = layer.weight().dims2()?;
        if x.dim(D::Minus1)? != n_in {
            candle_core::bail!("{who}: x {:?} does not end in the {n_in} inputs of {name}", x.dims())
        }
    }
    Ok([query.forward(x)?, key.forward(x)?, value.forward(x)?])
}
