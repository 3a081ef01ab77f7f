"""PyTorch's side on the CPU, in f32, where two right paths agree to the last digits. Needs PyTorch."""

import importlib.util
import unittest
from unittest import mock

SHAPE = dict(vocab_size=101, n_positions=77, n_embd=48, n_layer=2, n_head=3)


@unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not there")
class PyTorchSide(unittest.TestCase):
    def setUp(self) -> None:
        import torch

        from gpu import pytorch, static_cache
        from gpu.device import CpuDevice
        from gpu.rows import Row

        self.torch, self.pytorch = torch, pytorch
        held = torch.inference_mode()
        held.__enter__()
        self.addCleanup(held.__exit__, None, None, None)
        pytorch.DTYPES["f32"] = torch.float32
        self.addCleanup(pytorch.DTYPES.pop, "f32")
        # In f32 the sums' own errors count, not the roundings of what is stored.
        patch = mock.patch.object(static_cache, "ROUNDINGS", 100)
        patch.start()
        self.addCleanup(patch.stop)
        self.side = pytorch.PyTorch("cpu", CpuDevice(), SHAPE)
        self.row = Row("decode", "f32", 2, 20, 2, 12)

    def test_the_static_cache_picks_the_eager_paths_tokens(self) -> None:
        from gpu.static_cache import StaticDecoder, pick_greedy

        own, _ = self.side.both("f32")
        ids = self.side.ids(self.row)
        decoder = StaticDecoder(own, ids, self.row.new_tokens, pick_greedy)
        decoder.make_step(None, graph=False)
        whole = self.torch.cat([ids, *decoder.check()], 1)
        tokens = [token for one in whole[:, 20:].tolist() for token in one]
        self.assertGreater(len(set(tokens)), 5, "a check with one token only says little")
        for t in range(20, 33):  # each from all tokens before it, without any cache
            self.assertEqual(own(whole[:, :t]).argmax(-1)[:, 0].tolist(), whole[:, t].tolist())

    def test_a_wrong_cache_is_noticed(self) -> None:
        from gpu.budget import NotRun
        from gpu.static_cache import StaticDecoder, pick_greedy

        own, _ = self.side.both("f32")
        decoder = StaticDecoder(own, self.side.ids(self.row), self.row.new_tokens, pick_greedy)
        decoder.make_step(None, graph=False)
        decoder.caches[0][1, 0, 0, 7] += 0.1
        with self.assertRaises(NotRun):
            decoder.check()

    def test_sampling_draws_with_the_softmaxs_probabilities(self) -> None:
        from gpu.static_cache import TOP_K, pick_sampled

        self.torch.manual_seed(0)
        logits = self.torch.linspace(-3, 3, 60).expand(20000, 1, 60)
        drawn = pick_sampled(logits)[:, 0]
        expected = logits[0, 0, -TOP_K:].softmax(0)
        found = self.torch.bincount(drawn, minlength=60) / len(drawn)
        self.assertEqual(found[:-TOP_K].sum().item(), 0)
        self.assertLess((found[-TOP_K:] - expected).abs().max().item(), 0.01)

    def test_training_without_dropout_is_the_model(self) -> None:
        from gpu import training
        from gpu.training import Training

        own, theirs = self.side.both("f32")
        ids = self.side.ids(self.row)
        logits = Training(own, p=0.0).logits(ids)
        self.assertLess((logits[:, -1:] - own(ids)).abs().max().item(), 1e-5)
        if theirs:
            self.assertLess((logits - theirs(ids).logits).abs().max().item(), 1e-4)
        with mock.patch.object(training, "dropout", wraps=training.dropout) as drop:
            again = [Training(own).logits(ids) for _ in range(2)]
        self.assertFalse(self.torch.equal(*again), "dropout is on")
        places = 1 + 2 * SHAPE["n_layer"]  # the embedding, and each sublayer's output
        self.assertEqual([call.args[1] for call in drop.call_args_list], 2 * places * [0.1])

    def test_every_cell_of_every_group(self) -> None:
        from gpu.budget import NotRun
        from gpu.rows import COMPILE, THEIRS

        for group, columns in THEIRS.items():
            tokens = 4 if group in ("decode", "generate") else 0
            row = self.row._replace(group=group, runs=2, new_tokens=tokens)
            for column in set(columns) - {COMPILE}:
                with self.subTest(group=group, column=column), self.pytorch.mode(row):
                    try:
                        self.assertGreater(self.side.prepare(row, column)(), 0)
                    except NotRun as error:
                        self.assertIn("No viable backend", str(error))
