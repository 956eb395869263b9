"""The processes of a run, beside what they compute: how they meet, and what they have to agree upon.

Each backend offers `connect`, `disconnect`, `tell` and `hear` for the launchers, and `Ranks` for its engine's users:
`tell`, `slowest`, `agree` and `compare`. With one process all of them answer at once.
"""
