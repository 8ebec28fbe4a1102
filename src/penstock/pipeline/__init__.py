"""The three stages of the pipeline, each of which works on a batch of requests and answers each with a result or error.

The same stages run as Triton models, one process each, and in-process in the recognizer.
"""
