"""The launchers of a job's processes: on this machine, and as Spark tasks."""
