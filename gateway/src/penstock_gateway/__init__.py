"""Gateway of the Penstock server: clients of NVIDIA Riva, of OpenAI's audio API and browsers change only an address."""
