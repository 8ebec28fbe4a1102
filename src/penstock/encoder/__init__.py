"""Cache-aware streaming FastConformer."""
