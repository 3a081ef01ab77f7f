//! The events that a run reports to its callback.

/// Something that happened.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A step is done. If its [`validates`](StepReport::validates) is true, [`Validated`](Self::Validated) follows.
    Stepped(StepReport),
    /// The model was validated after that step.
    Validated(StepReport, Validation),
}

/// One step of the optimizer.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct StepReport {
    /// Steps done, this one included.
    pub step: u64,
    /// Mean loss of the step's batches, in nats a token.
    pub loss: f32,
    /// Learning rate.
    pub lr: f64,
    /// Norm of all gradients together, before clipping.
    pub grad_norm: f64,
    /// Training tokens per second.
    pub tokens_per_s: f64,
    /// Whether a validation comes next.
    pub validates: bool,
}

/// A measurement on the data held back for validation.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Validation {
    /// Mean loss in nats a token.
    pub loss: f64,
    /// Whether this loss is lower than all before it.
    pub is_best: bool,
}
