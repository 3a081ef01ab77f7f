//! Interventions on heads, as a user writes them.

use gpt2_model::hooks::{Head, Intervention, ParseError};

/// An intervention on one head, or the same on every head of a layer.
#[derive(Debug, Clone)]
pub struct OnHeads {
    /// On head 0 for a whole layer.
    one: Intervention,
    is_layer: bool,
    /// The option that it came from, such as `mean-ablate`.
    option: &'static str,
    /// The value as the user wrote it, such as `1.*`.
    text: String,
}

impl OnHeads {
    /// Parses the value of an option on heads, `ablate`, `mean-ablate`, `scale` or `attention-temperature`: `3.2=0.5`, or `3.*=0.5`
    /// for every head of a layer.
    ///
    /// # Errors
    /// When it is neither.
    pub fn parse(option: &'static str, text: &str) -> Result<Self, ParseError> {
        let kind = if option == "attention-temperature" { "temperature" } else { option };
        let (place, rest) = text.split_at(text.find('=').unwrap_or(text.len()));
        let layer = place.trim_end().strip_suffix(".*");
        let head = layer.map_or_else(|| text.to_owned(), |layer| format!("{layer}.0{rest}"));
        let one = format!("{kind} {head}").parse()?;
        Ok(Self { one, is_layer: layer.is_some(), option, text: text.trim().to_owned() })
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

    /// The option that it came from, such as `mean-ablate`.
    #[must_use]
    pub fn option(&self) -> &'static str {
        self.option
    }

    /// The value as the user wrote it, such as `1.*`.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
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
