//! Two runs side by side, and their difference.

use crate::browser::Browser;
use crate::common::Result;
use crate::pages::{Everything, HEADS};
use crate::show;
use gpt2_view::{PageHeader, PageWriter, Provenance};
use serde_json::json;

const T: usize = 18;
const RUNS: [&str; 2] = ["clean", "ablate <1.3>"];

fn compare(test: impl FnOnce(&Browser, &Everything) -> Result) -> Result {
    let all = Everything::new(T)?;
    show(&all.write(Vec::new(), &RUNS)?, |page| test(page, &all))
}

fn switch(page: &Browser, run: &str) -> Result {
    page.get(&format!("document.querySelector('#runs [value={run}]').click()"))?;
    page.until(&format!("document.documentElement.dataset.run === '{run}'"))?;
    // Weights arrive a little later than the choice.
    page.get("new Promise((done) => setTimeout(done, 100))")?;
    Ok(())
}

/// The readout's number and error. A minus is not the one that Rust reads.
fn value(page: &Browser) -> Result<(f64, f64)> {
    let text = page.text("#readout .value")?.replace('−', "-");
    let (value, error) = text.split_once(" ± ").ok_or(text.clone())?;
    Ok((value.parse()?, error.parse()?))
}

#[test]
fn each_run_and_the_difference_show_the_tensors_numbers() -> Result {
    compare(|page, all| {
        assert_eq!(page.texts("#runs label")?, ["clean", "ablate <1.3>", "both", "difference"]);
        page.head("2.1")?;
        let rows = [0, 1].map(|run| all.runs[run][2].get(1).and_then(|w| w.to_vec2::<f32>()));
        let [Ok(first), Ok(second)] = rows else { return Err("weights".into()) };
        for (run, expected) in [("first", 0), ("second", 1), ("difference", 2)] {
            switch(page, run)?;
            for (i, j) in [(3, 1), (9, 8), (17, 0)] {
                page.mouse(page.cell(T, T, (i, j))?, false)?;
                let [a, b] = [first[i][j], second[i][j]].map(f64::from);
                let (shown, error) = value(page)?;
                assert!(
                    (shown - [a, b, b - a][expected]).abs() <= error && error < 1e-3,
                    "{run}: {shown} ± {error}"
                );
                let detail = page.texts("#readout .detail")?;
                assert_eq!(detail.len(), usize::from(run == "difference"), "{detail:?}");
            }
        }
        // A summary's number is a change then, and says so.
        assert_eq!(page.texts("#summary dt")?[2], "entropy, change");
        assert_eq!(page.get("document.querySelector('[data-metric=uniform]')")?, json!(null));
        // The legend of a difference has its middle at 0.
        assert_eq!((page.text("#legend-start")?, page.text("#legend-end")?), ("−1".into(), "+1".into()));
        // The lists and the predictions follow.
        switch(page, "second")?;
        assert!(page.text("#next")?.contains("50.0 %"));
        assert_eq!(page.text("#token-lists section:nth-child(1) h3")?, "predicted next, ablate <1.3>");
        switch(page, "both")?;
        assert_eq!(
            page.texts(".lists section:not([hidden]) h3")?.len(),
            7,
            "two lists of predictions, the lens, features and edges"
        );
        Ok(())
    })
}

#[test]
fn a_difference_of_weights_that_were_left_out_has_an_honest_error() -> Result {
    let all = Everything::new(T)?;
    let [first, second] = [0, 1].map(|run| all.runs[run][2].narrow(0, 0, 1));
    let first = first?;
    let second = second?;
    let provenance = Provenance::default();
    let mut header = PageHeader::new("few", &all.tokens, 1, &provenance);
    (header.runs, header.top) = (&RUNS, Some(3));
    let mut page = PageWriter::new(Vec::new(), &header)?;
    for (run, weights) in [&first, &second].into_iter().enumerate() {
        page.layer_of_run(run, 0, &[0], weights)?;
    }
    let page = page.finish(&[])?;
    let [a, b] = [first.get(0)?.to_vec2::<f32>()?, second.get(0)?.to_vec2::<f32>()?];
    show(&page, |page| {
        switch(page, "difference")?;
        let mut left_out = 0;
        for cell in (0..T).flat_map(|i| (0..=i).step_by(3).map(move |j| (i, j))) {
            page.mouse(page.cell(T, T, cell)?, false)?;
            let (i, j) = cell;
            if let Ok((shown, error)) = value(page) {
                assert!((shown - f64::from(b[i][j] - a[i][j])).abs() <= error, "{cell:?}: {shown} ± {error}");
            } else {
                left_out += 1;
                assert!(i >= 3, "a row of at most 3 keys has all of them");
                assert_eq!(page.text("#readout .value")?, "not among the 3 largest of its row");
            }
        }
        assert!(left_out > 10);
        Ok(())
    })
}

#[test]
fn what_only_the_first_run_has_is_not_shown_for_the_second() -> Result {
    let all = Everything::new(T)?;
    let provenance = Provenance::default();
    let mut header = PageHeader::new("norms of one run", &all.tokens, 1, &provenance);
    header.runs = &RUNS;
    let mut page = PageWriter::new(Vec::new(), &header)?;
    for run in [0, 1] {
        let weights = all.runs[run][2].narrow(0, 0, 1)?;
        page.layer_of_run(run, 0, &[0], &weights)?;
    }
    let one = |tensor: &candle_core::Tensor| tensor.narrow(0, 0, 1)? * 100.0;
    page.value_norms(0, 0, &[0], &one(&all.norms)?)?;
    page.vectors(0, 0, &[0], &one(&all.q)?, &one(&all.k)?, 0.5)?;
    let page = page.finish(&[])?;
    show(&page, |page| {
        page.click("#weighted")?;
        page.click("#neurons summary")?;
        for (run, end, has) in
            [("first", None, true), ("second", Some("1"), false), ("difference", Some("+1"), false)]
        {
            switch(page, run)?;
            page.mouse(page.cell(T, T, (9, 4))?, false)?;
            let shown = page.text("#legend-end")?;
            assert!(
                end.map_or(shown.parse::<f64>().is_ok_and(|n| n > 100.0), |end| shown == end),
                "{run}: {shown}"
            );
            assert_eq!(page.get("document.getElementById('no-norms').hidden")?, has, "{run}");
            if run != "difference" {
                assert_eq!(page.text("#products-sum")?.contains("has no queries and keys"), !has, "{run}");
            }
        }
        Ok(())
    })
}

#[test]
fn two_maps_share_zoom_and_cursor() -> Result {
    compare(|page, all| {
        assert_eq!(
            page.get("document.documentElement.dataset.run")?,
            "both",
            "what a comparison starts with"
        );
        page.head("2.3")?;
        // The right map starts behind the left one and 14 pixels; both show the same cell at the same place.
        let rect = page.get("document.getElementById('map').getBoundingClientRect().toJSON()")?;
        let of = |name: &str| rect[name].as_f64().ok_or("a number");
        let (left, top) = (104.0, 84.0);
        let plot = (of("width")? - left - 4.0 - 14.0) / 2.0;
        let size = (plot / T as f64).min((of("height")? - top - 4.0) / T as f64);
        let cell = |(i, j): (usize, usize), pane: f64| -> Result<(f64, f64)> {
            let start = of("x")? + left + pane * (size * T as f64 + 14.0);
            Ok((start + (j as f64 + 0.5) * size, of("y")? + top + (i as f64 + 0.5) * size))
        };
        page.mouse(cell((12, 4), 0.0)?, false)?;
        let on_left = page.text("#readout")?;
        page.mouse(cell((12, 4), 1.0)?, false)?;
        assert_eq!(page.text("#readout")?, on_left, "the same cell on the right");
        let weight = |run: usize| -> Result<f32> { Ok(all.runs[run][2].get(3)?.to_vec2::<f32>()?[12][4]) };
        let (shown, error) = value(page)?;
        assert!((shown - f64::from(weight(1)? - weight(0)?)).abs() <= error, "{shown}");
        // Zooming on the right keeps that cell there, and moves the left map alike.
        page.mouse(cell((12, 4), 1.0)?, true)?;
        page.get("document.getElementById('map').focus()")?;
        page.keys("++")?;
        page.mouse(cell((12, 4), 1.0)?, false)?;
        assert_eq!(page.text("#readout")?, on_left);
        page.mouse(cell((12, 4), 0.0)?, false)?;
        assert_eq!(page.text("#readout")?, on_left);
        Ok(())
    })
}

#[test]
fn on_a_wide_window_the_left_map_stays_left() -> Result {
    compare(|page, _| {
        let wide = json!({ "width": 2400, "height": 800, "deviceScaleFactor": 1, "mobile": false });
        page.devtools("Emulation.setDeviceMetricsOverride", &wide)?;
        page.until("innerWidth === 2400")?;
        page.get("document.getElementById('map').focus()")?;
        let rect = page.get("document.getElementById('map').getBoundingClientRect().toJSON()")?;
        let side = rect["height"].as_f64().ok_or("a number")? - 84.0 - 4.0;
        // The opacity between the maps, at all heights.
        let between = format!(
            "(() => {{ const c = document.getElementById('map').getContext('2d'); \
             const strip = c.getImageData({}, 90, 1, 300).data; \
             return strip.reduce((most, part) => Math.max(most, part), 0) }})()",
            (104.0 + side + 7.0).round()
        );
        page.until("document.getElementById('map').width > 1500")?;
        page.keys("+++")?;
        page.until("location.hash.includes('place=')")?;
        assert_eq!(page.get(&between)?, 0);
        Ok(())
    })
}

#[test]
fn heads_are_sorted_and_colored_by_how_much_they_changed() -> Result {
    compare(|page, all| {
        page.get("(() => { const s = document.getElementById('sort'); s.value = 'change'; s.dispatchEvent(new Event('change')) })()")?;
        let shown = page.texts("#overview [role=option] span")?;
        let mut expected = vec![];
        for layer in 0..3 {
            for head in 0..HEADS {
                let moved = (all.runs[1][layer].get(head)? - all.runs[0][layer].get(head)?)?;
                let share = moved.abs()?.sum_all()?.to_scalar::<f32>()? / 2.0 / T as f32;
                expected.push((format!("{layer}.{head}"), share));
            }
        }
        expected.sort_by(|a, b| b.1.total_cmp(&a.1));
        for (shown, (name, share)) in shown.iter().zip(&expected).take(2 * HEADS) {
            let (shown_name, number) = shown.split_once(' ').ok_or("a number")?;
            assert_eq!(shown_name, name);
            assert!((number.parse::<f32>()? - share).abs() < 0.0051, "{shown}: {share}");
        }
        assert_eq!(page.text("#tint-name")?, "change");
        let colors = "new Set([...document.querySelectorAll('#overview [role=option]')].map((o) => o.style.backgroundColor)).size";
        assert!(page.get(colors)?.as_u64().is_some_and(|n| n > 5), "colors by the change");
        Ok(())
    })
}
