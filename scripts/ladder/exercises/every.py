"""All exercises by number, such as 03.2: those of the modules rung_00, rung_01, …"""

import importlib
import os
import re

HERE = os.path.dirname(os.path.abspath(__file__))
RUNGS = sorted(name[5:7] for name in os.listdir(HERE) if re.fullmatch(r"rung_\d\d\.py", name))
EXERCISES = {f"{rung}.{number}": exercise for rung in RUNGS for number, exercise in
             importlib.import_module(f"ladder.exercises.rung_{rung}").EXERCISES.items()}
