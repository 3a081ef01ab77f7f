//! [`Gpt2LMHeadModel::processed`]: the same function with its weights moved to where they are easiest to read.

use super::apply_adapter::linear;
use super::block::Block;
use super::layers::conv1d::Conv1D;
use super::layers::embedding::Embedding;
use super::layers::layer_norm::LayerNorm;
use super::layers::linear::{Weight, WeightLayout};
use super::layers::lm_head::LmHead;
use super::lm_head_model::Gpt2LMHeadModel;
use candle_core::{Result, Tensor};

impl Gpt2LMHeadModel {
    /// The model as TransformerLens' `HookedTransformer` shows it by default: what each layer norm multiplies by and adds is part of
    /// the layer that reads it (`fold_ln`), the layers that write to the stream and the unembedding have a mean of 0
    /// (`center_writing_weights`, `center_unembed`), and value biases are part of the output's bias (`fold_value_biases`). Every
    /// probability stays as it is; all logits of a position move by one number. Adapters are merged, and quantized weights become dense.
    ///
    /// # Errors
    /// When the model has cross-attention, or a layer cannot produce a dense weight.
    pub fn processed(&self) -> Result<Self> {
        if self.config().add_cross_attention {
            candle_core::bail!("processed: a model with cross-attention has no such view; load it as it is")
        }
        let tables = Tables::of(self)?;
        let mut model = self.clone();
        for block in &mut model.transformer.h {
            *block = processed_block(block, self)?;
        }
        model.transformer.ln_f = unit(&self.transformer.ln_f)?;
        model.transformer.wte = Embedding::from_weight(tables.embedding, self.dtype());
        model.transformer.wpe = tables.positions;
        model.lm_head = LmHead::with_bias(tables.unembedding, tables.unembedding_bias)?;
        Ok(model)
    }
}

/// The tables of a processed model.
struct Tables {
    embedding: Weight,
    positions: Tensor,
    unembedding: Weight,
    unembedding_bias: Tensor,
}

impl Tables {
    fn of(model: &Gpt2LMHeadModel) -> Result<Self> {
        let dtype = model.dtype();
        let implementation = model.config().attn_implementation;
        let weight = |table: &Tensor| {
            Ok::<_, candle_core::Error>(
                Weight::new(table.to_dtype(dtype)?, WeightLayout::OutIn)?.with_implementation(implementation),
            )
        };
        let transformer = &model.transformer;
        let gamma = wide(&transformer.ln_f.weight)?;
        let beta = wide(&transformer.ln_f.bias)?;
        let table = wide(&model.lm_head.weight()?)?; // (V, C)
        let own = model.lm_head.bias().map(wide).transpose()?;
        let bias = table.matmul(&beta.unsqueeze(1)?)?.squeeze(1)?; // (V)
        let bias = own.map_or_else(|| Ok(bias.clone()), |own| &bias + own)?;
        let table = centered(&table.broadcast_mul(&gamma)?, 1)?;
        Ok(Self {
            embedding: weight(&centered(&wide(&transformer.wte.weight()?)?, 1)?)?,
            positions: centered(&wide(&transformer.wpe)?, 1)?.to_dtype(dtype)?,
            unembedding: weight(&centered(&table, 0)?)?,
            unembedding_bias: centered(&bias, 0)?.to_dtype(dtype)?,
        })
    }
}

/// A block whose layers have taken over what its layer norms did, and the value biases.
fn processed_block(block: &Block, model: &Gpt2LMHeadModel) -> Result<Block> {
    let layer = |weight: &Tensor, bias: &Tensor| dense(model, weight, bias);
    let mut new = block.clone();
    let (w_qkv, b_qkv) = reading(&block.attn.c_attn, &block.ln_1)?;
    let (w_o, b_o) = writing(&block.attn.c_proj)?;
    let columns = |head: usize| block.attn.columns(head)[2].clone();
    let of_head = |head| b_qkv.narrow(0, columns(head).start, columns(head).len());
    let value_biases = (0..block.attn.n_head()).map(of_head).collect::<Result<Vec<_>>>()?;
    let values = Tensor::cat(&value_biases, 0)?.unsqueeze(0)?; // (1, H·D)
    let b_o = (b_o + values.matmul(&w_o)?.squeeze(0)?)?;
    let mut is_value = vec![1f64; b_qkv.elem_count()];
    (0..block.attn.n_head()).flat_map(columns).for_each(|column| is_value[column] = 0.0);
    let kept = Tensor::new(is_value, b_qkv.device())?.to_dtype(b_qkv.dtype())?;
    new.attn.c_attn = layer(&w_qkv, &(b_qkv * kept)?)?;
    new.attn.c_proj = layer(&w_o, &b_o)?;
    let (w_in, b_in) = reading(&block.mlp.c_fc, &block.ln_2)?;
    let (w_out, b_out) = writing(&block.mlp.c_proj)?;
    new.mlp.c_fc = layer(&w_in, &b_in)?;
    new.mlp.c_proj = layer(&w_out, &b_out)?;
    new.ln_1 = unit(&block.ln_1)?;
    new.ln_2 = unit(&block.ln_2)?;
    Ok(new)
}

/// A layer that reads a layer norm, after which a mean of its inputs counts for nothing: weight (in, out) and bias (out).
fn reading(layer: &Conv1D, norm: &LayerNorm) -> Result<(Tensor, Tensor)> {
    let weight = wide(&layer.weight()?)?;
    let added = wide(&norm.bias)?.unsqueeze(0)?.matmul(&weight)?.squeeze(0)?;
    let bias = layer.bias().map(wide).transpose()?;
    let bias = bias.map_or_else(|| Ok(added.clone()), |bias| bias + &added)?;
    let weight = weight.broadcast_mul(&wide(&norm.weight)?.unsqueeze(1)?)?;
    Ok((centered(&weight, 0)?, bias))
}

/// A layer that writes to the stream, whose mean no layer norm reads: weight (in, out) and bias (out).
fn writing(layer: &Conv1D) -> Result<(Tensor, Tensor)> {
    let weight = centered(&wide(&layer.weight()?)?, 1)?;
    let bias = match layer.bias() {
        Some(bias) => centered(&wide(bias)?, 0)?,
        None => Tensor::zeros(weight.dim(1)?, weight.dtype(), weight.device())?,
    };
    Ok((weight, bias))
}

/// A layer as the model's checkpoint stores it, in the model's dtype.
fn dense(model: &Gpt2LMHeadModel, weight: &Tensor, bias: &Tensor) -> Result<Conv1D> {
    let layout = model.config().weight_layout();
    let stored = layout.in_out(&weight.to_dtype(model.dtype())?)?.contiguous()?; // turning twice is turning back
    linear(Weight::new(stored, layout)?, bias.to_dtype(model.dtype())?, model.config().attn_implementation)
}

/// A layer norm that multiplies by 1 and adds 0.
fn unit(norm: &LayerNorm) -> Result<LayerNorm> {
    let mut unit = norm.clone();
    unit.weight = norm.weight.ones_like()?;
    unit.bias = norm.bias.zeros_like()?;
    Ok(unit)
}

/// f32 or wider, so that rounding happens once.
fn wide(x: &Tensor) -> Result<Tensor> {
    x.to_dtype(candle_fused::accumulator(x.dtype()))
}

fn centered(x: &Tensor, dim: usize) -> Result<Tensor> {
    x.broadcast_sub(&x.mean_keepdim(dim)?)
}
