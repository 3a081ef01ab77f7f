//! A proxy on the loopback interface: whatever host a client asks for, its tunnel leads to the tests' Hub.

use super::Result;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

pub(super) struct Proxy {
    endpoint: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    /// A proxy whose tunnels all lead to `hub`, an address such as `http://localhost:1234`.
    pub(super) fn start(hub: &str) -> Result<Self> {
        let hub = hub.trim_start_matches("http://").to_string();
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let asked = Arc::new(Mutex::new(vec![]));
        let log = Arc::clone(&asked);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (hub, log) = (hub.clone(), Arc::clone(&log));
                // A client that goes away ends its tunnel.
                std::thread::spawn(move || drop(tunnel(client, &hub, &log)));
            }
        });
        Ok(Self { endpoint, asked })
    }

    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The hosts and ports that clients asked for.
    pub(super) fn asked(&self) -> Vec<String> {
        self.asked.lock().map(|asked| asked.clone()).unwrap_or_default()
    }
}

fn tunnel(client: TcpStream, hub: &str, log: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    // The headers end with an empty line.
    while reader.read_line(&mut String::new())? > 2 {}
    let mut client = client;
    let Some(host) = request.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next()) else {
        return client.write_all(b"HTTP/1.1 405 Only CONNECT\r\ncontent-length: 0\r\n\r\n");
    };
    if let Ok(mut asked) = log.lock() {
        asked.push(host.to_string());
    }
    let mut server = TcpStream::connect(hub)?;
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
    let mut upstream = server.try_clone()?;
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut reader, &mut upstream);
        let _ = upstream.shutdown(Shutdown::Write);
    });
    std::io::copy(&mut server, &mut client)?;
    client.shutdown(Shutdown::Both)
}
