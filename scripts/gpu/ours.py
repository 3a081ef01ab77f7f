"""Our side: the `gpt2` binary."""

import json
from pathlib import Path

from .budget import Budget, BudgetUsedUp, NotRun
from .processes import Done, run
from .rows import Row


class Ours:
    """A binary, and the device it runs on. Every call ends with the budget."""

    def __init__(self, binary: Path, device: str, library_path: str, tiny: Path | None, budget: Budget) -> None:
        self.binary, self.device, self.library_path, self.tiny, self.budget = binary, device, library_path, tiny, budget

    def run(self, *arguments: object) -> Done:
        try:
            done = run([self.binary, *arguments], self.budget.remaining(), self.library_path)
        except OSError as error:
            raise NotRun(f"{self.binary} does not start: {error.strerror}") from None
        if done.status is None:
            raise BudgetUsedUp(self.budget.used_up)
        return done

    def measure(self, row: Row, implementation: str) -> dict:
        """Milliseconds, or tokens a second, and what measured them; `graph` is the fused one in a CUDA graph."""
        as_graph = ["--cuda-graph"] if implementation == "graph" else []
        implementation = "fused" if as_graph else implementation
        if self.tiny and row.group == "train":
            raise NotRun("not in a dry run: `gpt2 bench train` has no tiny model")
        # Plain operations take up to 200 times as long.
        runs = max(row.runs // 20, 1) if implementation == "eager" else row.runs
        options = ["--batch", row.batch, "--tokens", row.tokens, "--dtype", row.dtype, "--runs", runs, "--seed", 0]
        options += ["--device", self.device, "--impl", implementation, *(["--model", self.tiny] if self.tiny else [])]
        options += as_graph
        options += ["--last"] if row.group == "forward" else []
        options += ["--new-tokens", row.new_tokens] if row.new_tokens else []
        done = self.run("bench", row.group, "--json", *options)
        if done.status == 2 and f"invalid value '{row.group}'" in done.stderr:
            raise NotRun(f"this binary has no `gpt2 bench {row.group}`; build a later one")
        if done.status != 0:
            raise NotRun(f"status {done.status}, {' '.join(done.stderr.split()) or 'no message'}")
        try:
            found = json.loads(done.stdout)
            value = float(found["tokens_per_s" if row.new_tokens else "median_ms"])
        except (ValueError, KeyError, TypeError) as error:
            raise NotRun(f"`gpt2 bench {row.group} --json` printed something else: {error!r}") from None
        if found.get("impl", implementation) != implementation:
            raise NotRun(f"the binary ran {found['impl']} in its place")
        return {"value": value, "timer": found.get("timer", "clock")}
