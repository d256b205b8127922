"""Faults that are brought about in a running job: what, to whom, when; and schedules of many at random.

Invariant: nothing here touches a job; what is decided follows from what is given, so that the same seed and the
same events give the same faults.
"""
