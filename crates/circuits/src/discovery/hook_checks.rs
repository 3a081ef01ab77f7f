//! Checks that edges of the model carry the changes that hooks make.

use candle_core::Result;
use gpt2_model::hooks::{Hooks, Point};

/// Refuses hooks at points where they change the stream other than through a writer's output, or change the input of a
/// reader: no edge of a model with this many layers carries such a change.
///
/// # Errors
/// When the hooks want such a point.
pub fn check_carried(hooks: &dyn Hooks, layers: usize) -> Result<()> {
    let refused = |point: &Point| match *point {
        Point::ResidPre(layer) => layer > 0,
        Point::AttnIn(_)
        | Point::QInput(_)
        | Point::KInput(_)
        | Point::VInput(_)
        | Point::MlpIn(_)
        | Point::Ln1Scale(_)
        | Point::Ln1Normalized(_)
        | Point::Ln1(_)
        | Point::AttnOut(_)
        | Point::ResidMid(_)
        | Point::ResidPost(_) => true,
        _ => false,
    };
    if let Some(point) = Point::of_model(layers).filter(refused).find(|&point| hooks.wants(point)) {
        candle_core::bail!(
            "a change at {point} is not what a head, an MLP or the embeddings add, so no edge carries it; change heads' outputs, \
                 MLPs' outputs or the embeddings instead"
        )
    }
    Ok(())
}
