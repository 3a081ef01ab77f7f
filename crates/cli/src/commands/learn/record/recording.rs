//! The values to record of each token.

use super::args::RecordArgs;
use crate::output::terminal::TERMINAL;
use anyhow::bail;
use candle_core::DType;
use gpt2_engine::interventions::Prepared;
use gpt2_engine::studies::PointName;
use gpt2_engine::texts::Windowing;
use gpt2_engine::{Opened, Spelling};
use gpt2_model::hooks::Point;

/// The values to record of each token, and the windows and interventions to compute them with.
pub(super) struct Recording<'a> {
    pub(super) changes: Prepared<'a>,
    pub(super) points: Vec<Point>,
    /// The points' names, as the user spelled them and as the shards keep them.
    pub(super) names: Vec<String>,
    pub(super) windowing: Windowing,
    pub(super) store: DType,
}

impl<'a> Recording<'a> {
    pub(super) fn new(args: &RecordArgs, opened: &'a Opened) -> anyhow::Result<Self> {
        let config = opened.model.config();
        let found = PointName::all("--points", &args.points, config.n_layer)?;
        let (names, points): (Vec<String>, Vec<Point>) = found.into_iter().unzip();
        if let Some((name, _)) =
            names.iter().zip(&points).find(|(_, point)| matches!(point, Point::Scores(_) | Point::Pattern(_)))
        {
            bail!(
                "--points {name}: has a value for each pair of tokens, not for each token; record another point"
            );
        }
        let interventions = args.interventions.options();
        if interventions.need_whole_texts() {
            bail!(
                "interventions at positions, or with means over the text, do not fit windows; take fixed means with --mean-of"
            );
        }
        let windowing = Windowing::new(config, args.bos, args.window, Spelling::Flags)?;
        let own = windowing.window - windowing.added();
        if (args.shard_tokens as usize) < own {
            bail!(
                "--shard-tokens {}: a window of {own} tokens does not fit; give more, or a smaller --window",
                args.shard_tokens
            );
        }
        if args.bos && !args.interventions.mean_ablate.is_empty() {
            bail!("--bos: it would move the positions of the means of --mean-of; leave one of them out");
        }
        let changes = Prepared::new(interventions, opened, &TERMINAL)?;
        Ok(Self { changes, points, names, windowing, store: args.store })
    }
}
