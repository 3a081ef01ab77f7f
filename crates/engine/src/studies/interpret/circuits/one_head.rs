//! One head by token: the largest entries of its circuits, eigenvalues and singular directions.

use super::options::{Options, known};
use crate::observer::steps;
use crate::open::{Label, Opened};
use crate::provenance::RunProvenance;
use crate::studies::study::{Outcome, Run};
use crate::texts::{Answer, single_token};
use candle_core::{DType, Device, Tensor};
use gpt2_circuits::{Circuit, Circuits, Eigenvalue, Entry};
use gpt2_model::hooks::Head;
use serde::Serialize;

/// The most singular values to list, and the tokens to list for each.
const SINGULAR: usize = 5;
const TOKENS: usize = 6;

/// One head by token.
#[derive(Debug, Serialize)]
pub struct OneHead {
    /// The facts that it depends on.
    pub provenance: RunProvenance,
    /// Its layer.
    pub layer: usize,
    /// Its number in the layer.
    pub head: usize,
    /// The degree to which it copies, -1 to 1.
    pub copying: Option<f64>,
    /// Of OV by token: real and imaginary part, largest size first.
    pub eigenvalues: Vec<[f64; 2]>,
    /// Scores of a key's token for a query's token.
    pub qk: Vec<TokenLink>,
    /// Changes of a token's logit when a token is attended to.
    pub ov: Vec<TokenLink>,
    /// The number of tokens that are left out because training hardly saw them; `None` if none should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unseen: Option<usize>,
    /// The singular directions of OV.
    pub ov_singular: Vec<Direction>,
    /// The singular directions of QK.
    pub qk_singular: Vec<Direction>,
}

/// An entry of a circuit's table.
#[derive(Debug, Serialize)]
pub struct TokenLink {
    /// The row's token.
    pub from: Label,
    /// Its id.
    pub from_id: u32,
    /// The column's token.
    pub to: Label,
    /// Its id.
    pub to_id: u32,
    /// The entry.
    pub value: f64,
}

/// A singular value, and the tokens of its two directions. Changing the signs of both directions gives the same pair.
#[derive(Debug, Serialize)]
pub struct Direction {
    /// The singular value.
    pub value: f64,
    /// The tokens that the first direction reads most.
    pub reads: Vec<Label>,
    /// The tokens that the second direction writes most, or reads on the side of keys.
    pub writes: Vec<Label>,
}

/// The tokens of links, each once, in their order.
#[derive(Debug, Default)]
pub struct LinkTokens {
    /// The rows' tokens.
    pub from: Vec<String>,
    /// The columns' tokens.
    pub to: Vec<String>,
    from_ids: Vec<u32>,
    to_ids: Vec<u32>,
}

impl LinkTokens {
    /// The tokens of some links.
    #[must_use]
    pub fn new(links: &[TokenLink]) -> Self {
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
    fn values(&self, circuits: &Circuits, head: Head, circuit: Circuit) -> candle_core::Result<Tensor> {
        let columns = Tensor::new(self.to_ids.as_slice(), &Device::Cpu)?;
        circuits.rows(head, circuit, &self.from_ids)?.index_select(&columns, 1)?.to_dtype(DType::F32)
    }
}

impl Options {
    pub(super) fn one_head(
        &self,
        run: &Run,
        circuits: &Circuits,
        head: Head,
    ) -> anyhow::Result<Outcome<OneHead>> {
        let opened = run.opened;
        let provenance = RunProvenance::of_weights(opened)?;
        let option = opened.spelling.option("token");
        let id = |token: &Answer| match token {
            Answer::Text(text) => single_token(opened, &option, text, run.observer),
            Answer::Id(id) => Ok(*id),
        };
        let tokens = self.token.iter().map(id).collect::<anyhow::Result<Vec<u32>>>()?;
        let unseen = if self.seen_only { circuits.unseen(&impossible(opened))? } else { vec![] };
        let links = |circuit: Circuit| -> anyhow::Result<Vec<TokenLink>> {
            let entries = if tokens.is_empty() {
                let mut progress = steps(run.observer, "tokens");
                circuits.largest_entries_without(head, circuit, self.top, &unseen, &mut progress)?
            } else {
                rows(circuits, head, circuit, &tokens, self.top, &unseen)?
            };
            Ok(entries.into_iter().map(|entry| link(opened, entry)).collect())
        };
        let eigenvalues = circuits.token_eigenvalues(head)?;
        let report = OneHead {
            provenance,
            layer: head.layer,
            head: head.head,
            copying: known(circuits.copying_score(head)?),
            eigenvalues: eigenvalues.into_iter().map(|Eigenvalue { re, im }| [re, im]).collect(),
            qk: links(Circuit::Qk)?,
            ov: links(Circuit::Ov)?,
            unseen: self.seen_only.then_some(unseen.len()),
            ov_singular: directions(opened, circuits, head, Circuit::Ov, &unseen)?,
            qk_singular: directions(opened, circuits, head, Circuit::Qk, &unseen)?,
        };
        let mut tensors = vec![];
        if run.wants_tensors {
            for (name, links, circuit) in [("qk", &report.qk, Circuit::Qk), ("ov", &report.ov, Circuit::Ov)] {
                tensors.push((name.to_owned(), LinkTokens::new(links).values(circuits, head, circuit)?));
            }
        }
        Ok(Outcome { report, tensors })
    }
}

/// The tokens of bytes that UTF-8 never has, which no text can bring.
#[allow(clippy::cast_possible_truncation)] // token ids are u32
fn impossible(opened: &Opened) -> Vec<u32> {
    let Ok(tokenizer) = opened.tokenizer() else { return vec![] };
    let is_impossible = |id: &u32| {
        let spelled = tokenizer.spelled(&[*id]).concat();
        let byte = spelled.strip_prefix('<').and_then(|rest| rest.strip_suffix('>'));
        let byte = byte.filter(|hex| hex.len() == 2).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        byte.is_some_and(|byte| matches!(byte, 0xc0 | 0xc1 | 0xf5..))
    };
    (0..opened.model.config().vocab_size as u32).filter(is_impossible).collect()
}

/// The largest singular values of a circuit, with the tokens of their directions.
fn directions(
    opened: &Opened,
    circuits: &Circuits,
    head: Head,
    circuit: Circuit,
    without: &[u32],
) -> anyhow::Result<Vec<Direction>> {
    let found = circuits.singular(head, circuit)?;
    let named = |direction: &Tensor, reads: bool| -> anyhow::Result<Vec<Label>> {
        let tokens = circuits.tokens_of(direction, reads, TOKENS + without.len())?.into_iter();
        let ids = tokens.map(|(id, _)| id).filter(|id| without.binary_search(id).is_err());
        Ok(ids.take(TOKENS).map(|id| opened.label(id)).collect())
    };
    let direction = |i: usize| -> anyhow::Result<Direction> {
        // QK reads on both sides: the queries' tokens and the keys'.
        let writes = named(&found.right.get(i)?, circuit == Circuit::Qk)?;
        Ok(Direction { value: found.values[i], reads: named(&found.left.get(i)?, true)?, writes })
    };
    (0..SINGULAR.min(found.values.len())).map(direction).collect()
}

/// The largest entries of some tokens' rows, token by token.
#[allow(clippy::cast_possible_truncation)] // token ids are u32
fn rows(
    circuits: &Circuits,
    head: Head,
    circuit: Circuit,
    tokens: &[u32],
    count: usize,
    without: &[u32],
) -> anyhow::Result<Vec<Entry>> {
    let table = circuits.rows(head, circuit, tokens)?.to_dtype(DType::F64)?.to_vec2::<f64>()?;
    let mut all = vec![];
    for (&from, row) in tokens.iter().zip(table) {
        let entries = row.into_iter().enumerate().map(|(to, value)| Entry { from, to: to as u32, value });
        let is_in = |entry: &Entry| without.binary_search(&entry.to).is_err();
        let mut entries: Vec<Entry> = entries.filter(is_in).collect();
        entries.sort_by(|a, b| b.value.total_cmp(&a.value));
        all.extend(entries.into_iter().take(count));
    }
    Ok(all)
}

fn link(opened: &Opened, Entry { from, to, value }: Entry) -> TokenLink {
    TokenLink { from: opened.label(from), from_id: from, to: opened.label(to), to_id: to, value }
}
