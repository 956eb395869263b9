"""Predictions without running: step times on other networks, memory, and fits of published figures."""
