//! Pictures as PNG, drawn by plotters with a font that is part of the binary (its licence: `licenses/DejaVu.txt`).

mod canvas;
mod caption;
mod curve;
mod grid;
mod head;

pub use curve::loss_curve;
pub use grid::HeadGrid;
pub use head::head_png;
