//! The learning rate of each step.

/// A learning rate that rises over `warmup` steps to `peak` and falls along half a cosine to `floor` at
/// step `total` (Loshchilov & Hutter 2017).
#[derive(Debug, Clone, PartialEq)]
pub struct CosineSchedule {
    /// The highest rate.
    pub peak: f64,
    /// The rate at the end.
    pub floor: f64,
    /// Steps over which the rate rises linearly.
    pub warmup: usize,
    /// The number of all steps.
    pub total: usize,
}

impl CosineSchedule {
    /// The rate of step `step`, counted from 0.
    #[must_use]
    pub fn rate(&self, step: usize) -> f64 {
        if step < self.warmup {
            return self.peak * (step + 1) as f64 / self.warmup as f64;
        }
        let span = self.total.saturating_sub(self.warmup).max(1);
        let done = ((step - self.warmup) as f64 / span as f64).min(1.0);
        self.floor + 0.5 * (self.peak - self.floor) * (1.0 + (std::f64::consts::PI * done).cos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_rises_then_falls_to_the_floor() {
        let schedule = CosineSchedule { peak: 1.0, floor: 0.1, warmup: 10, total: 110 };
        assert!((schedule.rate(0) - 0.1).abs() < 1e-12);
        assert!((schedule.rate(9) - 1.0).abs() < 1e-12);
        assert!((schedule.rate(60) - 0.55).abs() < 1e-12, "half way down");
        assert!((schedule.rate(110) - 0.1).abs() < 1e-12);
        assert!((schedule.rate(10_000) - 0.1).abs() < 1e-12);
    }
}
