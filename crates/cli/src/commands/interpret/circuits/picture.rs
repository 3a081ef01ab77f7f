//! Pictures of circuits: what heads copy and how they feed one another, or the tables of one head.

use super::report::{OneHead, Overview, TokenLink, WrittenScores};
use crate::results::picture::numbers;
use candle_core::{DType, Device, Result, Tensor};
use gpt2_circuits::{Circuit, Circuits};
use gpt2_model::hooks::Head;
use gpt2_view::{Frame, NumberMap, number_maps};

/// A map of copying scores, heads by layer, and one of each kind of composition, from heads to heads.
pub(super) fn of_all(frame: &Frame, report: &Overview) -> Result<Vec<u8>> {
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
        from_zero: false,
    };
    let mut maps = vec![(map, Tensor::from_vec(copying, (layers, heads), &Device::Cpu)?)];
    let all: Vec<String> = report.heads.iter().map(|of| format!("{}.{}", of.layer, of.head)).collect();
    // Nothing comes before the first layer or after the last.
    let from = &all[..all.len() - heads];
    let to = &all[heads..];
    for WrittenScores { reads, scores } in &report.written {
        let name = match *reads {
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
            end: None,
            from_zero: true,
        };
        if layers > 1 {
            let scores = scores.narrow(0, 0, layers - 1)?.narrow(2, 1, layers - 1)?;
            maps.push((map, scores.reshape((from.len(), to.len()))?));
        }
    }
    number_maps(frame, &maps)
}

/// The tables of QK and OV for the tokens that the report names.
pub(super) fn of_head(frame: &Frame, report: &OneHead, circuits: &Circuits) -> Result<Vec<u8>> {
    let head = Head { layer: report.layer, head: report.head };
    let qk = LinkTokens::new(&report.qk);
    let ov = LinkTokens::new(&report.ov);
    let looks = NumberMap {
        name: "QK: where it looks",
        row_axis: "query",
        column_axis: "key",
        unit: "score",
        rows: &qk.from,
        columns: &qk.to,
        end: None,
        from_zero: false,
    };
    let writes = NumberMap {
        name: "OV: what it writes",
        row_axis: "attended",
        column_axis: "logit of",
        unit: "change of the logit",
        rows: &ov.from,
        columns: &ov.to,
        end: None,
        from_zero: false,
    };
    let (scores, changes) =
        (qk.values(circuits, head, Circuit::Qk)?, ov.values(circuits, head, Circuit::Ov)?);
    number_maps(frame, &[(looks, scores), (writes, changes)])
}

/// The tokens of links, each once, in their order.
#[derive(Default)]
struct LinkTokens {
    from: Vec<String>,
    from_ids: Vec<u32>,
    to: Vec<String>,
    to_ids: Vec<u32>,
}

impl LinkTokens {
    fn new(links: &[TokenLink]) -> Self {
        let mut named = Self::default();
        for TokenLink { from, from_id, to, to_id, .. } in links {
            if !named.from_ids.contains(from_id) {
                named.from_ids.push(*from_id);
                named.from.push(from.to_string());
            }
            if !named.to_ids.contains(to_id) {
                named.to_ids.push(*to_id);
                named.to.push(to.to_string());
            }
        }
        named
    }

    /// A circuit's table for these tokens, (from, to).
    fn values(&self, circuits: &Circuits, head: Head, circuit: Circuit) -> Result<Tensor> {
        let columns = Tensor::new(self.to_ids.as_slice(), &Device::Cpu)?;
        circuits.rows(head, circuit, &self.from_ids)?.index_select(&columns, 1)?.to_dtype(DType::F32)
    }
}
