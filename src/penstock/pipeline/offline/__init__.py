"""The stages of offline models, which hold whole recordings and live windows."""
