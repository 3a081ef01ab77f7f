//! Access to a model by its name: folders and names, tokens, revisions and proxies.

use super::{At, COMMIT, FORWARD, Fault, MODEL, Result, Run, Setup};
use crate::copy_demo;
use crate::folder::{Folder, assert_says};
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

#[test]
fn an_existing_folder_wins_over_a_name() -> Result {
    let setup = Setup::new()?;
    let here = Folder::empty()?;
    std::fs::create_dir(here.file("gpt2"))?;
    copy_demo(&here.file("gpt2"))?;
    let run = |args: &[&str]| Run::of(setup.command(args).current_dir(here.path()));
    let forward = run(&FORWARD)?.succeeded();
    assert_says("stderr", &forward.stderr, &["the folder gpt2", "openai-community/gpt2"]);
    assert!(setup.server.state().seen.is_empty());

    // A program of that name, such as this one, is not meant.
    here.write("distilgpt2", b"\x7fELF")?;
    run(&["inspect", "distilgpt2", "--offline"])?.refused(1, &["distilbert/distilgpt2", "not in the cache"]);
    here.write("distilgpt2", "")?;
    run(&["inspect", "distilgpt2"])?.refused(1, &["distilgpt2: is empty"]);
    run(&[&FORWARD[..], &["--revision", "main"]].concat())?.refused(1, &["--revision", "the folder gpt2"]);
    Ok(())
}

#[test]
fn what_is_neither_is_refused_without_a_request() -> Result {
    let setup = Setup::new()?;
    for name in ["gpt3", "./gpt2", "a/b/c", "../gpt2", "/no/where", "o wner/name"] {
        let run = setup.run(&["forward", "--model", name, "O Romeo"])?;
        run.refused(1, &[name, "no such directory", "owner/name"]);
    }
    setup.run(&["forward", "--revision", "main", "O Romeo"])?.refused(1, &["--revision", "demo model"]);
    setup.run(&["download", "gpt3"])?.refused(1, &["\"gpt3\"", "gpt2-medium"]);
    assert!(setup.server.state().seen.is_empty());
    Ok(())
}

#[test]
fn the_cache_is_where_python_has_it() -> Result {
    let setup = Setup::new()?;
    let home = Folder::empty()?;
    for (variables, cache) in [
        (vec![], ".cache/huggingface/hub"),
        (vec![("XDG_CACHE_HOME", home.at("xdg"))], "xdg/huggingface/hub"),
        (vec![("XDG_CACHE_HOME", "~/x".to_string())], "x/huggingface/hub"),
        (vec![("HF_HOME", "~/hf".to_string())], "hf/hub"),
        (vec![("HF_HOME", home.at("hf2")), ("HUGGINGFACE_HUB_CACHE", "$HOME/old".into())], "old"),
        (vec![("HUGGINGFACE_HUB_CACHE", home.at("old")), ("HF_HUB_CACHE", home.at("new"))], "new"),
    ] {
        let mut command = setup.command(&["models", "--json"]);
        for name in ["XDG_CACHE_HOME", "HF_HOME", "HUGGINGFACE_HUB_CACHE", "HF_HUB_CACHE"] {
            command.env_remove(name);
        }
        let home_of = if cfg!(windows) { "USERPROFILE" } else { "HOME" };
        let run =
            Run::of(command.env("HOME", home.path()).env(home_of, home.path()).envs(variables))?.succeeded();
        let report: serde_json::Value = serde_json::from_str(&run.stdout)?;
        assert_eq!(report["cache"].as_str().map(Path::new), Some(home.file(cache).as_path()));
    }
    Ok(())
}

#[test]
fn a_gated_model_wants_a_token() -> Result {
    let setup = Setup::new()?;
    setup.server.state().gate = Some("hf_good");
    setup.forward()?.refused(1, &["gated", "Access to this model is restricted", "HF_TOKEN"]);
    setup.run_with(&[("HF_TOKEN", "hf_other")], &FORWARD)?.refused(1, &["gated", "account of the token"]);
    setup.run_with(&[("HF_TOKEN", "hf_good\n")], &FORWARD)?.succeeded();
    Ok(())
}

#[test]
fn a_token_is_found_as_python_finds_it_and_goes_to_the_hub_alone() -> Result {
    let home = Folder::empty()?;
    home.write("token", "hf_home\n")?;
    home.write("elsewhere", "hf_path")?;
    let elsewhere = &*home.at("elsewhere");
    for (variables, token) in [
        (&[][..], Some("hf_home")),
        (&[("HF_TOKEN_PATH", elsewhere)], Some("hf_path")),
        (&[("HF_TOKEN_PATH", elsewhere), ("HF_TOKEN", "hf_env")], Some("hf_env")),
        (&[("HF_TOKEN", "hf_env"), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")], None),
    ] {
        let setup = Setup::new()?;
        setup.run_with(&[&[("HF_HOME", &*home.dir())], variables].concat(), &FORWARD)?.succeeded();
        for seen in &setup.server.state().seen {
            let expected = if seen.path.starts_with("/storage/") { None } else { token };
            assert_eq!(seen.token.as_deref(), expected, "{seen:?}");
        }
        assert!(setup.fetches().iter().all(|seen| seen.host.starts_with("localhost")));
    }
    Ok(())
}

#[test]
fn a_token_that_is_refused_or_no_token_is_said_to_be() -> Result {
    let setup = Setup::with(At::Api, Fault::Status(401, vec![("x-error-message", "Invalid token")]), None)?;
    setup.run_with(&[("HF_TOKEN", "hf_old")], &FORWARD)?.refused(1, &["Invalid token", "HF_TOKEN"]);
    setup.run_with(&[("HF_TOKEN", "two words")], &FORWARD)?.refused(1, &["no token has", "HF_TOKEN"]);
    Ok(())
}

#[test]
fn a_model_a_revision_or_a_file_that_is_not_there_is_named() -> Result {
    let setup = Setup::new()?;
    let run = |args: &[&str]| setup.run(&[&["forward", "--timeout", "2", "O Romeo"], args].concat());
    let missing =
        ["no folder nobody/nothing", "nobody/nothing", "no such model, or it is private", "HF_TOKEN"];
    run(&["--model", "nobody/nothing"])?.refused(1, &missing);
    run(&["--model", "gpt2", "--revision", "v9"])?.refused(1, &[MODEL, "no revision \"v9\""]);
    let commit = "f".repeat(40);
    run(&["--model", "gpt2", "--revision", &commit])?.refused(1, &["no revision", &commit]);
    let asked = setup.server.state().seen.len();
    for revision in ["../../etc", "a//b", "", "a b", "/", "main?x"] {
        run(&["--model", "gpt2", "--revision", revision])?.refused(1, &["no revision"]);
        assert_eq!(setup.server.state().seen.len(), asked, "{revision:?} became part of an address");
    }

    setup.server.state().files.remove("model.safetensors");
    let parts =
        ["no model.safetensors, model.safetensors.index.json, pytorch_model.bin", "it has: README.md"];
    run(&["--model", "gpt2"])?.refused(1, &parts);
    // The list of files is asked for where it was not needed to find the commit.
    let by_commit = |parts: &[&str]| -> Result {
        let cache = Folder::empty()?;
        run(&["--model", "gpt2", "--revision", COMMIT, "--cache-dir", &cache.dir()])?.refused(1, parts);
        Ok(())
    };
    by_commit(&parts)?;
    setup.server.state().files.remove("config.json");
    let cache = Folder::empty()?.dir();
    let parts = ["no config.json", "it has: README.md, tokenizer.json"];
    run(&["--model", "gpt2", "--cache-dir", &cache])?.refused(1, &parts);
    by_commit(&parts)
}

#[test]
fn a_server_that_does_not_say_what_is_missing_is_understood() -> Result {
    let setup = Setup::with(At::Api, Fault::Status(404, vec![]), None)?;
    setup.forward()?.refused(1, &[MODEL, "no such model, or it is private"]);
    setup.run(&[&FORWARD[..], &["--revision", "v9"]].concat())?.refused(1, &["no revision \"v9\""]);
    Ok(())
}

#[test]
fn a_server_that_lists_nothing_is_asked_file_by_file() -> Result {
    let setup = Setup::new()?;
    setup.server.state().lists = false;
    setup.works()?;
    setup.works_offline()?;
    setup.server.state().files.remove("tokenizer.json");
    let cache = Folder::empty()?;
    setup.run(&["forward", "--model", "gpt2", "--ids", "1,2", "--cache-dir", &cache.dir()])?.succeeded();
    Ok(())
}

#[test]
fn an_endpoint_that_is_not_a_hub_is_named() -> Result {
    let setup = Setup::new()?;
    let run = |url: &str| setup.run(&[&FORWARD[..], &["--timeout", "2", "--endpoint", url]].concat());
    run("nonsense")?.refused(1, &["nonsense", "HF_ENDPOINT"]);
    run("ftp://example.org")?.refused(1, &["ftp://example.org", "https://"]);
    run("http://127.0.0.1:1")?.refused(1, &["cannot be reached", "HTTPS_PROXY", "HF_ENDPOINT", "demo model"]);
    run("http://no-such-host.invalid")?.refused(1, &["cannot be reached", "no-such-host.invalid"]);
    Ok(())
}

/// A proxy on the loopback interface: a client may ask for any host, its tunnel leads to the tests' Hub.
struct Proxy {
    endpoint: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    /// A proxy whose tunnels all lead to `hub`, an address such as `http://localhost:1234`.
    fn start(hub: &str) -> Result<Self> {
        let hub = hub.trim_start_matches("http://").to_string();
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let asked = Arc::new(Mutex::new(vec![]));
        let log = Arc::clone(&asked);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let hub = hub.clone();
                let log = Arc::clone(&log);
                // A client that goes away ends its tunnel.
                std::thread::spawn(move || drop(tunnel(client, &hub, &log)));
            }
        });
        Ok(Self { endpoint, asked })
    }

    /// The hosts and ports that clients asked for.
    fn asked(&self) -> Vec<String> {
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

#[test]
fn a_proxy_is_used() -> Result {
    let setup = Setup::new()?;
    let proxy = Proxy::start(&setup.server.endpoint())?;
    let args = [&FORWARD[..], &["--endpoint", "http://hub.invalid"]].concat();
    let run = setup.run_with(&[("http_proxy", &proxy.endpoint)], &args)?.succeeded();
    assert!(run.stdout.contains(&COMMIT[..12]), "{}", run.stdout);
    assert!(setup.server.state().seen.iter().any(|seen| seen.host == "hub.invalid"));
    assert!(proxy.asked().contains(&"hub.invalid:80".to_string()), "{:?}", proxy.asked());
    Ok(())
}
