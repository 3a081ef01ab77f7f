//! Muon (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"): gradient descent with momentum, whose step
//! for a matrix is made nearly orthogonal by five steps of a Newton-Schulz iteration, so that all its directions learn alike.
//!
//! It is for the matrices of hidden layers. Embeddings, heads, norms and biases take [`AdamW`](crate::AdamW).

use candle_core::{Result, Tensor, Var};
use candle_fused::adamw::sum_of_squares;
use gpt2_model::Config;
use gpt2_model::config::QkvOrder;
use gpt2_model::linear::{Epilogue, Weight, WeightLayout};

/// The coefficients of the iteration `x ← a·x + (b·xxᵀ + c·(xxᵀ)²)·x`. They raise small singular values as fast as they can, and leave
/// all between about 0.7 and 1.2.
const A: f64 = 3.4445;
const B: f64 = -4.7750;
const C: f64 = 2.0315;
/// The number of its steps.
const STEPS: usize = 5;
/// The least norm to divide by.
const EPS: f64 = 1e-7;

/// The names of the weights that Muon steps: the linear layers of the blocks.
const HIDDEN: [&str; 4] =
    [".attn.c_attn.weight", ".attn.c_proj.weight", ".mlp.c_fc.weight", ".mlp.c_proj.weight"];

/// The coefficients of a step of Muon.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MuonStep {
    /// The learning rate: a step changes a weight by a matrix whose singular values are about this, times sqrt(outputs / inputs) if there
    /// are more outputs.
    pub lr: f64,
    /// The decay of the running mean of gradients: 0.95 in the original.
    pub momentum: f64,
    /// The decay of the parameter itself, times `lr`.
    pub weight_decay: f64,
    /// Gradients are multiplied by this factor first, which is how they are clipped.
    pub gradient_scale: f64,
}

/// The matrices in a weight, each of which is made orthogonal by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HiddenMatrices {
    /// The axis order of the weight.
    pub layout: WeightLayout,
    /// The number of outputs of each matrix; they lie side by side along the axis of outputs.
    pub outputs: Vec<usize>,
}

impl HiddenMatrices {
    /// The matrices in the weight of a linear layer, by its name in a model with this config; `None` for whatever Muon does not step. The
    /// queries', keys' and values' projections in `c_attn` are three. Where each head has its own in turn, as in `gpt_bigcode` without
    /// shared keys, they are taken as one.
    #[must_use]
    pub fn of(name: &str, weight: &Tensor, config: &Config) -> Option<Self> {
        let hidden = HIDDEN.iter().position(|end| name.ends_with(end))?;
        let layout = config.weight_layout();
        let (_, n_out) = layout.shape(weight.dim(0).ok()?, weight.dim(1).ok()?);
        let keys = config.key_heads() * config.head_dim();
        let outputs = match config.qkv_order() {
            QkvOrder::SideBySide if hidden == 0 => vec![config.n_embd, keys, keys],
            _ => vec![n_out],
        };
        Some(Self { layout, outputs })
    }

    /// The whole change of a weight, but for the learning rate, from the mean of its gradients.
    pub(crate) fn direction(&self, update: &Tensor) -> Result<Tensor> {
        let axis = self.axis();
        let n_in = update.dim(1 - axis)?;
        let mut first = 0;
        let mut parts = vec![];
        for &n_out in &self.outputs {
            let part = orthogonalized(&update.narrow(axis, first, n_out)?)?;
            parts.push((part * (n_out as f64 / n_in as f64).max(1.0).sqrt())?);
            first += n_out;
        }
        if first != update.dim(axis)? {
            candle_core::bail!("Muon: the matrices have {first} outputs, the weight {:?}", update.dims())
        }
        if let [whole] = &parts[..] { Ok(whole.clone()) } else { Tensor::cat(&parts, axis) }
    }

    /// The axis of outputs.
    fn axis(&self) -> usize {
        match self.layout {
            WeightLayout::InOut => 1,
            WeightLayout::OutIn => 0,
        }
    }
}

impl MuonStep {
    /// Takes one step of `parameter` along `gradient`, whose running mean is `m`:
    ///
    /// ```text
    /// m = momentum·m + (1 - momentum)·g          u = momentum·m + (1 - momentum)·g    (Nesterov)
    /// p = p - lr·weight_decay·p - lr·sqrt(max(1, outputs/inputs))·orthogonalized(u)
    /// ```
    ///
    /// # Shapes
    /// All three (in, out) or (out, in), as `matrices` says
    ///
    /// # Errors
    /// When the shapes differ, or the numbers of outputs do not add up.
    pub fn apply(
        &self,
        parameter: &Var,
        gradient: &Tensor,
        m: &Var,
        matrices: &HiddenMatrices,
    ) -> Result<()> {
        let direction = matrices.direction(&self.momentum(gradient, m)?)?;
        self.change(parameter, &direction)
    }

    /// Updates the running mean, and returns the way to go. Every number depends on its own gradient alone.
    pub(crate) fn momentum(&self, gradient: &Tensor, m: &Var) -> Result<Tensor> {
        let fresh = (gradient * (self.gradient_scale * (1.0 - self.momentum)))?;
        m.set(&((m.as_tensor() * self.momentum)? + &fresh)?)?;
        (m.as_tensor() * self.momentum)? + fresh
    }

    /// Changes a parameter, or a piece of one, in this direction.
    pub(crate) fn change(&self, parameter: &Var, direction: &Tensor) -> Result<()> {
        let kept = (parameter.as_detached_tensor() * (1.0 - self.lr * self.weight_decay))?;
        parameter.set(&(kept - (direction * self.lr)?)?)
    }
}

/// The matrix with the same singular vectors whose singular values are all near 1, by five steps of the Newton-Schulz iteration with
/// Jordan's coefficients, in the matrix's own dtype (the original takes bf16).
///
/// # Shapes
/// `x` and the result (rows, columns)
///
/// # Errors
/// When `x` is no matrix.
pub fn orthogonalized(x: &Tensor) -> Result<Tensor> {
    let (rows, columns) = x.dims2()?;
    let is_tall = rows > columns;
    let x = x.detach();
    let wide = if is_tall { x.t()?.contiguous()? } else { x.contiguous()? };
    let norm = sum_of_squares(&wide)?.sqrt().max(EPS);
    let mut x = (wide / norm)?;
    for _ in 0..STEPS {
        let gram = product(&x, &x, WeightLayout::OutIn)?; // (rows, rows): x·xᵀ
        let square = product(&gram, &gram, WeightLayout::InOut)?;
        let change = ((&gram * B)? + (square * C)?)?;
        x = ((&x * A)? + product(&change, &x, WeightLayout::InOut)?)?;
    }
    if is_tall { x.t()?.contiguous() } else { Ok(x) }
}

/// `x·y`, or `x·yᵀ` for (out, in), with the same bits for any number of threads.
fn product(x: &Tensor, y: &Tensor, layout: WeightLayout) -> Result<Tensor> {
    Weight::plain(y.clone(), layout)?.forward(x, None, Epilogue::None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};

    fn matrix(rows: usize, columns: usize, dtype: DType) -> Result<Tensor> {
        let values: Vec<f64> =
            (0..rows * columns).map(|i| ((i * i * 7 + i * 3) % 23) as f64 / 11.5 - 1.0).collect();
        Tensor::from_vec(values, (rows, columns), &Device::Cpu)?.to_dtype(dtype)
    }

    fn largest(x: &Tensor) -> Result<f64> {
        x.to_dtype(DType::F64)?.abs()?.flatten_all()?.max(0)?.to_scalar()
    }

    /// The singular values of a scaled identity are all alike: five times the polynomial of one number.
    #[test]
    fn a_singular_value_takes_five_steps_of_the_polynomial() -> Result<()> {
        for n in [1, 4, 16] {
            let found = orthogonalized(&(Tensor::eye(n, DType::F64, &Device::Cpu)? * 0.3)?)?;
            let mut s = 1.0 / (n as f64).sqrt();
            for _ in 0..5 {
                s = A * s + B * s.powi(3) + C * s.powi(5);
            }
            let expected = (Tensor::eye(n, DType::F64, &Device::Cpu)? * s)?;
            assert!(largest(&(found - expected)?)? < 1e-12, "{n}");
        }
        Ok(())
    }

    #[test]
    fn a_transposed_matrix_gives_the_transposed_result() -> Result<()> {
        let x = matrix(6, 15, DType::F64)?;
        let way = orthogonalized(&x)?;
        let back = orthogonalized(&x.t()?)?.t()?;
        assert!(largest(&(way - back)?)? < 1e-12);
        let outputs = vec![10, 5];
        let in_out =
            HiddenMatrices { layout: WeightLayout::InOut, outputs: outputs.clone() }.direction(&x)?;
        let out_in =
            HiddenMatrices { layout: WeightLayout::OutIn, outputs }.direction(&x.t()?.contiguous()?)?;
        assert!(largest(&(in_out - out_in.t()?)?)? < 1e-12);
        Ok(())
    }

    #[test]
    fn the_parts_of_c_attn_are_steps_of_their_own() -> Result<()> {
        let config = Config { n_embd: 6, n_head: 2, ..Config::gpt2() };
        let weight = matrix(6, 18, DType::F64)?;
        let matrices = HiddenMatrices::of("h.3.attn.c_attn.weight", &weight, &config);
        let matrices = matrices.ok_or_else(|| candle_core::Error::msg("a hidden layer"))?;
        assert_eq!(matrices.outputs, [6, 6, 6]);
        let together = matrices.direction(&weight)?;
        for part in 0..3 {
            let alone = orthogonalized(&weight.narrow(1, 6 * part, 6)?)?;
            assert!(largest(&(together.narrow(1, 6 * part, 6)? - alone)?)? < 1e-15);
        }
        for (name, outputs) in
            [("h.0.mlp.c_fc.weight", Some(18)), ("wte.weight", None), ("h.0.ln_1.weight", None)]
        {
            assert_eq!(
                HiddenMatrices::of(name, &weight, &config).map(|found| found.outputs),
                outputs.map(|n| vec![n])
            );
        }
        let wrong = HiddenMatrices { layout: WeightLayout::InOut, outputs: vec![6, 6] };
        assert!(wrong.direction(&weight).is_err());
        Ok(())
    }

    #[test]
    fn zeros_stay_zeros() -> Result<()> {
        assert!(largest(&orthogonalized(&Tensor::zeros((3, 5), DType::F32, &Device::Cpu)?)?)? <= 0.0);
        Ok(())
    }
}
