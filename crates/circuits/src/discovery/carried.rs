//! Which changes the edges of a model carry.

use candle_core::Result;
use gpt2_model::hooks::{Hooks, Point};

/// Refuses hooks at points where the stream changes by what no writer adds, or what a reader reads by itself: no edge of a model of
/// this many layers carries that.
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
