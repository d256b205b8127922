"""The journal of a job: numbered entries, their fold, and the machines that read, write and compact them."""
