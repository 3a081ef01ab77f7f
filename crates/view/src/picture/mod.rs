//! Pictures as PNG, SVG and PDF. A view lays its marks out in a [`scene`] once; three writers turn that into files, so
//! that the formats cannot disagree. The font is part of the binary (its license: `licenses/DejaVu.txt`).

mod axes;
mod cell_numbers;
mod curve;
mod format;
mod frame;
mod graph;
mod grid;
mod head;
mod heading;
mod letters;
mod number_map;
mod pdf;
mod png;
mod scene;
mod svg;

pub use curve::loss_curve;
pub use format::PictureFormat;
pub use frame::{Frame, PictureWidth};
pub use graph::{GraphLink, GraphNode, GraphPicture};
pub use grid::HeadGrid;
pub use head::{head_picture, rollout_picture};
pub use number_map::{NumberMap, number_maps};
