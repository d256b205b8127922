"""Small programs that show what the packages are for; each runs by itself and says more with --help."""
