"""Settings of the policy adaprec; conf/comm has presets of it."""

from suite.declared import Declared, setting


class Settings(Declared):
    """probe_steps: after 10 steps, 1,024 validation samples do not separate table-1 from the others."""

    probe_steps: int = setting(25, "updates of each probe", at_least=1)
    probe_scores: int = setting(5, "evaluations in each probe", at_least=1)
    commit_steps: int = setting(100, "updates between decisions", at_least=1)
