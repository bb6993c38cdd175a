"""All exercises by number: "03.2"."""

from ladder.exercises import rung_00, rung_01, rung_02, rung_03, rung_04, rung_05, rung_06

RUNGS = {"00": rung_00, "01": rung_01, "02": rung_02, "03": rung_03, "04": rung_04, "05": rung_05,
         "06": rung_06}
EXERCISES = {f"{rung}.{number}": exercise for rung, module in RUNGS.items()
             for number, exercise in module.EXERCISES.items()}
