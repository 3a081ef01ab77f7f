"""Dictionaries, features, stores and their training: against SAELens' numbers, and against the command."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import COMMAND, DATA, ROOT, safetensors

from gpt2_candle import Dictionary, Model, Store, train_features

TEXT = "O Romeo, Romeo! wherefore art"
DEMO = ROOT / "models/tiny-shakespeare-features"
FOLDERS = sorted(folder for folder in (DATA / "features").iterdir() if folder.is_dir())
POINT = "blocks.2.hook_resid_post"
LINES = ["O Romeo, Romeo! wherefore art thou Romeo?", "To be, or not to be, that is the question:", "What say you, my lord?"]


@pytest.fixture(autouse=True)
def notes_are_no_errors() -> Iterator[None]:
    """Dictionaries say what their settings leave in doubt."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def sae() -> Dictionary:
    return Dictionary.load(DEMO)


def command(*arguments: str) -> None:
    found = subprocess.run([COMMAND, *arguments, "--quiet"], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


def same(mine: Any, other: Any, path: str = "") -> None:
    """Equal reports: floats of 32 bits are printed with fewer digits than Python gets."""
    if isinstance(other, dict):
        assert mine.keys() == other.keys(), path
        for name, value in other.items():
            same(mine[name], value, f"{path}.{name}")
    elif isinstance(other, list):
        assert len(mine) == len(other), path
        for i, value in enumerate(other):
            same(mine[i], value, f"{path}[{i}]")
    elif isinstance(other, float):
        assert mine == pytest.approx(other, rel=1e-6, abs=1e-12), path
    else:
        assert mine == other, path


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_codes_and_reconstructions_are_those_of_saelens(folder: Path) -> None:
    dictionary, values = Dictionary.load(folder), safetensors(folder / "values.safetensors")
    features = dictionary.encode(values["x"])
    assert features.shape == values["features"].shape
    scale = np.abs(values["features"]).max()
    np.testing.assert_allclose(features, values["features"], rtol=1e-4, atol=1e-5 * scale)
    rebuilt = dictionary.decode(features, values["x"])
    np.testing.assert_allclose(rebuilt, values["output"], rtol=1e-4, atol=1e-5 * np.abs(values["output"]).max())
    assert dictionary.cfg["d_sae"] == features.shape[-1]
    # Two leading dimensions are rows as well.
    np.testing.assert_array_equal(dictionary.encode(values["x"][None])[0], features)


def test_a_dictionary_knows_itself(sae: Dictionary) -> None:
    weights = safetensors(DEMO / "sae_weights.safetensors")
    for name in ("W_enc", "W_dec", "b_enc", "b_dec"):
        np.testing.assert_array_equal(getattr(sae, name), weights[name])
    np.testing.assert_allclose(sae.direction(7), weights["W_dec"][7], rtol=1e-6)
    assert sae.cfg["hook_name"] == POINT and sae.facts["features"] == len(weights["W_dec"])
    few = np.zeros((2, sae.cfg["d_sae"]), np.float32)
    few[1, 5] = 2.0
    # Without what a feature adds, the bias is left.
    np.testing.assert_allclose(sae.decode(few)[1] - sae.decode(few)[0], 2 * sae.direction(5), rtol=1e-4, atol=1e-6)
    assert "768 features" in repr(sae)
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(sae)


def test_features_of_a_text_are_the_commands(model: Model, gpt2: Callable[..., Any], sae: Dictionary, tmp_path: Path) -> None:
    export = tmp_path / "features.safetensors"
    arguments = ("features", TEXT, "--dictionary", str(DEMO), "-k", "3", "--feature", "7,713", "--target", " thou", "--against", " the")
    other = gpt2(*arguments, "--attention", "3.1/5:2", "--export", str(export))
    options: Any = {"top_k": 3, "feature": [7, 713], "target": " thou", "against": " the", "attention": "3.1/5:2"}
    tensors = safetensors(export)
    for dictionary in (sae, str(DEMO), DEMO):
        found = model.features(TEXT, dictionary, **options)
        for one in (found.report, other):
            one.get("provenance", {}).pop("from", None)
        same(found.report, {**other, "dictionary": {**other["dictionary"], "name": found.report["dictionary"]["name"]}})
        for name in ("features", "target", "rebuilt"):
            np.testing.assert_array_equal(getattr(found, name), tensors[name])
    by_id = model.features(TEXT, sae, **{**options, "target": model.tokenizer.token_to_id(" thou")})
    assert by_id.report["effects"] == model.features(TEXT, sae, **options).report["effects"]
    assert model.features(TEXT, dictionary=sae).report["quality"]["l0"] == found.report["quality"]["l0"]


def test_changed_features_are_the_commands(model: Model, gpt2: Callable[..., Any], sae: Dictionary) -> None:
    strongest = model.features(TEXT, sae).report["tokens"][2]["strongest"][0]["feature"]
    other = gpt2("features", TEXT, "--dictionary", str(DEMO), "--ablate-feature", str(strongest))
    found = model.features(TEXT, sae, ablate_feature=strongest)
    assert found.report["quality"]["loss"] == pytest.approx(other["quality"]["loss"], rel=1e-9)
    plain = model(TEXT).logits
    by_name = model(TEXT, dictionary=str(DEMO), ablate_feature=strongest).logits
    in_memory = model(TEXT, dictionary=sae, ablate_feature=strongest).logits
    np.testing.assert_array_equal(by_name, in_memory)
    assert np.abs(plain - in_memory).max() > 0


def test_a_store_is_the_commands_and_reads_as_arrays(model: Model, sae: Dictionary, gpt2: Callable[..., Any], tmp_path: Path) -> None:
    corpus = tmp_path / "lines.txt"
    corpus.write_text("\n".join(LINES), encoding="utf-8")
    more: Any = {"points": [POINT, "blocks.1.attn.hook_z"], "shard_tokens": 16, "window": 8}
    steps: list[tuple[str, int, int | None]] = []
    mine = model.record(corpus, out=tmp_path / "mine", by="line", progress=lambda *step: steps.append(step), **more)
    command("record", str(corpus), "--by", "line", "--points", ",".join(more["points"]), "--shard-tokens", "16", "--window", "8", "--out", str(tmp_path / "other"))
    for shard in sorted((tmp_path / "other").glob("*.safetensors")):
        assert shard.read_bytes() == (tmp_path / "mine" / shard.name).read_bytes(), shard.name
    assert steps[-1][0] == "bytes" and steps[-1][1] == steps[-1][2] == corpus.stat().st_size
    assert mine.report is not None and mine.report["documents"] == len(LINES) and mine.report["shards"] > 1

    in_memory = model.record(LINES, out=tmp_path / "texts", **more)
    rows, z = in_memory.values(POINT), in_memory.values("blocks.1.attn.hook_z")
    whole = np.asarray(rows)
    assert whole.shape == rows.shape == (len(in_memory), model.config["n_embd"]) and z.ndim == 3
    np.testing.assert_array_equal(whole, np.asarray(mine.values(POINT)))
    parts = [safetensors(shard)[POINT] for shard in sorted((tmp_path / "texts").glob("*.safetensors"))]
    np.testing.assert_array_equal(whole, np.concatenate(parts))
    n = len(rows)
    mask = np.arange(n) % 3 == 1
    for key in (0, -1, slice(None), slice(3, 20), slice(5, 5), slice(None, None, 7), slice(None, None, -1), [0, n - 1, 2], np.array([[1, -2], [17, 4]]), mask, (slice(2, 30), 5), (4, slice(1, 3))):
        np.testing.assert_array_equal(rows[key], whole[key], err_msg=str(key))
    with pytest.raises(IndexError):
        rows[n]
    with pytest.raises(IndexError):
        rows[[0, n]]
    with pytest.raises(KeyError, match="several values"):
        in_memory.values()
    ids = [model.tokenizer.encode(text) for text in LINES]
    assert in_memory.tokens.tolist() == [one for text in ids for one in text]
    assert in_memory.documents.tolist() == [i for i, text in enumerate(ids) for _ in text]
    assert in_memory.positions.tolist() == [i for text in ids for i, _ in enumerate(text)]
    again = Store(tmp_path / "texts")
    assert again.names == more["points"] and again.facts["window"] == 8

    found = model.features_in_store(in_memory, sae, feature=713, top_k=2)
    other = gpt2("features", "--store", str(tmp_path / "texts"), "--dictionary", str(DEMO), "--feature", "713", "-k", "2")
    same(found, {**other, "dictionary": found["dictionary"], "store": found["store"]})

    pages = tmp_path / "pages"
    found = model.features_in_store(in_memory, sae, top_k=2, pages=pages)
    command("features", "--store", str(tmp_path / "texts"), "--dictionary", str(DEMO), "-k", "2", "--pages", str(tmp_path / "theirs"))
    for name in ("index.html", "features/0.js", "features/11.js"):
        assert (pages / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes(), name
    assert len(found["features"]) == 768 and {"quantiles", "histogram", "related", "read_by"} <= set(found["features"][0])
    with pytest.raises(FileExistsError, match="overwrite=True"):
        model.features_in_store(in_memory, sae, pages=pages)
    model.features_in_store(in_memory, sae, feature=7, pages=pages, overwrite=True)
    assert sorted(path.name for path in (pages / "features").iterdir()) == ["0.js", "index.js"]

    explanations = tmp_path / "explanations.jsonl"
    explanations.write_text('{"index": "713", "description": "thou"}\n', encoding="utf-8")
    options: Any = {"top_k": 2, "explanations": explanations}
    model.features_in_store(in_memory, sae, neuronpedia=tmp_path / "upload", neuronpedia_id="tiny/2-mine", **options)
    names = ("--neuronpedia", str(tmp_path / "requests"), "--neuronpedia-id", "tiny/2-mine", "--explanations", str(explanations))
    command("features", "--store", str(tmp_path / "texts"), "--dictionary", str(DEMO), "-k", "2", *names)
    batches = sorted(path.name for path in (tmp_path / "requests").glob("batch-*.json"))
    assert batches and batches == sorted(path.name for path in (tmp_path / "upload").glob("batch-*.json"))
    for name in batches:
        assert (tmp_path / "upload" / name).read_bytes() == (tmp_path / "requests" / name).read_bytes(), name
    with pytest.raises(FileExistsError, match="empty folder"):
        model.features_in_store(in_memory, sae, neuronpedia=tmp_path / "upload", neuronpedia_id="tiny/2-mine")
    with pytest.raises(ValueError, match="expected MODEL/SOURCE"):
        model.features_in_store(in_memory, sae, neuronpedia=tmp_path / "new", neuronpedia_id="tiny")
    with pytest.raises(TypeError, match="give both"):
        model.features_in_store(in_memory, sae, neuronpedia=tmp_path / "new")
    assert not (tmp_path / "new").exists()
    found = model.features(TEXT, sae, feature=713, explanations=[explanations])
    assert found.report["explanations"]["713"] == ["thou"]
    with pytest.raises(ValueError, match="explanations: .*expected a JSON list"):
        explanations.write_text("no JSON", encoding="utf-8")
        model.features(TEXT, sae, explanations=explanations)


def tree(folder: Path) -> dict[str, bytes | None]:
    """All paths below a folder, with the content of files."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_folders_are_refused_before_the_work_and_written_whole(model: Model, sae: Dictionary, tmp_path: Path) -> None:
    store = model.record(LINES, points=POINT, out=tmp_path / "store")
    pages, upload = tmp_path / "pages", tmp_path / "new/upload"
    model.features_in_store(store, sae, top_k=2, pages=pages)
    (tmp_path / "explanations.jsonl").write_text('{"index": "713", "description": "thou"}\n', encoding="utf-8")
    (tmp_path / "file").write_text("x", encoding="utf-8")
    (pages / "features/99.js").write_text('{"index": "713", "description": "thou"}\n', encoding="utf-8")
    (pages / "features/\u0663.js").mkdir()  # is no number of the pages
    own = tmp_path / "own"
    (own / "model").mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copy(ROOT / "models/tiny-shakespeare" / name, own / "model" / name)
    shutil.copytree(DEMO, own / "sae")
    loaded = Model.load(own / "model", cache_dir=tmp_path / "cache")
    (tmp_path / "cache/models--x--y").mkdir(parents=True)
    mine: Any = {"neuronpedia": upload, "neuronpedia_id": "tiny/2-mine"}
    before = tree(tmp_path)
    steps: list[int] = []

    def write(of: Model = model, dictionary: Any = sae, **options: Any) -> None:
        of.features_in_store(store, dictionary, top_k=2, progress=lambda _, done, __: steps.append(done), **options)

    refused: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ValueError, "a file of explanations", {"pages": pages, "overwrite": True, "explanations": pages / "features/99.js"}),
        (ValueError, "a file of the store", {"pages": tmp_path}),
        (ValueError, "a file of the dictionary", {"pages": own / "sae", "dictionary": own / "sae"}),
        (ValueError, "a file of the dictionary", {"pages": own / "sae", "dictionary": Dictionary.load(own / "sae")}),
        (ValueError, "is the folder of the model", {"pages": own / "model", "of": loaded}),
        (ValueError, "this run reads", {"pages": own, "of": loaded}),
        (ValueError, "the cache of the Hub", {"pages": tmp_path / "cache/models--x--y", "of": loaded}),
        (ValueError, "pages=.*lies in the other", {"pages": tmp_path / "new", **mine}),
        (ValueError, "pages=.*lies in the other", {"pages": upload / "pages", **mine}),
        (OSError, "pages: .*is a file", {"pages": tmp_path / "file"}),
        (OSError, "neuronpedia: .*is a file", {**mine, "neuronpedia": tmp_path / "file"}),
        (FileExistsError, "overwrite=True", {"pages": pages}),
        (FileExistsError, "neuronpedia=.*holds files already", {**mine, "neuronpedia": pages}),
        (ValueError, "neuronpedia_id .*expected MODEL/SOURCE", {**mine, "neuronpedia_id": "tiny"}),
        (ValueError, "overwrite: replaces pages", {"overwrite": True}),
    ]
    for kind, says, options in refused:
        with pytest.raises(kind, match=says):
            write(**options)
        assert steps == [] and tree(tmp_path) == before, options

    def stops(*_: Any) -> None:
        assert (tmp_path / "new/upload").is_dir()
        raise KeyboardInterrupt

    both: Any = {"pages": pages, "overwrite": True, **mine}
    with pytest.raises(KeyboardInterrupt):
        model.features_in_store(store, sae, progress=stops, **both)
    assert tree(tmp_path) == before
    write(feature=7, **both)
    assert sorted(path.name for path in (pages / "features").iterdir()) == ["0.js", "index.js", "\u0663.js"]
    assert sorted(path.name for path in pages.iterdir()) == ["features", "index.html"]
    assert sorted(path.name for path in upload.iterdir()) in (["about.json"], ["about.json", "batch-0.json"])


def test_a_trained_dictionary_has_the_commands_bytes(model: Model, tmp_path: Path) -> None:
    texts = [line for _ in range(12) for line in LINES]
    store = model.record(texts, points=POINT, out=tmp_path / "store")
    steps: list[int] = []
    run = train_features(store, tmp_path / "mine", features=64, k=4, batch=32, silent_after=100, seed=3, progress=lambda _, done, __: steps.append(done))
    options = ("--features", "64", "-k", "4", "--batch", "32", "--silent-after", "100", "--seed", "3")
    command("train-features", str(tmp_path / "store"), "--out", str(tmp_path / "other"), *options)
    weights = [tmp_path / name / "sae_weights.safetensors" for name in ("mine", "other")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert run.finished and run.report["steps"] == steps[-1] and run.dictionary.cfg["d_sae"] == 64
    # Of texts that the model reads meanwhile.
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(texts), encoding="utf-8")
    live: Any = {"model": model, "point": POINT, "features": 64, "k": 4, "batch": 32, "sparsity": "jumprelu", "window": 16, "epochs": 1}
    train_features(texts, tmp_path / "live", **live)
    command("train-features", str(file), "--by", "line", "--point", POINT, "--sparsity", "jumprelu", "--window", "16", "--epochs", "1", "--out", str(tmp_path / "line"), "--features", "64", "-k", "4", "--batch", "32")
    weights = [tmp_path / name / "sae_weights.safetensors" for name in ("live", "line")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_an_attribution_graph_is_the_commands(
    model: Model, gpt2: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [line for _ in range(12) for line in LINES]
    transcoders: list[Dictionary] = []
    for layer in range(4):
        points: Any = {"point": f"blocks.{layer}.mlp.hook_in", "writes": f"blocks.{layer}.hook_mlp_out", "sparsity": "jumprelu"}
        made = train_features(texts, tmp_path / f"t{layer}", model=model, features=64, k=4, batch=32, window=16, **points)
        assert made.report["writes"] == points["writes"]
        transcoders.append(made.dictionary)
    graph = model.attribution_graph(TEXT, transcoders, node_threshold=0.9)
    names = ",".join(str(tmp_path / f"t{layer}") for layer in range(4))
    found = gpt2("graph", TEXT, "--dictionary", names, "--node-threshold", "0.9")
    assert (found["nodes"], found["active_features"]) == (graph.report["nodes"], graph.report["active_features"])
    for score in ("replacement_score", "completeness_score"):
        assert found[score] == pytest.approx(graph.report[score], rel=1e-6)
    assert found["graph"]["links"] == graph.report["graph"]["links"]
    count = len(graph.active_features)
    assert graph.adjacency_matrix.shape == (graph.report["nodes"],) * 2 and graph.activation_values.shape == (count,)
    assert graph.input_tokens.tolist() == model.tokenizer.encode(TEXT)
    odds = np.exp(model(TEXT).logits[0, -1].astype(np.float64))
    np.testing.assert_allclose(graph.logit_probabilities, (odds / odds.sum())[graph.logit_tokens], rtol=1e-4)
    assert len(graph.adjacency_matrix) == count + (4 + 1) * len(graph.input_tokens) + len(graph.logit_tokens)
    layer, position, number = graph.active_features[-1]
    assert layer == 3 and transcoders[3].encode(model.run_with_cache(TEXT)[1]["blocks.3.mlp.hook_in"])[0, position, number] > 0
    graph.save(tmp_path / "graph.json")
    saved = json.loads((tmp_path / "graph.json").read_text(encoding="utf-8"))
    assert saved["metadata"].pop("slug") == "graph"
    assert saved == {**graph.report["graph"], "metadata": {k: v for k, v in graph.report["graph"]["metadata"].items() if k != "slug"}}
    assert saved["metadata"]["transcoder_list"] == ["t0", "t1", "t2", "t3"]
    graph.save_page(tmp_path / "graph.html")
    page = (tmp_path / "graph.html").read_text(encoding="utf-8")
    data = json.loads(page.split('type="application/json">', 1)[1].split("</script>", 1)[0])
    # The page leaves out the author's folders.
    names = [{**one, "name": Path(one["name"]).name} for one in graph.report["dictionaries"]]
    same(data, {**graph.report, "dictionaries": names, "provenance": data["provenance"], "has_short_names": True})
    assert data["provenance"].items() <= graph.report["provenance"].items() and "folder" not in data["provenance"]
    same(data["features"], found["features"])
    with pytest.raises(FileExistsError, match="overwrite=True"):
        graph.save_page(tmp_path / "graph.html")
    graph.save_page(tmp_path / "graph.html", overwrite=True)
    one = data["features"][0]
    explanations = tmp_path / "explanations.json"
    explanations.write_text(json.dumps([{"layer": one["layer"], "index": one["feature"], "description": "thou"}]), encoding="utf-8")
    told = model.attribution_graph(TEXT, transcoders, node_threshold=0.9, explanations=explanations)
    assert told.report["features"][0]["explanations"] == ["thou"]
    by_name = model.attribution_graph(TEXT, [tmp_path / f"t{layer}" for layer in range(4)], node_threshold=0.9)
    monkeypatch.chdir(tmp_path / "t0")
    for read, what, file in (
        (graph, "a file of a dictionary", tmp_path / "t0/cfg.json"),
        (by_name, "a file of a dictionary", tmp_path / "t3/sae_weights.safetensors"),
        (pickle.loads(pickle.dumps(by_name)), "a file of a dictionary", Path("cfg.json")),
        (told, "a file of explanations", explanations),
    ):
        before = file.read_bytes()
        for save in (read.save, read.save_page):
            with pytest.raises(FileExistsError, match="overwrite=True"):
                save(file)
            with pytest.raises(ValueError, match=what):
                save(file, overwrite=True)
        assert file.read_bytes() == before
    monkeypatch.undo()
    with pytest.raises(ValueError, match="dictionary: layer 3 has 0 transcoders of 3"):
        model.attribution_graph(TEXT, transcoders[:3])
    with pytest.raises(ValueError, match="max_nodes"):
        model.attribution_graph(TEXT, transcoders, max_nodes=10)


def test_rows_of_a_store_say_how_they_become_an_array(model: Model, tmp_path: Path) -> None:
    rows = model.record(LINES, points=POINT, out=tmp_path / "rows").values()
    with pytest.raises(AttributeError, match=r"values\[:\].mean reads all of them"):
        rows.mean  # noqa: B018
    with pytest.raises(AttributeError, match="rows of a store have no .median_of."):
        rows.median_of  # noqa: B018
    assert np.mean(rows).shape == ()  # type: ignore[arg-type]


def test_a_stopped_training_goes_on_to_the_same_bytes(model: Model, tmp_path: Path) -> None:
    store = model.record([line for _ in range(12) for line in LINES], points=POINT, out=tmp_path / "store")
    options: Any = {"features": 64, "k": 4, "batch": 32, "silent_after": 100}

    def stops(_: str, done: int, __: int | None) -> None:
        if done == 5:
            raise KeyboardInterrupt

    whole = train_features(store, tmp_path / "whole", **options)
    with pytest.raises(KeyboardInterrupt):
        train_features(store, tmp_path / "parts", progress=stops, **options)
    with pytest.raises(ValueError, match="resume=True"):
        train_features(store, tmp_path / "parts", **options)
    with pytest.raises(ValueError, match="lr was 0.004 and is 0.5"):
        train_features(store, tmp_path / "parts", resume=True, lr=0.5, **options)
    parts = train_features(store, tmp_path / "parts", resume=True, **options)
    assert parts.finished and parts.report["steps"] == whole.report["steps"]
    for name in ("cfg.json", "sae_weights.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()


def test_a_stopped_recording_goes_on_to_the_same_bytes(model: Model, tmp_path: Path) -> None:
    texts = LINES * 6

    def record(name: str, **more: Any) -> Store:
        return model.record(texts, points=POINT, out=tmp_path / name, shard_tokens=16, window=8, **more)

    def stops(_: str, done: int, __: int | None) -> None:
        if done:
            raise KeyboardInterrupt

    record("whole")
    with pytest.raises(KeyboardInterrupt):
        record("part", progress=stops)
    with pytest.raises(ValueError, match="shards are missing"):
        Store(tmp_path / "part")
    assert (tmp_path / "part/00000.safetensors").exists()
    with pytest.raises(ValueError, match="resume=True"):
        record("part")
    record("part", resume=True)
    for file in sorted((tmp_path / "whole").iterdir()):
        assert file.read_bytes() == (tmp_path / "part" / file.name).read_bytes(), file.name


def test_a_dictionary_is_read_again_after_it_has_changed(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = model.record(LINES * 12, points=POINT, out=tmp_path / "store")
    options: Any = {"features": 64, "k": 4, "batch": 32, "epochs": 1}
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path)
    train_features(store, "sae", seed=1, **options)
    first = model.features(TEXT, dictionary="sae").report
    train_features(store, "sae", seed=2, overwrite=True, **options)
    second = model.features(TEXT, dictionary="sae").report
    assert second["quality"] != first["quality"]
    same(model.features(TEXT, Dictionary.load("sae")).report["quality"], second["quality"])
    # A relative name means another folder elsewhere.
    train_features(store, tmp_path / "work/sae", seed=1, **options)
    monkeypatch.chdir(tmp_path / "work")
    same(model.features(TEXT, dictionary="sae").report["quality"], first["quality"])


def test_sizes_without_a_step_are_refused(model: Model, tmp_path: Path) -> None:
    live: Any = {"model": model, "point": POINT}
    sizes: list[Any] = [{"batch": 0}, {"accumulate": 0}, {"k": 0}, {"epochs": 0}, {"window": 0}]
    for wrong in sizes:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            train_features(LINES, tmp_path / "none", **live, **wrong)
    assert not (tmp_path / "none").exists()
    sizes = [{"length": 0}, {"repeats": 1}, {"batch": 0}]
    for wrong in sizes:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            model.heads(**wrong)


def test_misuse_is_named(model: Model, sae: Dictionary, tmp_path: Path) -> None:
    for call, kind, says in (
        (lambda: model.features(TEXT), TypeError, "needs a dictionary"),
        (lambda: model.features(TEXT, sae, dictionary=sae), TypeError, "given twice"),
        (lambda: model.features(TEXT, sae, feature=768), ValueError, "0 to 767"),
        (lambda: model.features(TEXT, sae, feature=True), TypeError, "feature"),
        (lambda: model.features(TEXT, sae, target=" thou", against=" thou"), ValueError, "same token"),
        (lambda: model.features(TEXT, sae, against=" thou"), ValueError, "target"),
        (lambda: model.features(TEXT, sae, attention="1.1"), ValueError, "LAYER.HEAD/QUERY:KEY"),
        (lambda: model.features(TEXT, sae, circuit=[("0.1", "2.3.q")]), ValueError, "circuit: is not for features"),
        (lambda: model.features(TEXT, DATA / "features/standard"), ValueError, "another model"),
        (lambda: model(TEXT, dictionary=7, ablate_feature=1), TypeError, "expected a Dictionary or its name"),  # type: ignore[arg-type]
        (lambda: Dictionary.load(tmp_path / "none"), ValueError, "no such folder"),
        (lambda: sae.encode(np.zeros(3)), ValueError, r"values: expected an array \(\.\., 128\)"),
        (lambda: sae.direction(768), ValueError, "at most 767"),
        (lambda: Dictionary.load(DATA / "features/layer_norm").decode(np.zeros((1, 40))), ValueError, "give values="),
        (lambda: model.record("no such file", points=POINT, out=tmp_path / "x"), FileNotFoundError, "put it in a list"),
        (lambda: model.record(LINES, points="blocks.0.hook_zz", out=tmp_path / "x"), ValueError, "nearest"),
        (lambda: model.record(LINES, points="blocks.0.attn.hook_pattern", out=tmp_path / "x"), ValueError, "each pair of tokens"),
        (lambda: model.record([1, 2], points=POINT, out=tmp_path / "x"), TypeError, "expected texts"),  # type: ignore[list-item]
        (lambda: model.record(LINES, points=POINT, out=tmp_path / "x", block="1:0"), ValueError, "do not fit windows"),
        (lambda: Store(tmp_path / "none"), FileNotFoundError, "none"),
        (lambda: train_features(tmp_path, tmp_path / "x"), TypeError, "give model="),
        (lambda: train_features(LINES, tmp_path / "x", model=model), ValueError, "point"),
    ):
        with pytest.raises(kind, match=says):
            call()
    assert not (tmp_path / "x").exists()
    made = model.record(LINES * 8, points=POINT, out=tmp_path / "store")
    with pytest.raises(TypeError, match="model"):
        train_features(made, tmp_path / "x", model=model)
    with pytest.raises(ValueError, match="bos: is for a text"):
        train_features(made, tmp_path / "x", bos=True)
    with pytest.raises(ValueError, match="learned from"):
        train_features(made, tmp_path / "store")
    index = json.loads((tmp_path / "store/store.json").read_text())
    (tmp_path / "store/store.json").write_text(json.dumps({**index, "shards": [index["shards"][0] + 1]}))
    with pytest.raises(ValueError, match="damaged"):
        Store(tmp_path / "store").values()[0]
