"""All exercises by number, such as 03.2: those of the modules rung_00, rung_01, …; of the lesson in
a folder of a rung, such as 05/hopper.1, those of rung_05_hopper."""

import importlib
import os
import re

HERE = os.path.dirname(os.path.abspath(__file__))
MODULES = sorted(name[:-3] for name in os.listdir(HERE)
                 if re.fullmatch(r"rung_\d\d(_\w+)?\.py", name))
EXERCISES = {f"{module[5:].replace('_', '/', 1)}.{number}": exercise for module in MODULES
             for number, exercise in
             importlib.import_module(f"ladder.exercises.{module}").EXERCISES.items()}
