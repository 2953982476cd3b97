"""The benchmark: the law and the named baselines on the digital twin, in virtual time, with verdicts."""
