"""What a user meets: the estimators, what they check, and what they keep of a fit."""
