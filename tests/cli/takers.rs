//! Every intervention in every command: what help lists is taken, what it does not list is refused by name.

use super::circuits::{CLEAN, CORRUPT};
use super::{Run, command, gpt2, spawn, stdout, words};
use crate::common::Result;
use crate::folder::Folder;
use candle_core::{DType, Device, Tensor};

/// The interventions, and options that ask for each of them. FOLDER stands for the folder with their files.
const INTERVENTIONS: [(&str, &str); 12] = [
    ("ablate", "--ablate 0.3"),
    // heads has no prompt to take the mean over.
    ("mean-ablate", "--mean-ablate 0.3 --mean-of FOLDER/texts.txt"),
    ("mean-of", "--mean-ablate 0.3 --mean-of FOLDER/texts.txt"),
    ("scale", "--scale 0.3=2"),
    ("attention-temperature", "--attention-temperature 0.3=2"),
    ("block", "--block 2:1"),
    ("patch", "--patch 1.0 --from-prompt PROMPT"),
    ("add", "--add 1=FOLDER/v.npy"),
    ("circuit", "--circuit FOLDER/circuit.json"),
    ("ablate-feature", "--dictionary demo --ablate-feature 713"),
    ("scale-feature", "--dictionary demo --scale-feature 713=2"),
    ("set-feature", "--dictionary demo --set-feature 713=1"),
];

/// The commands, and the arguments with which they take every intervention that has a meaning.
fn commands(folder: &Folder) -> Vec<Vec<String>> {
    let pair = [CLEAN, CORRUPT, "--answer", " fair", "--against", " king"];
    let with = |name: &str, more: &[&str]| -> Vec<String> {
        [&[name][..], more].concat().into_iter().map(str::to_owned).collect()
    };
    let points = ["--points", "blocks.0.hook_resid_post"];
    vec![
        with("forward", &[CLEAN]),
        with("attention", &[CLEAN]),
        with("lens", &[CLEAN]),
        with("generate", &[CLEAN, "-n2"]),
        with("features", &[CLEAN]),
        with("heads", &["--length", "8", "--repeats", "2", "--batch", "2"]),
        with("patch", &pair),
        with("discover", &[&pair[..], &["--edges", "5", "--steps", "1"]].concat()),
        with("score", &[&folder.at("text.txt")]),
        with(
            "record",
            &[&[&folder.at("text.txt")[..]][..], &points, &["--out", &folder.at("store")]].concat(),
        ),
        with("circuits", &["1.2"]),
        with("pairs", &["induction"]),
        with("compare", &["demo", "demo", "--text", &folder.at("text.txt")]),
    ]
}

#[test]
fn each_command_takes_the_interventions_that_its_help_lists() -> Result {
    let folder = Folder::empty()?;
    folder.write("texts.txt", format!("{CLEAN}\n{CORRUPT}\n"))?;
    folder.write("text.txt", CLEAN)?;
    Tensor::zeros(128, DType::F32, &Device::Cpu)?.write_npy(folder.at("v.npy"))?;
    let circuit = folder.at("circuit.json");
    let found =
        ["--answer", " fair", "--against", " king", "--edges", "5", "--steps", "1", "--out", &circuit];
    gpt2(&[&["discover", CLEAN, CORRUPT][..], &found].concat())?.succeeded();
    let mut taken = 0;
    for base in commands(&folder) {
        let help = stdout(&[&base[0], "--help"])?;
        let lists =
            |name: &str| help.lines().any(|line| line.trim_start().starts_with(&format!("--{name} <")));
        let mut running = vec![];
        for (name, options) in INTERVENTIONS {
            let options = options.replace("FOLDER", folder.at("").trim_end_matches('/'));
            // Of the stream, edges carry the embeddings alone.
            let options =
                if base[0] == "discover" { options.replace("--add 1=", "--add 0=") } else { options };
            let mut args: Vec<&str> = base.iter().map(String::as_str).collect();
            args.extend(
                words(&options).into_iter().map(|word| if word == "PROMPT" { CORRUPT } else { word }),
            );
            let is_record = base[0] == "record";
            if base[0] == "features" && !options.contains("--dictionary") {
                args.extend(["--dictionary", "demo"]);
            }
            let store = folder.at(&format!("store-{name}"));
            if is_record && let Some(out) = args.iter_mut().find(|arg| arg.ends_with("/store")) {
                *out = &store;
            }
            let flags = words(&options).into_iter().filter(|word| word.starts_with("--"));
            let asked: Vec<String> = flags.map(str::to_owned).collect();
            running.push((name, asked, spawn(command(&args))?));
        }
        for (name, asked, process) in running {
            let run = Run::end_of(process)?;
            let listed = lists(name);
            if base[0] == "discover" && name.ends_with("-feature") {
                // The demo's dictionary reads the stream; one of an MLP's output would be taken.
                assert!(listed && run.stderr.contains("no edge carries it"), "{name}: {}", run.stderr);
                continue;
            }
            assert_eq!(run.code == 0, listed, "gpt2 {} --{name}: {}", base[0], run.stderr);
            if listed {
                taken += 1;
            } else {
                // Windows refuse all changes at positions, in one sentence.
                let of_windows =
                    ["block", "patch"].contains(&name) && run.stderr.contains("interventions at positions");
                let names_one = of_windows || asked.iter().any(|flag| run.stderr.contains(flag.as_str()));
                assert!(names_one, "gpt2 {} --{name}: {}", base[0], run.stderr);
            }
        }
    }
    // Ten commands take some, and no more than one or three kinds are refused in any of them.
    assert!(taken >= 10 * INTERVENTIONS.len() - 12, "{taken}");
    Ok(())
}
