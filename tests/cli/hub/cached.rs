//! The cache: which files the program uses, and which it trusts.

use super::{
    At, COMMIT, FORWARD_OFFLINE, Fault, MODEL, REPO, Result, Run, Setup, damaged_weights, git_sha1_of,
    repository, sha256_of, weights,
};
use crate::folder::assert_says;
use crate::{list, spawn};
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Writes the repository under `folder` in the layout of Python's `huggingface_hub`.
#[cfg(unix)]
fn as_python(cache: &Path, folder: &str, skip: &[&str]) -> Result {
    let repo = cache.join(folder);
    let snapshot = repo.join("snapshots").join(COMMIT);
    for dir in [snapshot.clone(), repo.join("blobs"), repo.join("refs")] {
        std::fs::create_dir_all(dir)?;
    }
    std::fs::write(repo.join("refs/main"), COMMIT)?;
    // transformers looks for these, and leaves a mark where a commit has none.
    let absent = repo.join(".no_exist").join(COMMIT);
    std::fs::create_dir_all(&absent)?;
    for name in
        ["tokenizer_config.json", "added_tokens.json", "special_tokens_map.json", "generation_config.json"]
    {
        std::fs::write(absent.join(name), "")?;
    }
    for (name, content) in repository().into_iter().filter(|(name, _)| !skip.contains(&name.as_str())) {
        let hash = match name.as_str() {
            "model.safetensors" => sha256_of(&content),
            _ => git_sha1_of(&content),
        };
        std::fs::write(repo.join("blobs").join(&hash), content)?;
        symlink(&Path::new("../../blobs").join(&hash), &snapshot.join(name))?;
    }
    Ok(())
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> Result {
    Ok(std::os::unix::fs::symlink(target, link)?)
}

#[test]
#[cfg(unix)]
fn what_python_cached_is_used_without_a_request() -> Result {
    // transformers stores a model under the name that the user gave.
    for folder in [REPO, "models--gpt2"] {
        let setup = Setup::new()?;
        as_python(setup.cache.path(), folder, &[])?;
        setup.works_offline()?;
        // It is not hashed again.
        let record = setup.cache.path().join(folder).join(".gpt2-verified").join(COMMIT);
        assert!(record.join("model.safetensors").exists(), "{folder}");
        setup.works()?;
        assert!(setup.server.state().seen.is_empty(), "{folder}: {:?}", setup.server.state().seen);
    }
    Ok(())
}

#[test]
#[cfg(unix)]
fn a_blob_in_pythons_shared_store_is_used() -> Result {
    let setup = Setup::new()?;
    as_python(setup.cache.path(), REPO, &[])?;
    let blob = setup.blob(&sha256_of(&weights()));
    // Newer versions store content once for all models, under a name that is not its sha256.
    let store = setup.cache.path().join("blobs/ab");
    std::fs::create_dir_all(&store)?;
    let name = format!("ab{}", "0".repeat(62));
    std::fs::rename(&blob, store.join(&name))?;
    symlink(&Path::new("../../blobs/ab").join(&name), &blob)?;
    setup.works_offline()?;

    // The program notices damage through both links, and leaves the store alone.
    std::fs::write(store.join(&name), damaged_weights())?;
    setup.works()?;
    assert_eq!(std::fs::read(store.join(&name))?, damaged_weights());
    assert!(blob.symlink_metadata()?.is_file());
    Ok(())
}

#[test]
#[cfg(unix)]
fn what_python_did_not_cache_is_fetched_at_its_commit() -> Result {
    let setup = Setup::new()?;
    as_python(setup.cache.path(), REPO, &["model.safetensors"])?;
    setup
        .run(&FORWARD_OFFLINE)?
        .refused(1, &["model.safetensors is not in the cache", "offline", "gpt2 download"]);
    setup.works()?;
    setup.works_offline()
}

#[test]
#[cfg(unix)]
fn without_its_tokenizer_a_model_serves_for_ids() -> Result {
    let setup = Setup::new()?;
    as_python(setup.cache.path(), REPO, &["tokenizer.json"])?;
    setup.run(&["forward", "--model", "gpt2", "--offline", "--ids", "1,2"])?.succeeded();
    setup.run(&FORWARD_OFFLINE)?.refused(1, &["tokenizer", "not in the cache", "token ids"]);
    setup.works()?;
    Ok(())
}

#[test]
fn a_cold_cache_offline_says_what_to_do() -> Result {
    let setup = Setup::new()?;
    setup
        .run(&FORWARD_OFFLINE)?
        .refused(1, &["config.json is not in the cache", "gpt2 download", "--offline"]);
    assert!(setup.server.state().seen.is_empty());
    Ok(())
}

#[test]
fn a_server_that_is_down_matters_to_a_cold_cache_only() -> Result {
    let setup = Setup::new()?;
    let down = ["forward", "--model", "gpt2", "--endpoint", "http://127.0.0.1:1", "O Romeo"];
    setup.run(&down)?.refused(1, &["http://127.0.0.1:1 cannot be reached"]);
    setup.works()?;
    setup.run(&down)?.succeeded();
    Ok(())
}

#[test]
fn damage_is_noticed_and_mended() -> Result {
    let setup = Setup::new()?;
    setup.works()?;
    let blob = setup.content("model.safetensors", &sha256_of(&weights()));
    std::fs::write(&blob, damaged_weights())?;

    setup.run(&FORWARD_OFFLINE)?.refused(1, &["model.safetensors: damaged", "sha256", "verify-cache"]);
    let run = setup.run(&["verify-cache", "gpt2"])?;
    assert_eq!(run.code, 1, "{run:?}");
    assert_says("stdout", &run.stdout, &["config.json", "good", "model.safetensors", "BAD"]);
    let run = setup.run(&["verify-cache", "gpt2", "--repair", "--json"])?.succeeded();
    let checks: Value = serde_json::from_str(&run.stdout)?;
    let states: Vec<_> = list(&checks).iter().map(|c| &c["state"]).collect();
    assert_eq!(states, ["good", "repaired", "good"]);
    setup.works_offline()?;

    // It also repairs without being asked; and a missing blob is no different.
    std::fs::write(&blob, damaged_weights())?;
    setup.works()?;
    std::fs::remove_file(&blob)?;
    setup.works()?;
    setup.works_offline()
}

#[test]
fn a_damaged_part_is_not_built_upon_for_ever() -> Result {
    let setup = Setup::new()?;
    let weights = super::weights();
    let partial = setup.blob(&format!("{}.incomplete", sha256_of(&weights)));
    std::fs::create_dir_all(partial.parent().ok_or("a folder")?)?;
    for content in [vec![0; 1_000_000], vec![0; weights.len()], vec![0; weights.len() + 5], weights.clone()] {
        let whole = content == weights;
        let before = setup.fetches().len();
        std::fs::write(&partial, content)?;
        setup.works()?;
        assert!(!partial.exists());
        assert_eq!(setup.fetches().len() == before, whole, "a whole one needs no more than its hash");
        std::fs::remove_file(setup.content("model.safetensors", &sha256_of(&weights)))?;
        std::fs::remove_dir_all(setup.repo().join("snapshots"))?;
    }
    Ok(())
}

/// A blob arrives in a file that no other process has the name of; what is left of it is gone on from, once.
#[test]
fn each_process_writes_a_part_of_its_own() -> Result {
    let setup = Setup::with(At::Storage, Fault::Drip(30, Duration::from_millis(100)), None)?;
    let name = sha256_of(&weights());
    let parts = || -> Result<Vec<String>> {
        let Ok(blobs) = std::fs::read_dir(setup.repo().join("blobs")) else { return Ok(vec![]) };
        let names = blobs.flatten().map(|blob| blob.file_name().to_string_lossy().into_owned());
        Ok(names.filter(|one| one.starts_with(&name) && one.ends_with(".incomplete")).collect())
    };
    let mut seen = vec![];
    for _ in 0..2 {
        let mut child = spawn(setup.command(&["download", "gpt2"]))?;
        while parts()?.iter().all(|part| seen.contains(part)) && child.try_wait()?.is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(300));
        child.kill()?;
        child.wait()?;
        let left = parts()?;
        assert_eq!(left.len(), 1, "{left:?}: one part, under another name each time");
        let tag =
            left[0].strip_prefix(&name).and_then(|rest| rest.strip_prefix('.')?.strip_suffix(".incomplete"));
        let tag = tag.ok_or("a tag")?;
        assert!(tag.len() == 8 && tag.bytes().all(|b| b.is_ascii_hexdigit()), "{left:?}");
        assert!(!seen.contains(&left[0]), "{left:?}");
        seen.extend(left);
    }
    setup.server.heal();
    setup.works()?;
    assert_eq!(parts()?, Vec::<String>::new());
    Ok(())
}

/// Python's variables for a cache without links and for patience.
#[test]
fn pythons_variables_say_how_to_keep_and_how_long_to_wait() -> Result {
    let setup = Setup::new()?;
    setup.run_with(&[("HF_HUB_DISABLE_SYMLINKS", "1")], &["download", "gpt2"])?.succeeded();
    for name in ["config.json", "model.safetensors"] {
        assert!(setup.pointer(name).symlink_metadata()?.is_file(), "{name} is no file of its own");
    }
    setup.works_offline()?;
    let silent = Setup::with(At::Api, Fault::StallHeaders, None)?;
    let variables = [("HF_HUB_DOWNLOAD_TIMEOUT", "1"), ("HF_HUB_ETAG_TIMEOUT", "0")];
    silent.run_with(&variables, &["download", "gpt2"])?.refused(1, &["no answer for 1 s"]);
    Ok(())
}

#[test]
fn download_asks_for_the_newest_commit_and_prints_where_it_is() -> Result {
    let setup = Setup::new()?;
    let old = "f".repeat(40);
    std::fs::create_dir_all(setup.repo().join("refs"))?;
    std::fs::write(setup.repo().join("refs/main"), &old)?;
    let run = setup.run(&["download", "gpt2"])?.succeeded();
    let dir = setup.pointer("").display().to_string();
    assert_eq!(run.stdout, format!("{}\n{COMMIT}\n", dir.trim_end_matches(std::path::MAIN_SEPARATOR)));
    assert_eq!(std::fs::read_to_string(setup.repo().join("refs/main"))?, COMMIT);
    let run = setup.run(&["download", "gpt2", "--json", "--quiet"])?.succeeded();
    let report: Value = serde_json::from_str(&run.stdout)?;
    assert_eq!((report["model"].as_str(), report["commit"].as_str()), (Some(MODEL), Some(COMMIT)));
    assert_eq!(run.stderr, "");
    setup.works_offline()
}

#[test]
#[cfg(unix)]
fn a_download_that_fails_leaves_the_old_commit_in_place() -> Result {
    let setup = Setup::new()?;
    as_python(setup.cache.path(), REPO, &[])?;
    // The cache holds an older commit, with other weights.
    let old = "f".repeat(40);
    let refs = setup.repo().join("refs/main");
    std::fs::write(&refs, &old)?;
    let snapshot = setup.repo().join("snapshots").join(&old);
    std::fs::rename(setup.repo().join("snapshots").join(COMMIT), &snapshot)?;
    let other = damaged_weights();
    std::fs::remove_file(setup.blob(&sha256_of(&weights())))?;
    std::fs::write(setup.blob(&sha256_of(&other)), &other)?;
    std::fs::remove_file(snapshot.join("model.safetensors"))?;
    let target = Path::new("../../blobs").join(sha256_of(&other));
    symlink(&target, &snapshot.join("model.safetensors"))?;

    setup.server.fault(At::Storage, Fault::Status(500, vec![]), None);
    setup.run(&["download", "gpt2"])?.refused(1, &["the server failed"]);
    assert_eq!(std::fs::read_to_string(&refs)?, old);
    setup.run(&FORWARD_OFFLINE)?.succeeded();
    setup.server.heal();
    setup.run(&["download", "gpt2"])?.succeeded();
    assert_eq!(std::fs::read_to_string(&refs)?, COMMIT);
    setup.works_offline()
}

#[test]
fn download_fails_without_the_tokenizer() -> Result {
    let setup = Setup::with(At::Get("tokenizer.json"), Fault::Status(500, vec![]), None)?;
    setup.run(&["download", "gpt2"])?.refused(1, &["tokenizer.json", "the server failed"]);
    // For token ids, the other files are enough.
    setup.run(&["forward", "--model", "gpt2", "--ids", "1,2"])?.succeeded();
    Ok(())
}

#[test]
#[cfg(unix)]
fn a_copy_without_links_is_verified_and_kept() -> Result {
    use std::os::unix::fs::MetadataExt;
    let setup = Setup::new()?;
    for (name, content) in repository() {
        std::fs::create_dir_all(setup.pointer(""))?;
        std::fs::write(setup.pointer(&name), content)?;
    }
    std::fs::create_dir_all(setup.repo().join("refs"))?;
    std::fs::write(setup.repo().join("refs/main"), COMMIT)?;
    let inode = |name| std::fs::symlink_metadata(setup.pointer(name)).map(|meta| meta.ino());
    let before = inode("model.safetensors")?;
    setup.run(&FORWARD_OFFLINE)?.refused(1, &["does not say what its hash", "name its folder"]);
    setup.works()?;
    assert_eq!(inode("model.safetensors")?, before);
    assert!(setup.fetches().is_empty(), "fetched what was there");
    setup.works_offline()?;
    // The program notices that the file has changed.
    std::fs::write(setup.pointer("model.safetensors"), damaged_weights())?;
    for _ in 0..2 {
        let run = setup.run(&["verify-cache", "gpt2", "--offline"])?;
        assert_eq!(run.code, 1, "{run:?}");
        setup.run(&FORWARD_OFFLINE)?.refused(1, &["model.safetensors"]);
    }
    setup.works()?;
    Ok(())
}

#[test]
#[cfg(unix)]
fn a_cache_that_has_the_files_need_not_keep_the_branch() -> Result {
    let setup = Setup::new()?;
    as_python(setup.cache.path(), REPO, &[])?;
    std::fs::remove_dir_all(setup.repo().join("refs"))?;
    std::fs::write(setup.repo().join("refs"), "a file where a folder should be: nobody can write there")?;
    setup.works()?;
    Ok(())
}

#[test]
#[cfg(unix)]
fn a_branch_that_cannot_be_kept_is_an_error_once_a_file_was_fetched() -> Result {
    let setup = Setup::new()?;
    as_python(setup.cache.path(), REPO, &["model.safetensors"])?;
    let refs = setup.repo().join("refs");
    std::fs::remove_dir_all(&refs)?;
    std::fs::write(&refs, "a file where a folder should be: nobody can write there")?;
    setup.forward()?.refused(1, &[&refs.display().to_string(), "the cache cannot be written to"]);
    assert_eq!(setup.fetches().len(), 1);
    setup.works()?;
    Ok(())
}

#[test]
fn a_commit_is_no_branch_to_be_kept() -> Result {
    let setup = Setup::new()?;
    setup.run(&["forward", "--model", "gpt2", "--revision", COMMIT, "O Romeo"])?.succeeded();
    assert!(!setup.repo().join("refs").exists());
    Ok(())
}

#[test]
fn models_lists_names_pins_and_what_is_cached() -> Result {
    let setup = Setup::new()?;
    let run = setup.run(&["models"])?.succeeded();
    let known = ["gpt2-xl", "distilbert/distilgpt2", "607a30d783df", "MIT", "no models in"];
    assert_says("stdout", &run.stdout, &known);
    setup.works()?;
    let run = setup.run(&["models"])?.succeeded();
    assert_says("stdout", &run.stdout, &[MODEL, COMMIT, "main"]);
    let report: Value = serde_json::from_str(&setup.run(&["models", "--json"])?.succeeded().stdout)?;
    assert_eq!(report["cached"][0]["id"], MODEL);
    assert_eq!(report["pins"][0]["size"], 548_105_171);

    // What is no commit, or is empty, is not listed; models and branches are in order.
    let snapshots = setup.repo().join("snapshots");
    std::fs::create_dir(snapshots.join("f".repeat(40)))?;
    std::fs::create_dir(snapshots.join("main"))?;
    std::fs::write(snapshots.join("main/config.json"), "{}")?;
    std::fs::create_dir_all(setup.repo().join("refs/pr"))?;
    std::fs::write(setup.repo().join("refs/pr/1"), COMMIT)?;
    std::fs::write(setup.repo().join("refs/old"), "f".repeat(40))?;
    let others = ["e", "c", "a", "d", "b"];
    for name in others {
        let folder = setup.cache.path().join(format!("models--{name}--model/snapshots/{COMMIT}/sub"));
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("weights.bin"), [0; 300])?;
    }
    let report: Value = serde_json::from_str(&setup.run(&["models", "--json"])?.succeeded().stdout)?;
    let ids: Vec<_> = list(&report["cached"]).iter().map(|model| model["id"].as_str()).collect();
    let expected = ["a/model", "b/model", "c/model", "d/model", "e/model", MODEL].map(Some);
    assert_eq!(ids, expected);
    let model = &report["cached"][5];
    let size: usize = repository().iter().filter(|(name, _)| name != "README.md").map(|(_, f)| f.len()).sum();
    assert_eq!((&model["size"], &model["refs"]), (&size.into(), &serde_json::json!(["main", "pr/1"])));
    assert_eq!((&report["cached"][0]["size"], &model["commit"]), (&300.into(), &COMMIT.into()));
    Ok(())
}

#[test]
fn a_pinned_file_is_held_against_its_pin() -> Result {
    use gpt2_loader::hub::{FileState, Pin};
    use gpt2_loader::{Hub, ModelId};
    let setup = Setup::new()?;
    let weights = super::weights();
    let pin = Pin {
        id: MODEL.into(),
        revision: COMMIT.into(),
        file: "model.safetensors".into(),
        size: weights.len() as u64,
        sha256: Some(sha256_of(&weights)),
        license: "MIT".into(),
    };
    let model = ModelId::parse(MODEL).ok_or("an id")?;
    let open = |pin: &Pin| {
        let mut hub = Hub::new(setup.cache.path());
        hub.endpoint = setup.server.endpoint();
        hub.pins = vec![pin.clone()];
        hub.open(&model, "main").map(|snapshot| snapshot.commit)
    };
    for wrong in
        [Pin { size: 5, sha256: None, ..pin.clone() }, Pin { sha256: Some("0".repeat(64)), ..pin.clone() }]
    {
        let error = open(&wrong).expect_err("another content").to_string();
        assert_says("error", &error, &["model.safetensors: pinned to", "the Hub announces"]);
        assert!(!setup.pointer("model.safetensors").exists());
    }
    assert_eq!(open(&pin)?, COMMIT);
    // The pin also holds for a file that is already cached and verified; checking again changes nothing.
    let wrong = Pin { sha256: Some("0".repeat(64)), ..pin.clone() };
    let mut hub = Hub::new(setup.cache.path());
    (hub.pins, hub.offline) = (vec![wrong], true);
    let checks = hub.verify(&model, "main", false)?;
    let weights = checks.iter().find(|check| check.file == "model.safetensors").ok_or("a check")?;
    assert_eq!(weights.state, FileState::Bad);
    assert!(hub.open(&model, "main").is_err());
    Ok(())
}

/// A user who may read a folder but not write to it; root may do anything.
#[cfg(unix)]
fn as_reader(command: &mut Command) -> Result {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::process::CommandExt;
    if std::fs::metadata("/proc/self")?.uid() == 0 {
        command.uid(65534);
    }
    Ok(())
}

#[cfg(unix)]
fn chmod(dir: &Path, mode: u32) -> Result {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode))?;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            chmod(&entry.path(), mode)?;
        }
    }
    Ok(())
}

#[test]
#[cfg(unix)]
fn a_cache_that_may_only_be_read_works_where_it_has_the_files() -> Result {
    let setup = Setup::new()?;
    as_python(setup.cache.path(), REPO, &[])?;
    chmod(setup.cache.path(), 0o555)?;
    // A copy of the binary where another user can run it.
    let bin = tempfile::tempdir()?;
    let program = bin.path().join("gpt2");
    crate::install(Path::new(crate::GPT2), &program)?;
    chmod(bin.path(), 0o755)?;
    let run = |model: &str| {
        let mut command = Command::new(&program);
        command.args(["forward", "--model", model, "--json", "O Romeo"]);
        command.env_clear().env("HOME", "/nonexistent");
        command.env("HF_ENDPOINT", setup.server.endpoint()).env("HF_HUB_CACHE", setup.cache.path());
        command.envs(std::env::var_os("GPT2_ISA").map(|isa| ("GPT2_ISA", isa)));
        as_reader(&mut command)?;
        Run::of(command)
    };
    super::assert_is_expected(&run("gpt2")?.succeeded().stdout)?;
    chmod(setup.cache.path(), 0o755)?;
    std::fs::remove_dir_all(setup.repo())?;
    chmod(setup.cache.path(), 0o555)?;
    let cache = setup.cache.path().display().to_string();
    run("gpt2")?.refused(1, &[&cache, "cannot be written to", "HF_HUB_CACHE"]);
    chmod(setup.cache.path(), 0o755)?;
    Ok(())
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_noticed_beforehand() -> Result {
    let setup = Setup::new()?;
    let disk = tempfile::tempdir()?;
    let mount = |args: &[&str]| {
        Command::new("mount").args(args).arg(disk.path()).output().is_ok_and(|o| o.status.success())
    };
    if !mount(&["-t", "tmpfs", "-o", "size=1m", "tmpfs"]) {
        writeln!(std::io::stderr(), "SKIPPED a full disk: mounting a small tmpfs needs root")?;
        return Ok(());
    }
    let cache = disk.path().to_str().ok_or("a path")?;
    let full = setup.run(&["forward", "--model", "gpt2", "--cache-dir", cache, "O Romeo"]);
    let umount = Command::new("umount").arg(disk.path()).output()?;
    assert!(umount.status.success());
    full?.refused(1, &["bytes are needed", "are free", "make room", "HF_HUB_CACHE"]);
    Ok(())
}
