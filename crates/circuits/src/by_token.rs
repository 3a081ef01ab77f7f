//! A head's circuits as tables of tokens.

use crate::circuits::{Circuit, Circuits};
use crate::discovery::Progress;
use candle_core::{DType, Result, Tensor};
use gpt2_model::hooks::Head;
use rayon::prelude::*;

/// An entry of a circuit's table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Entry {
    /// The row: the query's token, or the token that is attended to.
    pub from: u32,
    /// The column: the key's token, or the token whose logit changes.
    pub to: u32,
    /// The score or the change of the logit.
    pub value: f64,
}

/// The number of rows of the table to compute at a time.
const ROWS: usize = 256;

impl Circuits {
    /// Rows of a circuit's table.
    ///
    /// # Shapes
    /// `tokens` n ids -> (n, V), in f32, or in f64 for a model in f64
    ///
    /// # Errors
    /// When there is no such head, or a token is not below V.
    pub fn rows(&self, head: Head, circuit: Circuit, tokens: &[u32]) -> Result<Tensor> {
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= self.vocab_size()) {
            candle_core::bail!("token {token} is not in 0..{} (vocab_size)", self.vocab_size())
        }
        let ids = Tensor::new(tokens, self.embedding.device())?;
        let (read, columns) = self.halves(head, circuit)?;
        self.embedding.index_select(&ids, 0)?.matmul(&read)?.matmul(&columns)
    }

    /// The two factors of the table: from the embedding of a row's token (C, D), and to all columns (D, V).
    fn halves(&self, head: Head, circuit: Circuit) -> Result<(Tensor, Tensor)> {
        let (a, b) = self.factors(head, circuit)?;
        let narrow = |m: &Tensor| m.to_dtype(self.embedding.dtype());
        let columns = match circuit {
            Circuit::Ov => narrow(&b)?.matmul(&self.unembedding.t()?)?,
            Circuit::Qk => (narrow(&b)?.matmul(&self.embedding.t()?)? * self.scale(head))?,
        };
        Ok((narrow(&a)?, columns))
    }

    /// The `count` largest entries of a circuit's whole table (V, V), largest first. Calls `progress` with the number of rows
    /// done and V.
    ///
    /// # Errors
    /// When there is no such head, and for those of `progress`.
    pub fn largest_entries(
        &self,
        head: Head,
        circuit: Circuit,
        count: usize,
        progress: &mut Progress,
    ) -> Result<Vec<Entry>> {
        let v = self.vocab_size();
        let (read, columns) = self.halves(head, circuit)?;
        let mut best: Vec<Entry> = vec![];
        if count == 0 {
            return Ok(best);
        }
        for first in (0..v).step_by(ROWS) {
            let rows = ROWS.min(v - first);
            let part = self.embedding.narrow(0, first, rows)?.matmul(&read)?.matmul(&columns)?; // (rows, V)
            let part = part.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
            let floor = if best.len() < count { f64::NEG_INFINITY } else { best[count - 1].value };
            let of_row = |(i, row): (usize, &[f64])| top(first + i, row, count, floor);
            let more: Vec<Entry> = part.par_chunks(v).enumerate().flat_map_iter(of_row).collect();
            best.extend(more);
            best.sort_by(|a, b| b.value.total_cmp(&a.value).then((a.from, a.to).cmp(&(b.from, b.to))));
            best.truncate(count);
            progress(first + rows, v)?;
        }
        Ok(best)
    }

    /// The `count` tokens that a direction of the residual stream reads or writes most: the largest products with the
    /// embeddings (`reads`) or with the unembedding, largest first.
    ///
    /// # Shapes
    /// `direction` (C), as a row of [`Singular`](crate::Singular)
    ///
    /// # Errors
    /// When the direction has another width.
    pub fn tokens_of(&self, direction: &Tensor, reads: bool, count: usize) -> Result<Vec<(u32, f64)>> {
        let table = if reads { &self.embedding } else { &self.unembedding };
        let direction = direction.to_dtype(table.dtype())?.unsqueeze(1)?; // (C, 1)
        let products = table.matmul(&direction)?.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>()?;
        Ok(top(0, &products, count, f64::NEG_INFINITY)
            .into_iter()
            .map(|entry| (entry.to, entry.value))
            .collect())
    }
}

/// The `count` largest numbers of row `from` above `floor`, largest first; the first of equal ones first.
#[allow(clippy::cast_possible_truncation)] // token ids are u32
fn top(from: usize, row: &[f64], count: usize, floor: f64) -> Vec<Entry> {
    let entry = |(to, &value): (usize, &f64)| Entry { from: from as u32, to: to as u32, value };
    let mut all: Vec<Entry> =
        row.iter().enumerate().filter(|(_, value)| **value > floor).map(entry).collect();
    let order = |a: &Entry, b: &Entry| b.value.total_cmp(&a.value).then(a.to.cmp(&b.to));
    if all.len() > count && count > 0 {
        all.select_nth_unstable_by(count - 1, order);
    }
    all.truncate(count);
    all.sort_by(order);
    all
}
