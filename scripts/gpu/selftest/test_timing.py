"""What a figure contains, and what not."""

import unittest

from gpu.timing import FILLER_US, SETS, Rotation, copies, time_calls

from .made_up import MadeUpDevice


def figure(dispatch: float, kernel: float, runs: int, before: float | None = None) -> float:
    """The measured microseconds of a call; `before` is the time of a kernel that is not to be seen."""
    device = MadeUpDevice()
    prepare = None if before is None else lambda: device.launch(1, before)
    return 1e3 * time_calls(device, runs, lambda: device.launch(dispatch, kernel), prepare)


class Timing(unittest.TestCase):
    def test_hidden_dispatch_is_not_in_the_figure(self) -> None:
        for kernel in (50, 6):  # 6: faster than the host in each call, but not over the filler and 20 calls
            self.assertAlmostEqual(figure(5, kernel, 100), kernel)
        self.assertAlmostEqual(figure(9, 3, 20 * SETS), 3)  # 20 calls at 9 us are within the filler

    def test_dispatch_beyond_the_kernel_is_in_the_figure(self) -> None:
        calls = 100
        expected = (30 * calls - FILLER_US + 10) / calls  # the last kernel ends 10 us after its dispatch
        self.assertAlmostEqual(figure(30, 10, calls * SETS), expected)
        self.assertGreater(expected, 2.5 * 10)

    def test_what_is_not_timed_is_not_in_the_figure(self) -> None:
        self.assertAlmostEqual(figure(5, 50, 3, before=1000), 50)

    def test_one_slow_set_does_not_change_the_median(self) -> None:
        device, calls = MadeUpDevice(), []

        def call() -> None:
            calls.append(1)
            device.launch(1, 5000 if len(calls) == 10 else 50)

        self.assertAlmostEqual(1e3 * time_calls(device, 25, call), 50)


class Inputs(unittest.TestCase):
    def test_the_set_in_turn_exceeds_twice_the_cache(self) -> None:
        for l2, size in ((1000, 300), (1000, 1000), (1000, 2000), (64 << 20, 4 * 786432), (50 << 20, 50 << 20)):
            device = MadeUpDevice(l2_bytes=l2, free=1 << 40)
            made, used = iter(range(10**6)), []
            inputs = Rotation(device, size, lambda: next(made))
            call = inputs.calling(used.append)
            used.clear()
            for _ in range(3 * len(inputs.inputs)):
                call()
            for place, one in enumerate(used[: -len(inputs.inputs)]):
                again = used.index(one, place + 1)
                self.assertGreater((again - place) * size, 2 * l2, "bytes touched until an input comes again")

    def test_results_take_turns_too(self) -> None:
        device = MadeUpDevice(l2_bytes=1000)
        inputs = Rotation(device, 300, object)
        inputs.calling(lambda _: bytearray(1))
        self.assertEqual(len({id(one) for one in inputs.results}), copies(device, 300))

    def test_memory_limits_the_set(self) -> None:
        self.assertEqual(copies(MadeUpDevice(l2_bytes=10**6, free=4000), 100), 10)
        self.assertEqual(copies(MadeUpDevice(l2_bytes=10**6, free=0), 100), 1)
