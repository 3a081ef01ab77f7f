//! A browser shows the tensor's numbers, at sizes from a few tokens to GPT-2's context.

use super::pages::{self, Kind};
use crate::browser::Browser;
use crate::common::Result;
use crate::show;
use candle_core::{Device, Tensor};
use gpt2_view::{PageHeader, PageWriter, Provenance, summarize};

/// Hovers over some cells of the displayed head; `offset` is the position of the first query.
fn assert_cells(page: &Browser, weights: &Tensor, offset: usize) -> Result {
    let (queries, keys) = weights.dims2()?;
    let rows = weights.to_vec2::<f32>()?;
    // If cells are smaller than pixels, the mouse may miss those at the edges.
    let edge = if keys > 200 { 8 } else { 0 };
    for n in 0..12 {
        let i = edge + (n * (queries - 2 * edge) / 11).min(queries - 2 * edge - 1);
        let own = offset + i - edge / 2;
        for j in [edge / 4, own / 3, own.saturating_sub(1), own] {
            page.mouse(page.cell(queries, keys, (i, j))?, false)?;
            let (query, key, weight, error) = page.value()?;
            // If a cell is no larger than a pixel, the mouse may be on its neighbor.
            assert!(query.abs_diff(offset + i) <= 1 && key.abs_diff(j) <= 1, "{query}, {key}: not {i}, {j}");
            let expected = f64::from(rows[query - offset][key]);
            assert!((weight - expected).abs() <= error, "{weight} ± {error} at {query}, {key}: {expected}");
            assert!(error < 0.005 && error <= 0.02f64.max(weight), "{weight} ± {error} says little");
        }
    }
    Ok(())
}

/// A page of GPT-2 small's shape.
fn assert_shows(page: &Browser, t: usize, layers: &[Tensor]) -> Result {
    assert_eq!(page.text("#about")?, format!("{t} tokens, 144 heads"));
    for (layer, head) in [(0, 0), (7, 3), (11, 11)] {
        page.head(&format!("{layer}.{head}"))?;
        let weights = layers[layer].get(head)?;
        assert_cells(page, &weights, 0)?;
        let summary = &summarize(&weights.unsqueeze(0)?)?[0];
        let shown: f32 = page.text("[data-metric=entropy]")?.parse()?;
        assert!((shown - summary.entropy).abs() < 0.006, "{shown}: {summary:?}");
    }
    // The page draws all small maps, and its own memory stays far below the size of the weights.
    page.until("document.querySelectorAll('[data-drawn]').length === 144")?;
    let heap = page.get("performance.memory.usedJSHeapSize")?.as_f64().ok_or("a number")?;
    assert!(heap < 150e6, "{heap} bytes");
    Ok(())
}

fn random(t: usize) -> Result<(Vec<u8>, Vec<Tensor>)> {
    let layers = (0..12).map(|l| pages::layer(l, t, Kind::mixed)).collect::<candle_core::Result<Vec<_>>>()?;
    Ok((pages::write(Vec::new(), t, &layers)?, layers))
}

#[test]
fn gpt2_small_at_256_tokens() -> Result {
    let (html, layers) = random(256)?;
    show(&html, |page| assert_shows(page, 256, &layers))
}

#[test]
fn gpt2_small_at_1024_tokens_is_small_and_quick() -> Result {
    let (html, layers) = random(1024)?;
    assert!(html.len() <= 30_000_000, "{} bytes", html.len());
    show(&html, |page| {
        // Some 0.4 s on a quiet machine, but the tests share one.
        let ready = page.ready_after()?;
        assert!(ready < 5000.0, "{ready} ms");
        assert_shows(page, 1024, &layers)
    })
}

#[test]
fn the_worst_weights_at_128_and_1024_tokens_fit() -> Result {
    let noise = |_, _| Kind::NOISE;
    for (t, most) in [(128, 1_500_000), (1024, 30_000_000)] {
        let layer = pages::layer(0, t, noise)?;
        let page = pages::write(Vec::new(), t, &vec![layer; 12])?;
        assert!(page.len() < most, "{t}: {} bytes", page.len());
    }
    Ok(())
}

#[test]
fn queries_after_a_cache_are_the_last_of_the_keys() -> Result {
    let rows = [[0.1f32, 0.2, 0.3, 0.4, 0.], [0.05, 0.15, 0.25, 0.25, 0.3]];
    let weights = Tensor::new(&[rows], &Device::Cpu)?; // (1, 2, 5)
    let tokens = ["a", " b", " c", " d", " e"].map(String::from);
    let provenance = Provenance::default();
    let mut header = PageHeader::new("cache", &tokens, 1, &provenance);
    header.queries = 2;
    let mut page = PageWriter::new(Vec::new(), &header)?;
    page.layer(4, &[2], &weights)?;
    let page = page.finish(&[])?;
    show(&page, |page| {
        assert_eq!(page.text("#head-title")?, "Layer 4, head 2");
        assert_cells(page, &weights.get(0)?, 3)?;
        // The last token is chosen: its row, strongest first.
        assert_eq!(page.texts("#outgoing .position")?, ["4", "2", "3", "1", "0"]);
        // Token 1 comes before the first query: queries attend to it, but it has no query.
        page.click("#word-1")?;
        assert_eq!(page.texts("#incoming .position")?, ["3", "4"]);
        assert_eq!(page.texts("#outgoing .position")?, [""; 0]);
        assert_eq!(page.text("#incoming .number")?, "0.200");
        assert_eq!(page.get("document.getElementById('next').parentElement.hidden")?, true);
        Ok(())
    })
}

#[test]
fn short_rows_are_complete_and_large_numbers_have_no_false_digits() -> Result {
    let weights = Tensor::new(&[[[1f32, 0., 0.], [1., 0., 0.], [0.5124, 0.2876, 0.2]]], &Device::Cpu)?;
    let tokens = ["a", " b", " c"].map(String::from);
    let provenance = Provenance::default();
    let mut header = PageHeader::new("two of each row", &tokens, 1, &provenance);
    header.top = Some(2);
    let mut page = PageWriter::new(Vec::new(), &header)?;
    page.layer(0, &[0], &weights)?;
    page.value_norms(0, 0, &[0], &Tensor::full(3e6f32, (1, 3), &Device::Cpu)?)?;
    let page = page.finish(&[])?;
    show(&page, |page| {
        page.mouse(page.cell(3, 3, (2, 2))?, false)?;
        assert_eq!(page.text("#readout .value")?, "not among the 2 largest of its row");
        page.mouse(page.cell(3, 3, (1, 1))?, false)?;
        let (.., weight, error) = page.value()?;
        assert!(weight <= error && error < 1e-6, "{weight} ± {error}: a 0 of a row of two keys");
        page.click("#weighted")?;
        page.until("document.getElementById('legend-end').textContent === '3000000'")?;
        assert_eq!(page.texts("#outgoing .number")?, ["1537200", "862800"], "the error is some 30");
        Ok(())
    })
}
