"""The public estimators: parameters, validation of the input, and attributes after `fit`."""
