"""The kernels themselves, in Triton.

Program (b, n, i) of a normalisation works on block b of the channels of image n, on all pixels or on chunk i of them.
FULL: all elements of all programs exist.
"""

# mypy: ignore-errors
# ruff: noqa: SIM108 -- branches at compile time are clearer as such
import triton
import triton.language as tl


@triton.jit
def _channels(SIZE: tl.constexpr, SLOTS: tl.constexpr, GROUPS: tl.constexpr):
    """This program's channels, and which are real: a group has a power of two of slots, perhaps not all used."""
    slot = tl.arange(0, GROUPS * SLOTS)
    first = tl.program_id(0) * GROUPS * SIZE
    if SLOTS == SIZE:
        c, real = first + slot, slot >= 0
    else:
        c, real = first + slot // SLOTS * SIZE + slot % SLOTS, slot % SLOTS < SIZE
    return c, real


@triton.jit
def _place(X1, X2, p, c, PIXELS: tl.constexpr, C1: tl.constexpr, C2: tl.constexpr):
    """Where pixels p of channels c of this program's image are, in one feature map or in two side by side."""
    n = tl.program_id(1).to(tl.int64)
    if C2 == 0:
        place = (X1 + n * PIXELS * C1 + c)[None, :] + p[:, None] * C1
    else:
        first = tl.where(c < C1, X1 + n * PIXELS * C1 + c, X2 + n * PIXELS * C2 + c - C1)
        place = first[None, :] + p[:, None] * tl.where(c < C1, C1, C2)[None, :]
    return place


@triton.jit
def _load(
    X1, X2, p, c, real,
    PIXELS: tl.constexpr, C1: tl.constexpr, C2: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """Pixels p of channels c of two feature maps side by side, in float32; 0 outside, unless all are inside."""
    inside = (p < PIXELS)[:, None] & real[None, :]
    place = _place(X1, X2, p, c, PIXELS, C1, C2)
    if FULL:
        x = tl.load(place).to(tl.float32)
    else:
        x = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    return x


@triton.jit
def _store(
    X1, X2, x, p, c, real,
    PIXELS: tl.constexpr, C1: tl.constexpr, C2: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """The reverse of `_load`."""
    x = x.to(X1.dtype.element_ty)
    inside = (p < PIXELS)[:, None] & real[None, :]
    place = _place(X1, X2, p, c, PIXELS, C1, C2)
    if FULL:
        tl.store(place, x)
    else:
        tl.store(place, x, mask=inside)


@triton.jit
def _inside(x, p, PIXELS: tl.constexpr, FULL: tl.constexpr):
    """x, with 0 for pixels that do not exist."""
    if not FULL:
        x = tl.where((p < PIXELS)[:, None], x, 0.0)
    return x


@triton.jit
def _group_sums(x, SLOTS: tl.constexpr, GROUPS: tl.constexpr):
    """The sum over each group, for each of its slots."""
    sums = tl.sum(tl.reshape(x, (GROUPS, SLOTS)), 1)
    return tl.reshape(tl.broadcast_to(sums[:, None], (GROUPS, SLOTS)), (GROUPS * SLOTS,))


@triton.jit
def _kept(p, c, SEED, threshold, PIXELS: tl.constexpr, C: tl.constexpr):
    """Which elements dropout keeps: a hash of the element's number and the seed."""
    number = (tl.program_id(1) * PIXELS + p)[:, None] * C + c[None, :]
    h = number.to(tl.uint32) ^ tl.load(SEED).to(tl.uint32)
    h = (h ^ (h >> 16)) * 0x7FEB352D
    return (h ^ (h >> 15)) * 0x846CA68B >= threshold.to(tl.uint32)


@triton.jit
def _sigmoid(z):
    root = tl.rsqrt(1.0 + tl.exp(-z))  # its square is cheaper than a division
    return root * root


@triton.jit
def _finish(
    total, squares, pivot, c, real, SHIFT, shift_row, WEIGHT, BIAS, STATS, eps,
    PIXELS: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr, SLOTS: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Factor and offset of each channel, from its sums of x - pivot and of the squares; keep mean and 1 / deviation."""
    own = total / PIXELS  # each channel's mean, and then the group's
    squares -= total * own
    own += pivot
    shift = tl.zeros_like(own)
    if SHIFT is not None:
        shift = tl.load(SHIFT + tl.program_id(1) * shift_row + c, mask=real, other=0.0).to(tl.float32)
        own += shift
    mean = _group_sums(tl.where(real, own, 0.0), SLOTS, GROUPS) / SIZE
    apart = tl.where(real, own - mean, 0.0)
    variance = _group_sums(squares + PIXELS * apart * apart, SLOTS, GROUPS) / (SIZE * PIXELS)
    inverse = tl.rsqrt(tl.maximum(variance, 0.0) + eps)
    groups: tl.constexpr = C // SIZE
    place = STATS + tl.program_id(1) * groups + c // SIZE
    if tl.program_id(2) == 0:
        first = real & (c % SIZE == 0)
        tl.store(place, mean, mask=first)
        tl.store(place + tl.num_programs(1) * groups, inverse, mask=first)
    factor = inverse * tl.load(WEIGHT + c, mask=real, other=0.0)
    return factor, tl.load(BIAS + c, mask=real, other=0.0) + (shift - mean) * factor


@triton.jit
def _activated(
    x, factor, offset, p, c, SEED, threshold, scale,
    PIXELS: tl.constexpr, C: tl.constexpr, SILU: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    y = x * factor[None, :] + offset[None, :]
    if SILU:
        y *= _sigmoid(y)
    if DROPOUT:
        y = tl.where(_kept(p, c, SEED, threshold, PIXELS, C), y * scale, 0.0)
    return y


@triton.jit
def norm_forward(
    X1, X2, SHIFT, shift_row, WEIGHT, BIAS, SEED, Y, STATS, SUMS, eps, threshold, scale,
    PIXELS: tl.constexpr, C1: tl.constexpr, C2: tl.constexpr, SIZE: tl.constexpr, SLOTS: tl.constexpr,
    GROUPS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, FULL: tl.constexpr,
    SILU: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Small maps: all pixels at once. Large ones: chunk by chunk, with the sums that `norm_sums` has left."""
    c, real = _channels(SIZE, SLOTS, GROUPS)
    p = tl.arange(0, ROWS)
    C: tl.constexpr = C1 + C2
    pivot = tl.sum(_load(X1, X2, tl.arange(0, 1), c, real, PIXELS, C1, C2, FULL), 0)  # keeps the squares small
    if SUMS is None:
        x = _load(X1, X2, p, c, real, PIXELS, C1, C2, FULL)
        away = _inside(x - pivot[None, :], p, PIXELS, FULL)
        total, squares = tl.sum(away, 0), tl.sum(away * away, 0)
    else:
        total, squares = _gathered(SUMS, 0, c, real, C), _gathered(SUMS, 1, c, real, C)
    factor, offset = _finish(total, squares, pivot, c, real, SHIFT, shift_row, WEIGHT, BIAS, STATS, eps,
                             PIXELS, C, SIZE, SLOTS, GROUPS)  # fmt: skip
    if SUMS is None:
        x = _load(X1, X2, p, c, real, PIXELS, C1, C2, FULL)  # again: it is in the cache, and registers are scarce
        y = _activated(x, factor, offset, p, c, SEED, threshold, scale, PIXELS, C, SILU, DROPOUT)
        _store(Y, Y, y, p, c, real, PIXELS, C, 0, FULL)
    else:
        p += tl.program_id(2) * CHUNK
        for _ in range(0, CHUNK, ROWS):
            x = _load(X1, X2, p, c, real, PIXELS, C1, C2, FULL)
            y = _activated(x, factor, offset, p, c, SEED, threshold, scale, PIXELS, C, SILU, DROPOUT)
            _store(Y, Y, y, p, c, real, PIXELS, C, 0, FULL)
            p += ROWS


@triton.jit
def _sums_place(SUMS, which, chunk, C: tl.constexpr):
    """SUMS has the shape (number of sums, images, chunks, C); the number of chunks is the grid's."""
    return SUMS + ((which * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(2) + chunk) * C


@triton.jit
def _gathered(SUMS, which, c, real, C: tl.constexpr):
    """A sum over all chunks."""
    total = tl.zeros_like(c).to(tl.float32)
    for chunk in range(tl.num_programs(2)):
        total += tl.load(_sums_place(SUMS, which, chunk, C) + c, mask=real, other=0.0)
    return total


@triton.jit
def norm_sums(
    X1, X2, SUMS,
    PIXELS: tl.constexpr, C1: tl.constexpr, C2: tl.constexpr, SIZE: tl.constexpr, SLOTS: tl.constexpr,
    GROUPS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """Of one chunk of pixels, the sums of x - pivot and of its squares."""
    c, real = _channels(SIZE, SLOTS, GROUPS)
    p = tl.program_id(2) * CHUNK + tl.arange(0, ROWS)
    pivot = tl.sum(_load(X1, X2, tl.arange(0, 1), c, real, PIXELS, C1, C2, FULL), 0)
    total, squares = tl.zeros((ROWS, GROUPS * SLOTS), tl.float32), tl.zeros((ROWS, GROUPS * SLOTS), tl.float32)
    for _ in range(0, CHUNK, ROWS):
        away = _inside(_load(X1, X2, p, c, real, PIXELS, C1, C2, FULL) - pivot[None, :], p, PIXELS, FULL)
        total += away
        squares += away * away
        p += ROWS
    tl.store(_sums_place(SUMS, 0, tl.program_id(2), C1 + C2) + c, tl.sum(total, 0), mask=real)
    tl.store(_sums_place(SUMS, 1, tl.program_id(2), C1 + C2) + c, tl.sum(squares, 0), mask=real)


@triton.jit
def _known(
    c, real, SHIFT, shift_row, WEIGHT, BIAS, STATS, C: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """What the forward pass has found: factor and offset that normalise, weight and bias."""
    n, groups = tl.program_id(1), C // SIZE
    mean = tl.load(STATS + n * groups + c // SIZE, mask=real, other=0.0)
    inverse = tl.load(STATS + (tl.num_programs(1) + n) * groups + c // SIZE, mask=real, other=0.0)
    weight, bias = tl.load(WEIGHT + c, mask=real, other=0.0), tl.load(BIAS + c, mask=real, other=0.0)
    if SHIFT is not None:
        mean -= tl.load(SHIFT + n * shift_row + c, mask=real, other=0.0).to(tl.float32)
    return inverse, -mean * inverse, weight, bias


@triton.jit
def _before_norm(
    X1, X2, SEED, DY, p, c, real, threshold, scale, inverse, offset, weight, bias,
    PIXELS: tl.constexpr, C1: tl.constexpr, C2: tl.constexpr, FULL: tl.constexpr,
    SILU: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """The normalised input, and the gradient of what weight and bias made of it."""
    C: tl.constexpr = C1 + C2
    x = _load(X1, X2, p, c, real, PIXELS, C1, C2, FULL)
    dz = _load(DY, DY, p, c, real, PIXELS, C, 0, FULL)
    normal = _inside(x * inverse[None, :] + offset[None, :], p, PIXELS, FULL)
    if DROPOUT:
        dz = tl.where(_kept(p, c, SEED, threshold, PIXELS, C), dz * scale, 0.0)
    if SILU:
        z = normal * weight[None, :] + bias[None, :]
        gate = _sigmoid(z)
        dz *= gate * (1 + z * (1 - gate))
    return normal, dz


@triton.jit
def norm_backward(
    X1, X2, SHIFT, shift_row, WEIGHT, BIAS, SEED, STATS, DY, R1, R2, DX1, DX2, DSHIFT, DWEIGHT, DBIAS, SUMS,
    threshold, scale,
    PIXELS: tl.constexpr, C1: tl.constexpr, C2: tl.constexpr, SIZE: tl.constexpr, SLOTS: tl.constexpr,
    GROUPS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, FULL: tl.constexpr,
    SILU: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Small maps: all pixels at once. Large ones: chunk by chunk, with the sums that `norm_backward_sums` has left."""
    c, real = _channels(SIZE, SLOTS, GROUPS)
    p = tl.arange(0, ROWS)
    C: tl.constexpr = C1 + C2
    n = tl.program_id(1)
    inverse, offset, weight, bias = _known(c, real, SHIFT, shift_row, WEIGHT, BIAS, STATS, C, SIZE)
    if SUMS is None:
        normal, dz = _before_norm(X1, X2, SEED, DY, p, c, real, threshold, scale, inverse, offset, weight, bias,
                                  PIXELS, C1, C2, FULL, SILU, DROPOUT)  # fmt: skip
        dbias, dweight, normals = tl.sum(dz, 0), tl.sum(dz * normal, 0), tl.sum(normal, 0)
    else:
        dbias, dweight = _gathered(SUMS, 0, c, real, C), _gathered(SUMS, 1, c, real, C)
        normals = _gathered(SUMS, 2, c, real, C)
    along = inverse * _group_sums(dweight * weight, SLOTS, GROUPS) / (SIZE * PIXELS)
    common = inverse * _group_sums(dbias * weight, SLOTS, GROUPS) / (SIZE * PIXELS)
    pull = inverse * weight
    if tl.program_id(2) == 0:
        tl.store(DWEIGHT + n * C + c, dweight, mask=real)
        tl.store(DBIAS + n * C + c, dbias, mask=real)
        if DSHIFT is not None:
            dshift = pull * dbias - PIXELS * common - along * normals
            tl.store(DSHIFT + n * C + c, dshift.to(DSHIFT.dtype.element_ty), mask=real)
    if SUMS is None:
        x = _load(X1, X2, p, c, real, PIXELS, C1, C2, FULL)
        normal = x * inverse[None, :] + offset[None, :]
        dx = pull[None, :] * dz - common[None, :] - normal * along[None, :]
        if R1 is not None:
            dx += _load(R1, R2, p, c, real, PIXELS, C1, C2, FULL)
        _store(DX1, DX2, dx, p, c, real, PIXELS, C1, C2, FULL)
    else:
        p += tl.program_id(2) * CHUNK
        for _ in range(0, CHUNK, ROWS):
            normal, dz = _before_norm(X1, X2, SEED, DY, p, c, real, threshold, scale, inverse, offset, weight, bias,
                                      PIXELS, C1, C2, FULL, SILU, DROPOUT)  # fmt: skip
            dx = pull[None, :] * dz - common[None, :] - normal * along[None, :]
            if R1 is not None:
                dx += _load(R1, R2, p, c, real, PIXELS, C1, C2, FULL)
            _store(DX1, DX2, dx, p, c, real, PIXELS, C1, C2, FULL)
            p += ROWS


@triton.jit
def norm_backward_sums(
    X1, X2, SHIFT, shift_row, WEIGHT, BIAS, SEED, STATS, DY, SUMS, threshold, scale,
    PIXELS: tl.constexpr, C1: tl.constexpr, C2: tl.constexpr, SIZE: tl.constexpr, SLOTS: tl.constexpr,
    GROUPS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, FULL: tl.constexpr,
    SILU: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Of one chunk of pixels, the sums of dz, of dz x normalised and of normalised."""
    c, real = _channels(SIZE, SLOTS, GROUPS)
    p = tl.program_id(2) * CHUNK + tl.arange(0, ROWS)
    C: tl.constexpr = C1 + C2
    inverse, offset, weight, bias = _known(c, real, SHIFT, shift_row, WEIGHT, BIAS, STATS, C, SIZE)
    one = tl.zeros((ROWS, GROUPS * SLOTS), tl.float32)
    two, three = tl.zeros_like(one), tl.zeros_like(one)
    for _ in range(0, CHUNK, ROWS):
        normal, dz = _before_norm(X1, X2, SEED, DY, p, c, real, threshold, scale, inverse, offset, weight, bias,
                                  PIXELS, C1, C2, FULL, SILU, DROPOUT)  # fmt: skip
        one += dz
        two += dz * normal
        three += normal
        p += ROWS
    chunk = tl.program_id(2)
    tl.store(_sums_place(SUMS, 0, chunk, C) + c, tl.sum(one, 0), mask=real)
    tl.store(_sums_place(SUMS, 1, chunk, C) + c, tl.sum(two, 0), mask=real)
    tl.store(_sums_place(SUMS, 2, chunk, C) + c, tl.sum(three, 0), mask=real)


@triton.jit
def add(H, BIAS, X, TOTAL, pixels, C, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Program i works on some pixels, of all images in a row, and on one block of channels."""
    blocks = tl.cdiv(C, COLUMNS)
    c = tl.program_id(0) % blocks * COLUMNS + tl.arange(0, COLUMNS)
    p = (tl.program_id(0) // blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    place = p[:, None] * C + c[None, :]
    inside = (p < pixels)[:, None] & (c < C)[None, :]
    total = tl.load(H + place, mask=inside).to(tl.float32) + tl.load(BIAS + c, mask=c < C).to(tl.float32)[None, :]
    if X is not None:
        total += tl.load(X + place, mask=inside).to(tl.float32)
    tl.store(TOTAL + place, total.to(TOTAL.dtype.element_ty), mask=inside)


@triton.jit
def sum_pixels(X, SUMS, pixels, C, CHUNK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Of one chunk of pixels; SUMS has the shape (images, chunks, C)."""
    n, chunk = tl.program_id(1), tl.program_id(2)
    c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    p = chunk * CHUNK + tl.arange(0, ROWS)
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for _ in range(0, CHUNK, ROWS):
        inside = (p < pixels)[:, None] & (c < C)[None, :]
        place = X + n.to(tl.int64) * pixels * C + p[:, None] * C + c[None, :]
        sums += tl.load(place, mask=inside, other=0.0).to(tl.float32)
        p += ROWS
    place = SUMS + (n * tl.num_programs(2) + chunk) * C + c
    tl.store(place, tl.sum(sums, 0).to(SUMS.dtype.element_ty), mask=c < C)
