//! What a callback hears of a run.

/// Something that happened.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A step was taken. Where [`validates`](StepReport::validates) says so, [`Validated`](Self::Validated) follows.
    Stepped(StepReport),
    /// The model was measured after that step.
    Validated(StepReport, Validation),
}

/// One step of the optimiser.
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
    /// Tokens learnt from in a second.
    pub tokens_per_s: f64,
    /// Whether a validation follows.
    pub validates: bool,
}

/// A measurement on the part of the data that is held back.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Validation {
    /// Mean loss in nats a token.
    pub loss: f64,
    /// Whether it is lower than every one before.
    pub is_best: bool,
}
