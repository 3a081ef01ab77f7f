//! Selects the rows or columns to show if not all of them fit.

/// The shown indices in order, with one `None` in place of the omitted ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) slots: Vec<Option<usize>>,
    total: usize,
}

impl Window {
    /// All of `total` if they fit in `room`; otherwise the first few and the last, `cut_room` together.
    ///
    /// It keeps the first because the first token attracts much of every head's weight, and the last because
    /// the text continues there.
    pub(crate) fn new(total: usize, room: usize, cut_room: usize) -> Self {
        if total <= room {
            return Self { slots: (0..total).map(Some).collect(), total };
        }
        let shown = cut_room.clamp(1, total);
        let first = (shown / 4).clamp(1, 4);
        let last = shown - first;
        let slots = (0..first).map(Some).chain([None]).chain((total - last..total).map(Some)).collect();
        Self { slots, total }
    }

    /// The shown indices.
    pub(crate) fn shown(&self) -> impl Iterator<Item = usize> {
        self.slots.iter().flatten().copied()
    }

    /// A line for the reader, `showing 12 of 300 keys`; `None` if everything is shown.
    pub(crate) fn note(&self, what: &str) -> Option<String> {
        let shown = self.shown().count();
        (shown < self.total).then(|| format!("showing {shown} of {} {what}", self.total))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_both_ends() {
        let all = Window::new(3, 3, 2);
        assert_eq!(all.slots, [Some(0), Some(1), Some(2)]);
        assert_eq!(all.note("keys"), None);

        let cut = Window::new(300, 13, 12);
        let shown: Vec<usize> = cut.shown().collect();
        assert_eq!(shown, [0, 1, 2, 291, 292, 293, 294, 295, 296, 297, 298, 299]);
        assert_eq!(cut.slots[3], None);
        assert_eq!(cut.note("keys").as_deref(), Some("showing 12 of 300 keys"));
    }

    #[test]
    fn every_index_appears_once_whatever_the_room() {
        for total in 0..40 {
            for room in 0..40 {
                for cut_room in 0..=room {
                    let window = Window::new(total, room, cut_room);
                    let shown: Vec<usize> = window.shown().collect();
                    assert!(shown.is_sorted_by(|a, b| a < b) && shown.iter().all(|&i| i < total));
                    assert_eq!(window.note("x").is_some(), shown.len() < total);
                    assert!(shown.len() <= room.max(1));
                }
            }
        }
    }
}
