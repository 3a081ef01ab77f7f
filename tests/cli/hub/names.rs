//! A folder or a name.

use super::{Result, Run, Setup};
use crate::folder::assert_says;

#[test]
fn an_existing_folder_wins_over_a_name() -> Result<()> {
    let setup = Setup::new()?;
    let here = tempfile::tempdir()?;
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny-shakespeare");
    std::fs::create_dir(here.path().join("gpt2"))?;
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(format!("{model}/{file}"), here.path().join("gpt2").join(file))?;
    }
    let mut command = setup.command(&["forward", "--model", "gpt2", "O Romeo"]);
    let run = Run::of(command.current_dir(here.path()).output()?)?.succeeded();
    assert_says("stderr", &run.stderr, &["the folder gpt2", "openai-community/gpt2"]);
    assert!(setup.server.seen().is_empty());

    // A file of that name, such as the program itself, is not a model.
    std::fs::write(here.path().join("distilgpt2"), "")?;
    let mut command = setup.command(&["inspect", "distilgpt2", "--offline"]);
    let run = Run::of(command.current_dir(here.path()).output()?)?;
    run.refused(1, &["distilbert/distilgpt2", "not in the cache"]);

    let mut command = setup.command(&["forward", "--model", "gpt2", "--revision", "main", "O Romeo"]);
    let run = Run::of(command.current_dir(here.path()).output()?)?;
    run.refused(1, &["--revision", "the folder gpt2"]);
    Ok(())
}

#[test]
fn what_is_neither_is_refused_without_a_request() -> Result<()> {
    let setup = Setup::new()?;
    for name in ["gpt3", "./gpt2", "a/b/c", "../gpt2", "/no/where", "o wner/name"] {
        setup
            .run(&["forward", "--model", name, "O Romeo"])?
            .refused(1, &[name, "no such directory", "owner/name"]);
    }
    setup.run(&["forward", "--revision", "main", "O Romeo"])?.refused(1, &["--revision", "demo model"]);
    setup.run(&["download", "gpt3"])?.refused(1, &["\"gpt3\"", "gpt2-medium"]);
    assert!(setup.server.seen().is_empty());
    Ok(())
}

#[test]
fn the_cache_is_where_python_has_it() -> Result<()> {
    let setup = Setup::new()?;
    let home = tempfile::tempdir()?;
    let path = |sub: &str| home.path().join(sub).display().to_string();
    for (variables, cache) in [
        (vec![], ".cache/huggingface/hub"),
        (vec![("XDG_CACHE_HOME", path("xdg"))], "xdg/huggingface/hub"),
        (vec![("HF_HOME", "~/hf".to_string())], "hf/hub"),
        (vec![("HF_HOME", path("hf2")), ("HUGGINGFACE_HUB_CACHE", "$HOME/old".into())], "old"),
        (vec![("HUGGINGFACE_HUB_CACHE", path("old")), ("HF_HUB_CACHE", path("new"))], "new"),
    ] {
        let mut command = setup.command(&["models", "--json"]);
        for name in ["XDG_CACHE_HOME", "HF_HOME", "HUGGINGFACE_HUB_CACHE", "HF_HUB_CACHE"] {
            command.env_remove(name);
        }
        let run = Run::of(command.env("HOME", home.path()).envs(variables).output()?)?.succeeded();
        let report: serde_json::Value = serde_json::from_str(&run.stdout)?;
        assert_eq!(report["cache"], path(cache).as_str());
    }
    Ok(())
}
