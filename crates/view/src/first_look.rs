//! [`FirstLook`]: what to show of a model and a text before anybody has asked for a particular head.

use crate::focus::{Focus, Looks, Places};
use crate::heatmap::heatmap;
use crate::rows::lower_triangle;
use crate::silenced::Silenced;
use crate::table::{Cell, FULL, HeadRow, Table, overview};
use crate::terminal::{Color, Style, compact};
use crate::text::{Align, display_width, fit, visible_token, wrap};
use candle_core::{Result, Tensor};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// The number of links to show.
const LINKS: usize = 5;
/// The most columns that a key takes in the heat map.
const CELL: usize = 4;
/// The most columns that a token takes in the list of links.
const TOKEN: usize = 20;

/// A weight of one head that is neither on the query's own token nor on the first.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Link {
    /// The query's position.
    pub query: usize,
    /// The key's position.
    pub key: usize,
    /// The weight, 0 to 1.
    pub weight: f32,
    /// The layer.
    pub layer: usize,
    /// The head.
    pub head: usize,
}

/// Looks through the weights of all heads, one layer at a time, for what a person should see first: the head that links
/// tokens most, the strongest links, and the kind of each head. A head whose output the run does not use has a kind, but is
/// neither chosen nor among the links.
#[derive(Debug)]
pub struct FirstLook {
    tokens: Vec<String>,
    places: Places,
    silenced: Silenced,
    /// The strongest links, the strongest first.
    links: Vec<Link>,
    looks: BTreeMap<(usize, usize), Looks>,
    best: Option<StrongestHead>,
}

/// The head that links tokens most.
#[derive(Debug)]
struct StrongestHead {
    layer: usize,
    head: usize,
    /// See [`reach`].
    reach: f32,
    /// (T, T)
    weights: Tensor,
}

impl FirstLook {
    /// Begins with a text and no head. Tokens with the same id count as copies; `tokens` are their labels. `silenced` are the
    /// heads whose output the run does not use.
    ///
    /// # Errors
    /// When the numbers of labels and ids differ.
    pub fn new(ids: &[u32], tokens: &[String], silenced: Silenced) -> Result<Self> {
        if ids.len() != tokens.len() {
            candle_core::bail!(
                "first look: {} ids and {} labels, expected one label for each id",
                ids.len(),
                tokens.len()
            )
        }
        let places = Places::new(ids, tokens);
        Ok(Self {
            tokens: tokens.to_vec(),
            places,
            silenced,
            links: vec![],
            looks: BTreeMap::new(),
            best: None,
        })
    }

    /// Looks at these heads of a layer.
    ///
    /// # Shapes
    /// `weights` (heads, T, T), of any float dtype and on any device
    ///
    /// # Errors
    /// When `weights` has another shape.
    pub fn layer(&mut self, layer: usize, heads: &[usize], weights: &Tensor) -> Result<()> {
        let (found, t, s) = weights.dims3()?;
        if (found, t, s) != (heads.len(), self.tokens.len(), self.tokens.len()) {
            candle_core::bail!(
                "first look: weights have shape {:?}, with {} heads and {} tokens",
                weights.dims(),
                heads.len(),
                self.tokens.len()
            )
        }
        for (i, &head) in heads.iter().enumerate() {
            let weights = weights.get(i)?;
            let rows = lower_triangle::<f32>(&weights, "first look")?;
            self.looks.insert((layer, head), Looks::new(&rows, &self.places));
            if self.silenced.how(layer, head).is_some() {
                continue;
            }
            self.take_link(layer, head, &rows);
            let best = self.best.as_ref().map_or(f32::NEG_INFINITY, |best| best.reach);
            if let Some(reach) = reach(&rows).filter(|reach| *reach > best) {
                // A copy, since a view would keep the whole layer's weights.
                self.best = Some(StrongestHead { layer, head, reach, weights: weights.copy()? });
            }
        }
        Ok(())
    }

    /// Keeps the strongest link of a head if it is among those of all: many links of one head would tell one fact many times.
    /// Among equal ones, it keeps those that came first.
    fn take_link(&mut self, layer: usize, head: usize, rows: &[Vec<f32>]) {
        let mut best: Option<Link> = None;
        for (query, row) in rows.iter().enumerate().skip(2) {
            for (i, &weight) in row[1..query].iter().enumerate() {
                if !weight.is_nan() && best.is_none_or(|best| weight > best.weight) {
                    best = Some(Link { query, key: i + 1, weight, layer, head });
                }
            }
        }
        let Some(link) = best else { return };
        let place = self.links.partition_point(|kept| kept.weight >= link.weight);
        self.links.insert(place, link);
        self.links.truncate(LINKS);
    }

    /// The strongest links, the strongest first and at most one of each head; of equal ones, the first.
    #[must_use]
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// A head's shares of weight that its summary lacks.
    #[must_use]
    pub fn looks(&self, layer: usize, head: usize) -> Looks {
        self.looks.get(&(layer, head)).copied().unwrap_or(Looks::NONE)
    }

    /// The heat map of the head that links tokens most, the strongest links, and the overview of `heads`, the most
    /// concentrated ones first. A text of one or two tokens has no links and no map; below 60 columns, the tables leave out
    /// the kinds. No line is wider than the terminal.
    ///
    /// # Errors
    /// When the device of the weights fails.
    pub fn render(&self, heads: &[HeadRow], style: &Style) -> Result<String> {
        self.render_first(heads, heads.len(), "", style)
    }

    /// Like [`FirstLook::render`], with the first `most` rows of the overview alone, and the line `more` below it.
    ///
    /// # Errors
    /// When the device of the weights fails.
    pub fn render_first(&self, heads: &[HeadRow], most: usize, more: &str, style: &Style) -> Result<String> {
        let mut out = String::new();
        let mut line = |text: &str| out += &(wrap(text, style.columns()) + "\n");
        let focus = |layer, head| {
            let row = heads.iter().find(|row| (row.layer, row.head) == (layer, head));
            row.map_or(Focus::Spread, |row| row.focus)
        };
        if let Some(StrongestHead { layer, head, reach, weights }) = &self.best {
            let kind = focus(*layer, *head);
            line(&format!("head {layer}.{head} (layer {layer}, head {head}): {kind}, {}", kind.meaning()));
            line(&format!(
                "shown because its attention is the most focused: {reach:.2} on one earlier token"
            ));
            out += &heatmap(weights, &self.tokens, &self.tokens, &style.with_max_cell(CELL))?;
            let heading = "strongest links between tokens, one of each head";
            let _ = write!(out, "\n{}\n", wrap(heading, style.columns()));
            out += &self.table(focus, style);
            out += "\n";
        }
        let mut sorted = heads.to_vec();
        // NaN comes last, whatever its sign.
        sorted.sort_by(|a, b| {
            let [a, b] = [a, b].map(|row| row.summary.entropy);
            a.is_nan().cmp(&b.is_nan()).then(a.total_cmp(&b))
        });
        out += "heads, the most concentrated first\n";
        sorted.truncate(most);
        out += &overview(&sorted, style);
        if !more.is_empty() {
            let _ = writeln!(out, "{more}");
        }
        out += "\n";
        let of_links = self.links.iter().map(|link| focus(link.layer, link.head));
        let of_best = self.best.iter().map(|best| focus(best.layer, best.head));
        let kinds: BTreeSet<Focus> =
            sorted.iter().map(|row| row.focus).chain(of_links).chain(of_best).collect();
        for kind in kinds {
            let _ = writeln!(out, "{kind:<9}  {}", kind.meaning());
        }
        let silenced: BTreeSet<&str> = heads.iter().filter_map(|row| row.silenced).collect();
        if !silenced.is_empty() {
            let how = Vec::from_iter(silenced).join(" or ");
            let line = format!("{:<9}  {how}: the run replaces its output", "*");
            let _ = writeln!(out, "{}", wrap(&line, style.columns()));
        }
        Ok(out)
    }

    fn table(&self, focus: impl Fn(usize, usize) -> Focus, style: &Style) -> String {
        use Align::{Left, Right};
        let columns = [Right, Left, Left, Right, Left, Right, Right, Left].map(|align| ("", align));
        let mut table = Table::new(&columns);
        let label = |i: usize| visible_token(&self.tokens[i]);
        let row = |link: &Link, room: usize, color: Color| {
            let mut cells = vec![
                Cell::plain(&link.query.to_string()),
                Cell::plain(&fit(&label(link.query), room)),
                Cell::plain("->"),
                Cell::plain(&link.key.to_string()),
                Cell::plain(&fit(&label(link.key), room)),
                Cell::painted(&compact(link.weight), link.weight, color),
                Cell::plain(&format!("{}.{}", link.layer, link.head)),
            ];
            if style.columns() >= FULL {
                cells.push(Cell::plain(&focus(link.layer, link.head).to_string()));
            }
            cells
        };
        // What the columns take without the tokens, which share the rest.
        let mut bare = Table::new(&columns);
        for link in &self.links {
            bare.cells(row(link, 0, Color::Plain));
        }
        let taken = bare.render().lines().map(display_width).max().unwrap_or(0);
        let room = (style.columns().saturating_sub(taken) / 2).clamp(1, TOKEN);
        for link in &self.links {
            table.cells(row(link, room, style.color));
        }
        table.render()
    }
}

/// Measures how focused a head is: the mean over the queries of the largest weight that is neither on the query's own
/// token nor on the first. `None` if no query has another key, or if a weight is NaN.
pub(crate) fn reach(rows: &[Vec<f32>]) -> Option<f32> {
    let most = |most: f32, &w: &f32| if most.is_nan() || w.is_nan() { f32::NAN } else { most.max(w) };
    let mut largest = vec![];
    for row in rows.iter().filter(|row| row.len() > 2) {
        largest.push(row[1..row.len() - 1].iter().fold(0.0, most));
    }
    let mean = largest.iter().sum::<f32>() / largest.len() as f32; // NaN without any
    (!mean.is_nan()).then_some(mean)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::{HeadSummary, summarize};
    use crate::terminal::tests::unpainted;
    use candle_core::Device;

    fn tokens() -> Vec<String> {
        ["a", "b", "c", "a"].map(str::to_owned).to_vec()
    }

    /// Two heads: one on the token before, one that finds what followed the `a` of the beginning.
    fn look() -> Result<(FirstLook, Vec<HeadRow>)> {
        look_without(Silenced::default())
    }

    fn look_without(silenced: Silenced) -> Result<(FirstLook, Vec<HeadRow>)> {
        let before = [[1f32, 0., 0., 0.], [1., 0., 0., 0.], [0.2, 0.8, 0., 0.], [0.1, 0., 0.9, 0.]];
        let after = [[1f32, 0., 0., 0.], [0.9, 0.1, 0., 0.], [0.8, 0.05, 0.15, 0.], [0.05, 0.95, 0., 0.]];
        let weights = Tensor::new(&[before, after], &Device::Cpu)?;
        let mut look = FirstLook::new(&[5, 6, 7, 5], &tokens(), silenced.clone())?;
        look.layer(3, &[1, 4], &weights)?;
        let rows = [1, 4].into_iter().zip(summarize(&weights)?);
        let row = |(head, summary): (usize, HeadSummary)| HeadRow {
            layer: 3,
            head,
            summary,
            focus: summary.focus(look.looks(3, head)),
            silenced: silenced.how(3, head),
        };
        let rows = rows.map(row).collect();
        Ok((look, rows))
    }

    #[test]
    fn links_are_neither_to_itself_nor_to_the_first() -> Result<()> {
        let (look, _) = look()?;
        let found: Vec<_> = look.links().iter().map(|l| (l.query, l.key, l.head, l.weight)).collect();
        assert_eq!(
            found,
            [(3, 1, 4, 0.95), (3, 2, 1, 0.9)],
            "the strongest of each head, no matter how many it has"
        );
        Ok(())
    }

    #[test]
    fn the_head_with_most_links_is_chosen_and_each_has_its_kind() -> Result<()> {
        let (look, rows) = look()?;
        // 3.1 reaches (0.8 + 0.9) / 2, and 3.4 (0.05 + 0.95) / 2.
        let best = look.best.as_ref().expect("a head");
        assert!((best.layer, best.head) == (3, 1) && (best.reach - 0.85).abs() < 1e-6);
        let text = look.render(&rows, &Style::default())?;
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "head 3.1 (layer 3, head 1): previous, the token before");
        assert_eq!(lines[1], "shown because its attention is the most focused: 0.85 on one earlier token");
        assert!(
            text.contains("\n3  a  ->  1  b  .95  3.4  induction\n3  a  ->  2  c  .90  3.1  previous\n"),
            "{text}"
        );
        assert!(text.ends_with("previous   the token before\ninduction  what followed earlier\n"), "{text}");
        Ok(())
    }

    #[test]
    fn a_silenced_head_is_marked_and_neither_chosen_nor_linked() -> Result<()> {
        let mut silenced = Silenced::default();
        silenced.insert(3, 1, "ablated");
        let (look, rows) = look_without(silenced)?;
        assert!(look.links().iter().all(|link| link.head == 4) && look.links().len() == 1, "{look:?}");
        let text = look.render(&rows, &Style::default())?;
        assert!(text.starts_with("head 3.4 (layer 3, head 4): induction"), "{text}");
        assert!(text.contains("\n*3.1 ") && text.contains("  previous\n"), "it has a row and a kind: {text}");
        assert!(text.ends_with("\n*          ablated: the run replaces its output\n"), "{text}");
        Ok(())
    }

    #[test]
    fn a_narrow_terminal_gets_whole_sentences() -> Result<()> {
        let (look, rows) = look()?;
        let text = look.render(&rows, &Style::default().with_width(45))?;
        let sentence = "shown because its attention is the most\nfocused: 0.85 on one earlier token\n";
        assert!(text.contains(sentence) && !text.contains('…'), "{text}");
        Ok(())
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() -> Result<()> {
        for t in [60, 1100] {
            let tokens: Vec<String> = (0..t).map(|i| format!("a long token, number {i}")).collect();
            let ids: Vec<u32> = (0..60).cycle().take(t).collect();
            let weights = Tensor::full(1f32 / 60.0, (2, t, t), &Device::Cpu)?;
            let mut look = FirstLook::new(&ids, &tokens, Silenced::default())?;
            look.layer(11, &[10, 11], &weights)?;
            // Also positions of four digits.
            for link in &mut look.links {
                (link.query, link.key) = (t - 1, t - 2);
            }
            let summary = summarize(&weights)?[0];
            let rows = [10, 11].map(|head| HeadRow {
                layer: 11,
                head,
                summary,
                focus: Focus::Induction,
                silenced: Some("mean-ablated"),
            });
            for width in [10, 40, 79, 80, 140] {
                for color in [Color::Plain, Color::Ansi256] {
                    let text = look.render(&rows, &Style { color, width, ..Style::default() })?;
                    let wide = text.lines().map(|l| display_width(&unpainted(l))).max().unwrap_or(0);
                    assert!(wide <= width.max(40), "{wide} > {width}\n{text}");
                }
            }
        }
        Ok(())
    }

    #[test]
    fn color_takes_no_room_from_the_tokens() -> Result<()> {
        let (look, rows) = look()?;
        let plain = look.render(&rows, &Style::default())?;
        let colored = unpainted(&look.render(&rows, &Style { color: Color::TrueColor, ..Style::default() })?);
        let links =
            |text: &str| text.lines().filter(|l| l.contains("->")).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(links(&colored), links(&plain));
        Ok(())
    }

    #[test]
    fn a_text_of_two_tokens_has_no_links() -> Result<()> {
        let mut look = FirstLook::new(&[5, 6], &tokens()[..2], Silenced::default())?;
        look.layer(0, &[0], &Tensor::new(&[[[1f32, 0.], [0.5, 0.5]]], &Device::Cpu)?)?;
        assert!(look.links().is_empty() && look.best.is_none());
        assert!(look.render(&[], &Style::default())?.starts_with("heads, "));
        assert!(
            look.layer(0, &[0], &Tensor::zeros((1, 3, 3), candle_core::DType::F32, &Device::Cpu)?).is_err()
        );
        Ok(())
    }

    #[test]
    fn nan_is_not_a_link() -> Result<()> {
        let mut look = FirstLook::new(&[5, 6, 7, 8], &tokens(), Silenced::default())?;
        let rows =
            [[1f32, 0., 0., 0.], [0.5, 0.5, 0., 0.], [0.5, f32::NAN, 0.5, 0.], [0.1, f32::NAN, 0.3, 0.6]];
        look.layer(0, &[0], &Tensor::new(&[rows], &Device::Cpu)?)?;
        assert_eq!(look.links().iter().map(|link| link.weight).collect::<Vec<_>>(), [0.3]);
        assert!(look.best.is_none(), "a head with NaN");
        Ok(())
    }
}
