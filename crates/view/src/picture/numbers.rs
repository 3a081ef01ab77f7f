//! Numbers on axes and in cells.

/// At most `most` round numbers in `from..=to`, evenly spaced by 1, 2 or 5 times a power of ten, and how many digits
/// they need after the point.
pub(super) fn round_numbers(from: f64, to: f64, most: usize) -> (Vec<f64>, usize) {
    let least = (to - from) / most.max(1) as f64;
    let power = least.log10().floor();
    if !power.is_finite() {
        return (vec![], 0);
    }
    let steps = [1.0, 2.0, 5.0, 10.0].map(|n| n * 10f64.powf(power));
    let step = steps.into_iter().find(|step| *step >= least * (1.0 - 1e-9)).unwrap_or(steps[3]);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // at most 300
    let digits = (-(step * 1.000_001).log10().floor()).clamp(0.0, 300.0) as usize;
    let first = (from / step - 1e-9).ceil();
    let numbers = (0..=most).map(|n| (first + n as f64) * step);
    (numbers.take_while(|number| *number <= to + 1e-9 * step).collect(), digits)
}

/// `value` with this many digits after the point, and never a zero with a sign.
pub(super) fn fixed(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    match text.strip_prefix('-') {
        Some(rest) if rest.chars().all(|c| matches!(c, '0' | '.')) => rest.to_owned(),
        _ => text,
    }
}

/// A number of an axis: an exponent if plain digits would be too long.
pub(super) fn of_axis(value: f64, digits: usize) -> String {
    if digits > 4 || value.abs() >= 1e6 { Exponent(value).to_string() } else { fixed(value, digits) }
}

/// At most three digits and an exponent.
struct Exponent(f64);

impl std::fmt::Display for Exponent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!("{:.2e}", self.0);
        let (number, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let number = number.trim_end_matches('0').trim_end_matches('.');
        if exponent == "0" {
            f.write_str(if number.is_empty() { "0" } else { number })
        } else {
            write!(f, "{number}e{exponent}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_round_and_cover_the_range() {
        let texts = |from: f64, to: f64, most: usize| {
            let (numbers, digits) = round_numbers(from, to, most);
            numbers.into_iter().map(|n| of_axis(n, digits)).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(texts(0.0, 1.0, 5), "0.0 0.2 0.4 0.6 0.8 1.0");
        assert_eq!(texts(1.0, 100.0, 8), "20 40 60 80 100");
        assert_eq!(texts(2.93, 3.01, 8), "2.93 2.94 2.95 2.96 2.97 2.98 2.99 3.00 3.01");
        assert_eq!(texts(-0.07, 0.07, 4), "-0.05 0.00 0.05");
        assert_eq!(texts(-2e-7, 2e-7, 4), "-2e-7 -1e-7 0 1e-7 2e-7");
        assert_eq!(texts(0.0, 3e30, 3), "0 1e30 2e30 3e30");
        assert_eq!(texts(5.0, 5.0, 8), "");
        assert_eq!(texts(f64::NAN, 5.0, 8), "");
        assert_eq!((fixed(-0.001, 2), fixed(-0.006, 2)), ("0.00".into(), "-0.01".into()));
    }
}
