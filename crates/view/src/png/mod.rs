//! Pictures as PNG, drawn by plotters with a font that is in the binary.

mod curve;

pub use curve::loss_curve;

use candle_core::{Error, Result};
use plotters::coord::Shift;
use plotters::prelude::{BitMapBackend, DrawingArea, FontStyle, IntoDrawingArea, RGBColor};
use plotters::style::register_font;
use std::error::Error as StdError;
use std::sync::Once;

/// The family that [`draw`] registers: DejaVu Sans, which has Latin, Greek, Cyrillic and most symbols.
const FONT: &str = "sans-serif";

const INK: RGBColor = RGBColor(31, 35, 40);
const FAINT: RGBColor = RGBColor(208, 215, 222);
const GREY: RGBColor = RGBColor(101, 109, 118);

type Area<'a> = DrawingArea<BitMapBackend<'a>, Shift>;

/// A white picture of `width` by `height` pixels with what `paint` draws on it, as the bytes of a PNG.
fn draw(
    (width, height): (u32, u32),
    paint: impl FnOnce(&Area) -> std::result::Result<(), Box<dyn StdError>>,
) -> Result<Vec<u8>> {
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
