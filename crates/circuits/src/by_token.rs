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

/// The tokens that a direction of the residual stream promotes, with the products with the unembedding.
#[derive(Debug, Clone, PartialEq)]
pub struct PromotedTokens {
    /// The tokens that it makes likelier, most first.
    pub likelier: Vec<(u32, f64)>,
    /// The tokens that it makes less likely, most first.
    pub less_likely: Vec<(u32, f64)>,
}

/// The number of rows of the table to compute at a time.
const ROWS: usize = 256;

/// The least mean cosine of embeddings that lie together: those of a random table of 13 tokens have 0.28.
const TOGETHER: f64 = 0.5;
/// The part of that mean cosine at which a token lies where those of the group lie. In the demo model, tokens that its text lacks have
/// 0.8 of it at least, and those that the text has once 0.45 at most.
const NEAR: f64 = 0.75;

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
        self.largest_entries_without(head, circuit, count, &[], progress)
    }

    /// Like [`Circuits::largest_entries`], without the rows and columns of some tokens.
    ///
    /// # Errors
    /// See [`Circuits::largest_entries`].
    pub fn largest_entries_without(
        &self,
        head: Head,
        circuit: Circuit,
        count: usize,
        without: &[u32],
        progress: &mut Progress,
    ) -> Result<Vec<Entry>> {
        let v = self.vocab_size();
        let mut is_out = vec![false; v];
        for &id in without {
            if let Some(out) = is_out.get_mut(id as usize) {
                *out = true;
            }
        }
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
            let of_row = |(i, row): (usize, &[f64])| {
                if is_out[first + i] { vec![] } else { top(first + i, row, count, floor, &is_out) }
            };
            let more: Vec<Entry> = part.par_chunks(v).enumerate().flat_map_iter(of_row).collect();
            best.extend(more);
            best.sort_by(|a, b| b.value.total_cmp(&a.value).then((a.from, a.to).cmp(&(b.from, b.to))));
            best.truncate(count);
            progress(first + rows, v)?;
        }
        Ok(best)
    }

    /// The tokens whose embeddings lie where those of `never` lie, tokens that no text can have: training has hardly moved them. None,
    /// where the embeddings of `never` do not lie together.
    ///
    /// A token that is never read or written gets the same small push at every step as all others of its kind, so that all end up in one
    /// direction from the mean embedding.
    ///
    /// # Errors
    /// When an id is not below V.
    pub fn unseen(&self, never: &[u32]) -> Result<Vec<u32>> {
        if never.len() < 2 {
            return Ok(vec![]);
        }
        let embedding = self.embedding.to_dtype(DType::F64)?;
        let apart = embedding.broadcast_sub(&embedding.mean_keepdim(0)?)?; // (V, C)
        let sizes = apart.sqr()?.sum_keepdim(1)?.sqrt()?;
        let directions = apart.broadcast_div(&(sizes + f64::MIN_POSITIVE)?)?;
        let ids = Tensor::new(never, embedding.device())?;
        let mean = apart.index_select(&ids, 0)?.mean_keepdim(0)?; // (1, C)
        let mean = mean.broadcast_div(&(mean.sqr()?.sum_keepdim(1)?.sqrt()? + f64::MIN_POSITIVE)?)?;
        let cosines = directions.matmul(&mean.t()?)?.flatten_all()?.to_vec1::<f64>()?;
        let together = never.iter().map(|&id| cosines[id as usize]).sum::<f64>() / never.len() as f64;
        if together < TOGETHER {
            return Ok(vec![]);
        }
        let ids = (0u32..).zip(&cosines);
        Ok(ids.filter(|(_, cosine)| **cosine >= NEAR * together).map(|(id, _)| id).collect())
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
        Ok(top(0, &products, count, f64::NEG_INFINITY, &[])
            .into_iter()
            .map(|entry| (entry.to, entry.value))
            .collect())
    }

    /// The `count` tokens that each of some directions makes likelier, and those that it makes less likely.
    ///
    /// # Shapes
    /// `directions` (n, C)
    ///
    /// # Errors
    /// When the directions have another width.
    pub fn promoted_by_each(&self, directions: &Tensor, count: usize) -> Result<Vec<PromotedTokens>> {
        let n = directions.dim(0)?;
        let columns = self.unembedding.t()?;
        let listed = |row: &[f64]| -> Vec<(u32, f64)> {
            let found = top(0, row, count, f64::NEG_INFINITY, &[]);
            found.into_iter().map(|entry| (entry.to, entry.value)).collect()
        };
        let mut all = vec![];
        for first in (0..n).step_by(ROWS) {
            let part = directions.narrow(0, first, ROWS.min(n - first))?.to_dtype(columns.dtype())?;
            let products = part.matmul(&columns)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?; // (rows, V)
            let of_row = |row: &[f64]| {
                let turned: Vec<f64> = row.iter().map(|x| -x).collect();
                let less_likely = listed(&turned).into_iter().map(|(token, x)| (token, -x)).collect();
                PromotedTokens { likelier: listed(row), less_likely }
            };
            all.par_extend(products.par_chunks(self.vocab_size()).map(of_row));
        }
        Ok(all)
    }
}

/// The `count` largest numbers of row `from` above `floor`, largest first; the first of equal ones first. Columns that are out have no
/// part in it.
#[allow(clippy::cast_possible_truncation)] // token ids are u32
fn top(from: usize, row: &[f64], count: usize, floor: f64, is_out: &[bool]) -> Vec<Entry> {
    let is_in = |to: usize| !is_out.get(to).is_some_and(|out| *out);
    let entry = |(to, &value): (usize, &f64)| Entry { from: from as u32, to: to as u32, value };
    let mut all: Vec<Entry> =
        row.iter().enumerate().filter(|(to, value)| **value > floor && is_in(*to)).map(entry).collect();
    let order = |a: &Entry, b: &Entry| b.value.total_cmp(&a.value).then(a.to.cmp(&b.to));
    if all.len() > count && count > 0 {
        all.select_nth_unstable_by(count - 1, order);
    }
    all.truncate(count);
    all.sort_by(order);
    all
}
