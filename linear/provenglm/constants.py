"""The constants of the solver that could have other values, in the order of its loop.

What follows from arithmetic, such as the margins of a proof, stands where it is used. What halving
and doubling does is from ``make bench-constants``: the worst problem, in passes and CPU seconds.
"""


# What it costs, in seconds of one core of the machine that the benchmarks are from. Fixed numbers:
# the same data take the same way on every machine. Only their ratios matter.

PRODUCT = 4e-11
"""A multiplication of a product of matrices, in BLAS."""

NUMBER = 1.3e-9
"""A number of dense rows in a pass for one output."""

STORED = 2.7e-9
"""A stored number of sparse rows in a pass, for each output."""

PAIR = 2.4e-8
"""A multiplication of SciPy's product of sparse matrices."""

LOSS = 2e-8
"""A loss and its residual."""

SAMPLE = 5e-3
"""What a sample costs beside its rows."""

COMPILED = 5e-3
"""What compiled code costs a fit: the first of a process loads it, in half a second or more."""


# Which way is taken.

SMALL_HESSIAN = 1e8
"""Multiplications for one Hessian of all rows, up to which Newton's method is exact. Halved:
nothing. Doubled: cross validation: 1.12 of the passes, 4.5 of the time."""

SMALL_DATA = 8_000_000
"""Numbers of features, zeros included, up to which all are copied to float64: 64 MB. Sparse ones
only if few are 0. Halved or doubled: nothing."""

MOST_WEIGHTS = 2500
"""Weights up to which a Hessian is a matrix, which is factored. Halved or doubled: nothing."""

FEW_ROWS_OF_A_FEATURE = 4
"""With fewer rows for each feature one output goes by conjugate gradients: the sample of a Hessian
would be nearly all rows. On 1,200 x 400 up to 3,000 x 1,000 they took 0.2 to 0.7 of a Hessian's
time, of collinear columns, too. The Hessian that preconditions them has at most as many rows: on
40,000 x 2,000 with singular values over 1e4 they took 364 iterations with the diagonal, 28 with two
rows of a feature, 16 with four, and 10 with ten. Halved or doubled: nothing."""

DUAL_CURVATURE = 1e4
"""The mean of |x|^2 / n l2 up to which the dual is taken. With raw counts of words it took 0.7 of
the seconds of conjugate gradients at 1,500, of 11 classes 0.3, and 0.6 at 15,000. At 150,000 the
point that was handed over was so far off that Newton's method took 10 times as long. Halved or
doubled: nothing."""

DUAL_CURVATURE_OF_DENSE = 4.0
"""The same of dense rows, centred, which have other ways. At 3 to 4 it took 0.3 to 0.9 of their CPU
seconds: 8,000 x 392 of Fashion-MNIST 0.3, noise with a teacher's labels 0.8 to 0.9. At 9 noise took
1.2 times as many, at 30 up to 11 times. Halved: Fashion: 5 times the passes, 4.5 of the time."""

ROWS_OF_A_DIMENSION = 100
"""Rows for each effective dimension, from which on products with a sample's Hessian are near
enough; with fewer, products with that of all rows. With more than ten classes it is
`ROWS_OF_A_FEATURE` for each class. Halved or doubled: nothing."""

COPY_BYTES = 4e9
"""Bytes of a copy of dense rows in float32, at most. Halved or doubled: nothing."""


# The sample and its coordinates.

LEAST_ROWS = 2000
"""Rows of a sample, at least: of that of a Hessian, of a proof, of scales, of classes. Halved: 7
classes, raw: 1.45 of the passes. Doubled: file, 7 classes: 1.35 of the passes."""

ROWS_OF_A_FEATURE = 10
"""Rows of a Hessian's sample for each feature, at least; twice as many where they cost no more than
three passes. Halved: dense: 1.24 of the passes. Doubled: dense, collinear: 0.83 of the passes."""

SAMPLE_OF_A_PASS = 16
"""Its rows, times the weights, for each row of the data: the sample's Hessian is then half as dear
as a pass, for in BLAS a multiplication of a product of matrices costs a 32nd of one of a pass.
Halved: file: 1.12 of the passes. Doubled: dense, collinear: 0.83 of the passes."""

SAMPLE_NUMBERS = 32_000_000
"""Numbers of drawn rows in memory, at most: 256 MB. Of sparse rows and of those of a proof. Halved
or doubled: nothing."""

RARE = 0.1
"""A group of targets with a smaller share is drawn more often than it occurs. Halved: Poisson: 1.14
of the passes. Doubled: nothing."""

LEAST_MEASURED_ROWS = 128
"""Rows that coordinates are taken from with an L1 penalty, if nothing else is, at least. Also those
that the largest variance is measured on, where a Hessian is dear."""

MEASURED_NUMBERS = 1 << 18
"""Numbers of such a sample. With four times as many, and 256 rows at least, a lasso of 30,000 x 300
took 1.1 of the time, 500 x 20,000 1.15, and 1,000 x 5,000 1.05."""

FEW_ROWS = 20
"""Rows that a feature's variance has to come from, or it is measured over all rows: (sum x^2)^2 /
sum x^4. Halved: nothing. Doubled: file, 7 classes: 1.09 of the passes, not proven."""

HEAVY = 0.3
"""A sparse column with more than this part of the variance of all lighter ones together sets every
step's length, and is scaled to less. Halved or doubled: nothing."""


# The start.

GROWTH = 4
"""The factor from one number of rows to the next: of the parts of a sample on the way to a start,
and of the proofs of a fit. On disk, the Hessian of a part comes from one block in `GROWTH`. Halved:
cross validation: 1.02 of the passes, 1.4 of the time. Doubled: Poisson: 1.59 of the passes."""

ERROR_OF_A_START = 0.02
"""Of the sample's error, about p / 2n of the loss: the decrement at which its optimum is near
enough for a start. Halved: 7 classes, raw: 1.13 of the passes. Doubled: 7 classes, raw: 1.27 of the
passes."""

EVERY_BLOCK = 8
"""On disk, one block in `EVERY_BLOCK` is in the part that a start is taken from. Halved: file of
bytes: 0.56 of the passes. Doubled: file of bytes: 2.21 of the passes, 1.4 of the time."""

ROWS_BESIDE_A_PART = 250
"""Rows of a sample for each feature where there is such a part, which leads further. Halved:
nothing. Doubled: file of bytes: 1.24 of the passes."""

LARGER_PART = 16
"""A part is worth reading if it has this many times the sample's rows. Halved or doubled:
nothing."""


# The metric of a sample's Hessian.

CHANGED = 0.05
"""The Hessian is computed again if a step leaves more than this part of the decrement, and the
curvature has changed by more than this part of itself. Halved: Fashion: 1.12 of the passes.
Doubled: dense, collinear: 0.87 of the passes."""

SECANTS = 20
"""Steps and changes of the gradient that correct a metric. Halved: Fashion: 1.29 of the passes, 1.4
of the time. Doubled: Fashion: 1.17 of the passes, 1.6 of the time."""

PART_OF_A_STEP = 32
"""The Hessian of a step by products, or on disk the second moments, come from one row in this many.
With 16 Fashion-MNIST took 12.4 and 28.3 passes, not 9.7 and 25.1. Halved or doubled: nothing."""


# Conjugate gradients, and the length of a step.

MOST_FORCING = 0.3
"""What they leave of the gradient, in the preconditioner's metric, at most. A step that promises
this much of the gap that is asked for is not solved any further. Halved: counts of words: 1.44 of
the passes, 1.4 of the time. Doubled: counts of words: 1.13 of the passes."""

LEAST_FORCING = 0.02
"""The same, at least, where steps gain much. Halved or doubled: nothing."""

SAMPLE_FORCING = 0.1
"""What they leave with a sample's Hessian. Halved: 7 classes, raw: 1.25 of the passes. Doubled: 7
classes, raw: 1.12 of the passes."""

MOST_STEPS = 200
"""Steps of any inner iteration. All but conjugate gradients end after a few. Also the directions
that are kept on dense rows, at most. Halved or doubled: nothing."""

SLOPE = 0.3
"""Of the slope along a step: what may be left of it where the step ends. Halved: counts of words:
1.46 of the passes, 1.4 of the time. Doubled: L1, text, 5 classes: 1.33 of the passes, 2.2 of the
time."""

SHORT = 0.3
"""After a shorter step more caution is needed, and less after one that is longer than the rest of
1. Halved or doubled: nothing."""

FIRST_CAUTION = 0.05
"""The part of the way to its target by which a row's mean is moved for its curvature, at first.
Halved or doubled: nothing."""


# Coordinate descent and the working set.

ALL_FEATURES = 300
"""Features up to which all are taken at once. Halved: nothing. Doubled: lasso, tall: 0.44 of the
passes."""

LEAST_JOINING = 100
"""Features that join at a time, at least. Halved: lasso: 1.14 of the passes. Doubled: L1, text, 5
classes: 1.17 of the passes, 1.3 of the time."""

FEW_JOINING = 20
"""The same of dense rows with up to `ALL_FEATURES` and a squared loss, as long as at most half of
the features are beyond the penalty: then all are taken."""

KEPT_NUMBERS = 1 << 24
"""Numbers of columns that are kept for their products with others, at most: 128 MB. Also of dense
rows whose squared loss goes by the working set: 4,000 x 2,000 took a 14th of the seconds of a
sample's Hessian, 10,000 x 500 a sixth, and 2,000 x 600 with a small penalty 1.5 times as many."""

CHANGED_ROWS = 0.125
"""Rows that join a system or leave it, as a part of its rows, up to which the last factor is enough
for it. A lasso of 1,000 x 5,000 took 8 ms for a factor, and 2 to 4 for a system by the last one.
Halved or doubled: nothing."""

LAST_SWEEP = 0.09
"""A sweep that lowers the model by less of what the best one did is the last. Halved: nothing.
Doubled: L1, text, 5 classes: 1.17 of the passes."""

LAST_SWEEP_OF_MANY = 0.02
"""The same of sweeps over dense columns while their set grows. With `LAST_SWEEP` a lasso of 500 x
20,000 took 1.3 of the time, and others as long."""

ROUND = 6
"""Sweeps of a round: the first is over the set, the others over what is not 0. By a matrix, as many
without a change of sign are followed by linear systems: until none turns a sign, as many at most.
Halved: L1, text, 5 classes: 1.17 of the passes. Doubled: nothing."""

FEW_COORDINATES = 32
"""Coordinates up to which a step by a matrix needs no Numba, which takes 1.3 s to load. A sweep
takes 0.1 ms then."""

PAIRS_OF_A_NUMBER = 30.0
"""Other numbers in its row, for each number, up to which the products of all columns with each
other are made. On text it is 8; the time of a fit falls by a third."""

PRODUCTS_BEFORE_PAIRS = 40
"""Products of a step before those of the columns with each other are made: it takes as long."""


# The dual, row by row.

OF_BIAS = 0.1
"""By how much a row's step moves its own score by way of the intercept, for a residual of 1, at
least. Halved: text, 20 classes: 1.12 of the passes. Doubled: text, 20 classes: 1.12 of the
passes."""

PART_OF_BIAS = 0.005
"""The same beside what the step moves it by way of the weights. On 1,000 classes with a mean
curvature of 300 the intercepts stood still with `OF_BIAS` alone; 22 epochs were enough with 1.5.
Halved or doubled: nothing."""

SLOW = 0.5
"""If `SLOW_EPOCHS` together leave more than this part of the distance, Newton's method continues. A
fold continues alone after `TRIES` steps that each leave more. Halved or doubled: nothing."""

SLOW_EPOCHS = 8
"""With 4 epochs raw counts of words took up to 1.7 times as long. Halved or doubled: nothing."""


# The proof and the end.

MARGIN = 0.05
"""The estimate says enough at this part of the distance that is asked for. Halved: Fashion: 1.27 of
the passes, 1.4 of the time. Doubled: nothing."""

TRIES = 3
"""What is tried before something else decides: cheap iterations before a proof by a Newton step,
and such proofs before the estimate. Halved or doubled: nothing."""

SAFETY = 1.5
"""A proof by the sample's rows is tried when the bound should be enough by this factor. Halved: 7
classes, raw: 0.93 of the passes, not proven. Doubled: dense: 1.13 of the passes."""

PENALTY_OF_A_GAP = 1e-4
"""Of the curvature: with a smaller penalty a proof by a Newton step is there long before the
duality gap is, which is about the curvature over the penalty times as large. Halved or doubled:
nothing."""

LARGEST_PROOF = 2e10
"""Multiplications for the Hessian of a proof, at most: about a second. Halved or doubled:
nothing."""


GROUPS_OF_ROWS = 64
"""Groups of rows in the same training sets, each with products of the features, at most."""

BYTES_OF_GROUPS = 1 << 28
"""Bytes of all these products, at most."""

STEPS_OF_PRODUCTS = 5
"""Steps to a point by these products, before the solver itself takes over: as a rule it is one."""


# Blocks of rows.

BLOCK_BYTES = 3 << 19
"""Bytes of a block, converted: read for the scores, it is still in a core's cache for the gradient.
Halved or doubled: nothing."""

BLOCK_ROWS = 4096
"""Rows of a block of a Hessian's sum, at most; an eighth of them where two products follow each
other. Halved or doubled: nothing."""

PART_ROWS = 1 << 16
"""Rows of a part of what has a number for each, and numbers of a part that a cache holds. Halved or
doubled: nothing."""

LEAST_BLOCK_ROWS = 64
"""Rows of a block, at least. Halved or doubled: nothing."""

LONG_ROWS = 1 << 20
"""Rows on disk from which on what has a number for each is processed in parts."""

SMALL = 1 << 20
"""Numbers of data that leave BLAS alone, because to ask it for its threads costs 20 ms; bytes of a
memory map that is an array like others. Halved or doubled: nothing."""
