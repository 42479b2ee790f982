//! A browser, driven over WebDriver: chromium behind chromedriver, both of this machine. The protocol is JSON over
//! HTTP; what is needed of it is small, and its logs of the console and the network are chromedriver's own words,
//! which client crates do not have.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Failure bound of a wait.
const LONG: Duration = Duration::from_secs(40);
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A session in a browser of its own. Dropping it ends both processes.
pub struct Browser {
    driver: Child,
    port: u16,
    session: String,
    _profile: tempfile::TempDir,
}

/// Where a program is, by the names that distributions give it.
fn found(names: &[&str]) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut all = std::env::split_paths(&path).flat_map(|dir| names.iter().map(move |n| dir.join(n)));
    all.find(|file| file.is_file())
}

impl Browser {
    /// Starts one; none where chromium or chromedriver is not installed.
    pub fn start() -> Option<Self> {
        let driver = found(&["chromedriver"])?;
        let browser = found(&["chromium", "chromium-browser", "google-chrome"])?;
        let profile = tempfile::tempdir().expect("a folder");
        let mut child = Command::new(driver)
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver starts");
        let mut said = BufReader::new(child.stdout.take().expect("its output"));
        let port = loop {
            let mut line = String::new();
            assert!(said.read_line(&mut line).expect("its output") > 0, "chromedriver ended");
            if let Some((_, rest)) = line.split_once("successfully on port ") {
                break rest.trim_end().trim_end_matches('.').parse().expect("a port");
            }
        };
        let mut this = Self { driver: child, port, session: String::new(), _profile: profile };
        let profile = format!("--user-data-dir={}", this._profile.path().display());
        let args = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            "--window-size=1280,900",
            profile.as_str(),
        ];
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": { "binary": browser, "args": args },
            "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
        } } });
        let made = this.send("POST", "/session", Some(&wanted));
        this.session = made["sessionId"].as_str().expect("a session").to_owned();
        Some(this)
    }

    fn send(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        self.try_send(method, path, body).unwrap_or_else(|e| panic!("{method} {path}: {e}"))
    }

    fn try_send(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
        let io = |e: std::io::Error| e.to_string();
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).map_err(io)?;
        stream.set_read_timeout(Some(LONG * 2)).map_err(io)?;
        let body = body.map(Value::to_string).unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.port,
            body.len()
        );
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).map_err(io)?;
        let mut reader = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).map_err(io)?;
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(n) = line.strip_prefix("content-length:") {
                length = n.trim().parse().map_err(|_| line.clone())?;
            }
        }
        let mut bytes = vec![0; length];
        reader.read_exact(&mut bytes).map_err(io)?;
        let answer: Value = serde_json::from_slice(&bytes).map_err(|e| e.to_string())?;
        match answer["value"]["error"].as_str() {
            Some(error) => {
                Err(format!("{error}: {}", answer["value"]["message"].as_str().unwrap_or_default()))
            }
            None => Ok(answer["value"].clone()),
        }
    }

    fn path(&self, rest: &str) -> String {
        format!("/session/{}{rest}", self.session)
    }

    /// Opens an address.
    pub fn open(&self, url: &str) {
        self.send("POST", &self.path("/url"), Some(&json!({ "url": url })));
    }

    /// What a script returns.
    pub fn run(&self, script: &str) -> Value {
        let body = json!({ "script": script, "args": [] });
        self.send("POST", &self.path("/execute/sync"), Some(&body))
    }

    /// Waits until a script returns something true.
    pub fn until(&self, what: &str, script: &str) -> Value {
        let begun = Instant::now();
        loop {
            let seen = self.run(&format!("return ({script})"));
            if !matches!(seen, Value::Null | Value::Bool(false)) {
                return seen;
            }
            if begun.elapsed() > LONG {
                let page = self.run("return document.body.innerText.slice(0, 3000)");
                panic!("{what}: not within {LONG:?}; the page says: {}", page.as_str().unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(60));
        }
    }

    /// Clicks what a selector finds, as a user would: it must be there and be hit.
    pub fn click(&self, selector: &str) {
        let begun = Instant::now();
        loop {
            let body = json!({ "using": "css selector", "value": selector });
            let clicked = self.try_send("POST", &self.path("/element"), Some(&body)).and_then(|found| {
                let id = found[ELEMENT].as_str().unwrap_or_default().to_owned();
                self.try_send("POST", &self.path(&format!("/element/{id}/click")), Some(&json!({})))
            });
            match clicked {
                Ok(_) => return,
                Err(why) if begun.elapsed() > LONG => panic!("click {selector}: {why}"),
                // It may just be redrawn.
                Err(_) => std::thread::sleep(Duration::from_millis(60)),
            }
        }
    }

    /// Presses keys, one after the other, wherever the focus is.
    pub fn keys(&self, keys: &str) {
        let actions: Vec<Value> = keys
            .chars()
            .flat_map(|c| [json!({ "type": "keyDown", "value": c }), json!({ "type": "keyUp", "value": c })])
            .collect();
        let body = json!({ "actions": [{ "type": "key", "id": "k", "actions": actions }] });
        self.send("POST", &self.path("/actions"), Some(&body));
    }

    fn devtools(&self, cmd: &str, params: Value) -> Value {
        self.send("POST", &self.path("/goog/cdp/execute"), Some(&json!({ "cmd": cmd, "params": params })))
    }

    /// As a screen of this width shows it, in the colours that the system asks for.
    pub fn screen(&self, width: u32, height: u32, colours: &str) {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", metrics);
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": colours }] });
        self.devtools("Emulation.setEmulatedMedia", media);
    }

    /// Writes what is seen to a file.
    pub fn picture(&self, file: &Path) {
        let png = self.send("GET", &self.path("/screenshot"), None);
        let bytes =
            data_encoding::BASE64.decode(png.as_str().expect("a picture").as_bytes()).expect("base64");
        std::fs::write(file, bytes).expect("a picture is written");
    }

    /// What the console and the network have said since the last call.
    pub fn log(&self, kind: &str) -> Vec<Value> {
        let list = self.send("POST", &self.path("/se/log"), Some(&json!({ "type": kind })));
        list.as_array().cloned().unwrap_or_default()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends the browser; the driver may have gone with a failed test.
        let _ = self.try_send("DELETE", &self.path(""), None);
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
