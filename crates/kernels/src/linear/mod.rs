//! Linear layers: `x·W + b` with W stored as (in, out), as in GPT-2, and `x·Wᵀ` with W stored as (out,
//! in), as in an output projection that shares the embedding table.
//!
//! For weights that change: `Weight` is the one for all. On the CPU, a few rows (decoding) go through
//! [`few_rows`], which reads each weight once, at the speed of memory; more rows go through [`plain`]. Both widen f16 and bf16,
//! sum in f32 and round the result once. Everything else is Candle's own product.

mod few_rows;
mod plain;
pub(crate) mod product;
pub(crate) mod quantized;
#[cfg(test)]
mod tests;
pub(crate) mod weight;

use crate::cpu::cpu_op::OnCpu;
use crate::cpu::dispatch::{Dispatch, Factors, cpu_product};
use crate::cpu::explain::{Explained, no_kernel, note, ours, shown};
use crate::gpu;
use crate::pointwise::epilogue::{Epilogue, ResidualOrGate};
use candle_core::{D, Result, Tensor};
use few_rows::FEW_ROWS;
use plain::{LinearOnto, PlainLinear, RowProducts, candles_matmul};

/// The code of a product of a few rows on a GPU, as explanations show it.
pub(crate) const WITH_PRODUCT: &str = "fused, on the GPU, with the product";

/// `x·W + b`, then `epilogue`; differentiable.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::{Dispatch, Epilogue, Implementation, linear};
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::new(&[[1f32, 2.]], &Device::Cpu)?;
/// let weight = Tensor::new(&[[1f32, 0., 3.], [0., 1., 4.]], &Device::Cpu)?; // (in, out)
/// let bias = Tensor::new(&[0f32, 0., 0.5], &Device::Cpu)?;
/// let dispatch = Dispatch::of(Implementation::Auto, &x);
/// let y = linear(&x, &weight, Some(&bias), Epilogue::None, dispatch)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[1., 2., 11.5]]);
/// # Ok(())
/// # }
/// ```
///
/// # Shapes
/// `x` (.., in), `weight` (in, out), `bias` (out), a residual or gate (.., out) -> (.., out)
///
/// # Errors
/// When the shapes do not fit each other.
pub fn linear(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    epilogue: Epilogue,
    dispatch: Dispatch,
) -> Result<Tensor> {
    let (n_in, n_out) = weight.dims2()?;
    let zeros = || Tensor::zeros(n_out, weight.dtype(), weight.device());
    let bias = &bias.map_or_else(zeros, |bias| Ok(bias.clone()))?;
    if bias.dims() != [n_out] {
        candle_core::bail!(
            "linear: weight [{n_in}, {n_out}] needs a bias of [{n_out}], got {:?}",
            bias.dims()
        )
    }
    let (flat, shape) = flatten(x, n_in, n_out)?;
    check_join(epilogue, &shape)?;
    if let Some(y) = gpu::few_rows(dispatch, [&flat, weight, bias], None, epilogue)? {
        note(|| explained(x, weight, epilogue, WITH_PRODUCT.to_owned(), None));
        return y.reshape(shape);
    }
    if let Some(y) = gpu::linear(dispatch, &flat, weight, bias, epilogue)? {
        note(|| explained(x, weight, epilogue, "fused, on the GPU".to_owned(), None));
        return y.reshape(shape);
    }
    let has_kernel = cpu_product(&[x, weight, bias]) && rows_are_contiguous(weight);
    note(|| not_packed(x, weight, epilogue, has_kernel, dispatch.factors()));
    if let Epilogue::Residual(residual) = epilogue
        && has_kernel
        && dispatch.factors() == Factors::AsStored
        && cpu_product(&[residual, x])
        && [residual, x, weight, bias].iter().all(|t| !t.track_op())
    {
        let residual = residual.contiguous()?.reshape((flat.dim(0)?, bias.elem_count()))?;
        let op = OnCpu(LinearOnto { bias: bias.clone() });
        return flat.apply_op3_no_bwd(weight, &residual, &op)?.reshape(shape);
    }
    let y = if has_kernel {
        flat.apply_op3(weight, &bias.contiguous()?, OnCpu(PlainLinear { factors: dispatch.factors() }))?
            .reshape(shape)?
    } else {
        candles_matmul(&flat, &weight.contiguous()?)?.broadcast_add(bias)?.reshape(shape)?
    };
    match epilogue {
        Epilogue::Activation(activation) => activation.forward_in_place(y), // no other tensor shares its memory
        _ => epilogue.apply(y),
    }
}

/// `x·Wᵀ`, differentiable.
///
/// # Shapes
/// `x` (.., in), `weight` (out, in) -> (.., out)
///
/// # Errors
/// When the shapes do not fit each other.
pub fn linear_transposed(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let (n_out, n_in) = weight.dims2()?;
    let (flat, shape) = flatten(x, n_in, n_out)?;
    let few = flat.dim(0)? <= FEW_ROWS && !x.track_op() && !weight.track_op();
    let has_kernel = few && cpu_product(&[x, weight]) && weight.is_contiguous();
    let transposed = weight.t()?;
    note(|| not_packed(x, &transposed, Epilogue::None, has_kernel, Factors::AsStored));
    if has_kernel {
        return flat.apply_op2_no_bwd(weight, &OnCpu(RowProducts))?.reshape(shape);
    }
    candles_matmul(&flat, &transposed)?.reshape(shape)
}

/// A product with a weight (in, out) that is not packed.
fn not_packed(
    x: &Tensor,
    weight: &Tensor,
    epilogue: Epilogue,
    has_kernel: bool,
    factors: Factors,
) -> Explained {
    let why = no_kernel(&[x, weight]).unwrap_or_else(|| {
        if !cpu_product(&[x, weight]) {
            "this build of Candle multiplies by MKL or Accelerate".to_owned()
        } else if weight.track_op() {
            "the weight learns, so that it is not packed".to_owned()
        } else {
            "the weight is not packed: Weight::pack and nn::Linear pack it once".to_owned()
        }
    });
    let code = match factors {
        _ if !has_kernel => "Candle's matmul".to_owned(),
        Factors::AsStored => ours("plain weight"),
        Factors::Bf16 => ours("plain weight, rounded to bf16"),
    };
    explained(x, weight, epilogue, code, Some(why))
}

fn explained(
    x: &Tensor,
    weight: &Tensor,
    epilogue: Epilogue,
    code: String,
    slower_because: Option<String>,
) -> Explained {
    let inputs = format!("{}, {}{}", shown("x", x), shown("W", weight), epilogue.shown());
    Explained { operation: "linear", inputs, code, slower_because }
}

/// Whether each row is contiguous: true of a whole matrix, or of some of its columns.
fn rows_are_contiguous(weight: &Tensor) -> bool {
    weight.stride()[1] == 1
}

/// Fails if a residual or a gate has another shape than the product.
pub(crate) fn check_join(epilogue: Epilogue, shape: &[usize]) -> Result<()> {
    let other = epilogue.join().filter(|join| join.get().dims() != shape);
    match other {
        None => Ok(()),
        Some(ResidualOrGate::Add(residual)) => {
            candle_core::bail!("linear: x·W is {shape:?}, which cannot be added to {:?}", residual.dims())
        }
        Some(ResidualOrGate::Gate(_, gate)) => {
            candle_core::bail!("linear: x·W is {shape:?}, which a gate of {:?} does not fit", gate.dims())
        }
    }
}

/// `x` as a contiguous (rows, in), and the shape of a product with a weight (`n_in`, `n_out`).
pub(crate) fn flatten(x: &Tensor, n_in: usize, n_out: usize) -> Result<(Tensor, Vec<usize>)> {
    if x.dim(D::Minus1)? != n_in || n_in == 0 {
        candle_core::bail!("linear: x {:?} does not end in the {n_in} inputs of the weight", x.dims())
    }
    let mut shape = x.dims().to_vec();
    *shape.last_mut().unwrap_or(&mut 0) = n_out;
    Ok((x.contiguous()?.reshape((x.elem_count() / n_in, n_in))?, shape))
}
