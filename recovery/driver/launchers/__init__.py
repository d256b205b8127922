"""How the processes of a job come to be: on this machine, and as Spark tasks."""
