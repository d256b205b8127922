"""The blob stores: whole objects under names, created once, on disk, in memory and on S3."""
