"""Runs on a pretend GPU, in a process of its own (`conftest.py`), because torch must be loaded after its library."""
