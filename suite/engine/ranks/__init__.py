"""How the processes of a run connect, and exchange values other than tensors.

Each backend has the functions `connect`, `disconnect`, `broadcast` and `gather` for the launchers, and a class `Ranks`
(`suite.contract.Ranks`) for its engine. With one process, the methods of `Ranks` return without communication.
"""
