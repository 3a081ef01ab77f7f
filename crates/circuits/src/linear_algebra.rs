//! Eigenvalues and singular vectors of a head's circuits, from D by D matrices.

use crate::circuit::Circuit;
use crate::processed::Circuits;
use candle_core::{Device, Result, Tensor};
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

    /// How much a head copies, -1 to 1: the sum of [`token_eigenvalues`](Self::token_eigenvalues) divided by the sum of their
    /// sizes (Elhage et al. 2021). NaN if all are 0.
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
        let (a, b) = (matrix(&a)?.qr(), matrix(&b)?.transpose().qr());
        let decomposed = SVD::try_new(a.r() * b.r().transpose(), true, true, f64::EPSILON, ITERATIONS);
        let Some(SVD { u: Some(u), v_t: Some(v), singular_values }) = decomposed else {
            candle_core::bail!("singular values of head {head}: the decomposition did not converge")
        };
        let (left, right) = ((a.q() * u).transpose(), v * b.q().transpose());
        let mut order: Vec<usize> = (0..singular_values.len()).collect();
        let value = |i: usize| singular_values[i];
        order.sort_by(|&i, &j| value(j).total_cmp(&value(i)));
        let rows = |m: &DMatrix<f64>| -> Result<Tensor> {
            let numbers = order.iter().flat_map(|&i| m.row(i).iter().copied().collect::<Vec<_>>());
            Tensor::from_iter(numbers, &Device::Cpu)?.reshape((order.len(), m.ncols()))
        };
        let (left, right) = (rows(&left)?, rows(&right)?);
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
