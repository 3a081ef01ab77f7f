//! The programs that drive a browser: chromedriver, and Firefox itself.

use crate::common::Result;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

/// A command of the W3C's `WebDriver`.
#[derive(Clone, Copy)]
pub(super) enum Ask {
    Navigate,
    Execute,
    Find,
    Frame,
    Act,
    Click,
    Type,
}

/// A browser and its window.
pub(super) trait Driver {
    /// Asks the browser, and returns its answer. `element` gets the click or the keys.
    fn ask(&self, what: Ask, element: Option<&str>, body: Value) -> Result<Value>;

    /// A command that only Chromium knows.
    fn own(&self, path: &str, body: &Value) -> Result<Value>;
}

/// Ends a process at the latest after five seconds.
fn end(process: &mut Child) {
    let end = Instant::now() + Duration::from_secs(5);
    while Instant::now() < end && matches!(process.try_wait(), Ok(None)) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = process.kill();
    let _ = process.wait();
}

/// chromedriver, on a port that it chooses.
pub(super) struct Chromium {
    process: Child,
    port: u16,
    session: String,
    /// Read until the port is known; stays open as long as the driver may write to it.
    _stdout: BufReader<ChildStdout>,
    _files: tempfile::TempDir,
}

impl Chromium {
    /// The driver takes a free IPv4 port and then the same port number on IPv6. If another test's server holds that,
    /// the driver ends, and this starts it again.
    pub(super) fn start() -> Result<Self> {
        for _ in 0..10 {
            let Some(mut driver) = Self::try_start()? else { continue };
            // No sandbox, since CI's containers run as root.
            let args = ["--headless=new", "--no-sandbox", "--window-size=1400,900", "--hide-scrollbars"];
            let capabilities = json!({
                "goog:chromeOptions": { "args": args },
                "goog:loggingPrefs": { "browser": "ALL" },
            });
            let wanted = json!({ "capabilities": { "alwaysMatch": capabilities } });
            let session = driver.request("POST", "/session", &wanted)?;
            session["sessionId"].as_str().ok_or("a session")?.clone_into(&mut driver.session);
            return Ok(driver);
        }
        Err("chromedriver ended ten times before it named its port".into())
    }

    fn try_start() -> Result<Option<Self>> {
        // The browser leaves folders for temporary files behind.
        let files = tempfile::tempdir()?;
        let mut driver = Command::new("chromedriver");
        let mut process =
            driver.arg("--port=0").env("TMPDIR", files.path()).stdout(Stdio::piped()).spawn()?;
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
                return Ok(Some(Self {
                    process,
                    port,
                    session: String::new(),
                    _stdout: stdout,
                    _files: files,
                }));
            }
        }
    }

    fn request(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        let body = body.to_string();
        let port = self.port;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        stream.set_read_timeout(Some(PATIENCE))?;
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

impl Driver for Chromium {
    fn ask(&self, what: Ask, element: Option<&str>, body: Value) -> Result<Value> {
        let element = element.unwrap_or_default();
        let path = match what {
            Ask::Navigate => "/url".to_owned(),
            Ask::Execute => "/execute/sync".to_owned(),
            Ask::Find => "/element".to_owned(),
            Ask::Frame => "/frame".to_owned(),
            Ask::Act => "/actions".to_owned(),
            Ask::Click => format!("/element/{element}/click"),
            Ask::Type => format!("/element/{element}/value"),
        };
        self.own(&path, &body)
    }

    fn own(&self, path: &str, body: &Value) -> Result<Value> {
        self.request("POST", &format!("/session/{}{path}", self.session), body)
    }
}

impl Drop for Chromium {
    /// Ends the browser, also after a failed assertion: it must not outlive the test.
    fn drop(&mut self) {
        let _ = self.request("GET", "/shutdown", &json!({}));
        end(&mut self.process);
    }
}

/// Firefox, which is driven over a socket of its own: a length in letters, a colon, and that many bytes of JSON.
pub(super) struct Firefox {
    process: Child,
    stream: TcpStream,
    _profile: tempfile::TempDir,
}

impl Firefox {
    pub(super) fn start() -> Result<Self> {
        let profile = tempfile::tempdir()?;
        std::fs::write(profile.path().join("user.js"), "user_pref(\"marionette.port\", 0);\n")?;
        let process = Command::new("firefox-esr")
            .args([
                "--headless",
                "--marionette",
                "--no-remote",
                "--width",
                "1400",
                "--height",
                "900",
                "--profile",
            ])
            .arg(profile.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let path = profile.path().join("MarionetteActivePort");
        let until = Instant::now() + PATIENCE;
        let mut browser = None;
        while browser.is_none() {
            if Instant::now() > until {
                return Err("Firefox named no port after 20 s".into());
            }
            std::thread::sleep(Duration::from_millis(50));
            let port = std::fs::read_to_string(&path).ok().and_then(|port| port.trim().parse::<u16>().ok());
            browser = port.and_then(|port| TcpStream::connect(("127.0.0.1", port)).ok());
        }
        let stream = browser.ok_or("a connection")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let browser = Self { process, stream, _profile: profile };
        browser.receive()?; // it says hello
        browser.request("WebDriver:NewSession", &json!({}))?;
        Ok(browser)
    }

    fn receive(&self) -> Result<Value> {
        let mut stream = &self.stream;
        let mut length = 0;
        let mut byte = [0];
        loop {
            stream.read_exact(&mut byte)?;
            match byte[0] {
                digit @ b'0'..=b'9' => length = length * 10 + usize::from(digit - b'0'),
                _ => break,
            }
        }
        let mut content = vec![0; length];
        stream.read_exact(&mut content)?;
        Ok(serde_json::from_slice(&content)?)
    }

    fn request(&self, name: &str, params: &Value) -> Result<Value> {
        let message = json!([0, 1, name, params]).to_string();
        (&self.stream).write_all(format!("{}:{message}", message.len()).as_bytes())?;
        let mut answer = self.receive()?;
        match answer[2]["error"].as_str() {
            Some(error) => Err(format!("{name}: {error}: {}", answer[2]["message"]).into()),
            None => Ok(answer[3].take()),
        }
    }
}

impl Driver for Firefox {
    fn ask(&self, what: Ask, element: Option<&str>, mut body: Value) -> Result<Value> {
        let name = match what {
            Ask::Navigate => "Navigate",
            Ask::Execute => "ExecuteScript",
            Ask::Find => "FindElement",
            Ask::Frame => "SwitchToFrame",
            Ask::Act => "PerformActions",
            Ask::Click => "ElementClick",
            Ask::Type => "ElementSendKeys",
        };
        if let Some(element) = element {
            body["id"] = element.into();
        }
        Ok(self.request(&format!("WebDriver:{name}"), &body)?["value"].take())
    }

    fn own(&self, path: &str, _: &Value) -> Result<Value> {
        Err(format!("{path} is a command of Chromium").into())
    }
}

impl Drop for Firefox {
    fn drop(&mut self) {
        let _ = self.request("Marionette:Quit", &json!({ "flags": ["eForceQuit"] }));
        end(&mut self.process);
    }
}
