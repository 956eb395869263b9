"""The two engines; nothing else in `suite/` imports a framework.

Each offers the same few names: `connect`, `disconnect`, and an `Engine` with `warm`, `step`, `losses`, `evaluate`,
`agree`, `synchronize`, `snapshot`, `restore` and `facts`.
"""
