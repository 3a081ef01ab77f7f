//! What a name means: what exists on disk is never looked up on the Hub, and the Hub's own addresses are names.

use super::{MODEL, Result, Run, Setup, assert_is_expected, repository, weights};
use crate::case;
use crate::folder::{Folder, assert_says};
use std::path::Path;

/// A folder to run in, with files whose names could be those of repositories.
fn folder() -> Result<Folder> {
    let folder = Folder::empty()?;
    for dir in ["t", "who", "~/own"] {
        std::fs::create_dir_all(folder.file(dir))?;
    }
    let write = |name: &str, content: &[u8]| std::fs::write(folder.file(name), content);
    for (name, content) in repository() {
        write(&format!("t/{name}"), &content)?;
        write(&format!("~/own/{name}"), &content)?;
    }
    let gguf = folder.at("t/m.gguf");
    crate::gpt2(&["quantize", "--to", "f16", "--out", &gguf])?.succeeded();
    std::fs::rename(&gguf, folder.file("t/model.bin"))?;
    write("t/ckpt.pt", &[&b"PK\x03\x04.."[..], b"ckpt/data.pkl"].concat())?;
    write("t/old.bin", b"\x80\x02}q\x00.")?;
    write("t/page", b"<!DOCTYPE html><html>")?;
    write("t/empty", b"")?;
    write("who/notes", b"To be, or not to be")?;
    write("t/keras.h5", b"\x89HDF\r\n\x1a\n....")?;
    #[cfg(unix)]
    std::os::unix::fs::symlink("nowhere", folder.file("who/link"))?;
    Ok(folder)
}

/// Runs in the folder, and fails if the Hub was asked for anything.
#[track_caller]
fn here(setup: &Setup, folder: &Folder, args: &[&str]) -> Result<Run> {
    let before = setup.server.state().seen.len();
    let run = Run::of(setup.command(args).current_dir(folder.path()))?;
    let seen =
        setup.server.state().seen.iter().skip(before).map(|seen| seen.path.clone()).collect::<Vec<_>>();
    assert!(seen.is_empty(), "{args:?}: asked the Hub for {seen:?}");
    Ok(run)
}

#[test]
fn what_exists_on_disk_is_never_looked_up_on_the_hub() -> Result {
    let setup = Setup::new()?;
    let folder = folder()?;
    let whole = ["t", "./t", "t/model.bin", "./t/model.bin", "t/model.safetensors", "~/own"];
    for name in whole {
        here(&setup, &folder, &["forward", "--model", name, "O Romeo"])?.succeeded();
    }
    here(&setup, &folder, &["compare", "t", "t/model.bin", "--text", "who/notes"])?.succeeded();
    here(&setup, &folder, &["generate", "O", "-n2", "--model", "t", "--draft", "t/model.bin"])?.succeeded();
    for (name, parts) in [
        ("t/config.json", &["is a JSON file", "name the folder that holds it, t;"][..]),
        ("t/page", &["is a web page"]),
        ("t/empty", &["is empty"]),
        ("t/keras.h5", &["an HDF5 file"]),
        ("who/notes", &["is a text that begins", "expected a folder"]),
        #[cfg(unix)]
        ("who/link", &["is a link that leads nowhere"]),
    ] {
        for args in [
            &["forward", "O", "--model", name][..],
            &["inspect", name],
            &["quantize", name, "--to", "q8_0", "--out", "x.gguf"],
            &["compare", "demo", name, "--text", "who/notes"],
            &["generate", "O", "--draft", name],
            &["score", "who/notes", "--model", name],
            &["train", "--text", "who/notes", "--out", "out", "--model", name],
        ] {
            here(&setup, &folder, args)?.refused(1, &[&[name][..], parts].concat());
        }
        let adapter = here(&setup, &folder, &["forward", "O", "--adapter", name])?;
        adapter.refused(1, &[name, parts[0]]);
        let dictionary = here(&setup, &folder, &["features", "O", "--dictionary", name])?;
        dictionary.refused(1, &[name, parts[0]]);
    }
    for (name, part) in [
        ("t/model.bin", "is a file of a whole model"),
        ("t/model.safetensors", "is a safetensors file; name the folder that holds it, t;"),
        ("t/ckpt.pt", "is a zip archive"),
        ("t/old.bin", "is a pickle"),
    ] {
        for args in [["forward", "O", "--adapter", name], ["features", "O", "--dictionary", name]] {
            here(&setup, &folder, &args)?.refused(1, &[name, part]);
        }
    }
    // Files of weights are models, if they are whole.
    for (name, part) in
        [("t/ckpt.pt", "t/ckpt.pt: damaged or not a PyTorch file"), ("t/old.bin", "t/old.bin: is ")]
    {
        here(&setup, &folder, &["forward", "O", "--model", name])?.refused(1, &[part]);
    }
    Ok(())
}

#[test]
fn an_address_of_the_hub_is_a_name() -> Result {
    let setup = Setup::new()?;
    for name in [
        format!("https://huggingface.co/{MODEL}"),
        format!("https://huggingface.co/{MODEL}/tree/main?x=1#y"),
        format!("hf://{MODEL}@main"),
        "hf://gpt2".to_owned(),
        "https://huggingface.co/gpt2/tree/main".to_owned(),
    ] {
        let run = setup.run(&["forward", "--model", &name, "--json", "O Romeo"])?.succeeded();
        assert_is_expected(&run.stdout)?;
        setup.run(&["download", &name])?.succeeded();
    }
    let address = format!("https://huggingface.co/{MODEL}/tree/main");
    setup.run(&["forward", "--model", &address, "--revision", "main", "O"])?.succeeded();
    let other = setup.run(&["forward", "--model", &address, "--revision", "v1", "O"])?;
    other.refused(1, &["--revision v1", "names the revision main"]);
    for (name, parts) in [
        (
            format!("https://huggingface.co/{MODEL}/blob/main/model.safetensors"),
            &["model.safetensors in", MODEL][..],
        ),
        ("https://example.com/who/name".to_owned(), &["at example.com", "endpoint"]),
        ("https://huggingface.co/datasets/who/name".to_owned(), &["datasets"]),
    ] {
        let before = setup.server.state().seen.len();
        setup.run(&["forward", "--model", &name, "O"])?.refused(1, &[&[name.as_str()][..], parts].concat());
        assert_eq!(setup.server.state().seen.len(), before, "{name}: a request");
    }
    Ok(())
}

/// `~` is the home folder, where no shell has replaced it.
#[test]
#[cfg(unix)]
fn a_tilde_is_the_home_folder() -> Result {
    let setup = Setup::new()?;
    let home = Folder::empty()?;
    std::fs::create_dir(home.file("own"))?;
    for (name, content) in repository() {
        home.write(&format!("own/{name}"), content)?;
    }
    assert!(Path::new(&home.at("own/model.safetensors")).exists() && !weights().is_empty());
    let run = |name: &str| setup.run_with(&[("HOME", &home.dir())], &["forward", "--model", name, "O Romeo"]);
    run("~/own")?.succeeded();
    let missing = run("~/none")?;
    missing.refused(1, &[&home.at("none"), "no such directory"]);
    let bare = case("odd");
    assert_says("a folder", &run(&bare)?.stderr, &["no tokenizer"]);
    assert!(setup.server.state().seen.is_empty());
    Ok(())
}
