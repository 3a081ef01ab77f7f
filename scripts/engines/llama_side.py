"""llama.cpp, by the functions of its C library that llama-cpp-python names, on the GGUF files that `gpt2 quantize` wrote."""

import ctypes
from pathlib import Path

import llama_cpp
import numpy

from .side import Side

AVX2_BUILD = (
    'CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON" '
    "pip install --force-reinstall --no-cache-dir llama-cpp-python"
)


class Engine(Side):
    def __init__(self, folder: Path, form: str, threads: int) -> None:
        self.log = llama_cpp.llama_log_callback(lambda *_: None)  # the library calls it as long as this lives
        llama_cpp.llama_log_set(self.log, None)
        llama_cpp.llama_backend_init()
        options = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(str(folder / f"{form}.gguf").encode(), options)
        if not self.model:
            raise RuntimeError(f"llama.cpp does not read {folder / form}.gguf")
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        positions = llama_cpp.llama_model_n_ctx_train(self.model)
        context = llama_cpp.llama_context_default_params()  # keys and values in f16
        context.n_ctx = context.n_batch = positions
        context.n_threads = context.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, context)
        if not self.context:
            raise RuntimeError(f"llama.cpp makes no context of {positions} positions for {form}")
        self.batch = llama_cpp.llama_batch_init(positions, 0, 1)
        self.length = 0

    def forward(self, ids: list[int], last: bool) -> object:
        self._empty(len(ids))
        self._run(ids, last)
        return 1 if last else len(ids)

    def numbers(self, logits):
        pointer = llama_cpp.llama_get_logits(self.context)
        return numpy.ctypeslib.as_array(pointer, (logits, self.vocabulary)).copy()

    def beyond(self, isa: str) -> str:
        built = ctypes.string_at(llama_cpp.llama_print_system_info()).decode()
        return f"llama.cpp is built with AVX-512; {AVX2_BUILD} builds it without" if "AVX512 = 1" in built else ""

    def _empty(self, size: int) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), False)
        self.length = 0

    def _next(self, ids: list[int]) -> int:
        self._run(ids, last=True)
        pointer = llama_cpp.llama_get_logits_ith(self.context, -1)
        self.found = numpy.ctypeslib.as_array(pointer, (self.vocabulary,))
        return int(self.found.argmax())

    def _run(self, ids: list[int], last: bool) -> None:
        batch = self.batch
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, self.length + i, 1, 0
            batch.logits[i] = not last or i + 1 == len(ids)
        self.length += len(ids)
        if status := llama_cpp.llama_decode(self.context, batch):
            raise RuntimeError(f"llama_decode of {len(ids)} tokens returned {status}")
        llama_cpp.llama_synchronize(self.context)
