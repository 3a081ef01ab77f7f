//! Takes notes of the heads of a page while it is written: their kinds, how much they change from one run to the other, and
//! the head that the page opens on.

use super::codes::{Codes, Number};
use crate::first_look::reach;
use crate::focus::{Focus, Looks, Places};
use crate::rows::lower_triangle;
use crate::silenced::Silenced;
use crate::summary::HeadSummary;
use candle_core::{Result, Tensor};
use std::collections::BTreeMap;

/// A layer and a head of it.
pub(super) type Name = (usize, usize);

#[derive(Debug)]
pub(super) struct HeadNotes {
    places: Places,
    /// Of the last run.
    silenced: Silenced,
    last_run: usize,
    /// K, if the codes hold only the K largest weights of each row.
    top: Option<usize>,
    /// The most focused head of the last run, as in the first look of a terminal.
    most_focused: Option<Focused>,
    /// The heads of one run that still lack those of the other.
    alone: BTreeMap<Name, Codes>,
    changes: BTreeMap<Name, f64>,
    /// The largest change of a single weight.
    largest: f64,
}

#[derive(Debug)]
struct Focused {
    name: Name,
    reach: f32,
}

/// A head's kind, and how focused it is.
pub(super) struct NotedHead {
    pub(super) focus: Focus,
    reach: Option<f32>,
}

impl HeadNotes {
    pub(super) fn new(places: Places, silenced: Silenced, runs: usize, top: Option<usize>) -> Self {
        let alone = BTreeMap::new();
        let changes = BTreeMap::new();
        Self { places, silenced, last_run: runs - 1, top, most_focused: None, alone, changes, largest: 0.0 }
    }

    /// The reason why a run does not use a head's output, such as "ablated".
    pub(super) fn silenced(&self, run: usize, (layer, head): Name) -> Option<&'static str> {
        self.silenced.how(layer, head).filter(|_| run == self.last_run)
    }

    /// `weights` (T, S), all of them
    pub(super) fn head(&self, weights: &Tensor, summary: &HeadSummary) -> Result<NotedHead> {
        let rows = lower_triangle::<f32>(weights, "page")?;
        Ok(NotedHead { focus: summary.focus(Looks::new(&rows, &self.places)), reach: reach(&rows) })
    }

    /// Takes note of a head of a run.
    pub(super) fn note(&mut self, run: usize, name: Name, noted: &NotedHead, codes: Codes) -> Result<()> {
        if let Some(other) = self.alone.remove(&name) {
            self.changes.insert(name, least_distance(&other, &codes, self.top)?);
            self.largest = self.largest.max(largest_change(&other, &codes)?);
        } else if self.last_run > 0 {
            self.alone.insert(name, codes);
        }
        let most = self.most_focused.as_ref().map_or(f32::NEG_INFINITY, |most| most.reach);
        match noted.reach.filter(|reach| *reach > most) {
            Some(reach) if run == self.last_run && self.silenced(run, name).is_none() => {
                self.most_focused = Some(Focused { name, reach });
            }
            _ => {}
        }
        Ok(())
    }

    /// A lower bound of each head's change; see [`least_distance`].
    pub(super) fn changes(&self) -> BTreeMap<String, f64> {
        self.changes.iter().map(|((layer, head), change)| (format!("{layer}.{head}"), *change)).collect()
    }

    /// The largest change of a single weight, at which the colors of the small maps end.
    pub(super) fn largest(&self) -> f64 {
        self.largest
    }

    /// The head that the page opens on: the one that changes most, or if none does, the most focused one. The run uses its
    /// output.
    pub(super) fn opens(&self) -> Option<String> {
        let mut most = None;
        for (&name, &change) in &self.changes {
            let larger = most.is_none_or(|(_, largest)| change > largest);
            if change > 0.0 && larger && self.silenced(self.last_run, name).is_none() {
                most = Some((name, change));
            }
        }
        let focused = || self.most_focused.as_ref().map(|focused| focused.name);
        most.map(|(name, _)| name).or_else(focused).map(|(layer, head)| format!("{layer}.{head}"))
    }
}

/// The largest change of a weight from one map to the other; a NaN is none.
fn largest_change(a: &Codes, b: &Codes) -> Result<f64> {
    let a = a.rows()?;
    let b = b.rows()?;
    let pairs = a.iter().zip(&b).flat_map(|(a, b)| a.numbers().zip(b.numbers()));
    Ok(pairs.fold(0.0, |most: f64, (x, y)| most.max((x.value - y.value).abs())))
}

/// A lower bound of the distance between two maps: the mean over the queries of the total variation distance, half the sum
/// of |a - b|. Each difference counts less its errors, since those of a whole row would add up to a change of their own.
fn least_distance(a: &Codes, b: &Codes, top: Option<usize>) -> Result<f64> {
    let a = a.rows()?;
    let b = b.rows()?;
    let error = |number: Number, left_out| if number.value == 0.0 { left_out } else { number.error };
    let mut total = 0.0;
    for (a, b) in a.iter().zip(&b) {
        let [left_out_a, left_out_b] = [a, b].map(|row| row.most_left_out(top));
        for (x, y) in a.numbers().zip(b.numbers()) {
            let apart = (x.value - y.value).abs() - error(x, left_out_a) - error(y, left_out_b);
            // Not f64::max, which would take a NaN for 0.
            total += if apart < 0.0 { 0.0 } else { apart };
        }
    }
    Ok(total / 2.0 / a.len() as f64)
}
