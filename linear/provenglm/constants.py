"""The solver's tunable constants, in the order in which its loop uses them.

Constants that follow from arithmetic, such as the margins of a proof, are defined where they are
used. The effect of halving and doubling each constant was measured with ``make bench-constants``:
the comments give the worst problem, in passes and CPU seconds.
"""


# Costs in seconds of one core of the machine that ran the benchmarks. They are fixed, so that the
# same data are solved by the same method on every machine. Only their ratios matter.

PRODUCT = 4e-11
"""One multiplication in a matrix product, by BLAS."""

NUMBER = 1.3e-9
"""One number of a dense row in a pass for one output."""

STORED = 2.7e-9
"""One stored number of a sparse row in a pass, for each output."""

PAIR = 2.4e-8
"""One multiplication in SciPy's product of two sparse matrices."""

LOSS = 2e-8
"""One evaluation of a loss and its residual."""

SAMPLE = 5e-3
"""The fixed cost of drawing a sample, without its rows."""

COMPILED = 5e-3
"""The cost of compiled code for a fit. The first fit of a process also loads the code, which takes
half a second or more."""


# The choice of the method.

SMALL_HESSIAN = 1e8
"""A step with an L1 penalty uses all features if their Hessian takes at most this many
multiplications; otherwise a few features are tried first. Halved: nothing. Doubled: cross
validation: 1.12 of the passes, 4.5 of the time."""

SMALL_DATA = 8_000_000
"""Features with at most this many numbers, including zeros, are copied to float64 (64 MB). Sparse
features are copied only if few numbers are 0. Halved or doubled: nothing."""

MOST_WEIGHTS = 2500
"""The Hessian is stored as a matrix and factored if there are at most this many weights. Halved or
doubled: nothing."""

FEW_ROWS_OF_A_FEATURE = 4
"""With fewer rows per feature, a problem with one output is solved by conjugate gradients, because
the sample of a Hessian would contain nearly all rows. On shapes from 1,200 x 400 to 3,000 x 1,000
they took 0.2 to 0.7 of the time of a Hessian, also with collinear columns. The Hessian that
preconditions them has at most this many rows per feature: on 40,000 x 2,000 with singular values
over 1e4 they took 364 iterations with the diagonal, 28 with two rows per feature, 16 with four, and
10 with ten. Halved or doubled: nothing."""

DUAL_CURVATURE = 1e4
"""The dual is solved if the mean of |x|^2 / n l2 is at most this. With raw word counts it took 0.7
of the time of conjugate gradients at 1,500 (0.3 with 11 classes), and 0.6 at 15,000. At 150,000 its
last point was so far from the optimum that Newton's method took 10 times as long from there. Halved
or doubled: nothing."""

DUAL_CURVATURE_OF_DENSE = 4.0
"""The same limit for dense, centred rows, for which there are other methods. At 3 to 4 the dual
took 0.3 to 0.9 of their CPU time: 0.3 on 8,000 x 392 of Fashion-MNIST, 0.8 to 0.9 on noise with a
teacher's labels. At 9 it took 1.2 times as long on noise, and at 30 up to 11 times. Halved:
Fashion: 5 times the passes, 4.5 of the time."""

ROWS_OF_A_DIMENSION = 100
"""Products with a sample's Hessian are accurate enough if the sample has this many rows per
effective dimension; otherwise products use all rows. With more than ten classes the limit is
`ROWS_OF_A_FEATURE` for each class. Halved or doubled: nothing."""

COPY_BYTES = 4e9
"""Dense rows are copied in float32 if the copy takes at most this many bytes. Halved or doubled:
nothing."""


# The sample and its coordinates.

LEAST_ROWS = 2000
"""The least number of rows in a sample, whether it is drawn for a Hessian, a proof, the scales or
the classes. Halved: 7 classes, raw: 1.45 of the passes. Doubled: file, 7 classes: 1.35 of the
passes."""

ROWS_OF_A_FEATURE = 10
"""The least number of rows per feature in the sample of a Hessian. The sample has twice as many if
these cost at most three passes. Halved: dense: 1.24 of the passes. Doubled: dense, collinear: 0.83
of the passes."""

SAMPLE_OF_A_PASS = 16
"""The sample's rows times the weights, per row of the data. With this value the sample's Hessian
costs half a pass, because a multiplication in a matrix product of BLAS costs a 32nd of one in a
pass. Halved: file: 1.12 of the passes. Doubled: dense, collinear: 0.83 of the passes."""

SAMPLE_NUMBERS = 32_000_000
"""The largest number of numbers in drawn rows that are held in memory (256 MB). It limits samples
of sparse rows and the rows of a proof. Halved or doubled: nothing."""

RARE = 0.1
"""Rows are drawn more often than they occur if their group of targets has a smaller share. Halved:
Poisson: 1.14 of the passes. Doubled: nothing."""

LEAST_MEASURED_ROWS = 128
"""The least number of rows in the sample that measures the coordinates with an L1 penalty, if the
sample has no other use. The largest variance is also measured on this many rows if a Hessian is
expensive."""

MEASURED_NUMBERS = 1 << 18
"""The number of numbers in such a sample. With four times as many, and at least 256 rows, a lasso
of 30,000 x 300 took 1.1 times as long, 500 x 20,000 1.15, and 1,000 x 5,000 1.05."""

FEW_ROWS = 20
"""A feature's variance is measured over all rows if the sample measures it on fewer effective rows
than this, (sum x^2)^2 / sum x^4. Halved: nothing. Doubled: file, 7 classes: 1.09 of the passes, not
proven."""

HEAVY = 0.3
"""A sparse column is scaled down if its variance exceeds this part of the total variance of all
lighter columns; otherwise it alone would set the length of every step. Halved or doubled:
nothing."""


# The start.

GROWTH = 4
"""The growth factor of the number of rows, from one part of a sample to the next during the start,
and from one proof to the next. On disk, the Hessian of a part uses one block in `GROWTH`. Halved:
cross validation: 1.02 of the passes, 1.4 of the time. Doubled: Poisson: 1.59 of the passes."""

ERROR_OF_A_START = 0.02
"""A start stops when its decrement is at most this part of the sample's own error, which is about p
/ 2n of the loss. Halved: 7 classes, raw: 1.13 of the passes. Doubled: 7 classes, raw: 1.27 of the
passes."""

EVERY_BLOCK = 8
"""On disk, a start may use one block in `EVERY_BLOCK`. Halved: file of bytes: 0.56 of the passes.
Doubled: file of bytes: 2.21 of the passes, 1.4 of the time."""

ROWS_BESIDE_A_PART = 250
"""The number of sample rows per feature if a start also uses such blocks, which lead further than
the sample. Halved: nothing. Doubled: file of bytes: 1.24 of the passes."""

LARGER_PART = 16
"""Such blocks are read if they have at least this many times the sample's rows. Halved or doubled:
nothing."""


# The metric of a sample's Hessian.

CHANGED = 0.05
"""The Hessian is computed again if a step leaves more than this part of the decrement and the
curvature has changed by more than this part. Halved: Fashion: 1.12 of the passes. Doubled: dense,
collinear: 0.87 of the passes."""

SECANTS = 20
"""The number of pairs (step, change of the gradient) that correct a metric. Halved: Fashion: 1.29
of the passes, 1.4 of the time. Doubled: Fashion: 1.17 of the passes, 1.6 of the time."""

PART_OF_A_STEP = 32
"""The Hessian of a step by products uses one row in this many; on disk, the second moments do. With
16, Fashion-MNIST took 12.4 and 28.3 passes instead of 9.7 and 25.1. Halved or doubled: nothing."""


# Conjugate gradients, and the length of a step.

MOST_FORCING = 0.3
"""Conjugate gradients stop at this relative residual, in the preconditioner's metric, or earlier if
the remaining gap is this part of the required gap. Halved: counts of words: 1.44 of the passes, 1.4
of the time. Doubled: counts of words: 1.13 of the passes."""

LEAST_FORCING = 0.02
"""The smallest such residual, used while steps gain much. Halved or doubled: nothing."""

SAMPLE_FORCING = 0.1
"""Conjugate gradients with a sample's Hessian stop at this relative residual. Halved: 7 classes,
raw: 1.25 of the passes. Doubled: 7 classes, raw: 1.12 of the passes."""

MOST_STEPS = 200
"""The largest number of steps of any inner iteration. All except conjugate gradients end after a
few. It is also the largest number of directions that are kept on dense rows. Halved or doubled:
nothing."""

SLOPE = 0.3
"""A line search ends if at most this part of the initial slope is left. Halved: counts of words:
1.46 of the passes, 1.4 of the time. Doubled: L1, text, 5 classes: 1.33 of the passes, 2.2 of the
time."""

SHORT = 0.3
"""The curvature shift grows after a step whose length is below this, and shrinks after a step that
is longer than 1 minus this. Halved or doubled: nothing."""

FIRST_CURVATURE_SHIFT = 0.05
"""The initial curvature shift: the curvature of a row is computed at a mean that is moved this part
of the way to its target. Halved or doubled: nothing."""


# Coordinate descent and the working set.

ALL_FEATURES = 300
"""The working set contains all features if there are at most this many. Halved: nothing. Doubled:
lasso, tall: 0.44 of the passes."""

LEAST_JOINING = 100
"""The least number of features that are added to the working set at a time. Halved: lasso: 1.14 of
the passes. Doubled: L1, text, 5 classes: 1.17 of the passes, 1.3 of the time."""

FEW_JOINING = 20
"""The same limit for dense rows with up to `ALL_FEATURES` features and a squared loss, while at
most half of the gradients exceed the penalty. If more do, all features are added."""

KEPT_NUMBERS = 1 << 24
"""The largest number of numbers in columns that are kept for their products with other columns (128
MB). Dense rows with a squared loss use the working set if they have at most this many: 4,000 x
2,000 took a 14th of the time of a sample's Hessian, 10,000 x 500 a sixth, and 2,000 x 600 with a
small penalty 1.5 times as long."""

CHANGED_ROWS = 0.125
"""The last factor is used for a linear system if at most this part of its rows has joined or left.
For a lasso of 1,000 x 5,000 a factor took 8 ms, and a system with the last factor 2 to 4 ms. Halved
or doubled: nothing."""

LAST_SWEEP = 0.09
"""Coordinate descent stops after a sweep that lowers the model by less than this part of the best
sweep's decrease. Halved: nothing. Doubled: L1, text, 5 classes: 1.17 of the passes."""

LAST_SWEEP_OF_MANY = 0.02
"""The same limit for sweeps over dense columns while the working set grows. With `LAST_SWEEP` a
lasso of 500 x 20,000 took 1.3 times as long; others took the same time."""

ROUND = 6
"""The number of sweeps in a round: the first sweep visits the whole set, the others only the
nonzero coefficients. With a matrix, a linear system follows each sweep. Halved: L1, text, 5
classes: 1.17 of the passes. Doubled: nothing."""


# The dual, row by row.

OF_BIAS = 0.1
"""The least effect of a row's step on its own score through the intercept, for a residual of 1.
Halved: text, 20 classes: 1.12 of the passes. Doubled: text, 20 classes: 1.12 of the passes."""

PART_OF_BIAS = 0.005
"""The same effect, relative to the effect of the step through the weights. On 1,000 classes with a
mean curvature of 300 the intercepts hardly moved with `OF_BIAS` alone; with a value of 1.5, 22
epochs were enough. Halved or doubled: nothing."""

SLOW = 0.5
"""Newton's method takes over if `SLOW_EPOCHS` epochs together leave more than this part of the
distance. A fold continues alone after `TRIES` steps that each leave more. Halved or doubled:
nothing."""

SLOW_EPOCHS = 8
"""With 4 epochs, raw word counts took up to 1.7 times as long. Halved or doubled: nothing."""


# The proof and the end.

MARGIN = 0.05
"""The estimate ends a run when it is at most this part of the required distance. Halved: Fashion:
1.27 of the passes, 1.4 of the time. Doubled: nothing."""

TRIES = 3
"""The number of cheap iterations before a proof by a Newton step is tried, and the number of such
proofs before the estimate may end the run. Halved or doubled: nothing."""

SAFETY = 1.5
"""A proof by sampled rows is tried when the expected bound is below the required gap by this
factor. Halved: 7 classes, raw: 0.93 of the passes, not proven. Doubled: dense: 1.13 of the
passes."""

PENALTY_OF_A_GAP = 1e-4
"""If the penalty is a smaller part of the curvature, a proof by a Newton step succeeds long before
the duality gap does, because the duality gap is larger by about the curvature divided by the
penalty. Halved or doubled: nothing."""

LARGEST_PROOF = 2e10
"""The Hessian of a proof takes at most this many multiplications, which is about a second. Halved
or doubled: nothing."""


GROUPS_OF_ROWS = 64
"""The largest number of groups of rows that share their training sets. The products of the features
are kept for each group."""

BYTES_OF_GROUPS = 1 << 28
"""The largest size of all these products, in bytes."""

STEPS_OF_PRODUCTS = 5
"""The largest number of steps towards a point by these products, before the general solver
continues. As a rule one step is enough."""


# Blocks of rows.

BLOCK_BYTES = 3 << 19
"""The size of a converted block, in bytes. A block that is read for the scores is then still in a
core's cache when the gradient needs it. Halved or doubled: nothing."""

BLOCK_ROWS = 4096
"""The largest number of rows of a block in the sum of a Hessian; an eighth of that if two products
follow each other. Halved or doubled: nothing."""

PART_ROWS = 1 << 16
"""Arrays with a number per row are processed in parts of this many rows. It is also the number of
numbers that a cache holds. Halved or doubled: nothing."""

LEAST_BLOCK_ROWS = 64
"""The least number of rows in a block. Halved or doubled: nothing."""

LONG_ROWS = 1 << 20
"""With at least this many rows on disk, arrays of one number per row are processed in parts."""

SMALL = 1 << 20
"""BLAS keeps its threads for data with fewer numbers, because asking it for its threads takes 20
ms. A memory map with fewer bytes is treated as an ordinary array. Halved or doubled: nothing."""
