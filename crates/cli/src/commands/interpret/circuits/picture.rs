//! Pictures of circuits: what heads copy and how they feed one another, or the tables of one head.

use crate::results::picture::numbers;
use candle_core::{Device, Result, Tensor};
use gpt2_engine::studies::interpret::circuits::{LinkTokens, OneHead, Overview};
use gpt2_view::{Frame, NumberMap, number_maps};

/// A map of copying scores, heads by layer, and one of each kind of composition, from heads to heads.
pub(super) fn of_all(frame: &Frame, report: &Overview, compositions: &[(String, Tensor)]) -> Result<Vec<u8>> {
    let layers = report.heads.last().map_or(0, |last| last.layer + 1);
    let heads = report.heads.len() / layers.max(1);
    let rows = numbers(layers);
    let columns = numbers(heads);
    let copying: Vec<f64> = report.heads.iter().map(|head| head.copying.unwrap_or(f64::NAN)).collect();
    let map = NumberMap {
        name: "copying",
        row_axis: "layer",
        column_axis: "head",
        unit: "copying score",
        rows: &rows,
        columns: &columns,
        end: Some(1.0),
        ..NumberMap::default()
    };
    let mut maps = vec![(map, Tensor::from_vec(copying, (layers, heads), &Device::Cpu)?)];
    let all: Vec<String> = report.heads.iter().map(|of| format!("{}.{}", of.layer, of.head)).collect();
    // Nothing comes before the first layer or after the last.
    let from = &all[..all.len() - heads];
    let to = &all[heads..];
    // A head feeds those of later layers.
    let absent: Vec<bool> = (0..from.len() * to.len())
        .map(|i| i / to.len().max(1) / heads > i % to.len().max(1) / heads)
        .collect();
    for (reads, scores) in compositions {
        let name = match reads.as_str() {
            "q" => "into queries",
            "k" => "into keys",
            _ => "into values",
        };
        let row_axis = "from head";
        let column_axis = "to head";
        let unit = "composition score";
        let map = NumberMap {
            name,
            row_axis,
            column_axis,
            unit,
            rows: from,
            columns: to,
            from_zero: true,
            absent: &absent,
            ..NumberMap::default()
        };
        if layers > 1 {
            let scores = scores.narrow(0, 0, layers - 1)?.narrow(2, 1, layers - 1)?;
            maps.push((map, scores.reshape((from.len(), to.len()))?));
        }
    }
    number_maps(frame, &maps)
}

/// The tables of QK and OV for the tokens that the report names.
pub(super) fn of_head(frame: &Frame, report: &OneHead, tables: &[(String, Tensor)]) -> Result<Vec<u8>> {
    let qk = LinkTokens::new(&report.qk);
    let ov = LinkTokens::new(&report.ov);
    let looks = NumberMap {
        name: "QK: where it looks",
        row_axis: "query",
        column_axis: "key",
        unit: "score",
        rows: &qk.from,
        columns: &qk.to,
        ..NumberMap::default()
    };
    let writes = NumberMap {
        name: "OV: what it writes",
        row_axis: "attended",
        column_axis: "logit of",
        unit: "change of the logit",
        rows: &ov.from,
        columns: &ov.to,
        ..NumberMap::default()
    };
    let mut maps = vec![];
    for (circuit, map) in [("qk", looks), ("ov", writes)] {
        if let Some((_, table)) = tables.iter().find(|(name, _)| name == circuit) {
            maps.push((map, table.clone()));
        }
    }
    number_maps(frame, &maps)
}
