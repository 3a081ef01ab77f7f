//! A headless browser and a page in it.

#![allow(dead_code)] // each package uses a part of it

#[path = "drivers.rs"]
mod drivers;

use crate::common::Result;
use drivers::{Ask, Chromium, Driver, Firefox};
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Two browsers run at a time: one alone leaves a core idle, and with more each would wait for the others.
static TURNS: [Mutex<()>; 2] = [const { Mutex::new(()) }; 2];
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// An open page.
pub(crate) struct Browser {
    driver: Box<dyn Driver>,
}

/// Waits until a browser may run.
fn turn() -> MutexGuard<'static, ()> {
    let turn = &TURNS[TAKEN.fetch_add(1, Ordering::Relaxed) % TURNS.len()];
    turn.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a program runs here. Without it, this fails under CI, and elsewhere says that the page was skipped.
fn is_there(program: &str, package: &str) -> Result<bool> {
    if Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success()) {
        return Ok(true);
    }
    let remedy = format!("{program} is needed; run: apt-get install {package}");
    if std::env::var_os("CI").is_some() {
        return Err(remedy.into());
    }
    // Bypass the capture of output: a test that did not run must not look like one that did.
    writeln!(std::io::stderr(), "SKIPPED a page in a browser: {remedy}")?;
    Ok(false)
}

/// Opens `page` in Chromium, in a window of 1400 x 900, and runs `test` on it. The page must not log or fetch anything.
pub(crate) fn browse(page: &Path, test: impl FnOnce(&Browser) -> Result) -> Result {
    if !is_there("chromium", "chromium")? || !is_there("chromedriver", "chromium-driver")? {
        return Ok(());
    }
    let _turn = turn();
    let browser = Browser::open(Box::new(Chromium::start()?), page)?;
    test(&browser)?;
    browser.fetched_nothing()?;
    assert_eq!(browser.log()?, json!([]), "the console");
    Ok(())
}

/// Opens `page` in Firefox and runs `test` on it. Firefox does not tell what the page logs.
pub(crate) fn browse_in_firefox(page: &Path, test: impl FnOnce(&Browser) -> Result) -> Result {
    if !is_there("firefox-esr", "firefox-esr")? {
        return Ok(());
    }
    let _turn = turn();
    let browser = Browser::open(Box::new(Firefox::start()?), page)?;
    test(&browser)?;
    browser.fetched_nothing()
}

impl Browser {
    fn open(driver: Box<dyn Driver>, page: &Path) -> Result<Self> {
        let browser = Self { driver };
        browser.ask(Ask::Navigate, json!({ "url": format!("file://{}", page.display()) }))?;
        browser.until("performance.getEntriesByName('ready').length > 0")?;
        Ok(browser)
    }

    /// Nothing but the scripts that lie beside the page.
    fn fetched_nothing(&self) -> Result {
        let more = "performance.getEntriesByType('resource').filter(({ name }) => ![...document.scripts].some(({ src }) => src === name)).length";
        assert_eq!(self.get(more)?, 0, "a request");
        Ok(())
    }

    /// Milliseconds from the start of navigation until the page responds.
    pub(crate) fn ready_after(&self) -> Result<f64> {
        let ready = self.get("performance.getEntriesByName('ready')[0].startTime")?;
        Ok(ready.as_f64().ok_or("a time")?)
    }

    fn ask(&self, what: Ask, body: Value) -> Result<Value> {
        self.driver.ask(what, None, body)
    }

    /// The console's messages since the last call, in Chromium.
    pub(crate) fn log(&self) -> Result<Value> {
        self.driver.own("/se/log", &json!({ "type": "browser" }))
    }

    /// A command of the `DevTools` protocol, in Chromium.
    pub(crate) fn devtools(&self, command: &str, params: &Value) -> Result<Value> {
        self.driver.own("/goog/cdp/execute", &json!({ "cmd": command, "params": params }))
    }

    /// The value of an expression.
    pub(crate) fn get(&self, expression: &str) -> Result<Value> {
        self.ask(Ask::Execute, json!({ "script": format!("return {expression}"), "args": [] }))
    }

    /// The text of the first element that `css` selects.
    pub(crate) fn text(&self, css: &str) -> Result<String> {
        let text = self.get(&format!("document.querySelector({css:?}).textContent"))?;
        Ok(text.as_str().unwrap_or_default().to_owned())
    }

    /// The texts of all elements that `css` selects.
    pub(crate) fn texts(&self, css: &str) -> Result<Vec<String>> {
        let texts = format!("[...document.querySelectorAll({css:?})].map((e) => e.textContent)");
        Ok(serde_json::from_value(self.get(&texts)?)?)
    }

    /// Waits until an expression is true.
    pub(crate) fn until(&self, expression: &str) -> Result {
        let end = Instant::now() + Duration::from_secs(20);
        while self.get(expression)? != true {
            if Instant::now() > end {
                return Err(format!("still not true after 20 s: {expression}").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// A real click in the middle of an element.
    pub(crate) fn click(&self, css: &str) -> Result {
        self.on_element(Ask::Click, css, json!({}))
    }

    /// Chooses files in a field for files.
    pub(crate) fn choose(&self, css: &str, files: &[&Path]) -> Result {
        let path = |path: &&Path| Ok(path.canonicalize()?.display().to_string());
        let paths: Vec<_> = files.iter().map(path).collect::<Result<_>>()?;
        self.on_element(Ask::Type, css, json!({ "text": paths.join("\n") }))
    }

    fn find(&self, css: &str) -> Result<Value> {
        self.ask(Ask::Find, json!({ "using": "css selector", "value": css }))
    }

    /// A command for the first element that `css` selects.
    fn on_element(&self, what: Ask, css: &str, body: Value) -> Result {
        let found = self.find(css)?;
        // An object with one entry, whose name the standard fixes.
        let id = found.as_object().and_then(|one| one.values().next()?.as_str()).ok_or("an element")?;
        self.driver.ask(what, Some(id), body)?;
        Ok(())
    }

    /// Goes on inside a frame.
    pub(crate) fn frame(&self, css: &str) -> Result {
        let found = self.find(css)?;
        self.ask(Ask::Frame, json!({ "id": found }))?;
        Ok(())
    }

    /// Presses real keys, which go to the focus. From `\u{e000}` on, the standard defines special keys.
    pub(crate) fn keys(&self, keys: &str) -> Result {
        let press = |key: char| ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key }));
        let actions: Vec<Value> = keys.chars().flat_map(press).collect();
        self.act(&json!({ "type": "key", "id": "keys", "actions": actions }))
    }

    /// Input from one device.
    fn act(&self, input: &Value) -> Result {
        self.ask(Ask::Act, json!({ "actions": [input] }))?;
        Ok(())
    }

    /// Moves the mouse to a place of the window, and clicks there where `click` says so.
    pub(crate) fn mouse(&self, (x, y): (f64, f64), click: bool) -> Result {
        #[allow(clippy::cast_possible_truncation)] // pixels of a window
        let [x, y] = [x, y].map(|place| place.round() as i64);
        let mut actions = vec![json!({ "type": "pointerMove", "duration": 0, "x": x, "y": y })];
        if click {
            actions.extend(["pointerDown", "pointerUp"].map(|kind| json!({ "type": kind, "button": 0 })));
        }
        self.act(&json!({ "type": "pointer", "id": "mouse", "actions": actions }))
    }

    /// Opens a head and waits for its weights.
    pub(crate) fn head(&self, name: &str) -> Result {
        let (layer, head) = name.split_once('.').ok_or("layer.head")?;
        self.get(&format!(
            "document.querySelector('[aria-label^=\"Layer {layer}, head {head}:\"]').click()"
        ))?;
        self.until(&format!("document.documentElement.dataset.shown === {name:?}"))
    }

    /// The position of a cell's middle in the window while the whole map is visible: the geometry of map.js.
    pub(crate) fn cell(&self, queries: usize, keys: usize, at: (usize, usize)) -> Result<(f64, f64)> {
        let rect = self.get("document.getElementById('map').getBoundingClientRect().toJSON()")?;
        let of = |name: &str| rect[name].as_f64().ok_or("a number");
        let (left, top) = (104.0, 84.0);
        let width = (of("width")?.round() - left - 4.0) / keys as f64;
        let size = width.min((of("height")?.round() - top - 4.0) / queries as f64);
        Ok((of("x")? + left + (at.1 as f64 + 0.5) * size, of("y")? + top + (at.0 as f64 + 0.5) * size))
    }

    /// The numbers that the page shows of the cell under the mouse: query, key, weight and error.
    pub(crate) fn value(&self) -> Result<(usize, usize, f64, f64)> {
        let positions = self.texts("#readout .position")?;
        let [query, key] = &positions[..] else { return Err(format!("positions {positions:?}").into()) };
        let value = self.text("#readout .value")?;
        let (weight, error) = value.split_once(" ± ").ok_or_else(|| format!("{value:?} has no error"))?;
        Ok((query.parse()?, key.parse()?, weight.parse()?, error.parse()?))
    }
}
