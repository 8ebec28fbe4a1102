"""Running a program of tensor steps: eagerly, as CUDA graphs with the loop on the host, or as one CUDA graph."""
