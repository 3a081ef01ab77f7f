//! Heads, places and positions of interventions, as a user writes them.

use anyhow::bail;
use gpt2_model::hooks::{Head, Intervention, ParseError, Patch};
use std::str::FromStr;

/// An intervention on one head, or the same on every head of a layer.
#[derive(Debug, Clone)]
pub struct OnHeads {
    /// On head 0 for a whole layer.
    one: Intervention,
    is_layer: bool,
}

impl OnHeads {
    /// Parses an intervention on a head from its kind, such as `scale`, and the text that follows: `3.2=0.5`, or
    /// `3.*=0.5` for every head of a layer.
    ///
    /// # Errors
    /// When it is neither.
    pub fn parse(kind: &str, text: &str) -> Result<Self, ParseError> {
        let (place, rest) = text.split_at(text.find('=').unwrap_or(text.len()));
        let layer = place.trim_end().strip_suffix(".*");
        let text = layer.map_or_else(|| text.to_owned(), |layer| format!("{layer}.0{rest}"));
        let one = format!("{kind} {text}").parse()?;
        Ok(Self { one, is_layer: layer.is_some() })
    }

    /// The interventions on single heads, in a model of `count` heads a layer.
    #[must_use]
    pub fn each(&self, count: usize) -> Vec<Intervention> {
        match self.one.head() {
            Some(Head { layer, .. }) if self.is_layer => {
                (0..count).map(|head| on_head(&self.one, Head { layer, head })).collect()
            }
            _ => vec![self.one.clone()],
        }
    }
}

/// Moves an intervention to another head.
fn on_head(one: &Intervention, head: Head) -> Intervention {
    match one {
        Intervention::ZeroAblate(_) => Intervention::ZeroAblate(head),
        Intervention::MeanAblate(_) => Intervention::MeanAblate(head),
        Intervention::Scale(_, factor) => Intervention::Scale(head, *factor),
        Intervention::Temperature(_, temperature) => Intervention::Temperature(head, *temperature),
        other => other.clone(),
    }
}

/// A place, at one position or at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At<P> {
    /// The place.
    pub place: P,
    /// The position, if it is one.
    pub position: Option<usize>,
}

impl<P: FromStr<Err: ToString>> FromStr for At<P> {
    type Err = String;

    /// `PLACE` or `PLACE@POS`
    fn from_str(s: &str) -> Result<Self, String> {
        let (place, position) = match s.split_once('@') {
            Some((place, position)) => {
                let position =
                    position.trim().parse().map_err(|_| format!("`{position}` is not a position"))?;
                (place, Some(position))
            }
            None => (s, None),
        };
        Ok(Self { place: place.trim().parse().map_err(|e: P::Err| e.to_string())?, position })
    }
}

/// Refuses changes of a head's output that another one undoes: an ablation, or a patch of all positions, leaves nothing of them.
///
/// # Errors
/// When there is such a pair: it names both.
pub fn check_effective(all: &[Intervention]) -> anyhow::Result<()> {
    let is_patch = |one: &Intervention| matches!(one, Intervention::Patch(Patch { position: None, .. }));
    for last in all.iter().filter(|one| is_patch(one) || matches!(one, Intervention::ZeroAblate(_))) {
        let undone = all.iter().find(|one| match one {
            Intervention::MeanAblate(_) | Intervention::Scale(..) | Intervention::Temperature(..) => true,
            Intervention::ZeroAblate(_) => is_patch(last),
            _ => false,
        } && one.head() == last.head());
        if let Some(undone) = undone {
            bail!(
                "`{undone}` changes nothing beside `{last}`, which replaces the head's whole output: leave one of them out"
            );
        }
    }
    Ok(())
}
