"""The README of tests/data/circuits, with the versions, names and differences that the other scripts found: a part of
make_circuit_reference.py."""

TEXT = """\
# Reference data of circuits

A small GPT-2 with random weights, and what TransformerLens computes with it in float64, checked with nnsight and with
transformers alone. Written by `scripts/make_circuit_reference.py`, whose first lines say how to run it; do not edit a
file here. The weights in `model/` are f32; everything else is f64, and ids are i64.

Versions:

{versions}

The model: L = 3 layers, H = 3 heads of D = 8, C = 24, 128 positions, V = 53; BOS = EOS = 52. `clean` and `corrupt` are
two prompts (1, T) of T = 12 that start with BOS and differ at positions 2, 5 and 9 only. The metric is
`logit[18] - logit[39]` at the last position. Positions, layers and heads count from 0; "1.2@5" is head 2 of layer 1 at
position 5. Vectors are rows: `x W`, weights are (in, out).

## hooks.safetensors

`ids/clean`; `logits` (1, T, V); `2x/NAME`: every hook of TransformerLens 2 on `clean`, weights as in the checkpoint (no
processing); `4x/NAME`: every hook of the bridge of TransformerLens 4 that fires, aliases left out;
`ramp/NAME` (V): the logits at the last position of a run of version 2 in which the hook's value was multiplied by
factors that rise evenly from 0.5 to 1.5 along its last axis (0.5 where that axis has one entry), for layer 1 and the
hooks outside the layers.

- `attn.hook_attn_scores` (before softmax, after the scale and the mask) holds -1e30 in these files where attention is
  masked. TransformerLens 2 has -inf there; the bridge has {hidden} (the most negative f64), and -inf after
  `enable_compatibility_mode`.
- `attn.hook_result` is z W_O of each head, without b_O.
- `hook_scale` is sqrt(variance + epsilon), the variance over all C channels (divided by C).
- In version 2, hooks of a switch (`set_use_...`) change others: while q, k, v or attn inputs are split, ln1's hooks
  have a head axis. Each value here is from a run with no other switch on than its own.

| 2.x name | shape | in 4.3, the same spelling | 4.3's own name | other 4.3 names with this value | writing |
|---|---|---|---|---|---|
{names}

"Writing" is whether writing to the same spelling in 4.3 has the effect that it has in 2.x, and if not, which 4.3 names
have it, of those that hold the value. In words, what differs:

- `ln1.hook_normalized`, `ln2.hook_normalized`, `ln_final.hook_normalized`: in 2.x, with weights as in the checkpoint,
  after the layer norm's weight and bias; in 4.3, before them. `hook_out` of the same layer norm in 4.3 is 2.x's
  value. (If 2.x folds the layer norm, its value is the one before weight and bias, as in 4.3.)
- `hook_resid_mid`: the same value, but in 4.3 it is `ln2.hook_in`, so writing to it changes what the MLP reads and
  not the residual stream beside it. No name of 4.3 that holds this value writes to both.
- `hook_attn_in`, `hook_q_input`, `hook_k_input`, `hook_v_input`: the residual stream before ln1, once per head, in
  both.
- In 4.3 `use_attn_in` and `use_split_qkv_input` exclude each other. In 2.x both may be on; then `hook_attn_in` fires
  and writing to it does nothing.

Names of 4.3 without a counterpart in 2.x, and their shapes (layer 1 stands for all):
{others}.

These exist but do not fire: {silent}. `hook_unembed` is an alias of `unembed.hook_out`, the logits.
`attn.o.hook_out` does not fire while `set_use_attn_result` is on, nor `attn.q.hook_in`, `k`, `v` while q, k, v or attn
inputs are split. `attn.hook_hidden_states`, `attn.hook_out` and
`attn.o.hook_out` all include b_O.

## interventions.safetensors

Logits (1, T, V) of `clean`, `plain` and with one change; the key is the kind, the site, the place (`@` a position;
without it, all positions) and a number. `ids/clean`, `ids/corrupt`, `ids/others.0` to `.4` (five prompts of 5, 9, 12,
16 and 7 tokens), `ids/others by position` (5, T), `vector` (C).

- `patch SITE PLACE`: the activation from the run of `corrupt` replaces that of `clean`.
- `zero z L.H`: zeros.
- `mean z L.H`: the mean of that head's z over all positions of the five prompts of different lengths (49 vectors,
  each weighs the same): `mean/L.H` (D).
- `mean by position z L.H`: the mean over the five prompts of T tokens, for each position: `mean by position/L.H` (T,
  D).
- `steer resid_pre PLACE 1.7`: 1.7 · `vector` added.
- `temperature scores L.H NUMBER`: that head's scores, after scale and mask, divided by the number.

## patching.safetensors

`ids/clean`, `ids/corrupt`, `ids/answer`, `ids/against` (1); `metric/clean`, `metric/corrupt` (scalars).

`patch/...`: the metric itself (not a difference, not normalized) of the run of `corrupt` in which one activation comes
from `clean`: `patch/z` (L, H), all positions; `patch/z by position` (L, H, T); `patch/resid_pre`, `patch/attn_out`,
`patch/mlp_out` (L, T). From `transformer_lens.patching`, in f64.

`attribution/z` (L, H, T), `attribution/resid_pre`, `attribution/attn_out`, `attribution/mlp_out` (L, T): the
first-order estimate of `patch - metric/corrupt`: sum over channels of (clean - corrupt) · d metric / d activation,
the gradient taken in the run of `corrupt`. The gradient of `resid_pre` is that of the whole residual stream at that
place.

`eap`, `eap noising`, `eap-ig`, `eap-ig from 0` (3, L, H, L, H): edges between heads. Axes: q, k or v input of the
receiver; the sender's layer and head; the receiver's layer and head. Zero unless the sender's layer is smaller. With
r the sender's `attn.hook_result` and g the gradient of the metric with respect to the receiver's `hook_q_input` (k, v),
that is, to the residual stream that this head reads for its queries (keys, values), before ln1 and with everything
else held as it is:

- `eap`: sum over positions and channels of (r(clean) - r(corrupt)) · g(corrupt). It estimates how the metric of
  `corrupt` changes if this edge alone carries `clean`'s value. Positive: towards the answer.
- `eap noising`: (r(corrupt) - r(clean)) · g(clean), the direction of Syed, Rager and Conmy 2023 and of EAP-IG's code.
- `eap-ig`: (r(clean) - r(corrupt)) · the mean of g over m = 5 runs whose input is
  corrupt + (k/m) (clean - corrupt), k = 1, ..., m, in token plus position embeddings (position embeddings agree, so
  it makes no difference whether they are mixed). r still comes from the two plain runs. k = 1, ..., m is what
  the code of Hanna, Pezzelle and Belinkov did when their paper appeared (March 2024).
- `eap-ig from 0`: the same with k = 0, ..., m - 1, what their code does since February 2025.

Their code takes corrupt - clean, so with the same metric and points its scores have the opposite sign of `eap-ig`.

## direct.safetensors

Direct logit attribution at the last position of `clean`: `FAMILY/TARGET/NAME`. Target `answer`: the logit of 18;
`difference`: the metric. Names: `heads` (L, H), `mlps` (L, with b_out), `embed`, `pos_embed`, `attention_biases` (L),
`final_bias`, `total` (the sum of all these) and `logit` (what the model gives; `total` equals it).

A component c (C) of the last position's residual stream adds ((c - mean(c)) / s · γ) W_U[:, t], with s the scale of
ln_f in this run and γ its weight. The final bias is β W_U[:, t], with β the bias of ln_f.

- `raw`: as above with the checkpoint's W_U. A head's c is z W_O, where z has the value bias in it; `attention_biases`
  are the checkpoint's b_O. The total is the logit.
- `kept`: the unembedding centered over the vocabulary (subtract the mean over t of every share, bias included). The
  total is the logit minus the mean logit. For `difference`, the same numbers as `raw`.
- `centered`: TransformerLens' default processing (below). As `kept`, but value biases are folded: with b_V' = b_V + β₁
  W_V (β₁ the bias of ln1), a head's c is (z - b_V') W_O and a layer's bias b_O + sum over heads of b_V' W_O. The
  total is that of `kept`.

The largest |total - logit|: {direct}.

## heads.safetensors

`ids` (6, 101): BOS and 25 random tokens four times. Rows 0 to 3 draw the 25 without replacement, rows 4 and 5 with, so
there a token recurs inside the 25. All scores are (6, L, H), one per row, unless said. A is attention[query, key]. A
query i is one after the first repeat, i = 26, ..., 100.

- `prefix/mean of entries`: the mean of A[i, i - 25k + 1] over all i and all k ≥ 1 with i - 25k ≥ 1 (150 entries).
- `prefix/sum over copies`: the mean over the 75 queries of the sum over k. (Twice the other, as 150 = 2 · 75.)
- `prefix by token/...`: the same with copies by token: every 1 ≤ j < i with ids[j] = ids[i], key j + 1. Equal in rows
  0 to 3. In rows 4 and 5 a copy can be i - 1, whose successor is i itself; it counts.
- `duplicate/...`: the key is the copy itself, A[i, i - 25k]. `preceding/...`: the token before it, A[i, i - 25k - 1],
  which for the first token of the 25 can be BOS.
- `previous`: the mean of A[i, i - 1] over i = 1, ..., 100.
- `detect_head/NAME/mul`, `abs`, `mul without bos and current`: TransformerLens' `detect_head`. `mul` is the sum of A
  over the pattern's entries over the sum of all of A (101); `without ...` (exclude_bos, exclude_current_token) first
  sets A's column 0 and diagonal to zero. `abs` is 1 - round(sum |A - pattern| / 101, 3), so three digits. The pattern
  of `duplicate_token_head`: ids[j] = ids[i], j < i, any i; of `induction_head`: that shifted by one key, column 0
  zero; of `previous_token_head`: j = i - 1.
- `copying/eigenvalues` (L, H): sum of eigenvalues (real part) over the sum of their absolute values, of W_E W_V W_O
  W_U with processed weights; `copying/eigenvalues raw` with the checkpoint's, no layer norm folded.
- `copying/olsson`: one reading of Olsson et al.'s evaluator. Row: the 25 tokens without BOS, x_0, ..., x_24. The
  output of the head at i, z_i W_O (no b_O), times the checkpoint's W_U (no ln_f) gives logits; subtract their mean
  over the vocabulary; ReLU: u_i. a = sum over i, j of A[i, j] u_i[x_j]; b = sum over i and over the different tokens
  t of the row of u_i[t]. Score: 4 a / (a + b) - 1, from -1 to 1.

Olsson et al. 2022, appendix "Data collection", on prefix matching: "Generate a sequence of 25 random tokens,
excluding the most common and the least common tokens. Repeat this sequence 4 times and prepend a 'start of sequence'
token. Compute the attention pattern. The prefix matching score is the average of all attention pattern entries
attending from a given token back to the tokens that preceded the same token in earlier repeats." So it is a mean over
entries: `mean of entries`. Their words name the token before the earlier copy, and `preceding` takes them so. But an
induction head completes [A][B] ... [A] with [B]: it attends to [B], the token after the earlier copy. `prefix` scores
that, as is usual. (An erratum to the paper is said to correct this wording; we have not seen it.)

On copying: "Compute this head's contribution to the residual stream, then convert that using the unembeddings (i.e.
along the 'direct path') to impacts on each logit. Logits are transformed by subtracting the mean of the logits and
passing through a ReLU [...]. Compute the ratio of the amount it raises the logits of the token being attended to, to
that of all tokens in this sample. This value ranges from 0 (only raises other tokens) to 0.5 (only raises the present
token), so it is scaled into the range of -1 to 1." The words leave the weighting over attended tokens open.
Each score is their mean over 10 examples.

## circuits.safetensors

With processed weights. `ov/L.H` (V, V): W_E W_V W_O W_U, row = the attended token, column = the logit; `qk/L.H` (V, V):
W_E W_Q W_Kᵀ W_Eᵀ / sqrt(D), row = the query's token; no biases. `full ov eigenvalues/L.H` (D, 2): the eigenvalues of
`ov/L.H` that are not zero by rank, real and imaginary part, the largest absolute value first, of a conjugate pair the
positive imaginary part first; `ov eigenvalues/L.H`: of W_V W_O (C, C). `ov singular values`, `qk singular values`
(L, H, D): of W_V W_O and W_Q W_Kᵀ (no 1 / sqrt(D)), descending. `composition/Q`, `K`, `V` (L, H, L, H), the sender's
layer and head first: ‖M R‖ / (‖M‖ ‖R‖), Frobenius norms, M = W_V W_O of the sender and R of the receiver:
Q: W_Q W_Kᵀ; K: W_K W_Qᵀ; V: W_V W_O. Zero unless the sender's layer is smaller.

Processed weights, from the checkpoint's (γ₁ β₁ of ln_1, γ₂ β₂ of ln_2, γ β of ln_f; W, b of c_attn cut into Q, K, V and
heads; γ W multiplies row c by γ_c):

| tensor | formula |
|---|---|
| W_E, W_pos | wte, wpe minus each row's mean over the C channels |
| W_Q, W_K, W_V (C, D) | γ₁ W, then minus each column's mean over the C rows |
| b_Q, b_K | b + β₁ W (W before γ₁ and before the mean is taken off) |
| b_V | 0; its folded value b_V' = b + β₁ W goes to b_O |
| W_O (D, C) | rows of c_proj.weight minus each row's mean over the C channels |
| b_O | (b - mean(b)) + sum over heads of b_V' W_O, with the new W_O |
| W_in, b_in | γ₂ W minus each column's mean over the C rows; b + β₂ W |
| W_out, b_out | minus each row's mean over the C channels; b - mean(b) |
| W_U (C, V) | γ lm_headᵀ, minus each column's mean over the C rows, then minus each row's mean over the vocabulary |
| b_U | β lm_headᵀ minus its mean over the vocabulary |

W_U's two steps commute, as both subtract means, along different axes. The largest difference between these formulas and
TransformerLens: {processing}; between circuits.safetensors and its definitions, computed from the formulas: {circuits}.

## discovery.safetensors

Five pairs of prompts of two lengths: `I/clean`, `I/corrupt`, `I/answers`, `I/against`; the metric is the mean logit of the answers
less that of the others. Writers: the embeddings, then each layer's heads and its MLP; readers: each layer's queries, keys and values of
its heads and its MLP, then the logits. `scores/NAME` (readers, writers): clean less corrupted, times the gradient in the clean run, in the
corrupted one, or the mean over 5 runs at k/5 of the embeddings (`integrated`) or of each group of writers in turn (`activations`); the
mean over all pairs. With `fixed`, edges into queries and keys have the gradient at the pattern times its change when the head reads the
stream less the writer's change. `edges/N` (readers, writers), 1 where a circuit has an edge. `I/circuit N WHAT`: the
metric of a run in which each reader's input is added up from what the writers add in this run, or from the corrupted run, from the means
over all corrupted runs and positions, or from zeros where the circuit lacks the edge. `I/path N FREEZE`: Wang et al.'s three runs for the senders
and receivers in `scripts/circuit_reference/discovery.py`.

## Largest differences

Each number is an absolute difference, f64. For a temperature, nnsight and transformers divide the head's queries.

| what | with | largest |
|---|---|---|
{differences}
"""


def number(value: float) -> str:
    """Two digits are enough to judge a rounding error."""
    return "0" if value == 0 else f"{value:.0e}"


def short(name: str) -> str:
    return f"`{name.replace('blocks.1.', 'blocks.N.')}`"


def name_rows(rows: list[dict]) -> str:
    lines = []
    order = {name: i for i, name in enumerate(("hook_embed", "hook_pos_embed"))}
    for row in sorted(rows, key=lambda row: (order.get(row["name"], 2), row["name"])):
        name, own = row["name"], row["alias of"]
        spelling = "alias" if own else "own name"
        spelling += f", needs `{row['needs']}`" if row["needs"] else ""
        spelling += ", agrees" if row["difference"] < 1e-12 else f", **differs** by up to {row['difference']:.1f}"
        others = ", ".join(short(n) for n in row["equal"] if n not in (name, own)) or "-"
        instead = [short(n) for n in row["same effect"]]
        written = "agrees" if name in row["same effect"] else f"**differs**; as 2.x: {', '.join(instead) or 'no name'}"
        letters = {1: "1", 3: "H", 8: "D", 12: "T", 24: "C", 53: "V", 96: "4C"}
        shape = ", ".join(letters[size] for size in row["shape"])
        lines.append(f"| {short(name)} | ({shape}) | {spelling} | {short(own or name)} | {others} | {written} |")
    return "\n".join(lines)


def difference_rows(facts: dict) -> str:
    checks = facts["checks"]
    rows = [("interventions", who, max(checks["interventions"][who].values())) for who in ("nnsight", "transformers")]
    groups = {
        "patching, `metric/...` and `patch/...`": lambda key: key.startswith(("metric", "patch")),
        "patching, `attribution/...`": lambda key: key.startswith("attribution"),
        "patching, `eap...` (derivative by a factor on the edge)": lambda key: key.startswith("eap"),
    }
    for label, wanted in groups.items():
        rows.append((label, "transformers", max(v for k, v in checks["patching"].items() if wanted(k))))
    label = "hooks `2x/...`: patterns, z, residual streams, logits"
    rows.append((label, "transformers", max(checks["hooks"].values())))
    rows.append(("direct, `raw/...` and `kept/...` of heads", "transformers", checks["direct"]))
    agreeing = [row["difference"] for row in facts["bridge"]["rows"] if row["difference"] < 1e-12]
    rows.append(("hooks, layer 1 and outside, where 2.x and 4.3 agree", "TransformerLens 4.3", max(agreeing)))
    return "\n".join(f"| {what} | {who} | {number(value)} |" for what, who, value in rows)


def readme(facts: dict) -> str:
    bridge = facts["bridge"]
    named = {n for row in bridge["rows"] for n in (row["name"], row["alias of"])} | {"hook_unembed"}
    others = [f"{short(n)} {tuple(s)}" for n, s in bridge["shapes"].items() if n not in named]
    show = lambda versions: ", ".join(f"{name} {number}" for name, number in versions.items())
    versions = [
        f"- all files but what follows: {show(facts['lens']['versions'])}",
        f"- `4x/...`: {show(bridge['versions'])}",
        f"- `model/` and the checks: {show(facts['checks']['versions'])}",
    ]
    letters = {"(1, 12)": "(1, T)", "(1, 12, 24)": "(1, T, C)", "(1, 12, 53)": "(1, T, V)"}
    others = ", ".join(others)
    for shape, named_shape in letters.items():
        others = others.replace(shape, named_shape)
    return TEXT.format(
        versions="\n".join(versions),
        hidden=f"{bridge['hidden score']:.2e}",
        names=name_rows(bridge["rows"]),
        others=others,
        silent=", ".join(short(n) for n in bridge["silent"] if n.startswith("blocks.1.")),
        direct=number(max(facts["weights"]["direct"].values())),
        processing=number(facts["weights"]["processing"]),
        circuits=number(facts["weights"]["circuits"]),
        differences=difference_rows(facts),
    )
