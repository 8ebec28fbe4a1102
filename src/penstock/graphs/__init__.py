"""Running a program of tensor steps: eagerly, as CUDA graphs with the loops on the host, or as one CUDA graph."""
