"""Load tests: Locust users that stream recordings in real time, their measurements, reports and the capacity search."""
