"""The constants of the solver that could have other values, in the order of its loop.

What follows from arithmetic, such as the margins of a proof, stands where it is used.
"""


# Which way is taken.

SMALL_HESSIAN = 1e9
"""Multiplications for one Hessian of all rows, up to which Newton's method is exact."""

SMALL_DATA = 8_000_000
"""Numbers of features, zeros included, up to which all are copied to float64."""

MOST_WEIGHTS = 2500
"""Weights up to which a Hessian is a matrix."""

PASSES_OF_A_HESSIAN = 2500.0
"""Multiplications of a sample's Hessian, in those of a pass, up to which it is made."""

PASSES_OF_FEW_ROWS = 960.0
"""The same where rows are few for each feature: 60 passes of conjugate gradients, of whose
multiplications each takes as long as 16 of a product of matrices."""

FEW_ROWS_OF_A_FEATURE = 4
"""With fewer rows for each feature the sample of a Hessian is nearly all rows. On 3,000 x 2,400
conjugate gradients took a tenth of a Hessian's time; on 8,000 x 1,000 between a fifth of it and ten
times as much, depending on the condition number."""

WEIGHTS_OF_SQUARES = 400
"""Weights up to which the Hessian of a squared loss with an L1 penalty is that of all rows: it is
needed once, and then the optimum is proven. With 300 it took the time of 9 passes."""

DUAL_CURVATURE = 1e4
"""The mean of |x|^2 / n l2 up to which the dual is taken. With raw counts of words it took 0.7 of
the seconds of conjugate gradients at 1,500, of 11 classes 0.3, and 0.6 at 15,000. At 150,000 the
point that was handed over was so far off that Newton's method took 10 times as long."""

DUAL_CURVATURE_OF_DENSE = 2.0
"""The same of dense rows, centred, which have other ways. At 0.08 Fashion-MNIST took as many CPU
seconds as by conjugate gradients with a sample's Hessian, at 0.8 three quarters, at 8 half of them,
and ends with a proof. Noise with a teacher's labels took 0.6 to 1.5 of the other ways' seconds at
3, and 2 to 11 times as many at 30."""

FEW_ROWS_OF_A_CLASS = 30
"""With fewer rows for each class dense rows may have as large a curvature as sparse ones. Few rows
then decide what a class is, which no mean over all rows knows: 20 of each of 1,000 clusters took 7
epochs at 600, and steps in a Kronecker product did not arrive. With 67 rows of each class those
were faster."""

ROWS_OF_A_DIMENSION = 100
"""Rows for each effective dimension, from which on products with a sample's Hessian are near
enough."""

COPY_BYTES = 4e9
"""Bytes of a copy of dense rows in float32, at most."""

SPARSE_PRODUCT = 400
"""A multiplication of SciPy's product of sparse matrices, in those of a dense product in BLAS."""


# Coordinates.

MEASURED_ROWS = 2048
"""Rows of a sample that coordinates are taken from, and that parts of a sample have at least."""

ROWS_OF_DIGITS = 1 << 14
"""Rows whose sizes tell whether float32 has digits for sparse features."""

FEW_ROWS = 20
"""Rows that a feature's variance has to come from, or it is measured over all rows: (sum x^2)^2 /
sum x^4."""

OFFSET_OF_FLOAT32 = 30.0
"""A mean of so many standard deviations, and float32 is left: it costs one to two digits."""

OFFSET_OF_FLOAT64 = 1e5
"""The same of float64: from there on blocks are centred before they are multiplied."""

OFFSET_OF_A_PROOF = 100
"""The same of a proof: the error of a sum grows with it, by less than is noticed."""

HEAVY = 0.3
"""A sparse column with more than this part of the variance of all lighter ones together sets every
step's length."""

SCALED_TO = 0.1
"""The same of such a column afterwards, up to four times as much: scales are powers of two."""

LEAST_COLUMNS = 20
"""Sparse columns that are never heavy: of few columns each is a large part of the whole."""

FAR_MEAN = 3.0
"""A mean of so many deviations, and a heavy column without zeros is centred."""


# The sample.

LEAST_ROWS = 2000
"""Rows of a sample, at least."""

ROWS_OF_A_FEATURE = 10
"""Rows of a sample for each feature, at least; twice as many where they cost no more than three
passes."""

SAMPLE_OF_A_PASS = 16
"""A sample's Hessian is made of as many rows as make it half as dear as a pass, in BLAS, where a
multiplication of a product of matrices costs a 32nd of one of a pass."""

SAMPLE_NUMBERS = 32_000_000
"""Numbers of sparse rows that are drawn and dense then, at most: 256 MB."""

RARE = 0.1
"""A group of targets with a smaller share is drawn more often than it occurs."""

ROWS_OF_MOMENTS = 8192
"""Rows of a sample that second moments are taken from, at least."""

PART_OF_MOMENTS = 16
"""Of data on disk one of so many rows has the second moments, if there is room: a step gains the
more, and a pass costs much."""

EVERY_BLOCK = 8
"""One of so many blocks on disk is in the part that a start is taken from."""

OF_THESE_BLOCKS = 4
"""One of so many of these is in the part that the Hessian is taken of, which costs more than the
gradient."""

ROWS_BESIDE_A_PART = 250
"""Rows of a sample for each feature where there is such a part, which leads further."""

LARGER_PART = 16
"""A part of so many times the sample's rows is worth reading."""


# The start.

GROWTH = 4
"""From one part of the sample to the next, on the way to a start."""

ROWS_OF_A_START = 20
"""Rows for each feature of such a part: with fewer its optimum may be further away than the null
model."""

STEPS_OF_AN_L1_START = 6
"""Steps on the sample alone, with an L1 penalty."""

STEPS_OF_A_CLASS_START = 10
"""Steps on the sample alone, by products with its Hessian."""

ERROR_OF_A_START = 0.02
"""Of the sample's error: the decrement at which its optimum is near enough for a start. With 0.1
Fashion-MNIST took two steps more."""


# The metric of a sample's Hessian.

STALE = 0.05
"""A step that leaves more of the decrement, and the Hessian is taken anew at the new point."""

CHANGED = 0.05
"""Of the curvature, on average: less, and a new Hessian would be the old one."""

SECANTS = 20
"""Steps and changes of the gradient that correct a metric."""

SECANTS_OF_A_PATH = 10
"""The same along a path over folds."""

ROWS_OF_CLASSES = 4096
"""Rows of the score table, at even distances, that the class curvature is taken from, at least."""

CHANGED_TRACE = 0.2
"""Of the class curvature's trace: less, and a new one would be the old one."""

STEPS_OF_A_RATE = 10
"""Steps whose gains, beside those of as many before them, tell how fast a run in a Kronecker
product arrives."""

MOST_RATE = 0.95
"""The slowest rate that such gains are extended with."""


# Conjugate gradients.

MOST_FORCING = 0.3
"""What they leave of the gradient, in the preconditioner's metric, at most."""

LEAST_FORCING = 0.02
"""The same where steps gain much."""

OF_ENOUGH = 0.3
"""Of the gap that is asked for: a step that promises this much of it is not solved any further."""

MOST_PRODUCTS = 500
"""Products for one step over all rows, at most."""

GAINED = 0.1
"""Of what the quadratic model gains: where less is true, the products are float64 from then on."""

SAMPLE_FORCING = 0.1
"""What they leave with a sample's Hessian. Passes on Fashion-MNIST, L2 1e-4 and 1e-5: 9.7 and 25.1;
with 0.2 11.1 and 25.9, with 0.3 11.8 and 26.3."""

SAMPLE_PRODUCTS = 100
"""Products for one step or one system with a sample's Hessian or with a working set, at most."""

PART_OF_A_STEP = 32
"""Of all rows in memory, one of so many has the Hessian of a step. With 16 Fashion-MNIST took 12.4
and 28.3 passes."""

CHANGED_MEAN = 1.5
"""By so much the mean curvature changes before the preconditioner is made anew."""


# The length of a step.

SLOPE = 0.3
"""Of the slope along a step: what may be left of it where the step ends."""

TRIALS = 30
"""Lengths of a step that are tried."""

LONGEST = 4.0
"""By which a length is multiplied at once."""

SHORT = 0.3
"""After a shorter step more caution is needed."""

LONG = 0.7
"""After a longer step less caution is needed."""

FIRST_CAUTION = 0.05
"""The part of the way to its target by which a row's mean is moved for its curvature, at first."""

MOST_CAUTION = 0.5
"""The same, at most."""


# Coordinate descent and the working set.

ALL_FEATURES = 300
"""Features up to which all are taken at once."""

LEAST_JOINING = 100
"""Features that join at a time, at least. With 400 text took between 0.8 and 1.2 times as long."""

SWEEPS = 50
"""Sweeps before a linear system, at most. One over 800 features takes a fiftieth of the time of a
system."""

STEADY_SWEEPS = 5
"""Sweeps without a change of sign before a linear system, at most."""

SYSTEMS = 20
"""Linear systems for one step, at most."""

LEFT_BY_MATRIX = 1e-3
"""Of what the best sweep lowered the model by: a sweep that lowers it by less is the last."""

LEFT_BY_COLUMNS = 0.09
"""The same by columns. With 0.01 text took 1 to 1.3 times as long."""

SWEEPS_BY_COLUMNS = 100
"""Sweeps by columns, at most."""

ROUND = 6
"""Sweeps of a round: the first is over the set, the others over what is not 0. Of 4 and of 10, text
took between 0.9 and 1.1 times as long."""

PAIRS_OF_A_NUMBER = 30.0
"""Other numbers in its row, for each number, up to which the products of all columns with each
other are made. On text it is 8; the time of a fit falls by a third."""

PRODUCTS_BEFORE_PAIRS = 40
"""Products of a step before those of the columns with each other are made: it takes as long."""


# The dual, row by row.

OF_BIAS = 0.1
"""By how much a row's step moves its own score by way of the intercept, for a residual of 1, at
least. On text with C from 0.1 to 100, 0.03 took as many epochs, 0.3 up to 3 more, and 1 twice as
many."""

PART_OF_BIAS = 0.005
"""The same beside what the step moves it by way of the weights. On 1,000 classes with a mean
curvature of 300 the intercepts stood still with 0.1 alone; 22 epochs were enough with 1.5. Text
with C = 100 takes as many epochs with 0.5."""

SLOW = 0.5
"""`SLOW_EPOCHS` that together leave more of the distance are the last: Newton's method goes on.
0.25 and 0.7 were not better."""

SLOW_EPOCHS = 8
"""With 4 epochs raw counts of words took up to 1.7 times as long."""

STEPS_TO_THE_BIAS = 10
"""Steps to the best intercept, at most; on text two were enough."""


# The proof and the end.

MARGIN = 0.05
"""The estimate says enough at this part of the distance that is asked for."""

FOR_THE_PROOF = 3
"""Cheap iterations after the estimate says enough: the error is squared in each."""

PROOFS = 3
"""Proofs that are tried, each at a smaller estimate and with more rows; then the estimate
decides."""

LEAST_PART = 1e-3
"""After a failed proof the next is tried at a part of its estimate, at least this."""

LARGEST_PART = 0.7
"""The same, at most."""

WEIGHTS_OF_A_PROOF = 3000
"""Weights of a Hessian that is factored for a proof, and columns of the products by which Huber's
residuals are moved."""

SMALL_PROOF = 2e8
"""Multiplications for the Hessian of all rows, up to which a proof takes all of them."""

LARGEST_PROOF = 2e10
"""Multiplications for the Hessian of a proof, at most: about a second."""

NUMBERS_OF_A_PROOF = 1e7
"""Numbers of its rows in memory, at most: 80 MB."""

ROWS_OF_A_PROOF = 2000
"""Rows of the Hessian of a proof, at least."""

OF_THE_ESTIMATE = 2
"""The bound from s of n rows is about n / s times the estimate: s makes it half of what is
enough."""

SAFETY = 1.5
"""A proof by the sample's rows is tried when the bound should be enough by this factor."""

PENALTY_OF_A_GAP = 1e-4
"""Of the curvature: with a smaller penalty a proof by a Newton step is there long before the
duality gap is, which is about the curvature over the penalty times as large."""

MORE_ROWS = 4
"""Times the rows, at least, for the next proof of a fit."""

FACTORS = 24
"""Steps to the best factor of the residuals, at most, where both penalties are there."""


# The scale of Huber's loss.

SCALE_SOLVES = 40
"""Solves of the secant, at most: it needs four to eight, each from where the last one ended."""

SCALE_ROUNDS = 3
"""Moves of residuals for one proof, at most: those that become outliers stay so in the next."""

SCALE_INSIDE = 0.99
"""Of epsilon: residuals beyond this part stay where they are."""

SCALE_PRODUCTS = 2e9
"""Multiplications for the products of features by which residuals are moved: a second or less."""

OUTLIER_CURVATURE = 1e-3
"""In a Hessian, of samples on the straight part of Huber's loss."""


# Folds that go together.

POOR = 0.5
"""What `POOR_STEPS` steps leave of the decrement, from which on the solver itself takes over."""

POOR_STEPS = 3
"""Steps of one fold that may be poor."""

ROWS_OF_A_WEIGHT = 50
"""Rows for each weight, from which on folds whose Hessians are small go together, too."""

JOINT_WORK = 3e7
"""Multiplications for a Hessian of all rows, from which on they do."""

SCORES_OF_A_PATH = 4_000_000
"""Scores of held-out rows in memory, at most: 32 MB."""


# Blocks of rows.

BLOCK_BYTES = 3 << 19
"""Bytes of a block, converted: read for the scores, it is still in a core's cache for the
gradient."""

BLOCK_ROWS = 4096
"""Rows of a block of a Hessian's sum, at most."""

CACHED_NUMBERS = 1 << 16
"""Numbers of a part that is gone through several times, so that a core's cache holds them."""

PRODUCT_ROWS = 512
"""Rows that are still in a core's cache when their second product is taken."""

PART_ROWS = 1 << 16
"""Of what has a number for each row, where such arrays are long."""

LONG_ROWS = 1 << 20
"""Rows on disk from which on what has a number for each is processed in parts."""

NUMBERS_TOGETHER = 1 << 20
"""Numbers that are looked at together where nothing is multiplied."""

SPARSE_BLOCK = 3 << 16
"""Non-zeros of a block, at least: values and columns, 1.5 MB in float32, stay in a core's cache."""

SPARSE_BLOCK_OF_A_COLUMN = 4
"""Non-zeros of a block for each column: its gradient has p numbers, which are added to the rest."""

LEAST_BLOCK_ROWS = 64
"""Rows of a block, at least."""

SMALL_FOR_THREADS = 1_000_000
"""Numbers in the data. To ask BLAS for its threads costs 20 ms: smaller data leave it alone."""

SMALL_MAP = 1 << 20
"""Bytes of a memory map up to which it is an array like others."""

DISK_GAP = 1 << 14
"""Bytes that are read for nothing, if that saves a read: both take about as long."""

DISK_WIDEST = 4
"""Times its columns: a row further from the next is read through the mapping."""

DISK_AHEAD = 1 << 23
"""Bytes from what is read to what the system is asked to read next."""
