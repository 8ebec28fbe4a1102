"""The gateway as processes: the command, its checks, ports, certificate and log."""

import os

# Its threads would wait busily for each other within the resampling of one part. Before the import of numpy.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
