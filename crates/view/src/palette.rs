//! The colors of weights: viridis (Smith and van der Walt 2015); and of signed numbers: `RdBu` (Brewer 2003).
//!
//! Viridis rises evenly in lightness from dark purple to bright yellow, so it also works for color-blind
//! people and in grayscale print. Blue and red stay apart for color-blind people, which green and red do not.

/// Red, green and blue, 0 to 255.
pub(crate) type Rgb = (u8, u8, u8);

/// Viridis at 0, 1/8, .., 1. The eye cannot tell straight lines between these points from the real curve.
pub(crate) const ANCHORS: [Rgb; 9] = [
    (68, 1, 84),
    (71, 44, 122),
    (59, 82, 139),
    (44, 114, 142),
    (33, 145, 140),
    (40, 174, 128),
    (94, 201, 98),
    (173, 220, 48),
    (253, 231, 37),
];

/// `RdBu` at -1, -0.8, .., 1: blue below 0, red above, and nearly white at 0.
const SIGNED: [Rgb; 11] = [
    (5, 48, 97),
    (33, 102, 172),
    (67, 147, 195),
    (146, 197, 222),
    (209, 229, 240),
    (247, 247, 247),
    (253, 219, 199),
    (244, 165, 130),
    (214, 96, 77),
    (178, 24, 43),
    (103, 0, 31),
];

/// Viridis in the 6 x 6 x 6 cube of 256-color terminals, picked by hand: the nearest cube colors of an even
/// scale are uneven and repeat.
const CUBE: [u8; 8] = [53, 54, 24, 30, 36, 77, 148, 226];

/// A weight's place on the color scale, 0 to 1; `None` for NaN.
///
/// The place is the square root of the weight, because most weights of a long text are far below a tenth: on an even
/// scale they would all have the same dark purple.
pub(crate) fn level(weight: f32) -> Option<f32> {
    (!weight.is_nan()).then(|| weight.clamp(0.0, 1.0).sqrt())
}

/// The color at `level`, 0 to 1.
pub(crate) fn rgb(level: f32) -> Rgb {
    between(&ANCHORS, level)
}

/// The color of a signed number at `level`, -1 to 1.
pub(crate) fn diverging(level: f32) -> Rgb {
    between(&SIGNED, f32::midpoint(level, 1.0))
}

/// The color at `level`, 0 to 1, of a scale that is given at even distances.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // between 0 and 255 by construction
fn between(anchors: &[Rgb], level: f32) -> Rgb {
    let place = level.clamp(0.0, 1.0) * (anchors.len() - 1) as f32;
    let below = (place as usize).min(anchors.len() - 2);
    let part = place - below as f32;
    let mix = |from: u8, to: u8| (f32::from(from) + (f32::from(to) - f32::from(from)) * part).round() as u8;
    let from = anchors[below];
    let to = anchors[below + 1];
    (mix(from.0, to.0), mix(from.1, to.1), mix(from.2, to.2))
}

/// The number of the 256-color terminal's color at `level`, 0 to 1, and what it looks like.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // an index between 0 and 7
pub(crate) fn cube(level: f32) -> (u8, Rgb) {
    let step = (level.clamp(0.0, 1.0) * (CUBE.len() - 1) as f32).round() as usize;
    let index = CUBE[step.min(CUBE.len() - 1)];
    let rest = index - 16;
    let shades = [0, 95, 135, 175, 215, 255];
    let shade = |part: u8| shades[usize::from(part % 6)];
    (index, (shade(rest / 36), shade(rest / 6), shade(rest)))
}

/// Whether black text reads better than white on `background` (contrast ratio of WCAG 2).
pub(crate) fn wants_black(background: Rgb) -> bool {
    // The ratios are (L + 0.05) / 0.05 and 1.05 / (L + 0.05): equal where (L + 0.05)² = 0.0525.
    luminance(background) > 0.0525_f32.sqrt() - 0.05
}

/// Relative luminance, 0 for black to 1 for white (WCAG 2, after IEC 61966-2-1).
fn luminance((red, green, blue): Rgb) -> f32 {
    let linear = |value: u8| {
        let v = f32::from(value) / 255.0;
        if v <= 0.04045 { v / 12.92 } else { ((v + 0.055) / 1.055).powf(2.4) }
    };
    0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_and_anchors_are_those_of_viridis() {
        assert_eq!(rgb(0.0), (68, 1, 84));
        assert_eq!(rgb(0.5), (33, 145, 140));
        assert_eq!(rgb(1.0), (253, 231, 37));
        assert_eq!(rgb(0.0625), (70, 23, 103)); // half way: 69.5, 22.5, 103
        assert_eq!(cube(0.0), (53, (95, 0, 95)));
        assert_eq!(cube(1.0), (226, (255, 255, 0)));
    }

    #[test]
    fn more_weight_is_never_darker() {
        let levels = || (0..=256u16).map(|i| f32::from(i) / 256.0);
        for colors in [levels().map(rgb).collect::<Vec<_>>(), levels().map(|l| cube(l).1).collect()] {
            let light: Vec<f32> = colors.into_iter().map(luminance).collect();
            // Rounding to whole shades may cost a thousandth.
            assert!(light.windows(2).all(|pair| pair[1] > pair[0] - 1e-3), "{light:?}");
        }
    }

    #[test]
    fn signs_are_told_apart_and_sizes_by_lightness() {
        assert_eq!((diverging(-1.0), diverging(0.0), diverging(1.0)), (SIGNED[0], SIGNED[5], SIGNED[10]));
        assert_eq!((diverging(-7.0), diverging(0.2)), (SIGNED[0], SIGNED[6]));
        for sign in [-1.0, 1.0] {
            let light: Vec<f32> =
                (0..=256u16).map(|i| luminance(diverging(sign * f32::from(i) / 256.0))).collect();
            // Rounding to whole shades may cost this much.
            assert!(light.windows(2).all(|pair| pair[1] < pair[0] + 2e-3), "{light:?}");
            let (red, _, blue) = diverging(sign * 0.1);
            assert_eq!(sign > 0.0, red > blue);
        }
    }

    #[test]
    fn text_has_the_contrast_that_wcag_asks_for() {
        for i in 0..=256u16 {
            let level = f32::from(i) / 256.0;
            for background in [rgb(level), cube(level).1, diverging(level), diverging(-level)] {
                let light = luminance(background) + 0.05;
                let ratio = if wants_black(background) { light / 0.05 } else { 1.05 / light };
                assert!(ratio >= 4.5, "{background:?} has {ratio}");
            }
        }
    }

    #[test]
    fn weights_outside_of_their_range_have_a_level() {
        assert_eq!((level(-1.0), level(0.25), level(7.0)), (Some(0.0), Some(0.5), Some(1.0)));
        assert_eq!((level(f32::INFINITY), level(f32::NAN)), (Some(1.0), None));
    }
}
