"""What follows for the whole ladder from what its steps say of themselves."""

DIRECTIONS = ("fwd", "bwd")


class Ladder:
    """All steps for one device, in the order of the rungs."""

    def __init__(self, steps):
        self.steps = list(steps)

    def rungs(self):
        return list(dict.fromkeys(step.rung for step in self.steps))

    def of(self, rung):
        return [step for step in self.steps if step.rung == rung]

    def last_portable(self, rung):
        """The rung's last step that every GPU runs, or None."""
        portable = [step for step in self.of(rung)
                    if not step.by_name_only and not step.exact_architecture]
        return portable[-1] if portable else None

    def stands_for_its_rung(self, step):
        """The others show what a step brings."""
        return step.default or step == self.last_portable(step.rung)

    def beside_peers(self):
        """Direction → the rung that is compared with PyTorch's attention: the last without a
        backward pass, the last with one."""
        found = {}
        for rung in self.rungs():
            found["bwd" if any(step.backward for step in self.of(rung)) else "fwd"] = rung
        return found


def ladder_of(programs, device):
    """What the programs list for a device."""
    return Ladder(step for program in programs for step in program.steps()
                  if step.device == device)
