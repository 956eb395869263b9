"""Reports on results: comparison with published rows, statistics and the leaderboard."""
