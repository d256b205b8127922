"""Coming back: from what a crash left behind to the decision what happens next."""
