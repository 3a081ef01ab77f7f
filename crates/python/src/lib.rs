//! The native half of the Python package `gpt2_candle`. It hands the libraries' functions to Python and holds no logic of its own; the
//! Python half (`python/gpt2_candle`) gives them their names, defaults and types.

mod analyses;
mod array;
mod changes;
mod checkpoints;
mod dictionary;
mod error;
mod files;
mod generate;
mod guard;
mod hooks;
mod load;
mod loaded;
mod metric;
mod model;
mod observer;
mod pattern;
mod recording;
mod run;
mod study;
mod train;
mod views;

use candle_fused::KeepLarge;
use mimalloc::MiMalloc;

/// Keeps the pages of activations from one pass to the next, as the command does.
#[global_allocator]
static ALLOCATOR: KeepLarge<MiMalloc> = KeepLarge::new(MiMalloc);

#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::array::Array;
    #[pymodule_export]
    use crate::checkpoints::{
        import_named, inspect_named, inspect_points, merge_named, quantize_named, verify_named,
    };
    #[pymodule_export]
    use crate::dictionary::Dictionary;
    #[pymodule_export]
    use crate::files::{graph_page, write_file};
    #[pymodule_export]
    use crate::generate::SteppedGeneration;
    #[pymodule_export]
    use crate::guard::{forked, point_names};
    #[pymodule_export]
    use crate::model::Model;
    #[pymodule_export]
    use crate::pattern::LazyPattern;
    #[pymodule_export]
    use crate::recording::train_features;
    #[pymodule_export]
    use crate::study::studies;
    #[pymodule_export]
    use crate::train::{known_text, train_defaults};

    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
