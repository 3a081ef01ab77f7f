//! Analyses of heads' matrices in the residual stream: eigenvalues, singular vectors, and composition scores.

use crate::circuits::{Circuit, Circuits, Matrices};
use candle_core::{DType, Device, Result, Tensor};
use gpt2_model::hooks::Head;
use nalgebra::{DMatrix, SVD, Schur};

/// Far more than a decomposition of a head's matrices takes; without a limit, one that fails would not end.
const ITERATIONS: usize = 100_000;

/// A complex number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Eigenvalue {
    /// The real part.
    pub re: f64,
    /// The imaginary part.
    pub im: f64,
}

impl Eigenvalue {
    fn size(self) -> f64 {
        self.re.hypot(self.im)
    }
}

/// The singular value decomposition of a circuit in the residual stream: `left · diag(values) · right`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Singular {
    /// The D singular values, largest first. The other C - D are 0.
    pub values: Vec<f64>,
    /// f64 (D, C): in row i, the direction of the residual stream that the i-th value reads.
    pub left: Tensor,
    /// f64 (D, C): in row i, the direction that it writes.
    pub right: Tensor,
}

impl Circuits {
    /// The eigenvalues of the OV circuit by token, `W_E·W_V·W_O·W_U` (V, V), largest size first: D of them, the others are 0.
    /// They are those of the D by D matrix `W_O·W_U·W_E·W_V`. A head whose eigenvalues are positive raises the logits of the
    /// tokens that it attends to: it copies.
    ///
    /// # Errors
    /// When there is no such head, or the decomposition does not converge.
    pub fn token_eigenvalues(&self, head: Head) -> Result<Vec<Eigenvalue>> {
        let (v, o) = self.factors(head, Circuit::Ov)?;
        eigenvalues(&o.matmul(self.token_product()?)?.matmul(&v)?)
    }

    /// The eigenvalues of the OV circuit in the residual stream, `W_V·W_O` (C, C), largest size first: D of them.
    ///
    /// # Errors
    /// When there is no such head.
    pub fn stream_eigenvalues(&self, head: Head) -> Result<Vec<Eigenvalue>> {
        let (v, o) = self.factors(head, Circuit::Ov)?;
        eigenvalues(&o.matmul(&v)?)
    }

    /// The copying score of a head, -1 to 1: the sum of [`token_eigenvalues`](Self::token_eigenvalues) divided by the
    /// sum of their sizes (Elhage et al. 2021). NaN if all are 0.
    ///
    /// # Errors
    /// When there is no such head.
    pub fn copying_score(&self, head: Head) -> Result<f64> {
        let values = self.token_eigenvalues(head)?;
        let sizes: f64 = values.iter().map(|value| value.size()).sum();
        Ok(values.iter().map(|value| value.re).sum::<f64>() / sizes)
    }

    /// The singular value decomposition of a circuit in the residual stream, `W_V·W_O` or `W_Q·W_Kᵀ` (without the scale of
    /// scores).
    ///
    /// # Errors
    /// When there is no such head, or the decomposition does not converge.
    pub fn singular(&self, head: Head, circuit: Circuit) -> Result<Singular> {
        let (a, b) = self.factors(head, circuit)?; // (C, D), (D, C)
        // With A = Q·R and Bᵀ = Q'·R', A·B = Q·(R·R'ᵀ)·Q'ᵀ: the values are those of a D by D matrix.
        let a = matrix(&a)?.qr();
        let b = matrix(&b)?.transpose().qr();
        let decomposed = SVD::try_new(a.r() * b.r().transpose(), true, true, f64::EPSILON, ITERATIONS);
        let Some(SVD { u: Some(u), v_t: Some(v), singular_values }) = decomposed else {
            candle_core::bail!("singular values of head {head}: the decomposition did not converge")
        };
        let left = (a.q() * u).transpose();
        let right = v * b.q().transpose();
        let mut order: Vec<usize> = (0..singular_values.len()).collect();
        let value = |i: usize| singular_values[i];
        order.sort_by(|&i, &j| value(j).total_cmp(&value(i)));
        let rows = |m: &DMatrix<f64>| -> Result<Tensor> {
            let numbers = order.iter().flat_map(|&i| m.row(i).iter().copied().collect::<Vec<_>>());
            Tensor::from_iter(numbers, &Device::Cpu)?.reshape((order.len(), m.ncols()))
        };
        let left = rows(&left)?;
        let right = rows(&right)?;
        Ok(Singular { values: order.iter().map(|&i| value(i)).collect(), left, right })
    }
}

/// The eigenvalues of a square f64 matrix, largest size first; of a pair, the one with the positive imaginary part first.
fn eigenvalues(x: &Tensor) -> Result<Vec<Eigenvalue>> {
    let Some(schur) = Schur::try_new(matrix(x)?, f64::EPSILON, ITERATIONS) else {
        candle_core::bail!("eigenvalues: the decomposition did not converge")
    };
    let found = schur.complex_eigenvalues();
    let mut values: Vec<_> = found.iter().map(|z| Eigenvalue { re: z.re, im: z.im }).collect();
    // The members of a pair have the same size but for rounding.
    let rounded = |value: &Eigenvalue| (value.size() * 1e12).round();
    values.sort_by(|a, b| rounded(b).total_cmp(&rounded(a)).then(b.im.total_cmp(&a.im)));
    Ok(values)
}

fn matrix(x: &Tensor) -> Result<DMatrix<f64>> {
    let (rows, columns) = x.dims2()?;
    Ok(DMatrix::from_row_slice(rows, columns, &x.flatten_all()?.to_vec1::<f64>()?))
}

/// The part of the later head that reads the earlier head's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Composition {
    /// Its queries: `‖W_OV·W_QK‖ / (‖W_OV‖·‖W_QK‖)`.
    Q,
    /// Its keys: the same with `W_QKᵀ`. An induction head's keys read what a previous-token head writes.
    K,
    /// Its values: the same with the later head's `W_OV`.
    V,
}

impl Composition {
    /// All three, in the order of the field.
    pub const ALL: [Self; 3] = [Self::Q, Self::K, Self::V];
}

impl Circuits {
    /// The composition scores of all pairs of heads (Elhage et al. 2021), in Frobenius norms of matrices in the residual stream:
    /// `‖W_V·W_O·R‖ / (‖W_V·W_O‖·‖R‖)`, with R of the later head as [`Composition`] says. 0 to 1; two random matrices have about
    /// `1 / √C`.
    ///
    /// Calls `progress` with the number of pairs of layers done and their total; its error ends the work.
    ///
    /// # Shapes
    /// -> f64 (L, H, L, H): the layer and head that write, then those that read. A pair that does not lead to a later layer is
    /// 0, and a pair with a head whose weights are 0 is NaN.
    ///
    /// # Errors
    /// When layers have different numbers of heads.
    pub fn composition(
        &self,
        kind: Composition,
        progress: &mut dyn FnMut(usize, usize) -> Result<()>,
    ) -> Result<Tensor> {
        let layers = self.layers();
        let heads = self.heads(0);
        let readers = (0..layers).map(|layer| self.reader(layer, kind)).collect::<Result<Vec<_>>>()?;
        let mut done = 0;
        let total = layers * layers.saturating_sub(1) / 2;
        let mut scores = vec![];
        for writer in 0..layers {
            let values = gram(&self.stacked(writer, |head| &head.v)?)?; // (H, D, D)
            let outputs = self.stacked(writer, |head| &head.o)?; // (H, D, C)
            let unit = outputs.matmul(&outputs.transpose(1, 2)?.contiguous()?)?;
            let written = (&values * &unit)?.sum((1, 2))?.sqrt()?; // ‖W_V·W_O‖ of each head
            let mut of_writer = vec![];
            for (layer, reader) in readers.iter().enumerate() {
                of_writer.push(if layer > writer {
                    done += 1;
                    progress(done, total)?;
                    reader.scores(&values, &outputs, &written)?
                } else {
                    Tensor::zeros((heads, heads), DType::F64, &Device::Cpu)?
                });
            }
            scores.push(Tensor::stack(&of_writer, 1)?); // (H, L, H)
        }
        Tensor::stack(&scores, 0)
    }

    /// The matrices by which the heads of a layer read, for pairs with every earlier layer.
    fn reader(&self, layer: usize, kind: Composition) -> Result<ReaderFactors> {
        let (read, rest) = match kind {
            Composition::Q => (self.stacked(layer, |head| &head.q)?, self.stacked(layer, |head| &head.k)?),
            Composition::K => (self.stacked(layer, |head| &head.k)?, self.stacked(layer, |head| &head.q)?),
            Composition::V => {
                let output = self.stacked(layer, |head| &head.o)?;
                (self.stacked(layer, |head| &head.v)?, output.transpose(1, 2)?.contiguous()?)
            }
        };
        let rest = gram(&rest)?;
        let norms = (gram(&read)? * &rest)?.sum((1, 2))?.sqrt()?;
        Ok(ReaderFactors { read, rest, norms })
    }

    /// A matrix of each head of a layer, in f64.
    fn stacked(&self, layer: usize, of: impl Fn(&Matrices) -> &Tensor) -> Result<Tensor> {
        let heads =
            (0..self.heads(layer)).map(|head| of(self.of(Head { layer, head })?).to_dtype(DType::F64));
        Tensor::stack(&heads.collect::<Result<Vec<_>>>()?, 0)
    }
}

/// The factors of what a layer's heads read, `R = read·restᵀ`.
struct ReaderFactors {
    /// (H, C, D), next to the writing head's `W_O`.
    read: Tensor,
    /// `restᵀ·rest`, (H, D, D).
    rest: Tensor,
    /// `‖R‖` of each head.
    norms: Tensor,
}

impl ReaderFactors {
    /// The scores of all pairs of a writing head, by its `W_Vᵀ·W_V` (H, D, D), `W_O` (H, D, C) and norm, and a head that reads:
    /// (H, H).
    fn scores(&self, values: &Tensor, outputs: &Tensor, written: &Tensor) -> Result<Tensor> {
        // ‖A·X·Bᵀ‖² = Σ ((AᵀA)·X·(BᵀB)) ∘ X with X = W_O·read, all of it D by D.
        let (h, d, c) = outputs.dims3()?;
        let (readers, ..) = self.read.dims3()?;
        let read = self.read.transpose(0, 1)?.contiguous()?.reshape((c, readers * d))?;
        let x = outputs.reshape((h * d, c))?.matmul(&read)?.reshape((h, d, readers, d))?;
        let x = x.transpose(1, 2)?.contiguous()?.reshape((h * readers, d, d))?;
        let left = values.unsqueeze(1)?.repeat((1, readers, 1, 1))?.reshape((h * readers, d, d))?;
        let right = self.rest.unsqueeze(0)?.repeat((h, 1, 1, 1))?.reshape((h * readers, d, d))?;
        let norms = (left.matmul(&x)?.matmul(&right)? * &x)?.sum((1, 2))?.sqrt()?.reshape((h, readers))?;
        norms.broadcast_div(&written.unsqueeze(1)?)?.broadcast_div(&self.norms.unsqueeze(0)?)
    }
}

/// `xᵀ·x` of each matrix: (H, C, D) -> (H, D, D)
fn gram(x: &Tensor) -> Result<Tensor> {
    x.transpose(1, 2)?.contiguous()?.matmul(x)
}
