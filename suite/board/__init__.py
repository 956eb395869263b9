"""Leaderboard: groups and rows of results, contests between them, and the pages that show them."""
