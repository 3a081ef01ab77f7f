//! [`Silenced`]: heads whose output a run does not use.

use std::collections::BTreeMap;

/// Heads whose output a run does not use, because an intervention puts something else in its place. What their tokens attend
/// to says nothing of the model's prediction, so every view marks them, and none features them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Silenced(BTreeMap<(usize, usize), &'static str>);

impl Silenced {
    /// Notes a head, with a word for what became of it: "ablated".
    pub fn insert(&mut self, layer: usize, head: usize, how: &'static str) {
        self.0.insert((layer, head), how);
    }

    /// The reason why the run does not use a head's output, such as "ablated"; `None` if it does.
    #[must_use]
    pub fn how(&self, layer: usize, head: usize) -> Option<&'static str> {
        self.0.get(&(layer, head)).copied()
    }
}
