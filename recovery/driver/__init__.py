"""The driver of a running job: it carries out what the coordinator, the journal and the recovery decision say."""
