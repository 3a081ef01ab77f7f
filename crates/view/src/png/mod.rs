//! Pictures as PNG, drawn by plotters with a font that is in the binary (its licence: `licenses/DejaVu.txt`).

mod curve;
mod grid;
mod head;

pub use curve::loss_curve;
pub use grid::HeadGrid;
pub use head::head_png;

use candle_core::{Error, Result};
use plotters::coord::Shift;
use plotters::prelude::{BitMapBackend, BitMapElement, DrawingArea, FontStyle, IntoDrawingArea, RGBColor};
use plotters::style::register_font;
use std::error::Error as StdError;
use std::sync::Once;

/// The family that [`draw`] registers, of a name that no other user of plotters has: DejaVu Sans Condensed, with
/// Latin, Greek, Cyrillic and most symbols.
const FONT: &str = "gpt2-view";

const INK: RGBColor = RGBColor(31, 35, 40);
const FAINT: RGBColor = RGBColor(208, 215, 222);
const GREY: RGBColor = RGBColor(101, 109, 118);

type Area<'a> = DrawingArea<BitMapBackend<'a>, Shift>;
type Outcome = std::result::Result<(), Box<dyn StdError>>;

/// Refuses a picture that no viewer opens; the width and the height.
fn checked_size(width: i32, height: i32) -> Result<(u32, u32)> {
    const LARGEST: i32 = 1 << 14;
    match (u32::try_from(width), u32::try_from(height)) {
        (Ok(w), Ok(h)) if width <= LARGEST && height <= LARGEST => Ok((w, h)),
        _ => candle_core::bail!(
            "a picture of {width} x {height} pixels is too large: choose fewer tokens or heads"
        ),
    }
}

/// Draws RGB `pixels` (height, width) at `place`, each as a square of `cell`.
fn bitmap(
    area: &Area,
    place: (i32, i32),
    (width, height): (usize, usize),
    cell: usize,
    pixels: &[u8],
) -> Outcome {
    let mut large = Vec::with_capacity(pixels.len() * cell * cell);
    for row in pixels.chunks_exact(width * 3) {
        let line: Vec<u8> = row.chunks_exact(3).flat_map(|pixel| pixel.repeat(cell)).collect();
        large.extend(line.repeat(cell));
    }
    let size = (u32::try_from(width * cell)?, u32::try_from(height * cell)?);
    let element = BitMapElement::with_owned_buffer(place, size, large).ok_or("a picture of another size")?;
    Ok(area.draw(&element)?)
}

/// A white picture of `width` by `height` pixels with what `paint` draws on it, as the bytes of a PNG.
fn draw((width, height): (u32, u32), paint: impl FnOnce(&Area) -> Outcome) -> Result<Vec<u8>> {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // plotters keeps it for the process; a family that fails to register is an error of each drawing.
        let _ = register_font(FONT, FontStyle::Normal, dejavu::sans_condensed::regular());
    });
    let mut pixels = vec![255; width as usize * height as usize * 3];
    {
        let area = BitMapBackend::with_buffer(&mut pixels, (width, height)).into_drawing_area();
        paint(&area).and_then(|()| Ok(area.present()?)).map_err(|e| Error::msg(format!("drawing: {e}")))?;
    }
    let mut file = vec![];
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().map_err(Error::wrap)?;
    writer.write_image_data(&pixels).map_err(Error::wrap)?;
    writer.finish().map_err(Error::wrap)?;
    Ok(file)
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::palette::Rgb;

    /// A PNG, decoded.
    pub(crate) struct Picture {
        pub(crate) width: usize,
        pub(crate) height: usize,
        /// The colour at x, y.
        pub(crate) pixels: Box<dyn Fn(usize, usize) -> Rgb>,
    }

    pub(crate) fn decode(file: &[u8]) -> Picture {
        let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().expect("a PNG");
        let mut data = vec![0; reader.output_buffer_size().expect("a size")];
        let info = reader.next_frame(&mut data).expect("its pixels");
        assert_eq!((info.color_type, info.bit_depth), (png::ColorType::Rgb, png::BitDepth::Eight));
        let width = info.width as usize;
        let pixels = move |x: usize, y: usize| {
            let pixel = &data[(y * width + x) * 3..];
            (pixel[0], pixel[1], pixel[2])
        };
        Picture { width, height: info.height as usize, pixels: Box::new(pixels) }
    }
}
