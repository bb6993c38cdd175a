"""The committed measurements as a test changes them, in memory: what figures and tables are made
of. That those figures and tables themselves are as they were, results_test sees."""

import json
import os
import pickle
import unittest.mock

from base import RESULTS, Scratch, like, read
from ladder.figures import measured
from ladder.figures.gallery import figure_data
from ladder.figures.measured import Files
from ladder.figures.pages import table
from ladder.files import newest_measured

GPU = os.path.basename(newest_measured())
COMMITTED = {name: json.loads(read(RESULTS, name)) for name in os.listdir(RESULTS)
             if name.endswith(".json")}
OTHER = next(name for name in COMMITTED if name not in (GPU, "sim.json")
             and "gpu" in COMMITTED[name].get("machine", ()))
PICKLED = pickle.dumps(COMMITTED)  # copied ten times as fast


class Changed(Scratch):
    """self.data: {name: the file}, to be changed; self.gpu, self.other and self.sim are three of
    them."""

    def setUp(self):
        super().setUp()
        self.as_it_was()
        patch = unittest.mock.patch.multiple(
            measured, read_json=lambda path, missing=None: self.data.get(
                os.path.basename(path), missing),
            newest_measured=lambda _, but: next(
                (name for name in (GPU, OTHER) if name in self.data
                 and self.data[name]["machine"]["gpu"] != but), None))
        patch.start()
        self.addCleanup(patch.stop)

    def as_it_was(self):
        self.data = pickle.loads(PICKLED)
        self.gpu, self.other, self.sim = (self.data[name] for name in (GPU, OTHER, "sim.json"))

    def drop(self, of, which):
        """Drops the records, with their commands, for which `which` holds."""
        pairs = [(c, r) for c, r in zip(of["commands"], of["records"]) if not which(c, r)]
        of["commands"], of["records"] = map(list, zip(*pairs)) if pairs else ([], [])

    def records(self, of=None, **wanted):
        return [r for r in (of or self.gpu)["records"] if like(r, **wanted)]

    def figures(self, name=GPU):
        """The data of those that have some."""
        return {name: data for name, data in figure_data(Files(name)).items() if data}

    def table(self, name, file=GPU):
        return table(Files(file), name)
