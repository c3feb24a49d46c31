"""The rows of a data set, in memory and on disk: what the solver reads."""
