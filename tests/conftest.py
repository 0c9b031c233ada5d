import os

import torch
from hypothesis import settings

# One thread a process: the suite runs several processes side by side (pytest -n auto).
torch.set_num_threads(1)

# Property tests are reproducible: the same examples every time, and no time limit on a busy machine.
settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("fixed")

os.environ.setdefault("MPLBACKEND", "Agg")
