//! All heads on one page, one row per head.

use crate::focus::Focus;
use crate::table::{Cell, Table};
use crate::text::Align;
use crate::{HeadSummary, Style};

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
}

/// The width of the full table if layers and heads are below 100.
pub(crate) const FULL: usize = 60;

/// A table with one row per head: `layer.head`, its summary, and where it looks.
///
/// The rows come in the order of `heads`. The units are below the titles; self, previous and first are mean weights from
/// 0 to 1, tinted if the style has color. A head looks where its weight exceeds uniform attention most
/// ([`HeadSummary::focus`]), so on a short text a head with a large weight can still count as spread. Terminals of fewer
/// than 60 columns get shorter titles and no focus. `style.max_rows` does not apply: in a table of heads, the middle says
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
    for HeadRow { layer, head, summary, focus } in heads {
        let mass = |weight: f32| Cell::painted(&number(weight, 2), weight, style.color);
        let mut cells = vec![
            Cell::plain(&format!("{layer}.{head}")),
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
    use crate::terminal::tests::unpainted;
    use crate::{Color, display_width};

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
            let focus = summary.focus(crate::Looks::NONE);
            HeadRow { layer, head, summary, focus }
        };
        vec![row(0, 0, some), row(0, 11, odd), row(11, 3, some)]
    }

    #[test]
    fn a_row_a_head() {
        let expected = [
            "head  entropy  distance  self  previous  first  focus",
            "         nats    tokens",
            " 0.0     0.79      12.3  0.10      0.88   0.03  previous",
            "0.11      nan    1023.0  0.10      0.00   0.03  spread",
            "11.3     0.79      12.3  0.10      0.88   0.03  previous",
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
