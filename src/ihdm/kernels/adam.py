"""An update of weights in one piece of memory: clipping, Adam, the moving average and the copy in lower precision.

The same mathematics in plain PyTorch is `optimisation.Adam`, and a test compares the two.
"""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def square_sums(G, SUMS, n, SIZE: tl.constexpr):
    """A sum of squares for each program, which takes every num_programs-th block."""
    total = tl.zeros((SIZE,), tl.float32)
    for start in range(tl.program_id(0) * SIZE, n, tl.num_programs(0) * SIZE):
        i = start + tl.arange(0, SIZE)
        g = tl.load(G + i, mask=i < n, other=0.0).to(tl.float32)
        total += g * g
    tl.store(SUMS + tl.program_id(0), tl.sum(total, 0))


@triton.jit
def rates_now(SUMS, TAKEN, RATES, NORM, NUMBERS, clip, log1, log2, COUNT: tl.constexpr):
    """The norm, and what `adam` needs: clipping factor, lr / (1 - beta1^t), sqrt(1 - beta2^t), rate of the average.

    log1, log2: of the betas. If the gradient is not finite, t stays, and the first of the numbers is negative.
    """
    norm = tl.sqrt(tl.sum(tl.load(SUMS + tl.arange(0, COUNT)), 0))
    finite = norm < float("inf")
    t = tl.load(TAKEN) + tl.where(finite, 1.0, 0.0)
    one, two = 1.0 - tl.exp(t.to(tl.float64) * log1), 1.0 - tl.exp(t.to(tl.float64) * log2)
    tl.store(NORM, norm)
    tl.store(TAKEN, t)
    tl.store(NUMBERS, tl.where(finite, tl.minimum(clip / (norm + 1e-6), 1.0), -1.0))
    tl.store(NUMBERS + 1, (tl.load(RATES).to(tl.float64) / one).to(tl.float32))
    tl.store(NUMBERS + 2, tl.sqrt(two).to(tl.float32))
    tl.store(NUMBERS + 3, tl.load(RATES + 1))


@triton.jit
def adam(W, G, M, V, A, LOW, NUMBERS, n, beta1, beta2, eps, SIZE: tl.constexpr):
    """Update weights W with gradients G and moments M, V, then their average A and, if given, LOW: W, less precise."""
    clip = tl.load(NUMBERS)
    if clip >= 0:
        i = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
        inside = i < n
        g = tl.load(G + i, mask=inside, other=0.0).to(tl.float32) * clip
        m = beta1 * tl.load(M + i, mask=inside, other=0.0) + (1 - beta1) * g
        v = beta2 * tl.load(V + i, mask=inside, other=0.0) + (1 - beta2) * g * g
        w = tl.load(W + i, mask=inside, other=0.0)
        w -= tl.load(NUMBERS + 1) * m / (tl.sqrt(v) / tl.load(NUMBERS + 2) + eps)
        a = tl.load(A + i, mask=inside, other=0.0)
        tl.store(M + i, m, mask=inside)
        tl.store(V + i, v, mask=inside)
        tl.store(W + i, w, mask=inside)
        tl.store(A + i, a + tl.load(NUMBERS + 3) * (w - a), mask=inside)
        if LOW is not None:
            tl.store(LOW + i, w.to(LOW.dtype.element_ty), mask=inside)
