//! The weights of one head as a table: queries down the side, keys along the top.

use crate::rows::lower_triangle;
use crate::terminal::{Style, compact, legend, paint, shade};
use crate::text::{Align, display_width, fit, pad, visible_token};
use candle_core::{Result, Tensor};

/// A weight takes three columns, and so does the label of a key at least.
const NARROWEST: usize = 3;
/// Labels shrink to this width before keys are left out: five letters still tell tokens apart.
const NARROW: usize = 5;
/// The widest that a column may grow for its label.
const WIDEST: usize = 10;
/// The width of ` …`, which stands for omitted keys.
const GAP: usize = 2;

/// A table of attention weights for a terminal, with one row per query and one column per key.
///
/// Tokens have their position in front, are shown as by [`visible_token`] and cut to their column. Keys that a
/// query cannot see are blank. A weight reads `.53`, `1.0`, or `0` if it is exactly 0; with
/// color, its background goes from dark purple (0) to bright yellow (1) in viridis, by the square root
/// of the weight, and a last line shows the scale.
///
/// If the keys do not fit `style.width`, or the queries `style.max_rows`, the table shows the first few and
/// the last with `…` between them, and a line says how many of how many. No line is wider than the
/// terminal. With `style.max_cell`, narrow columns of colors or shades take the place of the numbers before any key is
/// left out.
///
/// # Shapes
/// `weights` (T, S), `queries` T tokens, `keys` S tokens
///
/// # Errors
/// When `weights` is not of rank 2, has no query or more queries than keys, or when the numbers of tokens
/// differ from its rows and columns.
pub fn heatmap(weights: &Tensor, queries: &[String], keys: &[String], style: &Style) -> Result<String> {
    let rows = lower_triangle::<f32>(weights, "heatmap")?;
    if weights.dims() != [queries.len(), keys.len()] {
        candle_core::bail!(
            "heatmap: weights have shape {:?}, with tokens for {} queries and {} keys",
            weights.dims(),
            queries.len(),
            keys.len()
        )
    }
    let layout = TableLayout::new(queries, keys, style);
    let mut lines = layout.header(keys);
    lines.extend(layout.queries.slots.iter().map(|slot| match slot {
        Some(i) => layout.row(*i, &queries[*i], &rows[*i], style),
        None => pad("…", layout.digits, Align::Right),
    }));
    lines.extend(layout.keys.note("keys"));
    lines.extend(layout.queries.note("queries"));
    lines.extend(legend(style.color));
    Ok(lines.iter().fold(String::new(), |out, line| out + line.trim_end() + "\n"))
}

/// The table's layout.
struct TableLayout {
    queries: ShownIndices,
    keys: ShownIndices,
    /// Width of the labels at the side.
    side: usize,
    /// Width of a column, without the space in front of it.
    column: usize,
    /// Whether columns are too narrow for numbers; they then touch.
    shaded: bool,
    /// Digits of the last position.
    digits: usize,
    /// Position of the first query.
    offset: usize,
}

impl TableLayout {
    fn new(queries: &[String], keys: &[String], style: &Style) -> Self {
        let rows = style.max_rows.max(3);
        let offset = keys.len() - queries.len();
        let queries_shown = ShownIndices::new(queries.len(), rows, rows - 1);
        let digits = keys.len().saturating_sub(1).to_string().len();

        let widest = |token: &str| display_width(&visible_token(token));
        let longest = queries_shown.shown().map(|i| widest(&queries[i])).max().unwrap_or(0);
        let side = (digits + 1 + longest).min(style.columns() / 3);
        let body = style.columns() - side;

        let most = style.max_cell.map_or(WIDEST, |most| most.saturating_sub(1)).max(NARROWEST);
        let wish = keys.iter().map(|k| widest(k)).max().unwrap_or(0).clamp(NARROWEST, most).max(digits);
        let narrow = wish.min(NARROW).max(digits);
        let fits = |width: &usize| keys.len() * width <= body;
        let column = (narrow..=wish).rev().find(|w| fits(&(w + 1)));
        let shades = column.is_none() && style.max_cell.is_some();
        // Without the space in front of each column, one keeps the labels apart from the shades.
        let (side, body) = if shades { (side + 1, body - 1) } else { (side, body) };
        let fits = |width: &usize| keys.len() * width <= body;
        let column =
            if shades { (1..NARROWEST).rev().find(fits).unwrap_or(1) } else { column.unwrap_or(narrow) };
        let cell = if shades { column } else { column + 1 };
        let keys_shown = ShownIndices::new(keys.len(), body / cell, (body - GAP) / cell);
        Self { queries: queries_shown, keys: keys_shown, side, column, shaded: shades, digits, offset }
    }

    /// Positions, and the tokens below them.
    fn header(&self, keys: &[String]) -> Vec<String> {
        if self.shaded {
            return vec![self.marks()];
        }
        let line = |label: &dyn Fn(usize) -> String, gap: &str| {
            self.keys.slots.iter().fold(" ".repeat(self.side), |line, slot| match slot {
                Some(j) => line + " " + &self.cell(&label(*j)),
                None => line + &pad(gap, GAP, Align::Right),
            })
        };
        vec![line(&|j| j.to_string(), "…"), line(&|j| narrowed(visible_token(&keys[j]), self.column), "")]
    }

    /// Positions, as often as there is room for one.
    fn marks(&self) -> String {
        let width = |slot: &Option<usize>| if slot.is_some() { self.column } else { GAP };
        let end = self.side + self.keys.slots.iter().map(width).sum::<usize>();
        let mut line = " ".repeat(self.side);
        let mut at = self.side;
        for slot in &self.keys.slots {
            let mark = slot.map_or_else(|| " …".to_owned(), |j| j.to_string());
            let used = display_width(&line);
            // A space separates it from the mark before.
            let fits = (at == self.side || at > used) && at + display_width(&mark) <= end;
            if fits && slot.is_none_or(|j| j % 5 == 0) {
                line += &" ".repeat(at - used);
                line += &mark;
            }
            at += width(slot);
        }
        line
    }

    fn row(&self, i: usize, token: &str, weights: &[f32], style: &Style) -> String {
        let label = format!("{:>1$} {2}", self.offset + i, self.digits, visible_token(token));
        let label = pad(&fit(&label, self.side), self.side, Align::Left);
        self.keys.slots.iter().enumerate().fold(label, |line, (n, slot)| match slot {
            Some(j) if self.shaded => match weights.get(*j) {
                Some(&w) => line + &shade(w, self.column, style.color),
                None => line + &" ".repeat(self.column),
            },
            // Also paint the space in front, so that the cells touch and make a picture.
            Some(j) => match weights.get(*j) {
                Some(&w) => line + &paint(&format!(" {}", self.cell(&compact(w))), w, style.color),
                None => line + " " + &self.cell(""),
            },
            // The omitted keys start at index n: this query sees some of them.
            None if weights.len() > n => line + &pad("…", GAP, Align::Right),
            None => line + &" ".repeat(GAP),
        })
    }

    fn cell(&self, text: &str) -> String {
        pad(&fit(text, self.column), self.column, Align::Right)
    }
}

/// A label for a column: a byte such as `<E6>` loses its brackets before a digit of it is cut.
fn narrowed(label: String, columns: usize) -> String {
    let byte = label.strip_prefix('<').and_then(|rest| rest.strip_suffix('>'));
    match byte {
        Some(byte) if byte.len() == 2 && columns < label.len() => byte.to_owned(),
        _ => label,
    }
}

/// The rows or columns to show if not all of them fit.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ShownIndices {
    /// The shown indices in order, with one `None` in place of the omitted ones.
    slots: Vec<Option<usize>>,
    total: usize,
}

impl ShownIndices {
    /// All of `total` if they fit in `room`; otherwise the first few and the last, `cut_room` together.
    ///
    /// It keeps the first because the first token attracts much of every head's weight, and the last because
    /// the text continues there.
    fn new(total: usize, room: usize, cut_room: usize) -> Self {
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
    fn shown(&self) -> impl Iterator<Item = usize> {
        self.slots.iter().flatten().copied()
    }

    /// A line for the reader, `showing 12 of 300 keys`; `None` if everything is shown.
    fn note(&self, what: &str) -> Option<String> {
        let shown = self.shown().count();
        (shown < self.total).then(|| format!("showing {shown} of {} {what}", self.total))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::tests::unpainted;
    use crate::terminal::{Color, MIN_WIDTH};
    use crate::text::tests::{NASTY, draw};
    use candle_core::{DType, Device};

    fn tokens(of: &[&str]) -> Vec<String> {
        of.iter().map(|&t| t.to_owned()).collect()
    }

    fn uniform(t: usize, s: usize) -> Result<Tensor> {
        Tensor::full(0.25f32, (t, s), &Device::Cpu)
    }

    const COLOURS: [Color; 3] = [Color::Plain, Color::Ansi256, Color::TrueColor];

    #[test]
    fn a_short_text_is_shown_whole() -> Result<()> {
        let weights =
            Tensor::new(&[[1f32, 9., 9.], [0.534, 0.466, 9.], [0., 0.001, f32::NAN]], &Device::Cpu)?;
        let text = tokens(&["The", " cat", "\n"]);
        let expected = [
            "          0    1    2",
            "        The ·cat    ⏎",
            "0 The   1.0",
            "1 ·cat  .53  .47",
            "2 ⏎       0  .00  nan",
        ];
        let map = heatmap(&weights, &text, &text, &Style::default())?;
        assert_eq!(map, expected.join("\n") + "\n");
        // Apart from the legend, color adds nothing that takes space.
        for color in [Color::Ansi256, Color::TrueColor] {
            let map = heatmap(&weights, &text, &text, &Style { color, ..Style::default() })?;
            assert!(map.contains("m  .53\x1b[0m"), "{map:?}");
            let map = unpainted(&map);
            let lines: Vec<&str> = map.lines().collect();
            assert_eq!(lines[..5], expected);
            assert!(lines[5].starts_with("weight") && lines.len() == 6, "{map}");
        }
        Ok(())
    }

    #[test]
    fn a_byte_is_whole_in_a_narrow_column() -> Result<()> {
        let text = tokens(&["<E6>", "<97>"]);
        let style = Style::default().with_max_cell(4);
        let map = heatmap(&uniform(2, 2)?, &text, &text, &style)?;
        assert_eq!(map.lines().nth(1), Some("        E6  97"));
        let map = heatmap(&uniform(2, 2)?, &text, &text, &Style::default())?;
        assert_eq!(map.lines().nth(1), Some("       <E6> <97>"));
        Ok(())
    }

    #[test]
    fn the_queries_are_the_last_of_the_keys() -> Result<()> {
        let keys = tokens(&["a", "b", "c", "d"]);
        let map = heatmap(&uniform(2, 4)?, &keys[2..], &keys, &Style::default())?;
        let expected =
            ["      0   1   2   3", "      a   b   c   d", "2 c .25 .25 .25", "3 d .25 .25 .25 .25"];
        assert_eq!(map.lines().collect::<Vec<_>>(), expected);
        Ok(())
    }

    #[test]
    fn a_long_text_keeps_both_ends_and_says_so() -> Result<()> {
        let text: Vec<String> = (0..300).map(|i| format!(" t{i}")).collect();
        let style = Style { width: 60, max_rows: 6, ..Style::default() };
        let map = heatmap(&uniform(300, 300)?, &text, &text, &style)?;
        let expected = [
            "              0     1 …   294   295   296   297   298   299",
            "            ·t0   ·t1   ·t294 ·t295 ·t296 ·t297 ·t298 ·t299",
            "  0 ·t0     .25",
            "  …",
            "296 ·t296   .25   .25 …   .25   .25   .25",
            "297 ·t297   .25   .25 …   .25   .25   .25   .25",
            "298 ·t298   .25   .25 …   .25   .25   .25   .25   .25",
            "299 ·t299   .25   .25 …   .25   .25   .25   .25   .25   .25",
            "showing 8 of 300 keys",
            "showing 5 of 300 queries",
        ];
        assert_eq!(map.lines().collect::<Vec<_>>(), expected);
        Ok(())
    }

    #[test]
    fn a_query_that_sees_none_of_the_keys_left_out_says_nothing_of_them() -> Result<()> {
        let text: Vec<String> = (0..9).map(|i| format!("token{i}")).collect();
        let map = heatmap(&uniform(9, 9)?, &text, &text, &Style { width: 40, ..Style::default() })?;
        let lines: Vec<&str> = map.lines().collect();
        assert_eq!(lines[2..4], ["0 token0   .25", "1 token1   .25 …"]);
        Ok(())
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() -> Result<()> {
        let mut state = 1;
        for case in 0..400 {
            let s = 1 + draw(&mut state, 40);
            let t = 1 + draw(&mut state, s);
            let width = draw(&mut state, 140);
            let style = Style {
                color: COLOURS[case % 3],
                width,
                max_rows: draw(&mut state, 30),
                max_cell: [None, Some(4)][case % 2],
            };
            let pieces = 1 + draw(&mut state, 3);
            let keys: Vec<String> =
                (0..s).map(|_| (0..pieces).map(|_| NASTY[draw(&mut state, NASTY.len())]).collect()).collect();
            let map = heatmap(&uniform(t, s)?, &keys[s - t..], &keys, &style)?;
            for line in map.lines() {
                let line = unpainted(line);
                assert!(!line.contains(char::is_control), "{line:?}");
                let room = width.max(MIN_WIDTH);
                assert!(display_width(&line) <= room, "{} > {room}: {line:?}", display_width(&line));
            }
            let tokens = t.min(style.max_rows.max(3));
            let notes = map.lines().filter(|l| l.starts_with("showing")).count();
            let header = if TableLayout::new(&keys[s - t..], &keys, &style).shaded { 1 } else { 2 };
            let legend = usize::from(style.color != Color::Plain);
            assert_eq!(map.lines().count(), header + tokens + notes + legend);
        }
        Ok(())
    }

    #[test]
    fn columns_line_up() -> Result<()> {
        let keys = NASTY.map(str::to_owned);
        let t = NASTY.len();
        let s = NASTY.len();
        let style = Style { width: 300, ..Style::default() };
        let map = heatmap(&uniform(t, s)?, &keys, &keys, &style)?;
        let widths: Vec<usize> = map.lines().skip(2).map(display_width).collect();
        let steps: Vec<usize> = widths.windows(2).map(|w| w[1] - w[0]).collect();
        assert!(steps.iter().all(|&step| step == steps[0]), "{widths:?}");
        Ok(())
    }

    #[test]
    fn values_that_are_no_weights_stay_in_their_column() -> Result<()> {
        let wild = Tensor::new(&[[-123.0f32, 0.], [1e30, f32::NEG_INFINITY]], &Device::Cpu)?;
        let text = tokens(&["a", "b"]);
        let map = heatmap(&wild, &text, &text, &Style::default())?;
        assert_eq!(map, "      0   1\n      a   b\n0 a -1…\n1 b 10… -i…\n");
        Ok(())
    }

    #[test]
    fn refuses_what_does_not_match() -> Result<()> {
        let text = tokens(&["a", "b"]);
        let err = heatmap(&uniform(2, 2)?, &text[1..], &text, &Style::default()).expect_err("1 query");
        assert!(err.to_string().contains("[2, 2], with tokens for 1 queries and 2 keys"), "{err}");
        for shape in [vec![2], vec![0, 2], vec![0, 0], vec![2, 1], vec![1, 2, 2]] {
            let weights = Tensor::zeros(shape.clone(), DType::F32, &Device::Cpu)?;
            assert!(heatmap(&weights, &text, &text, &Style::default()).is_err(), "{shape:?}");
        }
        Ok(())
    }

    #[test]
    fn keeps_both_ends() {
        let all = ShownIndices::new(3, 3, 2);
        assert_eq!(all.slots, [Some(0), Some(1), Some(2)]);
        assert_eq!(all.note("keys"), None);

        let cut = ShownIndices::new(300, 13, 12);
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
                    let window = ShownIndices::new(total, room, cut_room);
                    let shown: Vec<usize> = window.shown().collect();
                    assert!(shown.is_sorted_by(|a, b| a < b) && shown.iter().all(|&i| i < total));
                    assert_eq!(window.note("x").is_some(), shown.len() < total);
                    assert!(shown.len() <= room.max(1));
                }
            }
        }
    }
}
