//! Files that the Hub refuses to give, and what the user can do about it.

use super::proxy::Proxy;
use super::{At, COMMIT, Fault, MODEL, Result, Run, Setup};

#[test]
fn a_gated_model_wants_a_token() -> Result<()> {
    let setup = Setup::new()?;
    setup.server.gate("hf_good");
    setup.forward()?.refused(1, &["gated", "Access to this model is restricted", "HF_TOKEN"]);
    let mut command = setup.command(&["forward", "--model", "gpt2", "O Romeo"]);
    Run::of(command.env("HF_TOKEN", "hf_other").output()?)?.refused(1, &["gated", "account of the token"]);
    let mut command = setup.command(&["forward", "--model", "gpt2", "O Romeo"]);
    Run::of(command.env("HF_TOKEN", "hf_good\n").output()?)?.succeeded();
    Ok(())
}

#[test]
fn a_token_is_found_as_python_finds_it_and_goes_to_the_hub_alone() -> Result<()> {
    let home = tempfile::tempdir()?;
    std::fs::write(home.path().join("token"), "hf_home\n")?;
    std::fs::write(home.path().join("elsewhere"), "hf_path")?;
    let elsewhere = home.path().join("elsewhere");
    let elsewhere = elsewhere.to_str().ok_or("a path")?;
    for (variables, token) in [
        (vec![], Some("hf_home")),
        (vec![("HF_TOKEN_PATH", elsewhere)], Some("hf_path")),
        (vec![("HF_TOKEN_PATH", elsewhere), ("HF_TOKEN", "hf_env")], Some("hf_env")),
        (vec![("HF_TOKEN", "hf_env"), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")], None),
    ] {
        let setup = Setup::new()?;
        let mut command = setup.command(&["forward", "--model", "gpt2", "O Romeo"]);
        Run::of(command.env("HF_HOME", home.path()).envs(variables).output()?)?.succeeded();
        for seen in setup.server.seen() {
            let expected = if seen.path.starts_with("/storage/") { None } else { token };
            assert_eq!(seen.token.as_deref(), expected, "{seen:?}");
        }
        assert!(setup.fetches().iter().all(|seen| seen.host.starts_with("localhost")));
    }
    Ok(())
}

#[test]
fn a_token_that_is_refused_or_no_token_is_said_to_be() -> Result<()> {
    let setup = Setup::with(At::Api, Fault::Status(401, vec![("x-error-message", "Invalid token")]), None)?;
    let mut command = setup.command(&["forward", "--model", "gpt2", "O Romeo"]);
    Run::of(command.env("HF_TOKEN", "hf_old").output()?)?.refused(1, &["Invalid token", "HF_TOKEN"]);
    let mut command = setup.command(&["forward", "--model", "gpt2", "O Romeo"]);
    Run::of(command.env("HF_TOKEN", "two words").output()?)?.refused(1, &["token", "HF_TOKEN"]);
    Ok(())
}

#[test]
fn a_model_a_revision_or_a_file_that_is_not_there_is_named() -> Result<()> {
    let setup = Setup::new()?;
    let run = |args: &[&str]| setup.run(&[&["forward", "--timeout", "2", "O Romeo"], args].concat());
    let missing =
        ["no folder nobody/nothing", "nobody/nothing", "no such model, or it is private", "HF_TOKEN"];
    run(&["--model", "nobody/nothing"])?.refused(1, &missing);
    run(&["--model", "gpt2", "--revision", "v9"])?.refused(1, &[MODEL, "no revision \"v9\""]);
    let commit = "f".repeat(40);
    run(&["--model", "gpt2", "--revision", &commit])?.refused(1, &["no revision", &commit]);
    let asked = setup.server.seen().len();
    for revision in ["../../etc", "a//b", "", "a b", "/", "main?x"] {
        run(&["--model", "gpt2", "--revision", revision])?.refused(1, &["no revision"]);
        assert_eq!(setup.server.seen().len(), asked, "{revision:?} became part of an address");
    }

    setup.server.remove("model.safetensors");
    let parts =
        ["no model.safetensors, model.safetensors.index.json, pytorch_model.bin", "it has: README.md"];
    run(&["--model", "gpt2"])?.refused(1, &parts);
    setup.server.remove("config.json");
    let fresh = tempfile::tempdir()?;
    let cache = fresh.path().to_str().ok_or("a path")?;
    run(&["--model", "gpt2", "--cache-dir", cache])?.refused(1, &["no config.json", "tokenizer.json"]);
    Ok(())
}

#[test]
fn a_server_that_lists_nothing_is_asked_file_by_file() -> Result<()> {
    let setup = Setup::new()?;
    setup.server.list_nothing();
    setup.works()?;
    setup.works_offline()?;
    setup.server.remove("tokenizer.json");
    let fresh = tempfile::tempdir()?;
    let cache = fresh.path().to_str().ok_or("a path")?;
    setup.run(&["forward", "--model", "gpt2", "--ids", "1,2", "--cache-dir", cache])?.succeeded();
    Ok(())
}

#[test]
fn what_is_no_hub_is_said_to_be_none() -> Result<()> {
    let setup = Setup::new()?;
    let run = |endpoint: &str| {
        setup.run(&["forward", "--model", "gpt2", "--endpoint", endpoint, "--timeout", "2", "O Romeo"])
    };
    run("nonsense")?.refused(1, &["nonsense", "HF_ENDPOINT"]);
    run("ftp://example.org")?.refused(1, &["ftp://example.org", "https://"]);
    run("http://127.0.0.1:1")?.refused(1, &["cannot be reached", "HTTPS_PROXY", "HF_ENDPOINT", "demo model"]);
    run("http://no-such-host.invalid")?.refused(1, &["cannot be reached", "no-such-host.invalid"]);
    Ok(())
}

#[test]
fn a_proxy_is_used() -> Result<()> {
    let setup = Setup::new()?;
    let proxy = Proxy::start(&setup.server.endpoint())?;
    let mut command =
        setup.command(&["forward", "--model", "gpt2", "--endpoint", "http://hub.invalid", "O Romeo"]);
    let run = Run::of(command.env("http_proxy", proxy.endpoint()).output()?)?.succeeded();
    assert!(run.stderr.contains(&COMMIT[..12]), "{}", run.stderr);
    assert!(setup.server.seen().iter().any(|seen| seen.host == "hub.invalid"));
    assert!(proxy.asked().contains(&"hub.invalid:80".to_string()), "{:?}", proxy.asked());
    Ok(())
}
