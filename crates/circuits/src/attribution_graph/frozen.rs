//! Attention and layer norms of one pass, frozen into linear maps, from the gradient at what they write to that at what they read.

use candle_core::{D, DType, Device, Result, Tensor};
use gpt2_model::hooks::{Point, Recorder};
use gpt2_model::{Block, HeadWeights, LayerNorm};

/// f32 on the CPU, contiguous.
pub(super) fn f32_of(x: &Tensor) -> Result<Tensor> {
    x.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.contiguous()
}

/// The recorded value of the one text at a point, without its batch dimension, in f32 on the CPU.
pub(super) fn recorded(recorder: &Recorder, point: Point) -> Result<Tensor> {
    f32_of(&recorder.value(point)?.squeeze(0)?)
}

/// A layer norm whose divisors are constants: `(x - mean(x))·slope + β`.
#[derive(Debug)]
pub(super) struct FrozenNorm {
    /// γ over the standard deviation of each position, (T, C).
    slope: Tensor,
    /// β, (C)
    beta: Tensor,
}

impl FrozenNorm {
    /// `scale` (T, 1)
    pub(super) fn new(norm: &LayerNorm, scale: &Tensor) -> Result<Self> {
        let gamma = f32_of(&norm.weight)?.unsqueeze(0)?; // (1, C)
        Ok(Self { slope: gamma.broadcast_div(scale)?, beta: f32_of(&norm.bias)? })
    }

    /// A norm that ends before γ and β.
    pub(super) fn normalized(norm: &LayerNorm, scale: &Tensor) -> Result<Self> {
        let beta = f32_of(&norm.bias)?.zeros_like()?;
        Ok(Self { slope: beta.ones_like()?.unsqueeze(0)?.broadcast_div(scale)?, beta })
    }

    /// The gradient at the input from that at the output, (n, T, C).
    pub(super) fn back(&self, gradient: &Tensor) -> Result<Tensor> {
        centered(&gradient.broadcast_mul(&self.slope)?)
    }

    /// This gradient for one position of each row, (n, C).
    pub(super) fn back_at(&self, gradient: &Tensor, positions: &Tensor) -> Result<Tensor> {
        centered(&(gradient * self.slope.index_select(positions, 0)?)?)
    }

    /// The part of β: (.., C) -> (..)
    pub(super) fn constant(&self, gradient: &Tensor) -> Result<Tensor> {
        gradient.broadcast_mul(&self.beta)?.sum(D::Minus1)
    }
}

/// Less the mean over C: a layer norm takes it off, and its derivative does, too.
fn centered(x: &Tensor) -> Result<Tensor> {
    x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)
}

/// Attention with constant weights, behind its frozen layer norm.
#[derive(Debug)]
pub(super) struct FrozenAttention {
    norm: FrozenNorm,
    /// The weights, (H, keys, queries): transposed.
    pattern: Tensor,
    /// `W_V` of all heads, transposed, (H·D, C).
    values: Tensor,
    /// `W_O` of all heads, transposed, (C, H·D).
    outputs: Tensor,
    /// (H, 1, 1, D)
    value_bias: Tensor,
    /// (C)
    output_bias: Option<Tensor>,
}

impl FrozenAttention {
    pub(super) fn new(block: &Block, layer: usize, recorder: &Recorder) -> Result<Self> {
        let heads = block.attn.head_weights()?;
        let of = |part: fn(&HeadWeights) -> &Tensor| heads.iter().map(move |head| f32_of(part(head)));
        let stacked = |part: fn(&HeadWeights) -> &Tensor, dim: usize| {
            Tensor::cat(&of(part).collect::<Result<Vec<_>>>()?, dim)?.t()?.contiguous()
        };
        let biases = of(|head| &head.v_bias).collect::<Result<Vec<_>>>()?;
        let pattern = recorded(recorder, Point::Pattern(layer))?; // (H, T, T)
        Ok(Self {
            norm: FrozenNorm::new(&block.ln_1, &recorded(recorder, Point::Ln1Scale(layer))?)?,
            pattern: pattern.transpose(1, 2)?.contiguous()?,
            values: stacked(|head| &head.v, 1)?,
            outputs: stacked(|head| &head.o, 0)?,
            value_bias: Tensor::stack(&biases, 0)?.unsqueeze(1)?.unsqueeze(1)?,
            output_bias: block.attn.c_proj.bias().map(f32_of).transpose()?,
        })
    }

    /// The gradient at the stream before the block, and the part of the constants, from the gradient at the stream after attention:
    /// (n, T, C) -> (n, T, C), (n)
    pub(super) fn back(&self, gradient: &Tensor) -> Result<(Tensor, Tensor)> {
        let (n, t, c) = gradient.dims3()?;
        let h = self.pattern.dim(0)?;
        let at_heads = gradient.reshape((n * t, c))?.matmul(&self.outputs)?.reshape((n, t, h, ()))?;
        // Of each head, the targets side by side: a product of (1, H, T, T) with (n, ..) would copy the pattern for each.
        let at_heads = at_heads.permute((2, 1, 0, 3))?.contiguous()?.reshape((h, t, ()))?; // (H, T, n·D)
        let at_values = self.pattern.matmul(&at_heads)?.reshape((h, t, n, ()))?; // (H, keys, n, D)
        let mut constants = at_values.broadcast_mul(&self.value_bias)?.sum((0, 1, 3))?;
        let rows = at_values.permute((2, 1, 0, 3))?.contiguous()?.reshape((n * t, ()))?;
        let at_norm = rows.matmul(&self.values)?.reshape((n, t, c))?;
        constants = (constants + self.norm.constant(&at_norm)?.sum(1)?)?;
        if let Some(bias) = &self.output_bias {
            constants = (constants + gradient.broadcast_mul(bias)?.sum((1, 2))?)?;
        }
        Ok(((gradient + self.norm.back(&at_norm)?)?, constants))
    }
}
