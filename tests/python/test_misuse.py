"""What goes wrong: an exception of Python's own kinds each, and never the end of the process."""

from __future__ import annotations

import contextvars
import copy
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import DATA, TEXT

from gpt2_candle import Model

Z = "blocks.0.attn.hook_z"


def test_words_of_other_libraries_are_named(model: Model) -> None:
    with pytest.raises(TypeError, match="dtype: expected a word, such as 'f32'"):
        Model.load(dtype=np.float32)  # type: ignore[arg-type]
    np.testing.assert_array_equal(model.direct("O", np.array(788)).heads, model.direct("O", 788).heads)  # type: ignore[arg-type]
    output = model("O Romeo")
    for read in (lambda: output[0], lambda: np.asarray(output)):
        with pytest.raises(TypeError, match="return_type='logits'"):
            read()
    cache = model.run_with_cache("O Romeo", "blocks.0.")[1]
    with pytest.raises(KeyError, match="did you mean 'blocks.0.attn.hook_pattern'"):
        cache["patern", 0]
    with pytest.raises(KeyError, match="run_with_cache with names='blocks.1.attn.hook_pattern' has it"):
        cache["pattern", 1]
    with pytest.raises(KeyError, match="run_with_cache with names='blocks.3.attn.hook_pattern' has it"):
        cache["pattern", -1]
    with pytest.raises(TypeError, match="expected pairs of a point and a function"):
        model.run_with_hooks("O", ("hook_embed", print))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"and blocks\.\* stands for every layer$"):
        model.record(["O"], points="resid_post", out="/nonexistent/store")
    gradients = model.grad("O Romeo", ("z", -1), 788)
    assert list(gradients) == ["blocks.3.attn.hook_z"] and gradients["z", 3] is gradients["blocks.3.attn.hook_z"]
    assert ("z", 3) in gradients and ("z", 2) not in gradients and "blocks.3.attn.hook_z" in gradients
    assert gradients.get(("z", 3)) is gradients["z", 3] and gradients.get(("z", 2)) is None
    with pytest.raises(ValueError, match="freeze: unknown variant"):
        model.path_patching("O Romeo", "O Juliet", 788, path="0.3->1.0.k", freeze="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="positions: -1 is below 0; positions count from 0"):
        model.grad("O Romeo", ("z", 3), 788, positions=-1)
    with pytest.raises(ValueError, match="^by: invalid type: integer `3`"):
        model.score_corpus(__file__, by=3)  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="blocks.2.attn.hook_z' is not among the points"):
        gradients["z", 2]
    assert list(model.grad("O", "blocks.*.attn.hook_z", 788)) == [f"blocks.{layer}.attn.hook_z" for layer in range(4)]
    with pytest.raises(ValueError, match=r"did you mean 'blocks.0.attn.hook_z', and 'blocks.\*.attn.hook_z' is that of every layer"):
        model.grad("O", "z", 788)
    silent = model("O Romeo", ablate="0.3").logits
    for heads in ("L0H3", (0, 3), [0, 3], [[0, 3]], np.array([0, 3]), np.array([[0, 3]]), [(0, 3)]):
        np.testing.assert_array_equal(model("O Romeo", ablate=heads).logits, silent)  # type: ignore[arg-type]
    for refused in ([0, 3, 1], range(2), {0, 1}, {0: [3]}, np.arange(3)):
        with pytest.raises(TypeError, match="expected (a head|heads)"):
            model("O Romeo", ablate=refused)  # type: ignore[arg-type]
    # A layer is a place to patch.
    with pytest.raises(TypeError, match="expected a head"):
        model("O Romeo", patch=[1, 2], from_prompt="O Juliet")  # type: ignore[list-item]
    for name in (("z", 9), ("z", -9)):
        with pytest.raises(ValueError, match="there are layers 0 to 3"):
            model.grad("O", name, 788)
    assert len(model.grad("O", "blocks.*.attn.", 788)) > 4
    pair = {"clean": " lord fair which king come out of lord", "corrupt": " king fair which lord come out of lord", "answer": " fair", "against": " come"}
    assert model.patch(pairs=[pair])["heads"] == model.patch(pairs=[{"clean": pair["clean"], "corrupted": pair["corrupt"], "correct": " fair", "incorrect": " come"}])["heads"]
    with pytest.raises(ValueError, match="answer is another word for correct; give one of them"):
        model.patch(pairs=[{**pair, "correct": " king"}])
    with pytest.raises(TypeError, match="expected text or token ids"):
        model.patching(np.array(5), "O", 788)  # type: ignore[arg-type]
    ids = model.to_tokens("O Romeo")
    assert ids.shape[0] == 1 and model.patching(ids, ids, 788).clean == model.patching("O Romeo", "O Romeo", 788).clean


@pytest.mark.parametrize(
    "arguments,kind,says",
    [
        ({"name": "no/such/folder/at/all"}, FileNotFoundError, "no/such/folder"),
        ({"name": "missing.gguf"}, FileNotFoundError, "missing.gguf"),
        ({"dtype": "f8"}, ValueError, "f32, f16, bf16, f64"),
        ({"quantize": "q2"}, ValueError, "q8_0, q4_0"),
        ({"quantize": "q8_0", "dtype": "f16"}, ValueError, "compute in f32"),
        ({"device": "tpu"}, ValueError, "expected auto, cpu, cuda"),
        ({"device": "cuda"}, ValueError, "without CUDA"),
        ({"revision": "main"}, ValueError, "no revisions"),
        ({"adapter": "no-such-adapter"}, (FileNotFoundError, ValueError, OSError), "no-such-adapter"),
        ({"threads": 0}, ValueError, "1 to 1024"),
        ({"threads": "two"}, TypeError, "a number"),
        ({"threads": 77}, RuntimeError, "first model"),
        ({"name": "owner/name", "offline": True, "cache_dir": "/nonexistent"}, FileNotFoundError, "owner/name"),
    ],
)
def test_loading(arguments: Any, kind: Any, says: str) -> None:
    with pytest.raises(kind, match=says):
        Model.load(**arguments)


@pytest.mark.parametrize(
    "text,kind,says",
    [
        ("", ValueError, "empty"),
        ([], ValueError, "no text"),
        ([[]], ValueError, "empty"),
        ([1.5], TypeError, "float"),
        ([True], TypeError, "bool"),
        ([-1], ValueError, "no token -1"),
        ([5000], ValueError, "5000"),
        ([2**40], ValueError, "no token"),
        (None, TypeError, "expected text or token ids"),
        (["a", ""], ValueError, "text 1 is empty"),
        ("word " * 5000, ValueError, "n_positions"),
        ([1] * 300, ValueError, "n_positions"),
    ],
)
def test_texts(model: Model, text: Any, kind: Any, says: str) -> None:
    with pytest.raises(kind, match=says):
        model(text)


@pytest.mark.parametrize(
    "changes,kind,says",
    [
        ({"ablat": "0.3"}, TypeError, "there is no option or intervention 'ablat'; did you mean 'ablate'"),
        ({"ablate": "9.0"}, ValueError, "layers 0 to 3"),
        ({"ablate": "0"}, ValueError, "LAYER.HEAD"),
        ({"ablate": 3}, TypeError, "expected a head such as"),
        ({"ablate": [3]}, TypeError, "expected a head such as"),
        ({"scale": "0.3=2"}, TypeError, "mapping"),
        ({"scale": {"0.3": float("nan")}}, ValueError, "FACTOR"),
        ({"attention_temperature": {"0.3": 0}}, ValueError, "above 0"),
        ({"block": "4:7"}, ValueError, "attends to positions"),
        ({"block": "99:1"}, ValueError, "positions 0 to"),
        ({"patch": "0.1"}, ValueError, "from_prompt"),
        ({"from_prompt": "a"}, TypeError, "patch and circuit"),
        ({"patch": "0.1", "from_prompt": "O"}, ValueError, "make them equal"),
        ({"mean_of": ["a"]}, TypeError, "mean_ablate and circuit"),
        ({"add": {0: [1.0, 2.0]}}, ValueError, "128 numbers"),
        ({"add": {0: np.full(128, np.nan)}}, ValueError, "NaN"),
        ({"mean_ablate": "0.1", "mean_of": []}, ValueError, "no text"),
        ({"add": {"x": np.zeros(128)}}, ValueError, "expected a layer"),
        ({"add": {0: ["a"]}}, TypeError, "numbers"),
        ({"ablate": "0.3", "scale": {"0.3": 2}}, ValueError, "changes nothing"),
    ],
)
def test_interventions(model: Model, changes: Any, kind: Any, says: str) -> None:
    with pytest.raises(kind, match=says):
        model(TEXT, **changes)


def test_positions_and_means_of_several_texts_are_refused(model: Model) -> None:
    several = ["O Romeo", TEXT]
    for changes in ({"add": {"1@1": np.ones(128)}}, {"block": "1:0"}, {"patch": "1.mlp@1", "from_prompt": TEXT}, {"patch": "1.mlp", "from_prompt": TEXT}):
        with pytest.raises(ValueError, match="differ in length"):
            model(several, **changes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mean_of"):
        model(several, mean_ablate="0.1")
    with pytest.raises(ValueError, match="mean_of"):
        model.head_scores(mean_ablate="0.1")
    with pytest.raises(ValueError, match="leave the position out"):
        model.head_scores(block="3:1")
    same = [TEXT, TEXT]
    np.testing.assert_allclose(model(same, block="3:1").logits[1], model(TEXT, block="3:1").logits[0], rtol=1e-4, atol=1e-4)


def test_a_cache_answers_to_short_names(model: Model) -> None:
    _, cache = model.run_with_cache(TEXT)
    np.testing.assert_array_equal(cache["embed"], cache["hook_embed"])
    np.testing.assert_array_equal(cache["pattern", -1], cache["blocks.3.attn.hook_pattern"])
    assert ("pattern", 0) in cache and "pattern" not in cache and ("pattern", 9) not in cache and "logits" not in cache
    before = cache["pattern", 1].copy()
    _, fresh = model.run_with_cache(TEXT)
    fresh["q", 1][...] = 0
    np.testing.assert_array_equal(fresh["pattern", 1], before)
    again = pickle.loads(pickle.dumps(fresh))
    np.testing.assert_array_equal(again["pattern", 2], cache["pattern", 2])
    assert copy.deepcopy(model) is model and copy.copy(model) is model
    assert pickle.loads(pickle.dumps(model.effects(TEXT, " thou")))["change"].top(1)


def test_hooks_know_their_layer_as_in_transformerlens(model: Model) -> None:
    layers: list[int] = []

    def note(value: Any, hook: Any) -> None:
        assert hook.layer == hook.layer()
        layers.append(hook.layer())

    model.run_with_hooks(TEXT, [(lambda name: name.endswith("hook_z"), note)])
    assert layers == [0, 1, 2, 3]
    model.run_with_hooks(TEXT, [("blocks.1.attn.", lambda value, hook: layers.append(hook.layer))])
    assert layers[4:] == [1] * (len(layers) - 4) and len(layers) > 8
    for wrong in ("blocks.1", "blocks.0.hook_resid", "hook"):
        with pytest.raises(ValueError, match="no hook point"):
            model.run_with_hooks(TEXT, [(wrong, note)])


def test_points_and_hooks(model: Model) -> None:
    for names, kind, says in (("blocks.9.", ValueError, "no hook point"), ("", ValueError, "no hook point"), ([3], TypeError, "string")):
        with pytest.raises(kind, match=says):
            model.run_with_cache(TEXT, names)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no function"):
        model.run_with_hooks(TEXT, [(Z, 3)])  # type: ignore[list-item]
    for returned, kind, says in (
        (np.zeros(3), ValueError, r"expected an array of shape \(1, 10, 4, 32\), got \(3,\)"),
        ("z", TypeError, "numbers"),
        (np.array(["z"]), TypeError, "numbers"),
    ):
        with pytest.raises(kind, match=says):
            model.run_with_hooks(TEXT, [(Z, lambda value, hook, returned=returned: returned)])  # type: ignore[misc]


def test_an_exception_of_a_hook_comes_out_as_it_is(model: Model) -> None:
    class Mine(Exception):
        pass

    def fails(value: Any, hook: Any) -> None:
        raise Mine("of my own")

    with pytest.raises(Mine, match="of my own"):
        model.run_with_hooks(TEXT, [(Z, fails)])
    with pytest.raises(KeyboardInterrupt):
        model.run_with_hooks(TEXT, [(Z, lambda value, hook: (_ for _ in ()).throw(KeyboardInterrupt()))])
    with pytest.raises(Mine):
        model.patching("O Romeo", "O Juliet"[:2] + "Romeo", " thou", " the", progress=lambda done, all: fails(0, 0))
    assert model(TEXT).logits.shape[1] == 10, "the model works on"


def test_a_hook_may_read_keep_and_run(model: Model) -> None:
    plain = model(TEXT).logits
    kept: list[Any] = []

    def keeps(value: Any, hook: Any) -> Any:
        value[:] = 0
        kept.append(value)
        return value

    def reads(value: Any, hook: Any) -> None:
        kept.append(value)
        model(TEXT)  # another run inside
        gc.collect()

    np.testing.assert_array_equal(model.run_with_hooks(TEXT, [(None, reads)]), plain)
    assert len(kept) > 70
    kept.clear()
    ablated = model.run_with_hooks(TEXT, [(Z, keeps)])
    np.testing.assert_array_equal(ablated, model(TEXT, ablate="0.*").logits)
    kept[0][:] = 7
    np.testing.assert_array_equal(model(TEXT).logits, plain)
    breaks = [(Z, lambda value, hook: np.full_like(value, np.nan))]
    with pytest.raises(ValueError, match="undo what a function writes"):
        model.run_with_hooks(TEXT, breaks)
    broken = model.run_with_hooks(TEXT, breaks, allow_nonfinite=True)
    assert np.isnan(broken).all(-1).any()


def test_arrays_outlive_their_model_and_are_not_copied() -> None:
    model = Model.load()
    logits, cache = model.run_with_cache(TEXT)
    before = {name: value.copy() for name, value in cache.items()}
    post, pre = cache["resid_post", 0], cache["resid_pre", 1]
    assert post.__array_interface__["data"] == pre.__array_interface__["data"]
    assert all(value.base is not None and not value.flags.owndata for value in cache.values())
    q, k = cache["q", 0], cache["k", 0]
    distance = k.__array_interface__["data"][0] - q.__array_interface__["data"][0]
    assert distance == 128 * 4, "queries and keys lie in the one output of c_attn"
    del model
    gc.collect()
    for name, value in cache.items():
        np.testing.assert_array_equal(value, before[name])
    cache["hook_pos_embed"][:] = 0
    np.testing.assert_array_equal(Model.load()(TEXT).logits, logits)


def test_torch_reads_without_a_copy(model: Model) -> None:
    torch = pytest.importorskip("torch")
    logits = model(TEXT).logits
    tensor = torch.from_dlpack(logits)
    assert tensor.data_ptr() == logits.__array_interface__["data"][0]
    given = model.run_with_hooks(TEXT, [(Z, lambda value, hook: torch.from_numpy(value) * 0)])
    np.testing.assert_array_equal(given, model(TEXT, ablate="0.*").logits)
    np.testing.assert_array_equal(model(torch.tensor([1, 2, 3])).logits, model([1, 2, 3]).logits)


def test_many_threads_use_one_model(model: Model) -> None:
    texts = [TEXT, "O Romeo", "the king is dead", "Speak"]
    expected = {text: model(text).logits for text in texts}
    wrong: list[str] = []

    def work(text: str) -> None:
        for _ in range(10):
            found = model.run_with_hooks(text, [(Z, lambda value, hook: value)])
            if not np.array_equal(found, expected[text]):
                wrong.append(text)

    threads = [threading.Thread(target=work, args=(text,)) for text in texts * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_hooks_may_wait_for_one_another() -> None:
    # A hook that holds a lock and runs a model must not be given another thread's hook to run meanwhile.
    found = run(
        """
        import threading
        from gpt2_candle import Model
        model = Model.load(threads=1)
        lock, meeting, point = threading.Lock(), threading.Barrier(3), "blocks.0.attn.hook_z"
        def holds(value, hook):
            with lock:
                model("O Romeo")
        def meets(value, hook):
            meeting.wait(timeout=60)
        def starts(value, hook):
            inner = threading.Thread(target=lambda: model("O Romeo"))
            inner.start()
            inner.join(60)
            assert not inner.is_alive()
        for hook in (holds, meets):
            threads = [threading.Thread(target=lambda: [model.run_with_hooks("O", [(point, hook)]) for _ in range(3)]) for _ in range(3)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
        model.run_with_hooks("O", [(point, starts)])
        print("done")
        """
    )
    assert found.stdout == "done\n", found.stderr


def test_a_model_inside_itself_without_end_is_an_error(model: Model) -> None:
    def again(value: Any, hook: Any) -> None:
        model.run_with_hooks([1, 2, 3], [(Z, again)])

    with pytest.raises(RecursionError, match="inside one another"):
        model.run_with_hooks([1, 2, 3], [(Z, again)])
    assert model(TEXT).logits.shape[1] == 10


def test_hooks_run_where_they_are_called(model: Model) -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)
    variable.set(3)
    seen: list[Any] = []
    model.run_with_hooks(TEXT, [(Z, lambda value, hook: seen.append((variable.get(), threading.current_thread())))])
    assert seen == [(3, threading.current_thread())]
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        model.run_with_hooks(TEXT, [(Z, lambda value, hook: value / np.zeros_like(value))])


def test_a_damaged_tokenizer_is_named(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path / "one")
    (tmp_path / "one/tokenizer.json").write_text('{"broken')
    with pytest.warns(UserWarning, match="tokenizer.json"):
        damaged = Model.load(tmp_path / "one")
    with pytest.raises(ValueError, match="tokenizer.json"):
        damaged("O Romeo")
    assert damaged([1, 2]).logits.shape == (1, 2, 1024)
    # A model that has no tokenizer takes the other's away.
    other = Model.load(DATA / "odd")
    with pytest.raises(ValueError, match="is there already"):
        other.save(tmp_path / "one")
    other.save(tmp_path / "one", overwrite=True)
    assert not (tmp_path / "one/tokenizer.json").exists()


def test_a_generation_is_one_thread_s(model: Model) -> None:
    stream = model.stream("ROMEO:", max_new_tokens=5)
    next(stream)
    stream.close()
    with pytest.raises(ValueError, match="top_k"):
        model.generate("ROMEO:", top_k=0)
    with pytest.raises(ValueError, match="n_positions"):
        model.generate("ROMEO:", max_new_tokens=10_000)
    with pytest.raises(ValueError, match="max_new_tokens is -1"):
        model.generate("ROMEO:", max_new_tokens=-1)
    with pytest.raises(TypeError, match="max_new_tokens"):
        model.generate("ROMEO:", max_new_tokens=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="empty string"):
        model.generate("ROMEO:", stop="")
    assert model.generate("ROMEO:", stop=None, max_new_tokens=1).ids
    prompts = np.array(["ROMEO:", "JULIET:"])
    assert len(model.generate(prompts, max_new_tokens=1)) == 2  # type: ignore[call-overload]
    assert len(model.generate((one for one in prompts), max_new_tokens=1)) == 2  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="one text"):
        model.compare(model, ["a", "b"])
    with pytest.raises(TypeError, match="Model.load"):
        model.compare("demo", "O Romeo")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="kv"):
        model.generate("ROMEO:", kv="f8")  # type: ignore[arg-type]
    for generate in (model.generate, model.stream):
        with pytest.raises(ValueError, match="only CUDA has graphs"):
            generate("ROMEO:", cuda_graph=True)
    with pytest.raises(ValueError, match="a graph repeats each step as it is.*leave out the graph"):  # where the stream is made
        model.stream("ROMEO:", cuda_graph=True, ablate="0.0")


def run(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, check=False, **options)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_is_told() -> None:
    found = run(
        """
        import os
        from gpt2_candle import Model
        model = Model.load()
        model("O Romeo")
        child = os.fork()
        if child == 0:
            try:
                model("O Romeo")
            except RuntimeError as error:
                assert "spawn" in str(error), error
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        model("O Romeo")
        # A child of a process that has not loaded a model may.
        """
    )
    assert found.returncode == 0, found.stderr
    found = run(
        """
        import os
        from gpt2_candle import Model
        child = os.fork()
        if child == 0:
            Model.load()("O Romeo")
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        """
    )
    assert found.returncode == 0, found.stderr


def interruptible(code: str, **options: Any) -> subprocess.Popen[str]:
    """A Python that Ctrl-C reaches, though it may be ignored here: a shell ignores it in what runs in the background."""

    def heed() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    return subprocess.Popen([sys.executable, "-c", code], preexec_fn=heed, **options)


@pytest.mark.skipif(sys.platform == "win32", reason="signals are Unix's")
def test_ctrl_c_ends_long_work() -> None:
    code = textwrap.dedent(
        """
        from gpt2_candle import Model
        model = Model.load()
        print("ready", flush=True)
        while True:
            for _ in model.stream("ROMEO:", max_new_tokens=200):
                pass
        """
    )
    started = interruptible(code, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert started.stdout is not None and started.stdout.readline() == "ready\n"
        started.send_signal(signal.SIGINT)
        _, stderr = started.communicate(timeout=60)
    finally:
        started.kill()
    assert "KeyboardInterrupt" in stderr
    assert started.returncode in (1, 130, -signal.SIGINT)


class SlowHub(BaseHTTPRequestHandler):
    """A Hub whose files take minutes."""

    sending = threading.Event()

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("x-repo-commit", "a" * 40)
        self.send_header("x-linked-etag", f'"{"b" * 64}"')
        self.send_header("x-linked-size", "1000000")
        self.send_header("Content-Length", "1000000")
        self.end_headers()

    def do_GET(self) -> None:
        if self.path.startswith("/api/"):
            body = json.dumps({"sha": "a" * 40}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.do_HEAD()
        for _ in range(2000):
            self.wfile.write(bytes(500))
            self.sending.set()
            time.sleep(0.1)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="signals are Unix's")
@pytest.mark.parametrize("progress", [False, True])
def test_ctrl_c_ends_a_download(tmp_path: Path, progress: bool) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), SlowHub)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    SlowHub.sending.clear()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    code = f"from gpt2_candle import Model; Model.load('a/b', endpoint={endpoint!r}, cache_dir={str(tmp_path)!r}, progress={progress})"
    started = interruptible(code, stderr=subprocess.PIPE, text=True)
    try:
        assert SlowHub.sending.wait(60)
        started.send_signal(signal.SIGINT)
        _, stderr = started.communicate(timeout=30)
    finally:
        started.kill()
        server.shutdown()
    assert "KeyboardInterrupt" in stderr
    [partial] = tmp_path.rglob("*.incomplete")
    assert partial.stat().st_size < 1_000_000


def test_threads_are_set_with_the_first_model() -> None:
    found = run(
        """
        import os
        from gpt2_candle import Model
        a = Model.load(threads=1)
        assert len(os.listdir("/proc/self/task")) <= 3 if os.path.isdir("/proc/self/task") else True
        Model.load(threads=1)
        try:
            Model.load(threads=2)
        except RuntimeError as error:
            assert "1 threads" in str(error) or "1 thread" in str(error), error
        else:
            raise SystemExit("two threads were promised")
        """
    )
    assert found.returncode == 0, found.stderr


def test_a_folder_that_cannot_be_written_to_keeps_nothing(model: Model, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no folder .*missing; make it first"):
        model.attention(TEXT).save(tmp_path / "missing" / "page.html")


def test_results_that_are_not_finite_are_errors_unless_they_are_asked_for(model):
    def spoil(value, hook):
        value[...] = np.nan

    hooks = [("blocks.1.hook_resid_post", spoil)]
    large = {"add": {0: np.full(128, 1e38)}}
    for run in (
        lambda **more: model(TEXT, loss=True, **large, **more).logits,
        lambda **more: model(TEXT, fwd_hooks=hooks, **more).logits,
        lambda **more: model.run_with_hooks(TEXT, fwd_hooks=hooks, **more),
        lambda **more: model.run_with_cache(TEXT, **large, **more)[0],
    ):
        with pytest.raises(ValueError, match="not finite.*allow_nonfinite"):
            run()
        assert not np.isfinite(run(allow_nonfinite=True)).all()
    assert np.isfinite(model(TEXT, loss=True).logits).all()


def test_what_is_on_disk_is_never_looked_up_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    for name in ("t/model.safetensors", str(tmp_path / "t" / "model.safetensors")):
        with pytest.raises(ValueError, match="expected a config.json beside it"):
            Model.load(name)
        with pytest.raises(ValueError, match="is a safetensors file; name the folder"):
            Model.load(adapter=name)
    with pytest.raises(ValueError, match="at example.com"):
        Model.load("https://example.com/who/name")


def test_files_of_a_model_are_spared_from_wherever_the_process_works(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model.save(tmp_path / "m")
    before = {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()}
    monkeypatch.chdir(tmp_path)
    loaded = Model.load("m")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    for path in (tmp_path / "m", "../m"):
        with pytest.raises(ValueError, match="holds the model that is loaded"):
            loaded.save(path, overwrite=True)
        with pytest.raises(ValueError, match="holds other files"):
            loaded.record([TEXT], points="blocks.0.hook_resid_pre", out=path)
    assert {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()} == before
