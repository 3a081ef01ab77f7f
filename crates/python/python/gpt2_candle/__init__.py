"""GPT-2 for people who look into it.

Start with :meth:`Model.load`::

    from gpt2_candle import Model

    model = Model.load()                     # the demo model inside the package; or "gpt2", a folder, a GGUF file
    logits, cache = model.run_with_cache("O Romeo, Romeo!")
    cache["blocks.0.attn.hook_pattern"]      # (1, heads, tokens, tokens), a NumPy array
    model.attention("O Romeo, Romeo!")       # in a notebook: every head, token by token

Letters in shapes: B texts, T tokens, S positions that are attended to, L layers, H heads, D the width of a head, C that of the
residual stream, V the vocabulary.
"""

from ._checkpoints import import_model, inspect, merge, quantize, verify
from ._circuits import Circuit, EdgeScores
from ._dictionary import Dictionary
from ._features import AttributionGraph, TextFeatures
from ._inputs import Changes
from ._metrics import torch_metric
from ._model import Model
from ._results import Attention, Cache, Comparison, Continuation, Effects, Gradients, Map, Maps, Output, Picture, PointGradient, Scores
from ._store import Rows, Store
from ._texts import Prediction
from ._tokenizer import Tokenizer
from ._train import LoRA, Training, known_text, train
from ._train_features import DictionaryTraining, train_features
from ._types import Hook
from ._weights import ModelConfig
from ._native import VERSION as __version__

__all__ = [
    "Attention",
    "AttributionGraph",
    "Cache",
    "Changes",
    "Circuit",
    "Comparison",
    "Continuation",
    "Dictionary",
    "DictionaryTraining",
    "EdgeScores",
    "Effects",
    "Gradients",
    "Hook",
    "LoRA",
    "Map",
    "Maps",
    "Model",
    "ModelConfig",
    "Output",
    "Picture",
    "PointGradient",
    "Prediction",
    "Rows",
    "Scores",
    "Store",
    "TextFeatures",
    "Tokenizer",
    "Training",
    "__version__",
    "import_model",
    "inspect",
    "known_text",
    "merge",
    "quantize",
    "torch_metric",
    "train",
    "train_features",
    "verify",
]
