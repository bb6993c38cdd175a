"""The file that scripts/figures measure writes."""

import math
import os

from ladder.bench.grid import PEER, key, peer_name
from ladder.console import BAD_USAGE, Stop
from ladder.files import item_a_line, read_json, write_whole


def alike(one, other):
    """The same but for the last digits of errors, which are others where a step adds in any order.
    """
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-3)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    return one == other


class Results:
    """What is measured so far; save() writes all of it or nothing."""

    def __init__(self, path, machine):
        self.path, self.machine, self.ceilings = path, machine, None
        # The last two by key(): (command, records), of a peer as well; and why there are none.
        self.steps, self.runs, self.skipped = [], {}, {}
        self.before, self.machine_before = {}, {}  # the runs that were in the file

    def load(self):
        data = read_json(self.path)
        if data is None:
            return
        try:
            for command, record in zip(data["commands"], data["records"]):
                self.runs.setdefault(key(command), (command, []))[1].append(record)
            for record in data["peers"]:
                self.add(peer_name(record), [record])
            self.skipped = {one["command"]: one for one in data["skipped"] if one["status"]}
            self.steps, self.ceilings = data["steps"], data["ceilings"]
            before = data["machine"]
        except (KeyError, TypeError) as error:
            raise Stop(f"{os.path.relpath(self.path)} is no file of this script's ({error}); "
                       "--out names another", BAD_USAGE) from None
        if before["gpu"] != self.machine["gpu"]:
            raise Stop(f"{os.path.relpath(self.path)} was measured on {before['gpu']}, and this is "
                       f"{self.machine['gpu']}; --out names another file", BAD_USAGE)
        self.before = dict(self.runs)
        self.machine_before = before
        self.machine["clocks"] = before["clocks"]

    def add_steps(self, steps):
        """In the ladder's order; a step of which there are records stays, though its program has
        gone."""
        now = [step.registered() for step in steps]
        names = {(step.rung, step.variant) for step in steps}
        gone = [step for step in self.steps if (step["rung"], step["variant"]) not in names]
        self.steps = sorted(gone + now, key=lambda step: step["rung"])

    def has(self, name):
        return bool(self.runs.get(name))

    def forget(self, names):
        """They are measured again: if that is interrupted, they are missing rather than old. They
        keep their places."""
        self.runs.update((name, None) for name in names if name in self.runs)

    def add(self, command, records):
        """On the sim a run that gave what the file has already leaves the file as it is."""
        run, before = (command, records), self.before.get(key(command))
        same = before and self.machine["gpu"] is None and alike(before, run)
        self.runs[key(command)] = before if same else run
        self.skipped.pop(key(command), None)

    def skip(self, name, one, status, why):
        self.skipped[name] = {"rung": one.rung, "variant": one.variant, **one.point._asdict(),
                              "command": name, "status": status, "reason": why}

    def records(self, of_peers):
        """[(command, record)] of our programs, or of peers."""
        return [(run[0], record) for name, run in self.runs.items()
                if run and name.startswith(f"{PEER} ") == of_peers for record in run[1]]

    def about(self, clocks):
        """The machine, with the commits that what is in the file was measured at."""
        kept = [self.before.get(name) is run for name, run in self.runs.items()]
        if self.before and all(kept):
            return self.machine_before
        before = (self.machine_before["commit"] or "").split(", ") if any(kept) else []
        commits = filter(None, dict.fromkeys([*before, self.machine["commit"]]))
        return {**self.machine, "commit": ", ".join(commits) or None,
                "clocks": clocks or self.machine["clocks"]}

    def save(self, clocks=None):
        ours, peers = self.records(of_peers=False), self.records(of_peers=True)
        write_whole(self.path, item_a_line({
            "machine": self.about(clocks),
            "ceilings": self.ceilings, "steps": self.steps,
            "commands": [command for command, _ in ours],
            "records": [record for _, record in ours],
            "peers": [record for _, record in peers],
            "skipped": list(self.skipped.values())}))
