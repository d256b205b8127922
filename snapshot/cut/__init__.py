"""The cut itself: marker rules, frames and their bytes, watermarks; no I/O."""
