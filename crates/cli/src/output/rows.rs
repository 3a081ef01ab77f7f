//! Tables that fit a screen.

/// The most rows of a table that is shown whole.
const WHOLE: usize = 20;
/// The rows of a longer one.
const FIRST: usize = 15;

/// The number of a table's rows to show.
pub(crate) fn shown(rows: usize, all: bool) -> usize {
    if all || rows <= WHOLE { rows } else { FIRST }
}

/// The line below the shown rows, where others are left out: `129 more: --all`.
pub(crate) fn more(rows: usize, all: bool) -> Option<String> {
    let left_out = rows - shown(rows, all);
    (left_out > 0).then(|| format!("{left_out} more: --all"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_whole_or_says_how_many_rows_it_lacks() {
        assert_eq!((shown(20, false), more(20, false)), (20, None));
        assert_eq!((shown(144, false), more(144, false).as_deref()), (15, Some("129 more: --all")));
        assert_eq!((shown(144, true), more(144, true)), (144, None));
    }
}
