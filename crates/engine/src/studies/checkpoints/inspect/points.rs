//! The names of the hook points.

use gpt2_model::Config;
use gpt2_model::hooks::Point;
use serde::Serialize;

/// The hook points of a model.
#[derive(Debug, Serialize)]
pub struct PointsReport {
    /// The number of layers.
    pub layers: usize,
    /// The points, those of every layer once.
    pub points: Vec<PointRow>,
    /// The model's sizes.
    #[serde(skip)]
    pub config: Config,
}

/// A hook point.
#[derive(Debug, Serialize)]
pub struct PointRow {
    /// Its name in TransformerLens 2.x; N is a layer.
    pub name: String,
    /// Its other spellings.
    pub others: Vec<String>,
    /// The shape of the value there.
    pub shape: &'static str,
}

impl PointsReport {
    pub(super) fn new(config: &Config) -> Self {
        let row = |point: Point| {
            let names = point.names().into_iter().map(|name| name.replacen("blocks.0.", "blocks.N.", 1));
            let mut names: Vec<String> = names.collect();
            let name = names.remove(0);
            PointRow { name, others: names, shape: point.shape() }
        };
        let points = Point::of_model(1).map(row).collect();
        Self { layers: config.n_layer, points, config: config.clone() }
    }
}
