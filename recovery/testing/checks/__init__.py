"""The judges of a simulated job: the truth about its tree and its target, and the promises that both keep."""
