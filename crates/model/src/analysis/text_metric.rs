//! Metrics of whole texts: the loss, the divergence from another run, and those of one's own.

use candle_core::{D, Result, Tensor};
use candle_nn::ops::log_softmax;
use std::fmt::{self, Debug};

/// A measure of the logits of texts. Closures become one through [`FunctionMetric`].
pub trait TextMetric: Debug + Send + Sync {
    /// A number for each text, differentiable by Candle.
    ///
    /// # Shapes
    /// `logits` (B, T, V) in f32 or f64, or (B, 1, V) unless [`reads_all_positions`](Self::reads_all_positions) -> (B)
    ///
    /// # Errors
    /// When the logits do not fit.
    fn of(&self, logits: &Tensor) -> Result<Tensor>;

    /// Whether it needs the logits of every position, not only those of the last one.
    fn reads_all_positions(&self) -> bool;

    /// Whether it gives one number for all texts together. Analyses that run several texts at a time, each for itself, refuse it.
    fn is_of_all_together(&self) -> bool {
        false
    }
}

/// The mean surprise in nats of each token of a text but the first.
#[derive(Debug, Clone)]
pub struct Loss {
    /// The ids of each text, or of the only one, whose tokens all texts are measured by. Texts end at the last position.
    pub texts: Vec<Vec<u32>>,
}

impl TextMetric for Loss {
    fn of(&self, logits: &Tensor) -> Result<Tensor> {
        let (b, t, v) = logits.dims3()?;
        if self.texts.len() != b && self.texts.len() != 1 {
            candle_core::bail!("loss: {} texts for {b} rows of logits", self.texts.len())
        }
        let of_row = |row: usize| -> Result<Tensor> {
            let text = &self.texts[row.min(self.texts.len() - 1)];
            if text.len() < 2 || text.len() > t || text.iter().any(|&id| id as usize >= v) {
                candle_core::bail!(
                    "loss: a text of {} tokens for {t} positions; expected 2 to {t}, below {v}",
                    text.len()
                )
            }
            let n = text.len() - 1;
            let rows = logits.narrow(0, row, 1)?.squeeze(0)?.narrow(0, t - text.len(), n)?; // (n, V)
            let targets = Tensor::new(&text[1..], logits.device())?.unsqueeze(1)?;
            log_softmax(&rows, D::Minus1)?.gather(&targets, 1)?.mean_all()?.neg()
        };
        Tensor::stack(&(0..b).map(of_row).collect::<Result<Vec<_>>>()?, 0)
    }

    fn reads_all_positions(&self) -> bool {
        true
    }
}

/// The Kullback-Leibler divergence in nats of a run's predictions from those of a reference: the mean over positions of
/// `sum p ln(p / q)` with p the reference's probabilities.
#[derive(Debug, Clone)]
pub struct Divergence {
    /// (rows, positions, V)
    log_probabilities: Tensor,
}

impl Divergence {
    /// The divergence from these logits: of each text or of one for all, at the last position alone or at each.
    ///
    /// # Shapes
    /// `logits` (B or 1, T or 1, V)
    ///
    /// # Errors
    /// When the logits do not have rank 3.
    pub fn from(logits: &Tensor) -> Result<Self> {
        logits.dims3()?;
        let logits = logits.to_dtype(candle_fused::accumulator(logits.dtype()))?.detach();
        Ok(Self { log_probabilities: log_softmax(&logits, D::Minus1)? })
    }
}

impl TextMetric for Divergence {
    fn of(&self, logits: &Tensor) -> Result<Tensor> {
        let (b, t, v) = logits.dims3()?;
        let (rows, positions, width) = self.log_probabilities.dims3()?;
        if (rows != b && rows != 1) || (positions != t && positions != 1) || width != v {
            candle_core::bail!(
                "divergence: the reference has logits {:?}, the run {:?}",
                self.log_probabilities.dims(),
                logits.dims()
            )
        }
        let logits = if positions == 1 { logits.narrow(1, t - 1, 1)? } else { logits.clone() };
        let p = self.log_probabilities.to_dtype(logits.dtype())?.broadcast_as(logits.shape())?;
        let q = log_softmax(&logits, D::Minus1)?;
        // What is impossible in the reference adds nothing, whatever the run makes of it.
        let terms = (p.exp()? * (&p - q)?)?;
        let possible = p.exp()?.gt(0f64)?;
        possible.where_cond(&terms, &terms.zeros_like()?)?.sum(D::Minus1)?.mean(1)
    }

    fn reads_all_positions(&self) -> bool {
        self.log_probabilities.dims().get(1).is_some_and(|&positions| positions > 1)
    }
}

/// The value of a function and its gradient with respect to the logits.
pub type ValueAndGradient = (f64, Tensor);

/// The function behind a [`FunctionMetric`].
type LogitFunction = dyn Fn(&Tensor) -> Result<ValueAndGradient> + Send + Sync;

/// A function of logits of your own, which gives its value and its gradient.
pub struct FunctionMetric {
    function: Box<LogitFunction>,
    together: bool,
}

impl FunctionMetric {
    /// The metric of each text by itself: the function gets (1, T, V).
    pub fn of_each(function: impl Fn(&Tensor) -> Result<ValueAndGradient> + Send + Sync + 'static) -> Self {
        Self { function: Box::new(function), together: false }
    }

    /// One metric of all texts together: the function gets (B, T, V).
    pub fn of_all(function: impl Fn(&Tensor) -> Result<ValueAndGradient> + Send + Sync + 'static) -> Self {
        Self { function: Box::new(function), together: true }
    }

    /// A number with this value and gradient.
    fn linear(&self, logits: &Tensor) -> Result<Tensor> {
        let (value, gradient) = (self.function)(&logits.detach())?;
        if gradient.dims() != logits.dims() {
            candle_core::bail!(
                "metric: its gradient is {:?}, expected the logits' shape {:?}",
                gradient.dims(),
                logits.dims()
            )
        }
        let gradient = gradient.to_device(logits.device())?.to_dtype(logits.dtype())?.detach();
        // Its own value is taken off, so that only the gradient stays of it.
        let slope = (logits * gradient)?.sum_all()?;
        (&slope - slope.detach())? + value
    }
}

impl Debug for FunctionMetric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a function of logits")
    }
}

impl TextMetric for FunctionMetric {
    fn of(&self, logits: &Tensor) -> Result<Tensor> {
        if self.together {
            return self.linear(logits)?.unsqueeze(0);
        }
        let of_row = |row| self.linear(&logits.narrow(0, row, 1)?.contiguous()?);
        Tensor::stack(&(0..logits.dim(0)?).map(of_row).collect::<Result<Vec<_>>>()?, 0)
    }

    fn reads_all_positions(&self) -> bool {
        true
    }

    fn is_of_all_together(&self) -> bool {
        self.together
    }
}
