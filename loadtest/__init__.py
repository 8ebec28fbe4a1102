"""Load tests: Locust users that stream recordings in real time, what they measured, reports and the search for C120."""
