//! A graph whose nodes have places of their own, such as a circuit: a row for each layer, a column for each head.

use super::frame::Frame;
use super::letters::Letters;
use super::scene::{Anchor, FAINT, GREY, INK, Mark, Scene, TextStyle, WHITE};
use crate::palette::Rgb;
use candle_core::Result;

/// Okabe and Ito's blue and vermilion (2008), which color-blind people can tell apart.
const ABOVE: Rgb = (0, 114, 178);
const BELOW: Rgb = (213, 94, 0);
/// The room of a node.
const WIDE: f32 = 84.0;
const NARROW: f32 = 34.0;
const HIGH: f32 = 84.0;
const BOX: (f32, f32) = (54.0, 24.0);
const MARGIN: f32 = 30.0;
/// A line of the text below the graph.
const KEY: f32 = 20.0;
/// Lines that go around the same box take one of so many places in the gap.
const LANES: usize = 5;
/// The widths of the lines of the smallest and of the largest weight.
const LINES: (f32, f32) = (0.6, 5.0);

/// A node of a [`GraphPicture`].
#[derive(Debug, Clone, PartialEq)]
pub struct GraphNode {
    /// The text on it.
    pub label: String,
    /// Its column, from the left.
    pub column: f32,
    /// Its row, from the bottom.
    pub row: f32,
}

/// A line of a [`GraphPicture`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GraphLink {
    /// The node where it begins.
    pub from: usize,
    /// The node where it ends.
    pub to: usize,
    /// The place on that node: -1 is its left end, 1 its right end.
    pub side: f32,
    /// Decides how thick the line is, and by its sign the color.
    pub weight: f64,
}

/// Nodes at their places, and lines between them. Nodes without a line are faint.
///
/// ```
/// use gpt2_view::{Frame, GraphPicture, GraphLink, GraphNode, PictureFormat, Provenance};
///
/// # fn main() -> candle_core::Result<()> {
/// let node = |label: &str, row| GraphNode { label: label.to_owned(), column: 0.0, row };
/// let graph = GraphPicture {
///     nodes: vec![node("embed", 0.0), node("logits", 1.0)],
///     links: vec![GraphLink { from: 0, to: 1, side: 0.0, weight: 0.5 }],
///     key: &["thick: a large score"],
/// };
/// let provenance = Provenance { caption: "f32 on cpu".to_owned(), facts: serde_json::Value::Null };
/// let svg = graph.draw(&Frame::new(PictureFormat::Svg, "an edge", &provenance))?;
/// assert!(svg.starts_with(b"<svg"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct GraphPicture<'a> {
    /// The nodes.
    pub nodes: Vec<GraphNode>,
    /// The lines, by the places of their nodes.
    pub links: Vec<GraphLink>,
    /// Explains the lines, in a line of text each.
    pub key: &'a [&'a str],
}

impl GraphPicture<'_> {
    /// The graph as a picture: the bytes of a file.
    ///
    /// # Errors
    /// When a line leads to no node, a weight is not finite, or the picture is too large.
    pub fn draw(&self, frame: &Frame) -> Result<Vec<u8>> {
        frame.write(1, |_, room| self.scene(room))
    }

    fn scene(&self, room: Option<f32>) -> Result<Scene> {
        if let Some(link) = self.links.iter().find(|link| link.from.max(link.to) >= self.nodes.len()) {
            candle_core::bail!("graph: there is no node {}", link.from.max(link.to))
        }
        if self.links.iter().any(|link| !link.weight.is_finite()) {
            candle_core::bail!("graph: a weight is not a finite number")
        }
        let most = |of: fn(&GraphNode) -> f32| self.nodes.iter().map(of).fold(0.0, f32::max);
        let columns = most(|node| node.column) + 1.0;
        let rows = most(|node| node.row) + 1.0;
        let wide = room.map_or(WIDE, |room| ((room - 2.0 * MARGIN) / columns).clamp(NARROW, WIDE));
        let size = (columns * wide + 2.0 * MARGIN, rows * HIGH + MARGIN + self.key.len() as f32 * KEY);
        let mut scene = Scene::new(Letters::new()?, size, "")?;
        let place = |node: &GraphNode| {
            (MARGIN + (node.column + 0.5) * wide, rows * HIGH + MARGIN / 2.0 - (node.row + 0.5) * HIGH)
        };
        let half = (BOX.0.min(wide - 4.0) / 2.0, BOX.1 / 2.0);
        let largest = self.links.iter().map(|link| link.weight.abs()).fold(f64::MIN_POSITIVE, f64::max);
        let mut links: Vec<&GraphLink> = self.links.iter().collect();
        // The thickest come last, above the others.
        links.sort_by(|a, b| a.weight.abs().total_cmp(&b.weight.abs()));
        let has_links: Vec<bool> = (0..self.nodes.len())
            .map(|i| self.links.iter().any(|link| link.from == i || link.to == i))
            .collect();
        for (number, link) in links.into_iter().enumerate() {
            let from = place(&self.nodes[link.from]);
            let to = place(&self.nodes[link.to]);
            let ends = [(from.0, from.1 - half.1), (to.0 + 0.8 * link.side * half.0, to.1 + half.1)];
            #[allow(clippy::cast_possible_truncation)] // from 0 to 1
            let share = (link.weight.abs() / largest) as f32;
            let color = if link.weight < 0.0 { BELOW } else { ABOVE };
            let width = LINES.0 + share * (LINES.1 - LINES.0);
            // Faint nodes have no box.
            let others = (0..self.nodes.len()).filter(|i| has_links[*i] && *i != link.from && *i != link.to);
            let others: Vec<(f32, f32)> = others.map(|i| place(&self.nodes[i])).collect();
            let lane = (number % LANES) as f32 / LANES as f32;
            scene.line(around(ends, &others, (half, wide), lane), width, color);
        }
        for (i, node) in self.nodes.iter().enumerate() {
            let (x, y) = place(node);
            let color = if has_links[i] { INK } else { FAINT };
            if has_links[i] {
                for (grown, color) in [(1.0, INK), (0.0, WHITE)] {
                    let width = 2.0 * (half.0 + grown);
                    let height = 2.0 * (half.1 + grown);
                    scene.marks.push(Mark::Box {
                        x: x - width / 2.0,
                        y: y - height / 2.0,
                        width,
                        height,
                        color,
                    });
                }
            }
            let style = TextStyle::new(if wide < WIDE { 11.0 } else { 14.0 }, color).anchor(Anchor::Middle);
            scene.text(&node.label, (x, y + 5.0), style);
        }
        for (i, line) in self.key.iter().rev().enumerate() {
            scene.text(*line, (MARGIN, size.1 - 10.0 - i as f32 * KEY), TextStyle::new(14.0, GREY));
        }
        Ok(scene)
    }
}

/// The way of a line from the lower of its `ends` to the upper one, past boxes with these middles and half sides: where it would run
/// through a box, it goes straight up beside that, so far into the gap as its `lane`, from 0 to 1, says. `wide` is the room of a node.
fn around(
    [start, end]: [(f32, f32); 2],
    boxes: &[(f32, f32)],
    (half, wide): ((f32, f32), f32),
    lane: f32,
) -> Vec<(f32, f32)> {
    let gap = wide - 2.0 * half.0;
    let pad = (gap / 4.0).min(4.0);
    let aside = lane * (gap - 2.0 * pad);
    let mut between: Vec<(f32, f32)> =
        boxes.iter().copied().filter(|(_, y)| y + half.1 < start.1 && y - half.1 > end.1).collect();
    // From the bottom up, in each row from the left.
    between.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.total_cmp(&b.0)));
    let mut way = vec![start];
    for row in between.chunk_by(|a, b| (a.1 - b.1).abs() < 0.5) {
        let from = way[way.len() - 1];
        let below = row[0].1 + half.1 + 1.0;
        let above = row[0].1 - half.1 - 1.0;
        let straight = |y: f32| from.0 + (end.0 - from.0) * (from.1 - y) / (from.1 - end.1);
        let low = straight(below).min(straight(above));
        let high = straight(below).max(straight(above));
        // Neighbors whose gap is too narrow for a line count as one box.
        let mut blocked: Vec<(f32, f32)> = vec![];
        for (x, _) in row {
            let left = x - half.0 - pad;
            let right = x + half.0 + pad;
            match blocked.last_mut() {
                Some(last) if left <= last.1 => last.1 = right,
                _ => blocked.push((left, right)),
            }
        }
        let Some((left, right)) = blocked.into_iter().find(|(left, right)| low < *right && high > *left)
        else {
            // As straight as planned, wherever the way turns above.
            way.extend([(straight(below), below), (straight(above), above)]);
            continue;
        };
        let middle = f32::midpoint(low, high);
        let x = if middle - left < right - middle { left - aside } else { right + aside };
        way.extend([(x, below), (x, above)]);
    }
    way.push(end);
    way
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::PictureFormat;
    use crate::picture::png::tests::provenance;
    use serde_json::Value;

    fn graph(weights: &[f64]) -> GraphPicture<'static> {
        let node = |i: usize| GraphNode { label: format!("node {i}"), column: i as f32, row: i as f32 };
        let link = |(i, &weight): (usize, &f64)| GraphLink { from: i, to: i + 1, side: 0.0, weight };
        GraphPicture {
            nodes: (0..weights.len() + 2).map(node).collect(),
            links: weights.iter().enumerate().map(link).collect(),
            key: &["what the lines mean"],
        }
    }

    fn svg(graph: &GraphPicture) -> Result<String> {
        let provenance = provenance("what made it", Value::Null);
        let bytes = graph.draw(&Frame::new(PictureFormat::Svg, "a title", &provenance))?;
        Ok(String::from_utf8(bytes).expect("UTF-8"))
    }

    #[test]
    fn a_line_has_the_color_of_its_sign_and_the_width_of_its_size() -> Result<()> {
        let scene = graph(&[2.0, -1.0, 0.0]).scene(None)?;
        let lines: Vec<(f32, Rgb)> = scene
            .marks
            .iter()
            .filter_map(|mark| match mark {
                Mark::Line { width, color, .. } => Some((*width, *color)),
                _ => None,
            })
            .collect();
        let middle = LINES.0 + 0.5 * (LINES.1 - LINES.0);
        // The thickest last.
        assert_eq!(lines, [(LINES.0, ABOVE), (middle, BELOW), (LINES.1, ABOVE)]);
        // Three lines touch four nodes; the fifth is faint.
        let boxes = scene.marks.iter().filter(|mark| matches!(mark, Mark::Box { .. })).count();
        assert_eq!(boxes, 2 * 4);
        let svg = svg(&graph(&[1.0]))?;
        assert!(svg.contains("node 0") && svg.contains("what the lines mean"));
        Ok(())
    }

    /// Whether a part of a way enters a box.
    fn enters(part: &[(f32, f32)], (x, y): (f32, f32), half: (f32, f32)) -> bool {
        let steps = 1000;
        (0..=steps).any(|i| {
            let share = i as f32 / steps as f32;
            let at = |a: f32, b: f32| a + (b - a) * share;
            let (px, py) = (at(part[0].0, part[1].0), at(part[0].1, part[1].1));
            (px - x).abs() < half.0 && (py - y).abs() < half.1
        })
    }

    #[test]
    fn a_line_goes_around_every_box_between_its_ends() {
        let half = (27.0, 12.0);
        for (heads, wide) in [(1, 84.0), (4, 84.0), (12, 84.0), (12, 60.0)] {
            let boxes: Vec<(f32, f32)> = (0..4)
                .flat_map(|row| (0..heads).map(move |column| (column as f32 * wide, -84.0 * row as f32)))
                .collect();
            for from in 0..heads {
                for to in 0..heads {
                    let ends = [(from as f32 * wide, 72.0), (to as f32 * wide, -240.0 - 84.0)];
                    for lane in [0.0, 0.4, 0.8] {
                        let way = around(ends, &boxes, (half, wide), lane);
                        assert_eq!((way[0], way[way.len() - 1]), (ends[0], ends[1]));
                        for part in way.windows(2) {
                            let through = boxes.iter().find(|at| enters(part, **at, half));
                            assert_eq!(through, None, "{heads} heads, {from} to {to}: {way:?}");
                        }
                    }
                }
            }
        }
        let free = around([(0.0, 0.0), (0.0, -84.0)], &[(200.0, -40.0)], (half, 84.0), 0.8);
        assert!(free.iter().all(|at| at.0 == 0.0), "nothing is in the way: {free:?}");
    }

    #[test]
    fn what_cannot_be_drawn_is_refused() {
        let mut wrong = graph(&[1.0]);
        wrong.links[0].to = 9;
        assert!(svg(&wrong).expect_err("no node").to_string().contains("no node 9"));
        assert!(svg(&graph(&[f64::NAN])).expect_err("NaN").to_string().contains("finite"));
        assert!(svg(&graph(&vec![1.0; 400])).is_err(), "larger than viewers open");
    }
}
