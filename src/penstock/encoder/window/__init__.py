"""The encoder of offline models: windows of audio without state, packed into one strip without padding."""
