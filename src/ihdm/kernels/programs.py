"""The kernels themselves, in Triton.

Program (b, n, i) of a normalisation works on block b of the channels of image n, on all pixels or on chunk i of them.
FULL: all elements of all programs exist, so that no masks are needed.
"""

# mypy: ignore-errors
# ruff: noqa: SIM108 -- branches at compile time are clearer as such
import os

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")  # then formulas replace GPU instructions


@triton.jit
def _channels(SIZE: tl.constexpr, SLOTS: tl.constexpr, GROUPS: tl.constexpr):
    """This program's channels, and which are real: a group has a power of two of slots, some perhaps unused."""
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
def _load(X1, X2, p, c, real, PIXELS: tl.constexpr, C1: tl.constexpr, C2: tl.constexpr, FULL: tl.constexpr):
    """Pixels p of channels c of two feature maps side by side, in float32; 0 outside, unless all are inside."""
    inside = (p < PIXELS)[:, None] & real[None, :]
    place = _place(X1, X2, p, c, PIXELS, C1, C2)
    if FULL:
        x = tl.load(place)
    else:
        x = tl.load(place, mask=inside, other=0.0)
    if INTERPRETED or x.dtype != tl.bfloat16:
        x = x.to(tl.float32)
    else:  # two at a time, with one instruction each
        x = tl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=r,=r,r", [x], tl.float32, True, 2
        )
    return x


@triton.jit
def _store(X1, X2, x, p, c, real, PIXELS: tl.constexpr, C1: tl.constexpr, C2: tl.constexpr, FULL: tl.constexpr):
    """The reverse of `_load`."""
    x = x.to(X1.dtype.element_ty)
    inside = (p < PIXELS)[:, None] & real[None, :]
    place = _place(X1, X2, p, c, PIXELS, C1, C2)
    if FULL:
        tl.store(place, x)
    else:
        tl.store(place, x, mask=inside)


@triton.jit
def _by_group(x, SLOTS: tl.constexpr, GROUPS: tl.constexpr):
    """The sum over pixels and each group's channels; channels first, because a thread holds several of them."""
    return tl.sum(tl.sum(tl.reshape(x, (x.shape[0], GROUPS, SLOTS)), 2), 0)


@triton.jit
def _to_channels(x, SLOTS: tl.constexpr, GROUPS: tl.constexpr):
    """The value of each group, repeated for each of its slots."""
    return tl.reshape(tl.broadcast_to(x[:, None], (GROUPS, SLOTS)), (GROUPS * SLOTS,))


@triton.jit
def _group_mean(x, PIXELS: tl.constexpr, SIZE: tl.constexpr, SLOTS: tl.constexpr, GROUPS: tl.constexpr):
    """The mean of each channel's group, from the channels' sums over pixels."""
    return _to_channels(_by_group(x[None, :], SLOTS, GROUPS), SLOTS, GROUPS) / (SIZE * PIXELS)


@triton.jit
def _mixed(h):
    """A hash of 32 bits, which looks random."""
    h = (h ^ (h >> 16)) * 0x7FEB352D
    h = (h ^ (h >> 15)) * 0x846CA68B
    return h ^ (h >> 16)


@triton.jit
def _kept(p, c, SEED, threshold, PIXELS: tl.constexpr):
    """Which elements dropout keeps: the product of two odd numbers decides, one of the pixel and one of the channel.

    Each of the two is computed once for all elements that share it.
    """
    seed = tl.load(SEED).to(tl.uint32)
    row = _mixed((tl.program_id(1) * PIXELS + p).to(tl.uint32) ^ seed) | 1
    column = _mixed(c.to(tl.uint32) ^ (seed * 0x85EBCA77)) | 1
    return row[:, None] * column[None, :] >= threshold.to(tl.uint32)


@triton.jit
def _tanh(x, MAP):
    """tanh(x); for maps in bfloat16 (relative error 2^-9) by an instruction with a relative error of at most 2^-11."""
    if INTERPRETED or MAP.dtype.element_ty != tl.bfloat16:
        t = 1.0 - 2.0 / (1.0 + tl.exp(2.0 * x))
    else:
        t = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    return t


@triton.jit
def _shift_and_centre(
    X1, X2, SHIFT, shift_row, c, real,
    PIXELS: tl.constexpr, C1: tl.constexpr, C2: tl.constexpr, SIZE: tl.constexpr, SLOTS: tl.constexpr,
    GROUPS: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """What the level adds to each channel; and a number near each group's mean, to keep squared distances small."""
    shift = tl.zeros_like(c).to(tl.float32)
    if SHIFT is not None:
        shift = tl.load(SHIFT + tl.program_id(1) * shift_row + c, mask=real, other=0.0).to(tl.float32)
    first = _load(X1, X2, tl.arange(0, 1), c, real, PIXELS, C1, C2, FULL)
    return shift, _by_group(first + shift[None, :], SLOTS, GROUPS) / SIZE


@triton.jit
def _away(X1, X2, move, p, c, real, PIXELS: tl.constexpr, C1: tl.constexpr, C2: tl.constexpr, FULL: tl.constexpr):
    """x + move, and 0 outside."""
    away = _load(X1, X2, p, c, real, PIXELS, C1, C2, FULL) + move[None, :]
    if not FULL:
        away = tl.where((p < PIXELS)[:, None] & real[None, :], away, 0.0)
    return away


@triton.jit
def _activated(
    x, factor, offset, p, c, SEED, threshold, scale, Y,
    PIXELS: tl.constexpr, SILU: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """z = factor x + offset, or if asked for its SiLU, which is z / 2 + z / 2 tanh(z / 2); then dropout."""
    if SILU:
        factor, offset = 0.5 * factor, 0.5 * offset
    z = x * factor[None, :] + offset[None, :]
    y = z
    if DROPOUT:
        y *= tl.where(_kept(p, c, SEED, threshold, PIXELS), scale, 0.0)
    if SILU:
        y += y * _tanh(z, Y)
    return y


@triton.jit
def norm_forward(
    X1, X2, SHIFT, shift_row, WEIGHT, BIAS, SEED, Y, STATS, SUMS, eps, threshold, scale,
    PIXELS: tl.constexpr, C1: tl.constexpr, C2: tl.constexpr, SIZE: tl.constexpr, SLOTS: tl.constexpr,
    GROUPS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, FULL: tl.constexpr,
    SILU: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Small maps: all pixels at once. Large ones: chunk by chunk, with the sums from `norm_sums`."""
    c, real = _channels(SIZE, SLOTS, GROUPS)
    g = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    p = tl.arange(0, ROWS)
    C: tl.constexpr = C1 + C2
    groups: tl.constexpr = C // SIZE
    shift, centre = _shift_and_centre(X1, X2, SHIFT, shift_row, c, real, PIXELS, C1, C2, SIZE, SLOTS, GROUPS, FULL)
    if SUMS is None:
        away = _away(X1, X2, shift - _to_channels(centre, SLOTS, GROUPS), p, c, real, PIXELS, C1, C2, FULL)
        total, squares = _by_group(away, SLOTS, GROUPS), _by_group(away * away, SLOTS, GROUPS)
    else:
        total, squares = _gathered(SUMS, 0, g, g < groups, groups), _gathered(SUMS, 1, g, g < groups, groups)
    total /= SIZE * PIXELS
    mean, variance = centre + total, squares / (SIZE * PIXELS) - total * total
    inverse = tl.rsqrt(tl.maximum(variance, 0.0) + eps)
    if tl.program_id(2) == 0:
        place = STATS + tl.program_id(1) * groups + g
        tl.store(place, mean)
        tl.store(place + tl.num_programs(1) * groups, inverse)
    factor = _to_channels(inverse, SLOTS, GROUPS) * tl.load(WEIGHT + c, mask=real, other=0.0)
    offset = tl.load(BIAS + c, mask=real, other=0.0) + (shift - _to_channels(mean, SLOTS, GROUPS)) * factor
    if SUMS is not None:
        p += tl.program_id(2) * CHUNK
    for _ in range(0, CHUNK, ROWS):
        x = _load(X1, X2, p, c, real, PIXELS, C1, C2, FULL)  # small maps once more: cached, and registers are scarce
        y = _activated(x, factor, offset, p, c, SEED, threshold, scale, Y, PIXELS, SILU, DROPOUT)
        _store(Y, Y, y, p, c, real, PIXELS, C, 0, FULL)
        p += ROWS


@triton.jit
def _sums_place(SUMS, which, chunk, C: tl.constexpr):
    """SUMS has the shape (number of sums, images, chunks, C or groups); the number of chunks is the grid's."""
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
    X1, X2, SHIFT, shift_row, SUMS,
    PIXELS: tl.constexpr, C1: tl.constexpr, C2: tl.constexpr, SIZE: tl.constexpr, SLOTS: tl.constexpr,
    GROUPS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """For one chunk of pixels, each group's sums of distances from its centre and of their squares."""
    c, real = _channels(SIZE, SLOTS, GROUPS)
    g = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    groups: tl.constexpr = (C1 + C2) // SIZE
    chunk = tl.program_id(2)
    p = chunk * CHUNK + tl.arange(0, ROWS)
    shift, centre = _shift_and_centre(X1, X2, SHIFT, shift_row, c, real, PIXELS, C1, C2, SIZE, SLOTS, GROUPS, FULL)
    total = tl.zeros((ROWS, GROUPS * SLOTS), tl.float32)
    squares = tl.zeros_like(total)
    for _ in range(0, CHUNK, ROWS):
        away = _away(X1, X2, shift - _to_channels(centre, SLOTS, GROUPS), p, c, real, PIXELS, C1, C2, FULL)
        total += away
        squares += away * away
        p += ROWS
    tl.store(_sums_place(SUMS, 0, chunk, groups) + g, _by_group(total, SLOTS, GROUPS))
    tl.store(_sums_place(SUMS, 1, chunk, groups) + g, _by_group(squares, SLOTS, GROUPS))


@triton.jit
def _known(c, real, SHIFT, shift_row, WEIGHT, BIAS, STATS, C: tl.constexpr, SIZE: tl.constexpr):
    """The factor and offset that normalise, from the forward pass's statistics; weight and bias."""
    n, groups = tl.program_id(1), C // SIZE
    mean = tl.load(STATS + n * groups + c // SIZE, mask=real, other=0.0)
    inverse = tl.load(STATS + (tl.num_programs(1) + n) * groups + c // SIZE, mask=real, other=0.0)
    weight, bias = tl.load(WEIGHT + c, mask=real, other=0.0), tl.load(BIAS + c, mask=real, other=0.0)
    if SHIFT is not None:
        mean -= tl.load(SHIFT + n * shift_row + c, mask=real, other=0.0).to(tl.float32)
    return inverse, -mean * inverse, weight, bias


@triton.jit
def _before_activation(
    x, DY, SEED, p, c, real, threshold, scale, inverse, offset, weight, bias,
    PIXELS: tl.constexpr, C: tl.constexpr, FULL: tl.constexpr, SILU: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """dz, the gradient of the normalised input after weight and bias; 0 outside."""
    dz = _load(DY, DY, p, c, real, PIXELS, C, 0, FULL)
    if SILU:
        half = x * (0.5 * inverse * weight)[None, :] + (0.5 * (offset * weight + bias))[None, :]
        t = _tanh(half, DY)
        dz *= (0.5 * scale + 0.5 * scale * t) * (1 + half - half * t)
    elif DROPOUT:
        dz *= scale
    if DROPOUT:
        dz = tl.where(_kept(p, c, SEED, threshold, PIXELS), dz, 0.0)
    return dz


@triton.jit
def norm_backward(
    X1, X2, SHIFT, shift_row, WEIGHT, BIAS, SEED, STATS, DY, R1, R2, DX1, DX2, DSHIFT, DWEIGHT, DBIAS, SUMS,
    threshold, scale,
    PIXELS: tl.constexpr, C1: tl.constexpr, C2: tl.constexpr, SIZE: tl.constexpr, SLOTS: tl.constexpr,
    GROUPS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, FULL: tl.constexpr,
    SILU: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Small maps: all pixels at once. Large ones: chunk by chunk, with the sums from `norm_backward_sums`."""
    c, real = _channels(SIZE, SLOTS, GROUPS)
    p = tl.arange(0, ROWS)
    C: tl.constexpr = C1 + C2
    inverse, offset, weight, bias = _known(c, real, SHIFT, shift_row, WEIGHT, BIAS, STATS, C, SIZE)
    if SUMS is None:
        x = _load(X1, X2, p, c, real, PIXELS, C1, C2, FULL)
        dz = _before_activation(x, DY, SEED, p, c, real, threshold, scale, inverse, offset, weight, bias,
                                PIXELS, C, FULL, SILU, DROPOUT)  # fmt: skip
        dbias, products, total = tl.sum(dz, 0), tl.sum(dz * x, 0), tl.sum(x, 0)
    else:
        dbias, products = _gathered(SUMS, 0, c, real, C), _gathered(SUMS, 1, c, real, C)
        total = _gathered(SUMS, 2, c, real, C)
    dweight = inverse * products + offset * dbias
    along = inverse * _group_mean(dweight * weight, PIXELS, SIZE, SLOTS, GROUPS)
    common = inverse * _group_mean(dbias * weight, PIXELS, SIZE, SLOTS, GROUPS)
    pull = inverse * weight
    if tl.program_id(2) == 0:
        row = tl.program_id(1) * C
        tl.store(DWEIGHT + row + c, dweight, mask=real)
        tl.store(DBIAS + row + c, dbias, mask=real)
        if DSHIFT is not None:
            dshift = pull * dbias - PIXELS * common - along * (inverse * total + PIXELS * offset)
            tl.store(DSHIFT + row + c, dshift.to(DSHIFT.dtype.element_ty), mask=real)
    if SUMS is not None:
        p += tl.program_id(2) * CHUNK
    for _ in range(0, CHUNK, ROWS):
        x = _load(X1, X2, p, c, real, PIXELS, C1, C2, FULL)
        if SUMS is not None:
            dz = _before_activation(x, DY, SEED, p, c, real, threshold, scale, inverse, offset, weight, bias,
                                    PIXELS, C, FULL, SILU, DROPOUT)  # fmt: skip
        dx = pull[None, :] * dz - (x * (along * inverse)[None, :] + (common + along * offset)[None, :])
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
    """For one chunk of pixels, each channel's sums of dz, of dz x and of x."""
    c, real = _channels(SIZE, SLOTS, GROUPS)
    chunk = tl.program_id(2)
    p = chunk * CHUNK + tl.arange(0, ROWS)
    C: tl.constexpr = C1 + C2
    inverse, offset, weight, bias = _known(c, real, SHIFT, shift_row, WEIGHT, BIAS, STATS, C, SIZE)
    dbias = tl.zeros((ROWS, GROUPS * SLOTS), tl.float32)
    products, total = tl.zeros_like(dbias), tl.zeros_like(dbias)
    for _ in range(0, CHUNK, ROWS):
        x = _load(X1, X2, p, c, real, PIXELS, C1, C2, FULL)
        dz = _before_activation(x, DY, SEED, p, c, real, threshold, scale, inverse, offset, weight, bias,
                                PIXELS, C, FULL, SILU, DROPOUT)  # fmt: skip
        dbias += dz
        products += dz * x
        total += x
        p += ROWS
    tl.store(_sums_place(SUMS, 0, chunk, C) + c, tl.sum(dbias, 0), mask=real)
    tl.store(_sums_place(SUMS, 1, chunk, C) + c, tl.sum(products, 0), mask=real)
    tl.store(_sums_place(SUMS, 2, chunk, C) + c, tl.sum(total, 0), mask=real)


@triton.jit
def add(H, BIAS, X, TOTAL, pixels, C, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Program i works on some pixels, counted through all images, and on one block of channels."""
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
    """The sums over one chunk of pixels; SUMS has the shape (images, chunks, C)."""
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
