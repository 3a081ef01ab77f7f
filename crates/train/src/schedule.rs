//! The learning rate of each step.

use serde::{Deserialize, Serialize};

/// The course of the learning rate after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Schedule {
    /// Half a cosine down to a tenth (Loshchilov & Hutter 2017).
    #[default]
    Cosine,
    /// A straight line down to 0 at the end.
    Linear,
    /// Constant, then a straight line down to 0 over the last fifth of the steps (Hägele et al. 2024).
    Trapezoid,
}

/// A learning rate that rises in a straight line over `warmup` steps to `peak`, and then follows a schedule to `floor` at step
/// `total`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LearningRate {
    /// The course after the warm-up.
    pub schedule: Schedule,
    /// The highest rate.
    pub peak: f64,
    /// The rate at the end.
    pub floor: f64,
    /// Steps over which the rate rises.
    pub warmup: usize,
    /// The number of all steps.
    pub total: usize,
}

impl LearningRate {
    /// A rate that ends where its schedule does.
    #[must_use]
    pub fn new(schedule: Schedule, peak: f64, warmup: usize, total: usize) -> Self {
        let floor = match schedule {
            Schedule::Cosine => peak / 10.0,
            Schedule::Linear | Schedule::Trapezoid => 0.0,
        };
        Self { schedule, peak, floor, warmup, total }
    }

    /// The rate of step `step`, counted from 0.
    #[must_use]
    pub fn rate(&self, step: usize) -> f64 {
        if step < self.warmup {
            return self.peak * (step + 1) as f64 / self.warmup as f64;
        }
        let falls_from = match self.schedule {
            Schedule::Cosine | Schedule::Linear => self.warmup,
            Schedule::Trapezoid => self.warmup.max(self.total - self.total / 5),
        };
        let span = self.total.saturating_sub(falls_from).max(1);
        let done = (step.saturating_sub(falls_from) as f64 / span as f64).min(1.0);
        let left = match self.schedule {
            Schedule::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * done).cos()),
            Schedule::Linear | Schedule::Trapezoid => 1.0 - done,
        };
        self.floor + left * (self.peak - self.floor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_rates(schedule: Schedule, expected: &[(usize, f64)]) {
        let rate = LearningRate::new(schedule, 1.0, 10, 110);
        for &(step, expected) in expected {
            let found = rate.rate(step);
            assert!((found - expected).abs() < 1e-12, "{schedule:?}, step {step}: {found}, not {expected}");
        }
    }

    #[test]
    fn the_rate_rises_then_falls_to_the_floor() {
        for schedule in [Schedule::Cosine, Schedule::Linear, Schedule::Trapezoid] {
            // The fall begins at the peak.
            assert_rates(schedule, &[(0, 0.1), (4, 0.5), (9, 1.0), (10, 1.0)]);
        }
        // Half way down, at the end, and beyond.
        assert_rates(Schedule::Cosine, &[(60, 0.55), (110, 0.1), (10_000, 0.1)]);
        assert_rates(Schedule::Linear, &[(35, 0.75), (60, 0.5), (85, 0.25), (110, 0.0), (10_000, 0.0)]);
        // The last 22 of 110 steps.
        assert_rates(Schedule::Trapezoid, &[(60, 1.0), (88, 1.0), (99, 0.5), (110, 0.0), (10_000, 0.0)]);
    }

    #[test]
    fn a_warm_up_of_all_steps_leaves_no_fall() {
        for schedule in [Schedule::Cosine, Schedule::Linear, Schedule::Trapezoid] {
            for (warmup, total) in [(8, 8), (20, 8), (0, 1)] {
                let rate = LearningRate::new(schedule, 1.0, warmup, total);
                let expected = if warmup == 0 { 1.0 } else { 8.0 / warmup as f64 };
                assert!((rate.rate(total.min(8) - 1) - expected).abs() < 1e-12, "{schedule:?} {warmup}");
            }
        }
    }
}
