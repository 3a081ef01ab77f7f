//! Tables for a terminal, aligned by display width; and the overview, which has one row per head.

use crate::focus::Focus;
use crate::summary::HeadSummary;
use crate::terminal::{Color, Style, paint};
use crate::text::{Align, display_width, pad, visible_text};

/// The gap between two columns.
const GAP: &str = "  ";

/// A table for a terminal: a header, rows, two spaces between columns.
///
/// All cells go through [`visible_text`], so a line end or an escape sequence in one cannot break the
/// table. No line ends with spaces.
///
/// ```
/// use gpt2_view::{Align, Table};
///
/// let mut table = Table::new(&[("layer", Align::Right), ("name", Align::Left), ("ms", Align::Right)]);
/// table.row(vec!["0".into(), "attn".into(), "1.25".into()]);
/// table.row(vec!["11".into(), "mlp".into(), "10.50".into()]);
/// assert_eq!(
///     table.render(),
///     "layer  name     ms\n    0  attn   1.25\n   11  mlp   10.50\n"
/// );
/// ```
#[derive(Debug, Clone)]
pub struct Table {
    header: Vec<Cell>,
    aligns: Vec<Align>,
    rows: Vec<Vec<Cell>>,
}

/// The text of a cell, and the weight and colors of its background.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    text: String,
    paint: Option<(f32, Color)>,
}

impl Cell {
    pub(crate) fn plain(text: &str) -> Self {
        Self { text: visible_text(text), paint: None }
    }

    /// A cell whose background has the color of `weight`.
    pub(crate) fn painted(text: &str, weight: f32, color: Color) -> Self {
        Self { text: visible_text(text), paint: Some((weight, color)) }
    }
}

impl Table {
    /// A table without rows. If all titles are empty, it has no header.
    #[must_use]
    pub fn new(columns: &[(&str, Align)]) -> Self {
        Self {
            header: columns.iter().map(|(title, _)| Cell::plain(title)).collect(),
            aligns: columns.iter().map(|(_, align)| *align).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row. Missing cells are blank; cells beyond the header's columns are aligned left.
    pub fn row(&mut self, cells: Vec<String>) -> &mut Self {
        self.cells(cells.iter().map(|text| Cell::plain(text)).collect())
    }

    pub(crate) fn cells(&mut self, cells: Vec<Cell>) -> &mut Self {
        self.rows.push(cells);
        self
    }

    /// The table as text; every line ends with a newline.
    #[must_use]
    pub fn render(&self) -> String {
        let header = self.header.iter().any(|cell| !cell.text.is_empty()).then_some(&self.header);
        let lines = || header.into_iter().chain(&self.rows);
        let mut widths = vec![0; lines().map(Vec::len).max().unwrap_or(0)];
        for cells in lines() {
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = display_width(&cell.text).max(*width);
            }
        }
        let mut out = String::new();
        for cells in lines() {
            let line: Vec<String> = cells
                .iter()
                .zip(&widths)
                .enumerate()
                .map(|(column, (cell, &width))| {
                    let align = self.aligns.get(column).copied().unwrap_or_default();
                    let text = pad(&cell.text, width, align);
                    cell.paint.map_or_else(|| text.clone(), |(weight, color)| paint(&text, weight, color))
                })
                .collect();
            out.push_str(line.join(GAP).trim_end());
            out.push('\n');
        }
        out
    }
}

/// One head's row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadRow {
    /// The layer.
    pub layer: usize,
    /// The head.
    pub head: usize,
    /// Its numbers.
    pub summary: HeadSummary,
    /// Its kind.
    pub focus: Focus,
    /// The reason why the run does not use its output, such as "ablated"; `None` if it does.
    pub silenced: Option<&'static str>,
}

/// The width of the full table if layers and heads are below 100.
pub(crate) const FULL: usize = 60;

/// A table with one row per head: `layer.head`, its summary, and where it looks.
///
/// The rows come in the order of `heads`. The units are below the titles; self, previous and first are mean weights from
/// 0 to 1, tinted if the style has color. A head looks where its weight exceeds uniform attention most
/// ([`HeadSummary::focus`]), so on a short text a head with a large weight can still count as spread. Terminals of fewer
/// than 60 columns get shorter titles and no focus. A head whose output the run does not use has a star before its name. `style.max_rows` does not apply: in a table of heads, the middle says
/// as much as the ends.
#[must_use]
pub fn overview(heads: &[HeadRow], style: &Style) -> String {
    let (titles, units): (&[&str], _) = if style.columns() < FULL {
        (&["head", "entr", "dist", "self", "prev", "1st"], ["", "nats", "tok"])
    } else {
        (&["head", "entropy", "distance", "self", "previous", "first", "focus"], ["", "nats", "tokens"])
    };
    let align = |title| if title == "focus" { Align::Left } else { Align::Right };
    let columns: Vec<(&str, Align)> = titles.iter().map(|&title| (title, align(title))).collect();

    let mut table = Table::new(&columns);
    table.row(units.map(str::to_owned).into());
    for HeadRow { layer, head, summary, focus, silenced } in heads {
        let star = if silenced.is_some() { "*" } else { "" };
        let mass = |weight: f32| Cell::painted(&number(weight, 2), weight, style.color);
        let mut cells = vec![
            Cell::plain(&format!("{star}{layer}.{head}")),
            Cell::plain(&number(summary.entropy, 2)),
            Cell::plain(&number(summary.mean_distance, 1)),
            mass(summary.on_self),
            mass(summary.on_previous),
            mass(summary.on_first),
            Cell::plain(&focus.to_string()),
        ];
        cells.truncate(columns.len());
        table.cells(cells);
    }
    table.render()
}

fn number(value: f32, decimals: usize) -> String {
    format!("{value:.decimals$}").to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::focus::Looks;
    use crate::terminal::tests::unpainted;
    use crate::text::tests::NASTY;

    #[test]
    fn aligns_by_display_width_and_trims() {
        let mut table = Table::new(&[("token", Align::Left), ("p", Align::Right), ("note", Align::Left)]);
        table
            .row(vec!["漢字".into(), "0.5".into(), "wide".into()])
            .row(vec!["e\u{301}".into(), "12.25".into()]);
        let expected = "token      p  note\n漢字     0.5  wide\ne\u{301}      12.25\n";
        assert_eq!(table.render(), expected);
    }

    #[test]
    fn odd_rows_do_no_harm() {
        let none = Table::new(&[]).render();
        assert_eq!(none, "");
        let untitled = Table::new(&[("", Align::Right), ("", Align::Left)])
            .row(vec!["a".into(), "1".into()])
            .row(vec![])
            .row(vec!["bcd".into(), "2".into(), "extra".into()])
            .render();
        assert_eq!(untitled, "  a  1\n\nbcd  2  extra\n");
    }

    #[test]
    fn one_row_is_one_line_whatever_it_holds() {
        let mut table = Table::new(&[("text", Align::Left), ("end", Align::Right)]);
        for text in NASTY {
            table.row(vec![text.into(), "|".into()]);
        }
        let rendered = table.render();
        assert!(!rendered.replace('\n', "").contains(char::is_control));
        let widths: Vec<usize> = rendered.lines().map(display_width).collect();
        assert_eq!(widths.len(), NASTY.len() + 1);
        assert!(widths.iter().all(|w| *w == widths[0]), "{widths:?}");
    }

    #[test]
    fn paint_takes_no_room() {
        let render = |color| {
            Table::new(&[("mass", Align::Right)])
                .cells(vec![Cell::painted("0.50", 0.5, color)])
                .cells(vec![Cell::painted("NaN", f32::NAN, color)])
                .render()
        };
        assert_eq!(render(Color::Plain), "mass\n0.50\n NaN\n");
        assert_eq!(unpainted(&render(Color::Ansi256)), render(Color::Plain));
        assert!(render(Color::TrueColor).contains("m0.50\x1b[0m"));
    }

    fn heads() -> Vec<HeadRow> {
        let some = HeadSummary {
            entropy: 0.794_51,
            mean_distance: 12.34,
            on_self: 0.1,
            on_previous: 0.875,
            on_first: 0.025,
            uniform: 0.125,
        };
        let odd = HeadSummary { entropy: f32::NAN, on_previous: 0.0, mean_distance: 1023.0, ..some };
        let row = |layer, head, summary: HeadSummary| {
            let focus = summary.focus(Looks::NONE);
            HeadRow { layer, head, summary, focus, silenced: (head == 3).then_some("ablated") }
        };
        vec![row(0, 0, some), row(0, 11, odd), row(11, 3, some)]
    }

    #[test]
    fn a_row_a_head() {
        let expected = [
            " head  entropy  distance  self  previous  first  focus",
            "          nats    tokens",
            "  0.0     0.79      12.3  0.10      0.88   0.03  previous",
            " 0.11      nan    1023.0  0.10      0.00   0.03  spread",
            "*11.3     0.79      12.3  0.10      0.88   0.03  previous",
        ];
        assert_eq!(overview(&heads(), &Style::default()).lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_narrow_terminal_gets_a_narrow_table() {
        for color in [Color::Plain, Color::Ansi256, Color::TrueColor] {
            for width in [0, 40, 59, 60, 80] {
                let text = overview(&heads(), &Style { color, width, max_rows: 0, ..Style::default() });
                let wide = text.lines().map(|l| display_width(&unpainted(l))).max().unwrap_or(0);
                assert!(wide <= width.max(40), "{wide} > {width}\n{text}");
                assert_eq!(text.lines().count(), 5);
                assert_eq!(text.contains("focus"), width >= 60);
            }
        }
    }

    #[test]
    fn no_heads_make_a_header() {
        assert_eq!(overview(&[], &Style::default()).lines().count(), 2);
    }
}
