//! A reader takes from a page a value, pictures, numbers, and the page itself into a notebook. The wheel must not take the
//! page away.

use crate::browser::Browser;
use crate::common::Result;
use crate::pages::Everything;
use crate::show;
use gpt2_view::page_fragment;
use serde_json::{Value, json};

const T: usize = 12;

fn open(runs: &[&str], test: impl FnOnce(&Browser, &Everything) -> Result) -> Result {
    let mut all = Everything::new(T)?;
    "=1+\"<b>&".clone_into(&mut all.tokens[3]);
    show(&all.write(Vec::new(), runs)?, |page| test(page, &all))
}

/// The bytes that a button saves, as text.
fn saved(page: &Browser, button: &str) -> Result<String> {
    page.get(
        "(() => { window.kept = null; const make = window.make ??= URL.createObjectURL; \
         URL.createObjectURL = (blob) => { blob.text().then((text) => (window.kept = text)); return make.call(URL, blob) } })()",
    )?;
    page.get(&format!("document.getElementById('{button}').click()"))?;
    page.until("window.kept !== null")?;
    Ok(page.get("window.kept")?.as_str().unwrap_or_default().to_owned())
}

#[test]
fn numbers_and_pictures_are_saved() -> Result {
    open(&[], |page, all| {
        page.head("1.2")?;
        let csv = saved(page, "csv")?;
        let lines: Vec<_> = csv.lines().collect();
        assert_eq!(
            (lines[0], lines.len()),
            ("query,query_token,key,key_token,weight,weight_error", 1 + T * (T + 1) / 2)
        );
        let weights = all.runs[0][1].get(2)?.to_vec2::<f32>()?;
        let cell =
            lines.iter().find(|line| line.starts_with("5,\"") && line.contains(",4,\"")).ok_or("a line")?;
        let numbers: Vec<f32> =
            cell.rsplit(',').take(2).map(str::parse).collect::<std::result::Result<_, _>>()?;
        let [error, number] = numbers[..] else { return Err("two numbers".into()) };
        assert!((number - weights[5][4]).abs() <= error && error < 1e-4, "{cell}: {}", weights[5][4]);
        assert!(csv.contains(",3,\"'=1+\"\"<b>&\","), "no formula: {csv}");

        let svg = saved(page, "svg")?;
        assert!(
            svg.starts_with("<svg xmlns") && svg.contains("all kinds of data · Layer 1, head 2"),
            "{svg}"
        );
        assert_eq!(svg.matches("<title>").count(), T * (T + 1) / 2);
        assert!(
            svg.contains(">=1+&#34;&#60;b&#62;&#38;</text>") && svg.contains(">·fathers</text>"),
            "text stays text"
        );
        let parsed = format!(
            "new DOMParser().parseFromString({}, 'image/svg+xml').querySelectorAll('parsererror').length",
            Value::from(svg)
        );
        assert!(
            page.get(&parsed).is_err_and(|e| e.to_string().contains("TrustedHTML")),
            "the page itself parses nothing"
        );
        assert!(page.log()?.to_string().contains("TrustedHTML"));

        assert!(saved(page, "png")?.contains("PNG"));
        // What changes the numbers or their colors is said.
        page.click("#weighted")?;
        page.keys("sf")?;
        page.until("document.getElementById('legend-end').textContent === \"row's largest\"")?;
        let csv = saved(page, "csv")?;
        assert!(csv.contains(",weight_times_norm,weight_times_norm_error\n"), "{csv}");
        let svg = saved(page, "svg")?;
        assert!(svg.contains(">weight × value norm · by row · without the first token</text>"), "{svg}");
        Ok(())
    })
}

#[test]
fn a_comparison_saves_both_runs() -> Result {
    open(&["clean", "patched"], |page, _| {
        let csv = saved(page, "csv")?;
        assert!(
            csv.starts_with("query,query_token,key,key_token,first,first_error,second,second_error\n"),
            "{csv}"
        );
        let svg = saved(page, "svg")?;
        assert!(svg.contains(">clean</text>") && svg.contains(">patched</text>"));
        Ok(())
    })
}

#[test]
fn the_value_is_copied() -> Result {
    open(&[], |page, _| {
        page.get("(() => { window.copied = ''; navigator.clipboard.writeText = async (text) => { window.copied = text } })()")?;
        page.get("document.getElementById('copy').click()")?;
        assert_eq!(page.text("#saved")?, "choose a cell first");
        page.head("0.0")?;
        page.mouse(page.cell(T, T, (7, 2))?, true)?;
        page.get("document.getElementById('copy').click()")?;
        page.until("window.copied !== ''")?;
        let copied = page.get("window.copied")?;
        let value = page.text("#readout .value")?;
        assert_eq!(copied, format!("Layer 0, head 0: {value}, 7 ·fathers attends to 2 ·and"));
        // Without a clipboard, what is selected is copied, if the browser allows it.
        page.get("(() => { navigator.clipboard.writeText = async () => { throw new Error('none') } })()")?;
        for (allowed, told) in [(true, "copied"), (false, "the browser did not copy it")] {
            page.get(&format!(
                "(() => {{ document.execCommand = () => {{ window.selected = getSelection().toString() || document.activeElement.value; return {allowed} }} }})()"
            ))?;
            page.get("document.getElementById('copy').click()")?;
            page.until(&format!("document.getElementById('saved').textContent === '{told}'"))?;
            assert_eq!(page.get("window.selected")?, copied);
            assert_eq!(page.get("document.activeElement.tagName")?, "SUMMARY", "the focus is back");
        }
        Ok(())
    })
}

#[test]
fn the_wheel_scrolls_the_page_and_zooms_with_ctrl() -> Result {
    open(&[], |page, _| {
        page.mouse(page.cell(T, T, (9, 2))?, false)?;
        let here = page.text("#readout")?;
        let wheel = |ctrl: bool| {
            let at = "(() => { const r = document.getElementById('map').getBoundingClientRect(); return { x: 104 + 30, y: 84 + 200 } })()";
            page.get(&format!(
                "(() => {{ const at = {at}; const r = document.getElementById('map').getBoundingClientRect(); \
                 const e = new WheelEvent('wheel', {{ deltaY: -300, ctrlKey: {ctrl}, bubbles: true, cancelable: true, \
                 clientX: r.x + at.x, clientY: r.y + at.y }}); document.getElementById('map').dispatchEvent(e); \
                 return e.defaultPrevented }})()"
            ))
        };
        assert_eq!(wheel(false)?, false, "the page may scroll");
        assert_eq!(page.get("document.getElementById('wheel-hint').hidden")?, false);
        assert_eq!(wheel(true)?, true);
        assert_eq!(wheel(false)?, true, "a zoomed map keeps the wheel");
        page.mouse(page.cell(T, T, (9, 3))?, false)?;
        page.mouse(page.cell(T, T, (9, 2))?, false)?;
        assert_ne!(page.text("#readout")?, here, "zoomed");
        Ok(())
    })
}

#[test]
fn a_phone_has_buttons_for_heads() -> Result {
    open(&["clean", "patched"], |page, _| {
        let phone = json!({ "width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": true });
        page.devtools("Emulation.setDeviceMetricsOverride", &phone)?;
        page.until("innerWidth === 390")?;
        assert_eq!(page.get("document.documentElement.scrollWidth")?, 390, "nothing sticks out");
        let size = "[...document.querySelectorAll('#previous-head, #following-head')].every((b) => b.clientHeight >= 40 && b.clientWidth >= 40)";
        assert_eq!(page.get(size)?, true);
        page.head("0.0")?;
        page.get("document.getElementById('following-head').click()")?;
        page.until("document.documentElement.dataset.shown === '0.1'")?;
        page.get("document.getElementById('previous-head').click()")?;
        page.until("document.documentElement.dataset.shown === '0.0'")
    })
}

/// A notebook's frame has no address, no storage and no rights of its own.
#[test]
fn a_page_works_in_a_frame_without_rights() -> Result {
    let all = Everything::new(12)?;
    let held = all.write(Vec::new(), &["clean", "patched"])?;
    // The outer page stands for a notebook: it hears from the inner one only what the frame's script may send.
    let outer = format!(
        "<!doctype html><meta charset=utf-8><title>a \"notebook\"</title><p style=\"height:700px\">above</p>{}<script>performance.mark('ready')</script>",
        page_fragment(&held, 640)
    );
    show(outer.as_bytes(), |page| {
        assert_eq!(page.get("document.querySelector('iframe').clientHeight")?, 640);
        assert_eq!(page.get("document.querySelector('iframe').contentDocument")?, Value::Null, "no rights");
        assert_eq!(page.get("scrollY")?, 0, "a page that opens does not scroll the notebook to itself");
        page.frame("iframe")?;
        page.until("document.documentElement.dataset.shown !== undefined")?;
        page.head("0.0")?;
        assert_eq!(page.get("document.getElementById('guide').hidden")?, true, "nothing remembers it there");
        page.click("#guide-button")?;
        page.click("#guide-close")?;
        assert_eq!(page.texts("#runs label")?, ["clean", "patched", "both", "difference"]);
        // A choice would go into the address, which a frame does not have.
        page.click("#following-head")?;
        page.until("document.documentElement.dataset.shown === '0.1'")?;
        page.get("document.getElementById('theme').click()")?;
        std::thread::sleep(std::time::Duration::from_millis(600));
        assert_eq!(page.log()?, json!([]));
        assert_eq!(page.get("document.body.scrollHeight >= 480")?, true);
        Ok(())
    })
}
