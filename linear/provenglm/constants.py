"""The solver's tunable constants, in the order in which its loop uses them.

There are the costs of one machine, one limit of memory, and what was tuned on problems. A constant
that is derived from others has a formula. Numbers that follow from arithmetic, margins of rounding,
and limits that no problem notices are defined where they are used.

``make bench-constants`` halves and doubles each constant that has no formula. A comment names the
problem that gets most worse, or else most better, in passes and CPU seconds. A change by less than
a tenth of the passes and a third of the time is not noticed.
"""


# Costs in seconds of one core of the machine that ran the benchmarks. They are fixed, so that the
# same data are solved by the same method on every machine. Only their ratios matter.

PRODUCT = 4e-11
"""One multiplication in a matrix product, by BLAS. Measured on another machine: 2e-11 (1,000
columns) to 4e-11 (100). Halved: wide: 0.24 of the passes, 2.2 of the time, by row-space-newton.
Doubled: singular values over 1e3: 2.6 of the passes, 1.9 of the time."""

NUMBER = 1.28e-9
"""One number of a dense row in a pass for one output: 32 multiplications of a matrix product.
Measured on another machine: 8e-10 to 1.5e-9. Halved: singular values over 1e3: 2.6 of the passes,
1.7 of the time. Doubled: the same: 0.21 of the passes, 5.2 of the time, by newton-cholesky."""

STORED = 2.7e-9
"""One stored number of a sparse row in a pass, for each output. Measured on another machine: 1.2e-9
to 1.8e-9. Halved: text: 1.7 of the passes, 1.3 of the time, by newton-cg. Doubled: one-hots: 0.58
of the passes, 5.6 of the time, by sampled-newton."""

PAIR = 2.4e-8
"""One multiplication in SciPy's product of two sparse matrices. Measured on another machine: 5e-9
if the product stays in the cache (200 columns), to 1.8e-8. Halved: one-hots: 0.58 of the passes,
5.4 of the time, by sampled-newton. Doubled: not noticed."""

LOSS = 2e-8
"""One evaluation of a loss and its residual. Measured on another machine: 2.4e-8. Halved or
doubled: not noticed by 146 problems."""

CALL = 1e-5
"""The fixed cost of a product with a Hessian, beside its numbers. It decides for small data of
several classes, where newton-cholesky ends much nearer to the optimum in the same time. Halved or
doubled: nothing."""

SAMPLE = 5e-3
"""The fixed cost of drawing a sample, without its rows. Halved: Huber: 1.4 of the passes, the same
time. Doubled: cross validation: 1.12 of the passes, 2.9 of the time."""

COMPILED = 5e-3
"""The cost of compiled code for a fit. The first fit of a process also loads the code, which takes
half a second or more. Halved or doubled: not noticed by 7 problems that read it."""


# The memory.

MEMORY = 1 << 28
"""The largest size in bytes of each array that a fit creates in addition to the data: drawn rows,
kept columns, products of groups of rows, directions of subspace-newton, and four copies of small
data. Halved: not noticed. Doubled: sparse columns, softmax: 3 times the time."""

SMALL_DATA = MEMORY // 32
"""Features with at most this many numbers, including zeros, are copied to float64. Sparse features
are copied only if few numbers are 0."""

SAMPLE_NUMBERS = MEMORY // 8
"""The largest number of numbers in drawn rows, for samples of sparse rows and for proofs."""

KEPT_NUMBERS = MEMORY // 16
"""The largest number of numbers in columns that are kept for their products with other columns.
Dense rows with a squared loss use the working set if they have at most this many: 4,000 x 2,000
took a 14th of the time of a sample's Hessian, 10,000 x 500 a sixth, and 2,000 x 600 with a small
penalty 1.5 times as long."""

COPY_BYTES = 16 * MEMORY
"""Dense rows are copied in float32 if the copy takes at most this many bytes. It may take more than
other arrays, because it replaces rows of twice the size in all passes."""


# The choice of the method.

MOST_WEIGHTS = 2500
"""The Hessian is stored as a matrix (50 MB) and factored (0.2 s) if there are at most this many
weights. Halved: one-hots, 2,000 columns: the dual, 1.06 of the passes. Doubled: not noticed."""

FEW_ROWS_OF_A_FEATURE = 4
"""The Hessian that preconditions subspace-newton has this many rows per feature. With fewer than
twice as many, folds are not solved together. On 40,000 x 2,000 with singular values over 1e4,
conjugate gradients took 364 iterations with the diagonal, 28 with two rows per feature, 16 with
four, and 10 with ten. Halved: singular values over 1e3: 1.75 of the passes, 1.7 of the time.
Doubled: not noticed."""

DUAL_CURVATURE = 1e4
"""The dual is solved if the mean of |x|^2 / n l2 is at most this. With raw word counts it took 0.7
of the time of conjugate gradients at 1,500 (0.3 with 11 classes), and 0.6 at 15,000. At 150,000 its
last point was so far from the optimum that Newton's method took 10 times as long from there.
Halved: raw counts, a curvature of 7,000: 0.81 of the passes, 0.73 of the time. Doubled: raw counts,
a curvature of 15,000: 1.3 of the passes, 1.8 of the time."""

DUAL_CURVATURE_OF_DENSE = 4.0
"""The same limit for dense, centred rows, for which there are other methods. At 3 to 4 the dual
took 0.3 to 0.9 of their CPU time: 0.3 on 8,000 x 392 of Fashion-MNIST, 0.8 to 0.9 on noise with a
teacher's labels. At 9 it took 1.2 times as long on noise, and at 30 up to 11 times. Halved:
10 classes, a curvature of 3: 1.11 of the passes, 1.7 of the time, by newton-cg. Doubled: 10
classes, a curvature of 6: 1.3 of the passes, 0.83 of the time."""

ROWS_OF_A_DIMENSION = 200
"""Products with a sample's Hessian are accurate enough if there are this many rows per effective
dimension; otherwise products use all rows. With more than 20 classes the limit is
`ROWS_OF_A_FEATURE` for each class. Halved: 7 classes of 50,000 x 400 take 3.7 times the passes and
2.9 of the time. Doubled: nothing."""


# The sample and its coordinates.

LEAST_ROWS = 2000
"""The least number of rows in the sample of a Hessian or of a proof. Halved: 7 classes, raw: 1.19
of the passes, 1.3 of the time. Doubled: cross validation: 1.3 of the passes; 7 classes, raw: 0.55
of the passes, 1.5 of the time, by sampled-newton."""

ROWS_OF_A_FEATURE = 10
"""The least number of rows per feature in the sample of a Hessian. The sample has twice as many if
these cost at most three passes. Halved: dense: 1.24 of the passes. Doubled: L1, tall: 1.34 of the
passes, 1.4 of the time."""

SAMPLE_OF_A_PASS = NUMBER / PRODUCT / 2
"""The sample's rows times the weights, per row of the data: the sample's Hessian costs half a
pass."""

MEASURED_ROWS = 250
"""The number of rows that measure the coordinates, if the sample has no other use, and the
variances that the choice of the method needs. On 209 problems, 128, 250 and 500 rows took 1.001,
1.000 and 1.001 of the passes of up to 2,000 rows. Doubled: a lasso of 500 x 20,000 took up to 1.15
times as long."""

RARE = 0.1
"""Rows are drawn more often than they occur if their group of targets has a smaller share. Halved:
Poisson: 1.14 of the passes. Doubled: few sparse columns, softmax: 0.81 of the passes."""

FEW_ROWS = 20
"""A feature's variance is measured over all rows if the sample measures it on fewer effective rows
than this, (sum x^2)^2 / sum x^4. Halved: not noticed. Doubled: file, 7 classes: 0.81 of the
passes."""


# The start.

GROWTH = 4
"""The growth factor of the number of rows, from one part of a sample to the next during the start.
On disk, the Hessian of a part uses one block in `GROWTH`. Halved: file of bytes: 0.43 of the
passes, 0.8 of the time. Doubled: Poisson: 1.6 of the passes, 1.5 of the time."""

ERROR_OF_A_START = 0.02
"""A start stops when its decrement is at most this part of the sample's own error, which is about p
/ 2n of the loss. Halved: 7 classes, raw: 0.85 of the passes. Doubled: one-hots, few: 0.78 of the
passes."""

BLOCK_STRIDE = 8
"""On disk, a start may use one block in `BLOCK_STRIDE`. Halved: file of bytes: 0.56 of the passes.
Doubled: file of bytes: 2.21 of the passes, 1.4 of the time."""

ROWS_BESIDE_BLOCKS = 250
"""The number of sample rows per feature if a start also uses such blocks, which lead further than
the sample. Halved: nothing. Doubled: file of bytes: 1.24 of the passes."""

MIN_SUBSAMPLE_RATIO = 16
"""Such blocks are read if they have at least this many times the sample's rows. Halved or doubled:
nothing."""


# The metric of a sample's Hessian.

CHANGED = 0.05
"""The Hessian is computed again if a step leaves more than this part of the decrement and the
curvature has changed by more than this part; that over a subspace, if the curvature along the last
step has. Halved: file, 7 classes: 0.74 of the passes. Doubled: many columns, softmax: 1.18 of the
passes."""

SECANTS = 20
"""The number of pairs (step, change of the gradient) that correct a metric. Halved: Fashion: 1.29
of the passes, 1.4 of the time. Doubled: Fashion: 1.17 of the passes, 1.6 of the time."""

STEP_STRIDE = 32
"""The Hessian of a step by products uses one row in this many; on disk, the second moments do. With
16, Fashion-MNIST took 12.4 and 28.3 passes instead of 9.7 and 25.1. Halved: 7 classes, 50,000 rows:
0.51 of the passes, 0.6 of the time. Doubled: not noticed."""


# Conjugate gradients, and the length of a step.

MOST_FORCING = 0.3
"""Conjugate gradients stop at this relative residual, in the preconditioner's metric, or earlier if
the remaining gap is this part of the required gap. Halved: counts, sparse, one-hots: 1.17 of the
passes. Doubled: counts of words: 1.18 of the passes and of the time."""

SAMPLE_FORCING = 0.1
"""Conjugate gradients with a sample's Hessian stop at this relative residual. Halved: 7 classes,
50,000 rows: 1.34 of the passes, 1.5 of the time. Doubled: the same: 0.75 of the passes, 0.8 of the
time."""

MOST_STEPS = 200
"""A limit of safety: the largest number of steps of any inner iteration, all of which end by
themselves. Halved or doubled: not noticed by 141 problems."""

SLOPE = 0.3
"""A line search ends if at most this part of the initial slope is left. Halved: counts of words:
1.11 of the passes. Doubled: wide, weak penalty: 1.6 of the passes, 1.2 of the time."""


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

MIN_BIAS_EFFECT = 0.1
"""The least effect of a row's step on its own score through the intercept, for a residual of 1.
Halved: text, 20 classes: 1.12 of the passes. Doubled: many sparse columns, logistic: 1.21 of the
passes."""


# The proof and the end.

MARGIN = 0.05
"""The estimate ends a run when it is at most this part of the required distance. Halved: Fashion:
1.27 of the passes, 1.4 of the time. Doubled: nothing."""

SAFETY = 1.5
"""A proof by sampled rows is tried when the expected bound is below the required gap by this
factor. Halved: dense, imbalanced: 0.88 of the passes, 5.9 of the time. Doubled: few sparse columns:
1.28 of the passes."""


LARGEST_PROOF = 0.8 / PRODUCT
"""The Hessian of a proof, and the system of the coefficients of least norm, take at most this many
multiplications, which is 0.8 s: a user does not wait longer for a proof than for the fit."""


# Blocks of rows.

BLOCK_BYTES = 3 << 19
"""The size of a converted block, in bytes. A block that is read for the scores is then still in a
core's cache when the gradient needs it. Halved or doubled: nothing."""

PART_ROWS = BLOCK_BYTES // 24
"""Arrays with a number per row are processed in parts of this many rows: three such arrays in
float64 take the size of a block. It is also the number of numbers that a cache holds."""

BLOCK_ROWS = 4096
"""The largest number of rows of a block in the sum of a Hessian; an eighth of that if two products
follow each other. Halved or doubled: nothing."""

LEAST_BLOCK_ROWS = 64
"""The least number of rows in a block. Halved or doubled: nothing."""

SMALL = 1 << 20
"""BLAS keeps its threads for data with fewer numbers, because asking it for its threads takes 20
ms. A memory map with fewer bytes is treated as an ordinary array. Halved or doubled: nothing."""
