//! The plan of a recording: the values, the windows, and the settings that a store keeps.

use super::options::Options;
use crate::provenance::RunProvenance;
use crate::studies::study::PointName;
use crate::studies::study::Run;
use crate::texts::{By, Windowing};
use anyhow::bail;
use candle_core::DType;
use gpt2_model::hooks::Point;
use serde::Serialize;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The settings that every shard depends on.
#[derive(Serialize)]
struct ShardSettings<'a> {
    provenance: &'a RunProvenance,
    /// The unit that counts as a document.
    #[serde(flatten)]
    by: &'a By,
    points: &'a [String],
    store: &'static str,
    window: usize,
    shard_tokens: u32,
    bos: bool,
    /// The model's config and weights, the tokenizer, and what interventions read from files.
    fingerprint: String,
    isa: &'static str,
}

/// The values to record of each token, and the windows to compute them in.
pub(super) struct Plan {
    pub(super) points: Vec<Point>,
    /// The points' names, as the user spelled them and as the shards keep them.
    pub(super) names: Vec<String>,
    pub(super) windowing: Windowing,
}

impl Plan {
    /// The plan of these options, checked against the model.
    pub(super) fn new(options: &Options, run: &Run) -> anyhow::Result<Self> {
        let Run { opened, interventions, .. } = run;
        let spelling = opened.spelling;
        let config = opened.model.config();
        let points_option = spelling.option("points");
        let found = PointName::all(&points_option, &options.points, config.n_layer)?;
        let (names, points): (Vec<String>, Vec<Point>) = found.into_iter().unzip();
        if points.is_empty() {
            bail!("{points_option}: there is none; name the values to record");
        }
        if let Some((name, _)) =
            names.iter().zip(&points).find(|(_, point)| matches!(point, Point::Scores(_) | Point::Pattern(_)))
        {
            bail!(
                "{points_option} {name}: has a value for each pair of tokens, not for each token; record another point"
            );
        }
        let mean_of = spelling.option("mean-of");
        if interventions.options().need_whole_texts() {
            bail!(
                "interventions at positions, or with means over the text, do not fit windows; take fixed means with {mean_of}"
            );
        }
        let windowing = Windowing::new(config, options.bos, options.window, spelling)?;
        let own = windowing.window - windowing.added();
        if (options.shard_tokens as usize) < own {
            bail!(
                "{}: a window of {own} tokens does not fit; give more, or a smaller {}",
                spelling.given("shard-tokens", options.shard_tokens),
                spelling.option("window")
            );
        }
        if options.bos && interventions.options().given().contains(&"mean-ablate") {
            let bos = spelling.option("bos");
            bail!("{bos}: it would move the positions of the means of {mean_of}; leave one of them out");
        }
        Ok(Self { points, names, windowing })
    }

    /// The settings that every shard depends on, as the store keeps them.
    pub(super) fn facts(
        &self,
        options: &Options,
        run: &Run,
        provenance: &RunProvenance,
    ) -> anyhow::Result<serde_json::Value> {
        let opened = run.opened;
        let mut hash = DefaultHasher::new();
        (opened.model.fingerprint()?, opened.tokenizer()?.to_json().ok()).hash(&mut hash);
        run.interventions.hash(&mut hash, run.observer)?;
        Ok(serde_json::to_value(ShardSettings {
            provenance,
            by: &options.unit(opened.spelling)?,
            points: &self.names,
            store: DType::as_str(&options.store.dtype()),
            window: self.windowing.window,
            shard_tokens: options.shard_tokens,
            bos: self.windowing.bos.is_some(),
            fingerprint: format!("{:016x}", hash.finish()),
            isa: candle_fused::Isa::current().as_str(),
        })?)
    }
}
