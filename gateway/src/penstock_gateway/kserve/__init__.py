"""KServe v2 over gRPC and HTTP, for clients of the model `asr`: tritonclient, penstock-client, curl."""
