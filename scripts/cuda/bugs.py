#!/usr/bin/env python3
"""Do the tests on the device notice bugs in the CUDA kernels and in the code that launches them? Needs no GPU.

    scripts/cuda/bugs.py                  all bugs, one at a time
    scripts/cuda/bugs.py --verify         does `gpt2 verify --device cuda` notice those in the kernels (on-cpu.sh)?
    scripts/cuda/bugs.py --list           what they are, if each can be planted
    scripts/cuda/bugs.py --only 3,17      these alone

A bug in a kernel is planted in a copy of crates/kernels/cuda, whose kernels then take the place of the program's own. Bugs of the
host's side are all compiled into one copy of crates/kernels, each behind a number. `on_device` of tests/kernels runs on the driver
that runs launches on the processor: it must pass without a bug, and the bug's test must fail with it, on the large GPU or on
the one of two multiprocessors. If it passes on both, the bug survives: a test is missing, and this script fails, unless
the tables below excuse the bug with a reason.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import on_device
from on_device import GPUS, HOME, REPOSITORY

SOURCES = REPOSITORY / "crates/kernels/cuda"

Bug = namedtuple("Bug", "file old new what test excuse", defaults=[""])
F16, F16_BACK, NORM = "attention::f16_contexts", "attention::f16_gradients", "layer_norm_on_the_device"
F32, F32_BACK, FINISH = "attention::f32_contexts", "attention::f32_gradients", "what_follows_a_product"
LOSS, LINEAR = "cross_entropy_on_the_device", "linear_layers_on_the_device"
SUM_NORM, APPEND = "a_residual_and_the_norm", "a_product_that_goes_into_a_cache"
EMBED, BEYOND = "embeddings_and_positions", "ids_and_positions_beyond"
FEW, FEW_CACHE, FEW_NAN = "products_of_a_few_rows", "a_normed_product_that_goes", "a_few_rows_beside_nan"
FEW_APART = "what_has_no_kernel_for_a_few_rows"
GROWS, GRAPH, BEYOND_CACHE = "a_cache_whose_length_the_gpu_reads", "a_step_as_a_graph_has", "a_length_beyond_the_cache"
FOUND, TIES, BAD = "tokens_found_on_the_gpu", "ties_among_logits", "a_logit_that_is_not_finite"
DRAWS, SEARCHES = "draws_on_the_gpu", "searches_without_a_kernel"
PANIC = "a_panic_ends_a_recording"
REFUSED, PARTS = "what_cannot_be_repeated_is_refused", "numbers_are_written_over_a_part"
# fmt: off
KERNELS = {  # file: text that occurs once, its replacement, what that does, the test, and why it may pass
    "attention.cu": [
        ("column > past + top + row", "column >= past + top + row", "a query does not see its own key", F16),
        ("+ Keys > past + top + 1)", "+ Keys > past + top + ROWS)", "some tiles are not tested for causality", F16),
        ("start >= past + top + ROWS", "start >= past + top", "a warp skips the tile with its own keys", F16),
        ("sync_block(); // also", "// also", "no barrier between the copies of a tile and its use", F16),
        ("copies_arrived();\n        if", "if", "a tile is used before its copies have arrived", F16),
        ("v_rows + step % 2 * Keys * ROW;", "v_rows + (step + 1) % 2 * Keys * ROW;", "the wrong one of two buffers of v", F16),
        ("if (visible) clear_padding", "if (false) clear_padding", "weights of 0 meet the v of padding", F16),
        ("sum[g][half] *= fade;", "", "the sum does not fade when a larger score comes", F16),
        ("now = fmaxf(now, shuffle_xor(now, 2));", "", "the maximum of half a row", F16),
        ("now == -INFINITE ? 0 : now", "now", "inf - inf in a row that has seen no key", F16),
        (", log2_fast(all))", ", LN_2 * log2_fast(all))", "the logarithm of a sum in the wrong base", F16_BACK),
        ("row < shape.queries)", "true)", "logarithms of rows past the end land in the next head", F16_BACK),
        ("(Masked ? masks.kept : 1) / all", "1 / all", "kept weights are not scaled", F16_BACK),
    ],
    "attention_f32.cu": [
        ("key > past + top + i", "key >= past + top + i", "a query does not see its own key", F32),
        ("sync_block(); // no thread", "// no thread", "a tile is overwritten while others read it", F32),
        ("if (visible) clear_padding", "if (false) clear_padding", "weights of 0 meet the v of padding", F32),
        ("sync_warp(); // the 8", "// the 8", "weights are read before their thread writes them", F32),
        ("dropped ? 0 : weight", "weight", "dropped weights stay", F32_BACK),
    ],
    "attention_backward.cu": [
        ("key_at > past + query_at", "key_at >= past + query_at", "a query does not see its own key", F16_BACK),
        ("OfKeys ? step % 2 * 2 * QUERIES", "OfKeys ? 0", "the sums and deltas of other queries", F16_BACK),
        ("(row < own_count && padding[row])", "row < own_count", "padding gets a dk and a dv", F16_BACK),
        ("if (!OfKeys) hidden |=", "if (false) hidden |=", "dq ignores padding", F16_BACK, "the keys of padding are zeros"),
        ("if (!OfKeys && padding)\n", "if (false)\n", "dq meets the k and v of padding", F16_BACK),
        ("if (OfKeys && padding)", "if (false)", "dk meets the v of padding", F16_BACK),
        ("grads[0][j][e] * masks.kept", "grads[0][j][e]", "dp is not scaled by kept", F16_BACK),
        ("(grad - of_queries[QUERIES + query])", "grad", "ds without delta", F16_BACK),
        ("/ Others * Others :", "/ Others * Others + Others :", "dk and dv without the first queries", F16_BACK),
    ],
    "attention_backward_f32.cu": [
        ("sync_block(); // no thread", "// no thread", "a tile is overwritten while others read it", F32_BACK),
        ("dropped || (OfKeys && hidden)", "dropped", "dk meets the v of padding", F32_BACK),
        ("if (!OfKeys && padding)", "if (false)", "dq meets the k and v of padding", F32_BACK),
        (" || (padding && (key_at >= shape.keys || !padding[key_at]))", "", "padding is ignored", F32_BACK),
        ("if (top + i >= own_count) continue;", "", "rows past the end are written", F32_BACK),
        ("there = query + i < shape.queries", "there = true", "sums and deltas past the end are read", F32_BACK),
    ],
    "f32.cuh": [
        ("own + (down + i) * ROW + d", "own + (down + i) * D + d", "the wrong row stride", F32),
        ("WEIGHT_ROW = OTHERS + 4", "WEIGHT_ROW = OTHERS + 2", "16-byte reads that are not aligned", F32),
    ],
    "tiles.cuh": [
        ("* tiles) * shape.section,", "* tiles),", "every section begins at the first heads", F16_BACK),
        ("heads - first : shape.section;", "shape.section : shape.section;", "a short last section is full", F16_BACK),
        ("bool there = first + row < end;", "bool there = true;", "rows past the end are copied", F16),
        ("weights[g][2 * j + e / 2]", "weights[g][2 * j + e % 2]", "swapped fragments of the weights", F16),
        ("d : 0], b[2], b[3]);", "d : 0], b[3], b[2]);", "swapped fragments of the other rows", F16),
        ("sync_warp();\n    for (int i = lane;", "for (int i = lane;", "rows go out before all lanes wrote", F16),
        ("if (first + row >= end) break;", "", "rows past the end are written", F16),
    ],
    "philox.cuh": [
        ("multiply_high(0xcd9e8d57,", "multiply_high(0xcd9e8d75,", "a wrong constant in Philox", F16_BACK),
    ],
    "masks.cuh": [
        (" + masks.first_head + place.h", " + place.h", "the dropout of other heads of the layer", F32_BACK),
        ("place.h * shape.queries + query", "query", "the hidden keys of the first head in all heads", F16_BACK),
        ("< end && padding[key + 1]", "< end && padding[key]", "the padding of a neighbor", F16),
    ],
    "decode.cu": [
        ("key >= end || (visible", "(visible", "keys of the next block count twice", F16),
        ("if (scores[i] == -INFINITE) continue;", "", "weights of 0 meet the v of padding", F16),
        ("(splits) - 1", "(splits) - 2", "the last block but one merges what there is", F16),
        ("const int there = past ?", "const int there = false && past ?", "keys that are not there yet count", GROWS),
        ("static_cast<uint32_t>(shape.keys - 1))) + 1", "static_cast<uint32_t>(shape.keys - 1)))", "the query's own key does not count", GROWS),
        ("min(*past, static_cast<uint32_t>(shape.keys - 1))", "(*past)", "keys beyond the cache are read", BEYOND_CACHE),
        ("if (split >= splits) return;", "", "blocks without keys count as finished", GROWS),
        ("min(shape.splits, (there + MIN_SPLIT_KEYS - 1) / MIN_SPLIT_KEYS)", "shape.splits", "the splits of the largest number of keys", GROWS),
        ("if (threadIdx.x == 0) finished[head] = 0;", "", "the counter of finished blocks is not reset", F16),
        ("memory_fence(); // whoever", "// whoever", "a block counts as finished before others see its result", F16,
         "blocks of the driver run on the processor, which orders what they write"),
    ],
    "delta.cu": [
        ("other < LANES; other", "other < LANES / 2; other", "delta of half a row", F16_BACK),
        ("(b * heads + h) * queries + t", "(b * queries + t) * heads + h", "deltas in another order", F16_BACK),
    ],
    "epilogues.cuh": [
        ("/ width + eps)", "/ width)", "no epsilon", NORM),
        ("0.044715f", "0.04475f", "a wrong digit in GELU", FINISH),
        ("text * to.heads + column", "column", "the keys of all texts in the first", APPEND),
        ("(past ? *past : to.past) +", "(past ? *past : 0) +", "new keys over the first ones", APPEND),
        ("(past ? *past : to.past) +", "to.past +", "new keys at the place of the recording", GROWS),
        ("if (place >= static_cast<uint32_t>(to.capacity)) return;", "", "a key beyond the cache is written", BEYOND_CACHE),
        ("if (column < 0) {", "if (column <= 0) {", "the first unit of the keys stays in the product", APPEND),
    ],
    "layers.cu": [
        ("i % (width / Unit<E>::COUNT)", "i % width", "the bias of other columns", FINISH),
        ("finished<E, false>(x, bias, residual, i, column)", "finished<E, false>(x, bias, nullptr, i, column)", "a norm without the residual", SUM_NORM),
        ("layer_norm(x, weight, shift, normed", "layer_norm(residual, weight, shift, normed", "the norm of the residual", SUM_NORM),
        ("list ? list[place] : of.first + place", "of.first + place", "listed positions are not read", EMBED),
        ("place = row % of.places", "place = row", "positions go on from text to text", EMBED),
        ("id < static_cast<uint32_t>(of.tokens) && ", "", "a vector beyond the table", BEYOND),
    ],
    "few_rows.cu": [
        ("if (k >= end) continue;", "", "rows of the weight past the end count", FEW_NAN),
        ("if (first + STEPS * groups < of.depth) load(first + STEPS * groups);", "", "the first rows of the weight again and again", FEW),
        ("const Spread spread = spread_of<E>([&](int i) { return row[i]; }, of.depth,", "const Spread spread = spread_of<E>([&](int i) { return row[i]; }, of.width,",
         "the mean of as many numbers as there are outputs", FEW),
        ("sync_block(); // means", "// means", "means and factors are read before their warp has written them", FEW),
        ("if (start > 0) sync_block();", "", "numbers are overwritten while others multiply by them", FEW),
        ("sync_block(); // all numbers", "// all numbers", "numbers are read before they are there", FEW),
        ("sync_block(); // no thread reads what", "// no thread reads what", "the sums overwrite numbers that others multiply by", FEW),
        ("sync_block(); // the numbers of all", "// the numbers of all", "sums are added before they are there", FEW),
        ("sync_block(); // the sums are", "// the sums are", "sums are read before they are there", FEW),
        ("from = start / COUNT + at", "from = at", "every chunk reads the first numbers", FEW),
        ("other >= of.lanes; other /= 2) sum", "other > of.lanes; other /= 2) sum", "half of the groups of a warp", FEW),
        ("row >= of.rows || !there", "!there", "rows past the end are written", FEW),
        ("if (row >= of.rows || !there) return;", "if (row >= of.rows) return;", "units past the end are written", FEW),
        ("of.gelu ? finished<E, true>", "false ? finished<E, true>", "no GELU", FEW),
        ("in.cache, in.past, row, unit, of.to)", "in.cache, in.past, 0, unit, of.to)", "all rows go to the place of the first", FEW_CACHE),
    ],
    "candidates.cu": [
        ("x > 0 ? x / penalty : multiply_rounded(x, penalty)", "x / penalty", "a penalty that makes negative logits more probable", FOUND),
        ("rows + static_cast<long long>(blockIdx.x) * of.row_words;", "rows;", "the texts and places of the first row", FOUND),
        ("logit == 0 ? 0 : logit, id); // 0", "logit, id); // 0", "0 is above -0", TIES),
        ("INFINITE) && !bad)", "INFINITE))", "the last id of a thread that is not finite", BAD),
        ("bits >> 31 ? ~bits : bits | 0x80000000", "bits >> 31 ? bits : bits | 0x80000000", "negative numbers in the wrong order", FOUND),
        ("sync_block(); // all have written", "// all have written", "sums are added before they are there", FOUND),
        ("in_upper ? above : above + upper", "above", "the upper one of two bins does not count", TIES),
        ("if (counts && __ffs(lanes) - 1 == static_cast<int>(threadIdx.x % 32))", "if (counts)", "each lane adds for all of its warp", TIES),
        ("if (shared.inside == wanted) break;", "break;", "more tokens than there is room for", TIES),
        ("words[2 * i + 1]) << 20 |", "words[i + 1]) << 20 |", "half of the random words of another token", DRAWS),
        ("upper ? ALL - 1 - random : random", "random", "times that are not those of the random number", DRAWS),
        ("(row(id) - highest) * static_cast<float>(of.rate)", "(row(id) - highest)", "a draw without its temperature", DRAWS),
    ],
    "cross_entropy.cu": [
        ("sync_block(); // no thread", "// no thread", "the maximum is overwritten while others read it", LOSS),
        ("sync_block(); // the logit", "// the logit", "the target's logit is overwritten before it is read", LOSS),
    ],
}
HOST = {  # file below crates/kernels/src: an expression, or one «in» what stands around it, another one of its type, and as above
    "attention/cuda/launch.rs": [
        ("past: «past.cloned()»,", "None", "all keys of the cache in each launch", GRAPH),
        ("[view::<E>(qkv[0])?, view::<E>(qkv[1])?, view::<E>(qkv[2])?]", "[view::<E>(qkv[0])?, view::<E>(qkv[2])?, view::<E>(qkv[1])?]",
         "k and v in the other order", F16),
        ("b * s * h * d", "b * t * h * d", "dk and dv of the size of dq", F16_BACK),
        ("device.alloc::<f32>(b * h * t)?", "device.alloc::<f32>((b * h * t).div_ceil(2))?", "half of the memory for delta", F16_BACK),
        ("{ «b * h * t» } else", "b * h * t / 2", "half of the memory for the logarithms of the sums", F16_BACK),
        ("args.arg(grad).arg(&log_sums).arg(&deltas)", "args.arg(grad).arg(&deltas).arg(&log_sums)", "two arguments swapped", F16_BACK),
        ("args.arg(&mut dk).arg(&mut dv)", "args.arg(&mut dv).arg(&mut dk)", "two outputs swapped", F16_BACK),
        ("padding: «self.padding.as_ref()»,", "None", "the backward pass without padding", F16_BACK),
        ("hidden: «self.hidden.as_ref()»,", "None", "the backward pass without hidden keys", F16_BACK),
        ("DType::F16 => «self.run::<f16>(qkv)»,", "self.run::<bf16>(qkv)", "f16 is read as bf16", F16),
        ("hidden_starts: «address(starts)?»,", "address(&starts.force_contiguous()?)?", "memory is freed before the launch that reads it", F16_BACK),
        ("HiddenOnGpu::within(saved.masks, saved.hidden, &stream)?", "saved.masks", "hidden keys are not handed over", F16_BACK),
        ("check_thread(&device)?;\n    let stream = «device.cuda_stream()»;", "device.cuda_stream().fork().map_err(candle_core::Error::wrap)?",
         "the backward pass on a stream that nobody waits for", F16_BACK),
        ("Shape::from((b, t, h, d))", "Shape::from((b, h, t, d))", "heads and positions of the context swapped", F16),
    ],
    "attention/cuda/plan.rs": [
        ("if masked { «2 * queries * keys / 8» }", "queries * keys / 8", "too little shared memory for the bits of masks", F16_BACK),
        ("head: «stride(head)?»,", "stride(position)?", "the stride of positions for heads", F16),
        ("4 * queries * 4", "queries * 4", "too little shared memory for sums and deltas", F16_BACK),
        ("(«b * h * splits * (2 + d)», b * h)", "b * h * splits * d", "too little memory for partial results", F16),
        ("«b * h * tiles», THREADS", "b * h * tiles.div_ceil(2)", "half of the tiles", F16),
    ],
    "gpu/device.rs": [
        ("launch.shared.try_into().unwrap_or(i32::MAX)", "48 << 10", "the limit of shared memory is not raised", F32_BACK),
        ("device.alloc_zeros::<u32>(count.next_power_of_two())", "unsafe { device.alloc::<u32>(count.next_power_of_two()) }",
         "counters of finished blocks start with anything", F16),
        ("counters.len() >= count", "counters.len() > 0", "counters of an earlier, smaller launch", F16),
        ("slice(«layout.start_offset()»..)", "0", "a view from the start of its memory", F16),
    ],
    "gpu/layers.rs": [
        ("rows.div_ceil(ROWS)", "rows / ROWS", "the last rows have no block", NORM),
        ("units.div_ceil(THREADS as usize)", "units / (THREADS as usize)", "the last units have no block", FINISH),
        ("rows: «rows as i64»", "rows as i64 + 3", "rows past the end", NORM),
        ("Some(residual) => «args.arg(residual)»,", "args.arg(&bias)", "the bias for the residual", FINISH),
    ],
    "gpu/finish_norm.rs": [
        ("residual: «aligned(residual, UNIT)?»,", "residual.contiguous()?", "a residual that is not aligned", SUM_NORM),
        ("norm_weight: «aligned(norm_weight, UNIT)?»,", "aligned(norm_bias, UNIT)?", "the bias of the norm for its weight", SUM_NORM),
        ("device.alloc::<E>(«layout.shape().elem_count()»)?", "layout.shape().elem_count() / 2", "half of the memory for the norm", SUM_NORM),
    ],
    "gpu/finish_append.rs": [
        ("past: «number(past)?»,", "number(past + 1)?", "a gap before the new keys", APPEND),
        ("capacity: «number(capacity)?»,", "number(past + positions)?", "the stride of the positions held for the capacity", APPEND),
        ("let positions = «rows / b»;", "(rows / b).min(1)", "one position for each text", APPEND),
    ],
    "gpu/few_rows.rs": [
        ("let of_rows = «if rows == 1 { 1 } else { MOST_ROWS }»;", "1", "the kernel of one row for several", FEW),
        ("Launch::new(kernel, «units.div_ceil(lanes)», THREADS, SHARED)", "units / lanes", "the last units have no block", FEW),
        ("if «rows == 0 || rows > MOST_ROWS» {", "rows == 0", "more rows than a kernel has", FEW_APART),
        ("let lies_well = «weight.is_contiguous()» && offset", "true", "a weight is read past its rows", FEW_APART),
        ("&& «offset.is_multiple_of(UNIT)»;", "true", "a weight that is not aligned", FEW_APART),
        ("shape.eps = «norm.eps as f32»;", "0.0", "no epsilon", FEW),
        ("op.past = «on_gpu.map(number_of_positions).transpose()?»;", "None", "the place of the recording in each launch", GRAPH),
        ("op.shape.gelu = «i32::from(gelu)»;", "0", "no GELU", FEW),
        ("residual: «residual.map(ready).transpose()?»,", "residual.map(Tensor::contiguous).transpose()?", "a residual that is not aligned", FEW),
        ("[norm.map(|norm| &norm[0]), norm.map(|norm| &norm[1]), self.residual.as_ref()]", "[norm.map(|norm| &norm[1]), norm.map(|norm| &norm[0]), self.residual.as_ref()]",
         "weight and bias of the norm swapped", FEW),
        ("let queries = «bias.elem_count() - heads * dim»;", "0 * (bias.elem_count() - heads * dim)", "queries go into the cache", FEW_CACHE),
        ("device.alloc::<E>(«out_shape.elem_count()»)?", "out_shape.elem_count() / 2", "half of the memory for the product", FEW),
    ],
    "gpu/graph.rs": [
        ("let has_events = «context.is_event_tracking()»;", "false", "waits for events from outside of the recording", GRAPH),
        ("if «!self.has_ended» {", "false", "a panic leaves the stream recording", PANIC),
        ("let dropped = «context.check_err()»;", "Ok(())", "an error of a drop keeps the recording from its end", REFUSED),
        ("CUgraphInstantiate_flags(«0»)", "1", "memory that nobody frees is no error", GRAPH, "the step frees all that it allocates"),
        ("let start = «layout.start_offset()»;", "0 * layout.start_offset()", "numbers of a part go to the start of all", PARTS),
        ("let counters = «counters(device, 0)?»;", "Arc::new(device.alloc_zeros::<u32>(1)?)", "counters that a larger launch frees", GRAPH),
    ],
    "gpu/token_search.rs": [
        ("rate: «1.0 / of.temperature»,", "of.temperature", "the temperature upside down", FOUND),
        ("listed: i32::try_from(«of.listed.min(v)»)?,", "of.listed", "more tokens than the vocabulary has", FOUND),
        ("sums: «i32::from(of.sums)»,", "0", "weights are not summed", FOUND),
        ("«layout.start_offset()»..);", "0 * layout.start_offset()", "a result before its place", SEARCHES),
    ],
    "cache/row_cache.rs": [
        ("on_gpu: «self.past.as_ref()» }", "None", "the place of the recording in each launch", GRAPH),
        ("self.len = «self.capacity().saturating_sub(1)»;", "self.len", "a graph for the number of keys of its recording", GRAPH),
    ],
    "gpu/embed.rs": [
        ("first: «number(first)?»,", "number(0)?", "positions from the first on", EMBED),
        ("list.map_or(t, Tensor::elem_count)", "list.map_or(b * t, Tensor::elem_count)", "positions go on from text to text", EMBED),
        ("device.alloc::<E>(«shape.elem_count()»)?", "shape.elem_count().div_ceil(2)", "half of the memory for the sums", EMBED),
    ],
    "gpu/cross_entropy.rs": [
        ("device.alloc::<f32>(rows)?", "device.alloc::<f32>(rows.div_ceil(2))?", "half of the memory for the losses", LOSS),
        ("i32::from(self.gradients)", "1", "gradients though nobody wants them", LOSS, "they replace logits that nobody reads again"),
    ],
    "gpu/blas_lt.rs": [
        ("lda: «of_width»,", "of_depth", "the stride of x for the weight", LINEAR),
        ("if self.onto { 1.0 } else { 0.0 }", "0.0", "the residual is left out", LINEAR),
        ("«residual.force_contiguous()?», // a copy", "residual.clone()", "the product is added to the residual itself", LINEAR),
        ("x.dim(0)? >= FEWEST_ROWS", "true", "few rows take the path of many", LINEAR, "a choice of speed: the results are the same"),
    ],
}
# fmt: on
BUGS = [Bug(file, *bug) for file, planted in [*KERNELS.items(), *HOST.items()] for bug in planted]


def found_once(bug: Bug, text: str) -> str:
    """The text that the bug replaces, which must be in its file once."""
    old = bug.old.replace("«", "").replace("»", "")
    if (found := text.count(old)) != 1:
        raise SystemExit(f"error: `{old}` ({bug.what}) is {found} times in {bug.file}; adapt it in {__file__}")
    return old


def plant(bug: Bug, folder: Path) -> None:
    """Puts a kernel's bug into the copy in `folder`."""
    text = (folder / bug.file).read_text()
    (folder / bug.file).write_text(text.replace(found_once(bug, text), bug.new))


def plant_host(planted: dict[int, Bug], folder: Path) -> None:
    """Puts the bugs of the host's side into the sources in `folder`, each behind its number."""
    for n, bug in planted.items():
        text = (folder / bug.file).read_text()
        old = found_once(bug, text)
        before, inside, after = re.fullmatch(r"(?:(.*)«)?(.*?)(?:»(.*))?", bug.old, re.DOTALL).groups(default="")
        switch = f"{before}(if crate::planted({n}) {{ {bug.new} }} else {{ {inside} }}){after}"
        (folder / bug.file).write_text(text.replace(old, switch))
    with (folder / "lib.rs").open("a") as lib:
        lib.write(
            "\npub(crate) fn planted(number: u32) -> bool {\n    static PLANTED: std::sync::LazyLock<Option<u32>> = std::sync::LazyLock::new(|| "
            'std::env::var("GPT2_PLANTED").ok()?.parse().ok());\n    *PLANTED == Some(number)\n}\n'
        )


def host_tests(planted: dict[int, Bug], folder: Path) -> Path:
    """The tests of the kernels with all of these bugs, each behind its number."""
    copy = folder / "repository"
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listing.split("\0")):
        if (REPOSITORY / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, copy / name)
    plant_host(planted, copy / "crates/kernels/src")
    # What Candle and others are compiled to is used again; kernels are those of HOME, and here only noted.
    (copy / "target/cuda-on-cpu/kernels").mkdir(parents=True)
    for shared in ("target", "lib64"):
        (copy / "target/cuda-on-cpu" / shared).symlink_to(HOME / shared)
    command = [copy / "scripts/cuda/on-cpu.sh", "--build", "test", "-p", "gpt2-cli", "-p", "candle-fused", "--test", "kernels", "--no-run", "--message-format", "json"]
    environment = {**os.environ, "CUDA_ON_CPU_LATER": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=environment)
    programs = re.findall(r'"executable":"([^"]+/kernels-[^"]+)"', done.stdout)
    if done.returncode or not programs:
        raise SystemExit(f"error: {' '.join(map(str, command))} built no tests")
    return Path(shutil.copy(programs[-1], folder / "host-tests"))


def compile_kernels(file: str, folder: Path) -> str:
    """Compiles the kernels of `file` in `folder`, for them to take the place of the program's own; what is wrong with them."""
    kernels = folder / "kernels"
    command = [sys.executable, REPOSITORY / "scripts/cuda/driver/kernels.py", kernels]
    sources = [file] if file.endswith(".cu") else sorted(path.name for path in folder.glob("*.cu"))
    made = subprocess.run([*command, *(folder / source for source in sources)], capture_output=True, text=True, check=False)
    for source in sources if not made.returncode else []:
        (kernels / f"{Path(source).stem}.so").rename(kernels / f"candle-fused-{Path(source).stem}.so")
    return made.stderr[-200:] if made.returncode else ""


def run(command: list, settings: dict, limit: float) -> tuple[str, str]:
    """Runs tests on the driver: (passed, failed or an error, and how)."""
    environment = {**os.environ, **settings, "GPT2_TEST_DEVICE": "cuda", "CUDA_ON_CPU": "1", "LD_LIBRARY_PATH": str(HOME / "lib64")}
    process = subprocess.Popen(
        command, env=environment, text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True, cwd=REPOSITORY)  # fmt: skip
    try:
        said, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return "failed", f"no end after {limit:.0f} s"
    if process.returncode == 0:
        return ("error", "no test of this name") if "running 0 tests" in said else ("passed", "")
    causes = [r"cuda-on-cpu: (.*)", r"panicked at [^\n]*\n(.*)", r"(\d+ of \d+ paths.*)"]
    cause = next((found[1] for found in (re.search(one, said) for one in causes) if found), said.strip()[-90:])
    return "failed", re.sub(r" of Case {.*}", "", cause)[:100]


def hunt_one(bug: Bug, number: int, folder: Path, tests: Path, given: argparse.Namespace) -> tuple[str, str]:
    """Runs what should notice a bug, on each GPU until it does."""
    begun, settings = time.monotonic(), {"GPT2_PLANTED": str(number)}
    if bug.file in KERNELS:
        if wrong := compile_kernels(bug.file, folder):
            return "error", "does not compile: " + wrong
        settings = {"CUDA_ON_CPU_KERNELS": str(folder / "kernels")}
    if given.verify:
        outcome, how = run([HOME / "gpt2", "verify", "--device", "cuda"], settings, given.limit)
        return outcome, f"{time.monotonic() - begun:.0f} s; {how}"
    for gpu in ({}, GPUS["two multiprocessors"][1]):
        outcome, how = run([tests, bug.test], {**settings, **gpu}, given.limit)
        if outcome != "passed":
            break
    return outcome, f"{time.monotonic() - begun:.0f} s; {how}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--list", action="store_true", help="plant each bug in a copy, print what it is, and stop")
    add("--verify", action="store_true", help="run `gpt2 verify --device cuda`, as scripts/cuda/on-cpu.sh built it, on bugs in kernels")
    add("--only", metavar="N,..", help="the numbers of the bugs to plant")
    add("--jobs", type=int, choices=(1, 2), default=1, help="how many run at a time (default 1: the driver uses all cores)")
    add("--limit", type=float, default=300, metavar="SECONDS", help="for one run (default 300)")
    given = parser.parse_args()
    numbers = [str(n) for n, bug in enumerate(BUGS, 1) if bug.file in KERNELS or not given.verify]
    given.only = given.only.split(",") if given.only else numbers
    if unknown := set(given.only) - set(numbers):
        parser.error(f"--only: {unknown.pop()} is none of their numbers, which --list shows; such as 3,17")
    given.bugs = {int(n): BUGS[int(n) - 1] for n in given.only}
    return given


def main() -> int:
    given = arguments()
    host = {n: bug for n, bug in given.bugs.items() if bug.file in HOST}
    if given.list:
        for bug in given.bugs.values():
            with tempfile.TemporaryDirectory(prefix="gpt2-bugs-") as scratch:
                if bug.file in KERNELS:
                    plant(bug, shutil.copytree(SOURCES, Path(scratch) / "planted"))
        with tempfile.TemporaryDirectory(prefix="gpt2-bugs-") as scratch:
            plant_host(host, shutil.copytree(SOURCES.parent / "src", Path(scratch) / "planted"))
        print(*(f"{n:3} {bug.file}: {bug.what} ({bug.test.strip(':')})" for n, bug in given.bugs.items()), sep="\n")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("error: ended by SIGTERM"))  # and leave no folder behind
    with tempfile.TemporaryDirectory(prefix="gpt2-bugs-") as scratch:
        folder = Path(scratch)
        shutil.copytree(SOURCES, folder / "original")  # an edit during the run changes nothing
        for n, bug in given.bugs.items():
            (folder / str(n)).mkdir()
            if bug.file in KERNELS:
                shutil.copytree(folder / "original", folder / str(n), dirs_exist_ok=True)
                plant(bug, folder / str(n))
        tests = Path()
        if given.verify:
            subprocess.run([REPOSITORY / "scripts/cuda/on-cpu.sh", "--build"], check=True)  # only what is old
        elif host:
            tests = host_tests(host, folder)
        else:
            on_device.build(list(on_device.PACKAGES))
            tests = Path(json.loads((HOME / "tests.json").read_text())["kernels"])
        pool = ThreadPoolExecutor(given.jobs)
        try:
            return hunt(given, folder, tests, pool)
        finally:
            pool.shutdown(cancel_futures=True)  # without it, an interrupt would wait for all of them


def hunt(given: argparse.Namespace, folder: Path, tests: Path, pool: ThreadPoolExecutor) -> int:
    none = Bug("", "", "", "", "")
    for test in [""] if given.verify else sorted({bug.test for bug in given.bugs.values()}):
        outcome, how = hunt_one(none._replace(test=test), 0, folder, tests, given)
        print(f"without a bug  {outcome:8}  {test or 'verify'} ({how})", flush=True)
        if outcome != "passed":
            raise SystemExit(f"error: {test or 'verify'} must pass without a bug; mend that first")
    jobs = {pool.submit(hunt_one, bug, n, folder / str(n), tests, given): n for n, bug in given.bugs.items()}
    counts, bad = {}, []
    for job in as_completed(jobs):
        (outcome, how), bug = job.result(), given.bugs[jobs[job]]
        name = {"failed": "noticed", "passed": "excused" if bug.excuse else "SURVIVED"}.get(outcome, outcome)
        line = f"{jobs[job]:3}  {name:8}  {bug.file}: {bug.what} ({bug.excuse if name == 'excused' else how})"
        print(line, flush=True)
        counts[name] = counts.get(name, 0) + 1
        bad += [line] if name in ("SURVIVED", "error") else []
    print(f"{len(jobs)} bugs:", ", ".join(f"{count} {name}" for name, count in counts.items()))
    print(*sorted(bad), sep="\n", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
