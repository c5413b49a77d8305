"""Importing this makes torch's elementary functions exact from their first use on.

The math library behind torch (MKL) sets itself up in its first call. Where two threads make that call together, one of them may run
functions of low accuracy for its half of it: seen in two of three starts on a processor with AMX, cosines wrong by 3e-5, and so another
text. Here one thread makes the call.
"""

import torch

torch.ones(4).exp()
