"""Run the example: `python docs/examples/venue --journal FOLDER`."""

import os
import sys
from pathlib import Path

if (
    not __package__
):  # started by its path: this process and Spark's workers import the package from the folder around it
    around = str(Path(__file__).resolve().parents[1])
    sys.path.insert(0, around)
    os.environ["PYTHONPATH"] = os.pathsep.join([around, *filter(None, [os.environ.get("PYTHONPATH")])])

from venue.command import main

main(prog_name="venue")
