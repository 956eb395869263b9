"""Leaderboard as a static site: pages, pictures and tables. Nothing in it depends on the time or the machine."""
