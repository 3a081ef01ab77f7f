//! A headless Chromium and a page in it.

#![allow(dead_code)] // each package uses a part of it

use crate::common::Result;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Runs one browser at a time: with two at once, each test would wait because of the other.
static TURN: Mutex<()> = Mutex::new(());

/// chromedriver, on a port that it chooses.
struct Driver {
    process: Child,
    port: u16,
    /// Read until the port is known; stays open as long as the driver may write to it.
    _stdout: BufReader<ChildStdout>,
}

impl Driver {
    /// The driver takes a free IPv4 port and then the same port number on IPv6. If another test's server holds that,
    /// the driver ends, and this starts it again.
    fn start() -> Result<Self> {
        for _ in 0..10 {
            if let Some(driver) = Self::try_start()? {
                return Ok(driver);
            }
        }
        Err("chromedriver ended ten times before it named its port".into())
    }

    fn try_start() -> Result<Option<Self>> {
        let mut process = Command::new("chromedriver").arg("--port=0").stdout(Stdio::piped()).spawn()?;
        let mut stdout = BufReader::new(process.stdout.take().ok_or("a pipe")?);
        let mut line = String::new();
        loop {
            line.clear();
            if stdout.read_line(&mut line)? == 0 {
                process.wait()?;
                return Ok(None);
            }
            if let Some((_, port)) = line.rsplit_once("successfully on port ") {
                let port = port.trim().trim_end_matches('.').parse()?;
                return Ok(Some(Self { process, port, _stdout: stdout }));
            }
        }
    }

    /// The value that the driver answers a request with (the W3C's `WebDriver`).
    fn request(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        let (body, port) = (body.to_string(), self.port);
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        // The driver always keeps the connection open, so the length tells where to stop.
        let mut reader = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse()?;
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut content = vec![0; length];
        reader.read_exact(&mut content)?;
        let value = serde_json::from_slice::<Value>(&content)?["value"].take();
        match value.get("error").zip(value.get("message")) {
            Some((error, message)) => Err(format!("{method} {path}: {error}: {message}").into()),
            None => Ok(value),
        }
    }
}

impl Drop for Driver {
    /// Ends the browser, also after a failed assertion: it must not outlive the test.
    fn drop(&mut self) {
        let _ = self.request("GET", "/shutdown", &json!({}));
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end && matches!(self.process.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An open page.
pub(crate) struct Browser {
    driver: Driver,
    session: String,
}

/// Opens `page` in a window of 1400 x 900 and runs `test` on it. The page must not log or fetch anything.
///
/// Without Chromium, this fails under CI, and elsewhere says that it was skipped.
pub(crate) fn browse(page: &Path, test: impl FnOnce(&Browser) -> Result) -> Result {
    let there = |name| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success());
    if !there("chromium") || !there("chromedriver") {
        let remedy = "chromium and chromedriver are needed; run: apt-get install chromium chromium-driver";
        if std::env::var_os("CI").is_some() {
            return Err(remedy.into());
        }
        // Bypass the capture of output: a test that did not run must not look like one that did.
        writeln!(std::io::stderr(), "SKIPPED a page in Chromium: {remedy}")?;
        return Ok(());
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let browser = Browser::open(page)?;
    test(&browser)?;
    assert_eq!(browser.get("performance.getEntriesByType('resource').length")?, 0, "a request");
    assert_eq!(browser.log()?, json!([]), "the console");
    Ok(())
}

impl Browser {
    fn open(page: &Path) -> Result<Self> {
        let driver = Driver::start()?;
        // No sandbox, since CI's containers run as root.
        let args = ["--headless=new", "--no-sandbox", "--window-size=1400,900", "--hide-scrollbars"];
        let capabilities = json!({
            "goog:chromeOptions": { "args": args },
            "goog:loggingPrefs": { "browser": "ALL" },
        });
        let wanted = json!({ "capabilities": { "alwaysMatch": capabilities } });
        let session = driver.request("POST", "/session", &wanted)?;
        let session = session["sessionId"].as_str().ok_or("a session")?.to_owned();
        let browser = Self { driver, session };
        browser.command("/url", &json!({ "url": format!("file://{}", page.display()) }))?;
        browser.until("performance.getEntriesByName('ready').length > 0")?;
        Ok(browser)
    }

    /// Milliseconds from the start of navigation until the page responds.
    pub(crate) fn ready_after(&self) -> Result<f64> {
        let ready = self.get("performance.getEntriesByName('ready')[0].startTime")?;
        Ok(ready.as_f64().ok_or("a time")?)
    }

    /// A command of the standard, or one of Chromium's own, such as `/se/log` and `/goog/cdp/execute`.
    fn command(&self, path: &str, body: &Value) -> Result<Value> {
        self.driver.request("POST", &format!("/session/{}{path}", self.session), body)
    }

    /// The console's messages since the last call.
    pub(crate) fn log(&self) -> Result<Value> {
        self.command("/se/log", &json!({ "type": "browser" }))
    }

    /// A command of the `DevTools` protocol.
    pub(crate) fn devtools(&self, command: &str, params: &Value) -> Result<Value> {
        self.command("/goog/cdp/execute", &json!({ "cmd": command, "params": params }))
    }

    /// The value of an expression.
    pub(crate) fn get(&self, expression: &str) -> Result<Value> {
        self.command("/execute/sync", &json!({ "script": format!("return {expression}"), "args": [] }))
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
        self.on_element(css, "click", &json!({}))
    }

    /// Chooses files in a field for files.
    pub(crate) fn choose(&self, css: &str, files: &[&Path]) -> Result {
        let path = |path: &&Path| Ok(path.canonicalize()?.display().to_string());
        let paths: Vec<_> = files.iter().map(path).collect::<Result<_>>()?;
        self.on_element(css, "value", &json!({ "text": paths.join("\n") }))
    }

    /// A command of the standard for the first element that `css` selects.
    fn on_element(&self, css: &str, command: &str, body: &Value) -> Result {
        let found = self.command("/element", &json!({ "using": "css selector", "value": css }))?;
        // An object with one entry, whose name the standard fixes.
        let id = found.as_object().and_then(|one| one.values().next()?.as_str()).ok_or("an element")?;
        self.command(&format!("/element/{id}/{command}"), body)?;
        Ok(())
    }

    /// Goes on inside a frame.
    pub(crate) fn frame(&self, css: &str) -> Result {
        let found = self.command("/element", &json!({ "using": "css selector", "value": css }))?;
        self.command("/frame", &json!({ "id": found }))?;
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
        self.command("/actions", &json!({ "actions": [input] }))?;
        Ok(())
    }

    /// Moves the mouse to a place of the window, and clicks there where `click` says so.
    pub(crate) fn mouse(&self, (x, y): (f64, f64), click: bool) -> Result {
        #[allow(clippy::cast_possible_truncation)] // pixels of a window
        let (x, y) = (x.round() as i64, y.round() as i64);
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

    /// What the page says of a cell when the mouse is on it: query, key, weight and error.
    pub(crate) fn value(&self) -> Result<(usize, usize, f64, f64)> {
        let positions = self.texts("#readout .position")?;
        let [query, key] = &positions[..] else { return Err(format!("positions {positions:?}").into()) };
        let value = self.text("#readout .value")?;
        let (weight, error) = value.split_once(" ± ").ok_or_else(|| format!("{value:?} has no error"))?;
        Ok((query.parse()?, key.parse()?, weight.parse()?, error.parse()?))
    }
}
