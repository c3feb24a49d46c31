"""The handlers, one a file: they say *when* something happens.

They import no Estimator (each event brings it along), so the Estimator can import its defaults.
"""
